// @ts-check
/** The language of the page: English texts are the keys of its translations. */

/** @typedef {Record<string, unknown>} Places what stands at {name} */

/** Languages as they call themselves. @type {Record<string, string>} */
export const LANGUAGES = {
  en: 'English', de: 'Deutsch', es: 'Español', fr: 'Français', zh: '简体中文',
};
/** What `Intl` formats for; English as the English write it. */
export let locale = 'en-GB';
/** @type {Record<string, string>} */
let texts = {};

/** Reads the texts of the chosen language, or of the browser's. */
async function loadLanguage() {
  const wanted = [recall('language'), ...navigator.languages].map((one) => one.slice(0, 2));
  const chosen = wanted.find((one) => Object.hasOwn(LANGUAGES, one)) || 'en';
  if (chosen === 'en') return;
  const answer = await fetch(`static/languages/${chosen}.json`).catch(() => null);
  if (!answer?.ok) return;
  texts = await answer.json();
  locale = document.documentElement.lang = chosen;
}

/** What this browser keeps of what was chosen, or "". @param {string} name */
export function recall(name) {
  try {
    return localStorage.getItem(`jobqueue-${name}`) || '';
  } catch {
    return '';
  }
}

/** Keeps it, unless this browser keeps nothing. @param {string} name @param {string} value */
export function keep(name, value) {
  try {
    localStorage.setItem(`jobqueue-${name}`, value);
  } catch {
    // It then lasts as long as the page.
  }
}

/**
 * A text in the chosen language, with values at the places of their names in braces.
 * @param {string} english @param {Places} [places]
 */
export const t = (english, places) => fill(texts[english] || english, places);

/**
 * A text that depends on a count: 't.n("{count} task | {count} tasks", 3)', the form for one first.
 * @param {string} english @param {number} count @param {Places} [places]
 */
t.n = (english, count, places) => {
  const forms = (texts[english] || english).split(' | ');
  const one = new Intl.PluralRules(locale).select(count) === 'one';
  return fill(forms[one ? 0 : forms.length - 1], { count: grouped(count), ...places });
};

/** @param {string} text @param {Places} [places] */
const fill = (text, places) => (
  places ? text.replace(/{(\w+)}/g, (all, name) => String(places[name] ?? all)) : text);

/** A number in digits, with thin spaces between thousands. @param {number} count */
export const grouped = (count) => new Intl.NumberFormat(locale).formatToParts(count)
  .map(({ type, value }) => (type === 'group' ? '\u202f' : value)).join('');

await loadLanguage();        // what imports this has its texts when it is loaded
