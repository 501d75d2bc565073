// @ts-check
/** Durations as people type them: 90 min, 1 h 30, 2 days; a number alone is of seconds. */
import { h } from './dom.js';
import { refusal } from './forms.js';
import { t } from './language.js';

/**
 * Seconds, how the page writes the unit, and how people may, in the languages of the page.
 * @type {[number, string, RegExp][]}
 */
const UNITS = [
  [604800, '', /^(w.*|sem.*|周|星期)$/],
  [86400, 'd', /^(d.*|t.*|j.*|天|日)$/],
  [3600, 'h', /^(h.*|st.*|小?时)$/],
  [60, 'min', /^(m|min.*|分钟?)$/],
  [1, 's', /^(s|se[ckg].*|秒钟?)$/],
];

/** The seconds that a text says; NaN if it says none. @param {string} text */
export function readDuration(text) {
  const words = text.toLowerCase().replace(/\b(and|und|et|y)\b|,(?!\d)/g, ' ').trim();
  let seconds = words ? 0 : NaN;
  let place = UNITS.length - 2;
  for (const [, number, unit] of words.matchAll(/(\d+(?:[.,]\d+)?)\s*([^\d\s.,]*)[.\s]*|./g)) {
    place = unit ? UNITS.findIndex(([, , pattern]) => pattern.test(unit)) : place + 1;
    seconds += Number(number?.replace(',', '.')) * (UNITS[place]?.[0] ?? NaN);
  }
  return seconds;
}

/** Seconds as they are typed into a field: 1 h 30 min. @param {number} seconds */
export function durationText(seconds) {
  const words = [];
  for (const [size, unit] of UNITS.slice(1)) {
    const count = size > 1 ? Math.floor(seconds / size) : seconds;
    if (count) words.push(`${count} ${unit}`);
    seconds -= count * size;
  }
  return words.join(' ') || '0 s';
}

/**
 * A field's control for a duration.
 * @param {string} name @param {unknown} seconds @param {Record<string, unknown>} [more]
 */
export const durationInput = (name, seconds, more) => h('input', { name, autocomplete: 'off',
  spellcheck: 'false', value: seconds == null ? null : durationText(Number(seconds)), ...more });

/**
 * What was typed into such a field, in seconds; null if it is empty.
 * @param {import('./types.js').Values} values @param {string} name
 */
export function secondsFrom(values, name) {
  if (!values[name].trim()) return null;
  const seconds = readDuration(values[name]);
  if (!Number.isNaN(seconds)) return seconds;
  const message = t('Please write it as 90 min, 1 h 30 or 2 days.');
  throw refusal([{ field: name, message }]);
}
