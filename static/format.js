// @ts-check
/** Words for states, times and numbers. */
import { now } from './clock.js';
import { h, icon, setAttribute, setText } from './dom.js';
import { grouped, locale, t } from './language.js';

/** @import {Row} from './types.js' */

/** The states in the order of the tabs, and what they are called. */
const WORDS = {
  pending: t('pending'), running: t('running'), scheduled: t('scheduled'), waiting: t('waiting'),
  succeeded: t('succeeded'), failed: t('failed'), cancelled: t('cancelled'),
};
export const STATUSES = /** @type {(keyof typeof WORDS)[]} */ (Object.keys(WORDS));

/** Whether it will not go on by itself. @param {Row} task */
export const isFinished = (task) => ['succeeded', 'failed', 'cancelled'].includes(task.status);

/** What a state is called. @param {string} status */
export const statusWord = (status) => WORDS[/** @type {keyof typeof WORDS} */ (status)] || status;

/** The state in one word. @param {Row} task */
export function stateWord({ cancel_requested: asked, status }) {
  return status === 'running' && asked ? t('stopping…') : statusWord(status);
}

/** A state: shape, word and colour; `patchState` brings it up to date. @param {Row} task */
export function stateBadge(task) {
  const badge = h('span', { class: 'state' }, icon(task.status), h('span'));
  patchState(badge, task);
  return badge;
}

/** Brings a badge up to date. @param {Element} badge @param {Row} task */
export function patchState(badge, task) {
  if (badge.getAttribute('data-state') !== task.status) {
    badge.setAttribute('data-state', task.status);
    badge.firstChild?.replaceWith(icon(task.status));
  }
  setText(/** @type {Node} */ (badge.lastChild), stateWord(task));
}

/** Formats in the page's language. @param {Intl.DateTimeFormatOptions} options */
export const formatter = (options) => new Intl.DateTimeFormat(locale, options);
export const clock = formatter({ hour: '2-digit', minute: '2-digit' });
export const day = formatter({ day: 'numeric', month: 'short' });
const year = formatter({ day: 'numeric', month: 'short', year: 'numeric' });
const full = formatter({ dateStyle: 'full', timeStyle: 'long' });

/** Words for the days around today. @type {Record<number, string>} */
const DAYS = { [-1]: t('yesterday {time}'), 0: '{time}', 1: t('tomorrow {time}') };

/** A time as people say it: 12:01, yesterday 18:40, in 3 min. @param {Date} time */
export function timeWords(time) {
  const seconds = (time.getTime() - now()) / 1000;
  if (seconds > 1 && seconds < 3600) return t('in {time}', { time: duration(Math.ceil(seconds)) });
  const midnight = new Date(now()).setHours(0, 0, 0, 0);
  const days = Math.round((new Date(time).setHours(0, 0, 0, 0) - midnight) / 864e5);
  if (days in DAYS) return DAYS[days].replace('{time}', clock.format(time));
  return Math.abs(days) < 180 ? `${day.format(time)} ${clock.format(time)}` : year.format(time);
}

/**
 * Brings a <time> up to date: 5 s ago for a minute; its tooltip has the zone.
 * @param {Element} element @param {string|null} iso
 */
export function patchTime(element, iso) {
  const time = iso && Date.parse(iso) ? new Date(iso) : null;
  const ago = time ? Math.floor((now() - time.getTime()) / 1000) : 60;
  setText(element, !time ? '' : ago > -2 && ago < 60
    ? t('{count} s ago', { count: Math.max(0, ago) }) : timeWords(time));
  if (element.getAttribute('datetime') === iso) return;
  setAttribute(element, 'datetime', iso);
  setAttribute(element, 'title', time && full.format(time));
}

/** Seconds as people say them: 20 ms, 0.3 s, 12 s, 4 min, 2 h 5 min, 3 d. @param {number} seconds */
export function duration(seconds) {
  if (seconds > 0 && seconds < 0.05) return t('{count} ms', { count: Math.round(seconds * 1000) || 1 });
  const tenths = Math.max(0, Math.round(seconds * 10) / 10);
  if (seconds < 60) {
    return t('{seconds} s', { seconds: grouped(seconds < 10 ? tenths : Math.floor(seconds)) });
  }
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (!hours) return t('{minutes} min', { minutes });
  if (hours > 48) return t('{days} d', { days: grouped(Math.floor(hours / 24)) });
  return minutes % 60 ? t('{hours} h {minutes} min', { hours, minutes: minutes % 60 })
    : t('{hours} h', { hours });
}

/** The seconds since an attempt began, or that it took; null without one. @param {Row} task */
export function elapsed(task) {
  if (!task.started_at || !(task.status === 'running' || task.finished_at)) return null;
  const end = task.finished_at ? Date.parse(task.finished_at) : now();
  return Math.max(0, (end - Date.parse(task.started_at)) / 1000);
}

/** How long it may still take, once one can guess. @param {Row} task */
function estimate(task) {
  const seconds = elapsed(task);
  const { progress } = task;
  if (!progress || !seconds || progress < 0.03 || progress >= 1) return '';
  const time = duration(Math.ceil((seconds / progress) * (1 - progress)));
  return t('about {time} left', { time });
}

/** How far a task is, in percent and in its own words, and how long it may still take. @param {Row} task */
export const progressWords = (task) => [
  task.progress !== null && `${Math.floor(task.progress * 100)} %`, task.message, estimate(task),
].filter(Boolean).join(' · ');

/** How long it took, if that is known. @param {number|null} [seconds] */
export const tookWords = (seconds) => seconds != null && t('took {time}', { time: duration(seconds) });

/** A count, with thin spaces; the server often stops counting. @param {number} count */
export function countWords(count, most = 10000) {
  const text = grouped(Math.min(count, most));
  return count > most ? `${text}+` : text;
}
