// @ts-check
/** Durations as people type them (90 min, 1 h 30, 2 days), numbers with a unit of time, and ranges of moments. */
import { now } from './clock.js';
import { grouped, locale, t } from './language.js';

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

/** The time zone of this browser. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

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

/** Seconds of a unit, a number of them, up to how many ahead it is used.
 * @type {[number, string, number][]} */
const RANGE_UNITS = [[1, 'second', 90], [60, 'minute', 7200], [3600, 'hour', 172800],
  [86400, 'day', Infinity]];

/** A number and its unit: 3 hours; in other languages with the units of durations.
 * @param {number} count @param {string} unit */
export function unitWords(count, unit) {
  const isEnglish = locale.startsWith('en');
  const number = grouped(count);
  const own = { second: t('{seconds} s', { seconds: number }),
    minute: t('{minutes} min', { minutes: number }), hour: t('{hours} h', { hours: number }) }[unit];
  return !isEnglish && own || count.toLocaleString(locale, { style: 'unit', unit,
    unitDisplay: isEnglish ? 'long' : 'short' });
}

/** A range of moments as people say it: in 10 to 15 minutes. @param {[string, string]} range */
export function rangeWords(range) {
  const ahead = range.map((at) => Math.max(0, (Date.parse(at) - now()) / 1000));
  const [size, unit] = RANGE_UNITS.find(([, , most]) => ahead[1] < most) || RANGE_UNITS[3];
  const [low, high] = ahead.map((seconds) => Math.round(seconds / size));
  const time = unitWords(high, unit);
  if (!high) return t('right away');
  if (!low) return t('within {time}', { time });
  return low === high ? t('in about {time}', { time }) : t('in {low} to {time}', { low, time });
}
