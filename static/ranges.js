// @ts-check
/** Numbers with a unit of time, and ranges of moments, in words. */
import { now } from './clock.js';
import { grouped, locale, t } from './language.js';

/** Seconds of a unit, a number of them, up to how many ahead it is used.
 * @type {[number, string, number][]} */
const RANGE_UNITS = [[1, 'second', 90], [60, 'minute', 7200], [3600, 'hour', 172800],
  [86400, 'day', Infinity]];

/** A number and its unit: 3 hours; in other languages with the units of durations.
 * @param {number} count @param {string} unit */
export function unitWords(count, unit) {
  const isEnglish = locale.startsWith('en');
  const number = grouped(count);
  const own = isEnglish ? '' : unit === 'second' ? t('{seconds} s', { seconds: number })
    : unit === 'minute' ? t('{minutes} min', { minutes: number })
      : unit === 'hour' ? t('{hours} h', { hours: number }) : '';
  return own || count.toLocaleString(locale, { style: 'unit', unit,
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
