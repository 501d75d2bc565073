// @ts-check
/** The menu of who is logged in: account, language, theme, leaving. */
import { request } from './api.js';
import { find, h } from './dom.js';
import { LANGUAGES, keep, recall, t } from './language.js';
import { act } from './live.js';
import { store } from './store.js';

const THEMES = { '': t('as the system has it'), light: t('light'), dark: t('dark') };

/** Adds what one can choose, and listens. */
export function initializeMenu() {
  const menu = /** @type {HTMLDetailsElement} */ (find('details.menu'));
  const button = find('#leave');
  button.before(choiceOf(t('Language'), LANGUAGES, document.documentElement.lang, (code) => {
    keep('language', code);
    location.reload();
  }), choiceOf(t('Theme'), THEMES, recall('theme'), (theme) => {
    keep('theme', theme);
    dispatchEvent(new Event('theme'));
  }));
  button.addEventListener('click', () => act(button, logOut));
  closeElsewhere(menu);
}

/**
 * Something to choose, which this browser remembers.
 * @param {string} label @param {Record<string, string>} choices @param {string} chosen
 * @param {(value: string) => void} choose
 */
function choiceOf(label, choices, chosen, choose) {
  const select = h('select', { onchange: () => choose(select.value) },
    ...Object.entries(choices).map(([value, words]) => (
      h('option', { value, selected: value === chosen }, words))));
  return h('label', {}, label, select);
}

/** The menu closes when one goes on, clicks or goes elsewhere, and on Escape.
 * @param {HTMLDetailsElement} menu */
function closeElsewhere(menu) {
  const look = (/** @type {Event} */ { target, type }) => {
    const at = /** @type {Element} */ (target);
    const stays = menu.contains(at) && (type === 'focusin' || at.closest('summary, label'));
    if (!stays) menu.open = false;
  };
  document.addEventListener('click', look);
  document.addEventListener('focusin', look);
  menu.addEventListener('keydown', ({ key }) => {
    if (key !== 'Escape') return;
    menu.open = false;
    find('summary', menu).focus();
  });
}

/** Ends the session; the page then shows the log-in. */
export async function logOut() {
  await request('DELETE', 'api/session');
  find('main').replaceChildren();
  store.set('session', null);
}
