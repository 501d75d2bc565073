// @ts-check
/** What the server says, in the page's language: its English texts are the keys of a second file; words of events. */
import { durationText, rangeWords } from './durations.js';
import { countWords, statusWord } from './format.js';
import { t } from './language.js';

/** @import {Activity, Forecast, Row} from './types.js' */

const PLACE = /{(\w+)[^}]*}/g;
/** Places for words of the server; elsewhere a single word is a name. */
const WORDS = /^(?:what|status)$/;
/** Places for numbers and times. */
const NUMBERS = /^(?:at|code|count|days|high|index|low|minutes|most|ms|row|seconds|size|version)$/;
const NUMBER = '-?\\d(?:[\\d.,:T-]*[\\dZ])?(?: [\\d:]+)?(?: UTC)?';
/** Places for a single word. */
const TOKENS = /^(?:field|host|program|queue|scheme)$/;
const LONGEST = 2000;
const MOST_PARTS = 7;           // of which one text is, with what is between them
/** @type {Record<string, string>} */
let texts = {};
/** How those look that have values in them. @type {[RegExp, string][]} */
let patterns = [];

/** The pattern of a place. @param {string} name */
const placePattern = (name) => `(?<${name}>${
  NUMBERS.test(name) ? NUMBER : TOKENS.test(name) ? '\\S+' : '(?:(?!; |\\.$).)+?'})`;

/** The pattern of a text with values. A name that comes again has the same value. @param {string} key */
function textPattern(key) {
  /** @type {Set<string>} */
  const names = new Set();
  const body = key.replace(/[.()|*+?]/g, '\\$&').replace(PLACE, (_, name) => {
    if (names.has(name)) return `\\k<${name}>`;
    names.add(name);
    return placePattern(name);
  });
  return new RegExp(`^${body}$`, 's');
}

/** Reads them, unless the page is in English. */
async function load() {
  const { lang } = document.documentElement;
  if (lang === 'en') return;
  const answer = await fetch(`static/languages/${lang}-server.json`).catch(() => null);
  if (!answer?.ok) return;
  texts = await answer.json();
  const keys = Object.keys(texts).filter((key) => key.includes('{'));
  const length = (/** @type {string} */ key) => key.replace(PLACE, '').length;
  patterns = keys.sort((one, other) => length(other) - length(one))
    .map((key) => [textPattern(key), texts[key]]);
}

/** A text of the server, or undefined. @param {string} english @returns {string|undefined} */
function known(english) {
  if (Object.hasOwn(texts, english)) return texts[english];
  if (english.length > LONGEST) return undefined;
  for (const [pattern, own] of patterns) {
    const values = pattern.exec(english)?.groups;
    if (values) {
      return own.replace(PLACE, (_, name) => (WORDS.test(name) ? said : saidName)(values[name]));
    }
  }
  return undefined;
}

/**
 * One text of the server, also with a full stop more or less; as it is, if it is not known.
 * @param {string} english @returns {string}
 */
export function saidWhole(english) {
  const stops = english.endsWith('.');
  const other = known(stops ? english.slice(0, -1) : `${english}.`);
  const own = stops ? known(english) ?? (other && `${other}.`)
    : other?.replace(/[.。]$/, '') ?? known(english);
  return own ?? t(english);
}

/** One of several texts; it may say of which field it is. @param {string} english */
function saidPart(english) {
  const own = saidWhole(english);
  const [, field, rest] = own === english && /^([\w.[\]-]+ )(.+)$/s.exec(english) || [];
  return field ? field + saidWhole(rest) : own;
}

/** A text of the server, or several in one line. @param {string} english @returns {string} */
export function said(english) {
  const whole = saidPart(english);
  const parts = whole === english ? english.split(/(; |: )/) : [whole];
  for (let from = 0; from < parts.length && parts.length > 1; from += 2) {
    for (let to = Math.min(parts.length, from + MOST_PARTS); to > from; to -= 2) {
      const part = parts.slice(from, to).join('');
      const own = /\s/.test(part) ? saidPart(part) : part;
      if (own !== part) {
        parts.splice(from, to - from, own);
        break;
      }
    }
  }
  return parts.join('');
}

/** What may be texts of the server; a single word is a name. @param {string} value */
export const saidName = (value) => (/\s/.test(value) ? said(value) : value);

/**
 * The detail and the errors of a refused request. What is known of neither stays as it is.
 * @param {{detail?: string, errors?: {message: string}[]}} problem
 */
export function saidProblem(problem) {
  if (problem.detail) problem.detail = said(problem.detail);
  for (const error of problem.errors || []) error.message = said(error.message);
}

/** Why tasks fail without an error. @type {Record<string, string>} */
export const REASONS = {
  error: t('an error'),
  timeout: t('the time limit'),
  crashed: t('a crash'),
  interrupted: t('an interruption'),
  dependency: t('an earlier task did not succeed'),
  unknown_function: t('the function is not in tasks.py'),
};

/** What went wrong, in one line, or ""; a function's own words stay. @param {Row} task */
export function errorLine({ error, reason }) {
  if (!error) return REASONS[reason || ''] || reason || '';
  return error.message ? `${error.type}: ${saidWhole(error.message)}`
    : saidWhole(`${error.type} without a message`);
}

/** For which tasks one waits. @param {number[]} ids */
export const waitingWords = (ids) => (
  t('for {tasks}', { tasks: ids.map((id) => `#${id}`).join(', ') }));

/** When it begins or ends, or why that is not known. @param {Forecast|null|undefined} forecast */
export function forecastWords(forecast) {
  if (!forecast) return '';
  const { before, expected_start: start, expected_end: end, reason, slow } = forecast;
  return [
    before && t('{count} before this one', { count: countWords(before) }),
    start ? t('starts {when}', { when: rangeWords(start) })
      : end && t('ends {when}', { when: rangeWords(end) }),
    slow && t('slower than usual'),
    !start && reason && said(reason),
  ].filter(Boolean).join(' · ');
}

/** What events are called. @type {Record<string, string>} */
export const EVENTS = {
  added: t('added'),
  started: t('started'),
  succeeded: t('succeeded'),
  failed: t('failed'),
  cancelled: t('cancelled'),
  retry: t('failed, will retry'),
  crashed: t('crashed'),
  interrupted: t('interrupted'),
  cancel_requested: t('asked to stop'),
  timeout: t('reached its time limit'),
  retried: t('retried'),
  deleted: t('deleted'),
  put_back: t('put back'),
  promoted: t('became due'),
  released: t('no longer waits for others'),
  bulk_cancel: t('many cancelled'),
  bulk_retry: t('many retried'),
  bulk_delete: t('many deleted'),
  worker_started: t('worker started'),
  worker_ended: t('worker ended'),
  worker_lost: t('worker lost'),
  worker_start_failed: t('worker start failed'),
  queue_changed: t('queue changed'),
  queue_deleted: t('queue deleted'),
  schedule_added: t('schedule added'),
  schedule_changed: t('schedule changed'),
  schedule_paused: t('schedule paused'),
  schedule_resumed: t('schedule resumed'),
  schedule_deleted: t('schedule deleted'),
  logged_in: t('logged in'),
  log_in_refused: t('log-in refused'),
  logged_out: t('logged out'),
  user_added: t('user added'),
  user_changed: t('user changed'),
  user_deleted: t('user deleted'),
  token_added: t('token added'),
  token_revoked: t('token revoked'),
  settings_changed: t('settings changed'),
};

/** What an event is called. @param {string} event */
export const eventWords = (event) => EVENTS[event] || event.replaceAll('_', ' ');

/** What was told of it; of tasks it is what their functions say. @param {Activity} entry */
export function messageWords({ event, message }) {
  const [, before, json] = /^(?:queue_changed|bulk_)/.test(event)
    && /^(\d+ tasks of )?({.*})$/s.exec(message || '') || [];
  if (message && json) return changeWords(parseInt(before, 10), JSON.parse(json));
  return message && (/^(?:user|worker|logged)_/.test(event) ? said : saidWhole)(message);
}

/**
 * The limits of a queue in words; nothing for those that it does not have.
 * @param {{max_running?: number|null, rate?: {count: number, seconds: number}|null,
 *   machines?: string[]|null}} limits
 */
export const limitWords = ({ max_running: most, rate, machines }) => [
  most != null && t('at most {count} at once', { count: countWords(most) }),
  rate && t('{count} in {time}',
    { count: countWords(rate.count), time: durationText(rate.seconds) }),
  machines && t.n('machine {names} | machines {names}', machines.length,
    { names: machines.join(', ') })];

/**
 * What was changed of a queue, or which tasks were changed together, in words.
 * @param {number} count of tasks
 * @param {{name?: string, paused?: boolean, paused_why?: string, max_running?: number|null,
 *   rate?: {count: number, seconds: number}|null, machines?: string[]|null, status?: string}} change
 */
function changeWords(count, { name, paused, paused_why: why, max_running: most, rate, machines, ...more }) {
  const none = [most, rate, machines].includes(null) && t('no limits');
  return [count && t.n('{count} task | {count} tasks', count),
    paused === undefined ? '' : paused ? t('paused') : t('resumed'), why,
    ...limitWords({ max_running: most, rate, machines }), none,
    ...Object.entries(more).map(([key, value]) => (
      key === 'status' ? String(value).split(',').map(statusWord).join(', ') : `${key} ${value}`))]
    .filter(Boolean).join(', ');
}

await load();
