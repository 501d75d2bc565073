// @ts-check
/** Words for states, times and numbers. */
import { now } from './api.js';
import { h, icon, setAttribute, setText } from './dom.js';

/** @import {Forecast, Row} from './types.js' */

export const STATUSES = /** @type {const} */ ([
  'pending', 'running', 'scheduled', 'waiting', 'succeeded', 'failed', 'cancelled',
]);
/** @type {Record<string, string>} */
const REASONS = {
  error: 'an error',
  timeout: 'the time limit',
  crashed: 'a crash',
  interrupted: 'an interruption',
  dependency: 'an earlier task did not succeed',
  unknown_function: 'the function is not in tasks.py',
};

/** The reason of a failure or a retry, in words. @param {string|null} reason */
const reasonWords = (reason) => REASONS[reason || ''] || reason || '';

/** Whether it will not go on by itself. @param {Row} task */
export const isFinished = (task) => ['succeeded', 'failed', 'cancelled'].includes(task.status);

/** The state in one word. @param {Row} task */
export function stateWord(task) {
  return task.status === 'running' && task.cancel_requested ? 'stopping…' : task.status;
}

/** What went wrong, in one line, or "". @param {Row} task */
export function errorLine({ error, reason }) {
  if (!error) return reasonWords(reason);
  return error.message ? `${error.type}: ${error.message}` : error.type;
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

/**
 * Formats in one way everywhere, because the page speaks one language.
 * @param {Intl.DateTimeFormatOptions} options
 */
export const formatter = (options) => new Intl.DateTimeFormat('en-GB', options);
const clock = formatter({ hour: '2-digit', minute: '2-digit' });
const day = formatter({ day: 'numeric', month: 'short' });
const year = formatter({ day: 'numeric', month: 'short', year: 'numeric' });
const full = formatter({ dateStyle: 'full', timeStyle: 'long' });

/** Words for the days around today. @type {Record<number, string>} */
const DAYS = { [-1]: 'yesterday ', 0: '', 1: 'tomorrow ' };

/** A time as people say it: 12:01, yesterday 18:40, in 3 min. @param {Date} time */
export function timeWords(time) {
  const seconds = (time.getTime() - now()) / 1000;
  if (seconds > 1 && seconds < 3600) return `in ${duration(Math.ceil(seconds))}`;
  const midnight = new Date(now()).setHours(0, 0, 0, 0);
  const days = Math.round((new Date(time).setHours(0, 0, 0, 0) - midnight) / 864e5);
  if (days in DAYS) return DAYS[days] + clock.format(time);
  return Math.abs(days) < 180 ? `${day.format(time)} ${clock.format(time)}` : year.format(time);
}

/**
 * Brings a <time> up to date: 5 s ago for a minute; its tooltip has the zone.
 * @param {Element} element @param {string|null} iso
 */
export function patchTime(element, iso) {
  const time = iso && Date.parse(iso) ? new Date(iso) : null;
  const ago = time ? Math.floor((now() - time.getTime()) / 1000) : 60;
  setText(element, !time ? '' : ago > -2 && ago < 60 ? `${Math.max(0, ago)} s ago` : timeWords(time));
  if (element.getAttribute('datetime') === iso) return;
  setAttribute(element, 'datetime', iso);
  setAttribute(element, 'title', time && full.format(time));
}

/** Seconds as people say them: 0.3 s, 12 s, 4 min, 2 h 5 min, 3 d. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 10) return `${Math.max(0, Math.round(seconds * 10) / 10)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  if (hours > 48) return `${Math.floor(hours / 24)} d`;
  const minutes = Math.floor((seconds % 3600) / 60);
  return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
}

/** Seconds of a unit, its name, up to how many ahead it is used. @type {[number, string, number][]} */
const RANGE_UNITS = [[1, 'second', 90], [60, 'minute', 7200], [3600, 'hour', 172800],
  [86400, 'day', Infinity]];

/** A range of moments as people say it: in 10 to 15 minutes. @param {[string, string]} range */
export function rangeWords(range) {
  const ahead = range.map((at) => Math.max(0, (Date.parse(at) - now()) / 1000));
  const [size, unit] = RANGE_UNITS.find(([, , most]) => ahead[1] < most) || RANGE_UNITS[3];
  const [low, high] = ahead.map((seconds) => Math.round(seconds / size));
  if (!high) return 'at any moment';
  const words = `${high} ${unit}${high > 1 ? 's' : ''}`;
  if (!low) return `within ${words}`;
  return low === high ? `in about ${words}` : `in ${low} to ${words}`;
}

/** When it begins or ends, or why that is not known. @param {Forecast|null|undefined} forecast */
export function forecastWords(forecast) {
  if (!forecast) return '';
  const { before, expected_start: start, expected_end: end, reason, slow } = forecast;
  return [
    before && `${countWords(before, 1e6)} before this one`,
    start ? `begins ${rangeWords(start)}` : end && `ends ${rangeWords(end)}`,
    slow && 'slower than usual',
    !start && reason,
  ].filter(Boolean).join(' · ');
}

/** The seconds since an attempt began, or that it took; null without one. @param {Row} task */
export function elapsed(task) {
  if (!task.started_at || !(task.status === 'running' || task.finished_at)) return null;
  const end = task.finished_at ? Date.parse(task.finished_at) : now();
  return Math.max(0, (end - Date.parse(task.started_at)) / 1000);
}

/** How long it may still take, once one can guess. @param {Row} task */
export function estimate(task) {
  const seconds = elapsed(task);
  const { progress } = task;
  if (!progress || !seconds || progress < 0.03 || progress >= 1) return '';
  return `about ${duration(Math.ceil((seconds / progress) * (1 - progress)))} left`;
}

/** A count, with thin spaces; the server often stops counting. @param {number} count */
export function countWords(count, most = 10000) {
  const text = Math.min(count, most).toLocaleString('en').replace(/,/g, '\u202f');
  return count > most ? `${text}+` : text;
}
