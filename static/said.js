// @ts-check
/** What the server says, in the page's language: its English texts are the keys of a second file. */
import { countWords, rangeWords } from './format.js';
import { t } from './language.js';

/** @import {Forecast} from './types.js' */

const PLACE = /{(\w+)[^}]*}/g;
/** @type {Record<string, string>} */
let texts = {};
/** How those look that have values in them. @type {[RegExp, string][]} */
let patterns = [];

/** Reads them, unless the page is in English. */
async function load() {
  const { lang } = document.documentElement;
  if (lang === 'en') return;
  const answer = await fetch(`static/languages/${lang}-server.json`).catch(() => null);
  if (!answer?.ok) return;
  texts = await answer.json();
  const keys = Object.keys(texts).filter((key) => key.includes('{'));
  patterns = keys.sort((one, other) => other.length - one.length).map((key) => [
    new RegExp(`^${key.replace(/[.()|*+?]/g, '\\$&').replace(PLACE, '(?<$1>(?:(?!; ).)+?)')}$`, 's'),
    texts[key]]);
}

/**
 * A text of the server; as it is, if it is none of those that are known.
 * @param {string} english @returns {string}
 */
export function said(english) {
  if (Object.hasOwn(texts, english)) return texts[english];
  for (const [pattern, own] of patterns) {
    const values = pattern.exec(english)?.groups;
    if (values) return own.replace(PLACE, (_, name) => saidName(values[name]));
  }
  return t(english);
}

/** What may be a text of the server; a single word is a name. @param {string} value */
export const saidName = (value) => (/\s/.test(value) ? said(value) : value);

/** Several texts of the server in one line. @param {string} english */
export function saidParts(english) {
  const parts = english.split(/(; |: )/);
  for (let from = 0; from < parts.length; from += 2) {
    for (let to = parts.length; to > from; to -= 2) {
      const part = parts.slice(from, to).join('');
      const own = said(part);
      if (own !== part) {
        parts.splice(from, to - from, own);
        break;
      }
    }
  }
  return parts.join('');
}

/** When it begins or ends, or why that is not known. @param {Forecast|null|undefined} forecast */
export function forecastWords(forecast) {
  if (!forecast) return '';
  const { before, expected_start: start, expected_end: end, reason, slow } = forecast;
  return [
    before && t('{count} before this one', { count: countWords(before, start ? 1e6 : 1e4) }),
    start ? t('begins {when}', { when: rangeWords(start) })
      : end && t('ends {when}', { when: rangeWords(end) }),
    slow && t('slower than usual'),
    !start && reason && said(reason),
  ].filter(Boolean).join(' · ');
}

await load();
