// @ts-check
/** The keyboard: what each key does, and the dialog that says so. */
import { pause } from './api.js';
import { find, h, textWith } from './dom.js';
import { keep, recall, t } from './language.js';
import { store } from './store.js';

/** @type {[string, string, (() => unknown)?][]} */
const KEYS = [
  ['/', t('search'), search],
  ['n', t('new task'), () => { location.hash = '#/new'; }],
  ['j', t('next row or task'), () => step(1)],
  ['k', t('previous row or task'), () => step(-1)],
  ['Enter', t('open it')],
  ['h', t('status before'), () => turn(-1)],
  ['l', t('status after'), () => turn(1)],
  ['c', t('cancel the task'), () => press('c')],
  ['r', t('retry the task'), () => press('r')],
  ['x', t('select the row'), tick],
  ['u', t('back'), () => find('a.back, .back a')?.click()],
  ['?', t('these keys'), showHelp],
];

/** Listens on the whole page. */
export function initializeKeys() {
  document.addEventListener('keydown', (event) => {
    const action = KEYS.find(([key]) => key === event.key)?.[2];
    if (!action || !isFree(event) || !keysAreOn()) return;
    event.preventDefault();
    action();
  });
}

/** Whether one wants them. */
export const keysAreOn = () => !recall('keys-off');

/** Remembers it in this browser. @param {boolean} on */
export const switchKeys = (on) => keep('keys-off', on ? '' : '1');

/** Whether nothing else wants this key. @param {KeyboardEvent} event */
function isFree({ target, ctrlKey, metaKey, altKey }) {
  const typing = /** @type {Element} */ (target)
    .closest('input:not([type=checkbox]), select, textarea, dialog');
  return store.state.session && !typing && !ctrlKey && !metaKey && !altKey;
}

/** Goes to the search, on the list if need be. */
async function search() {
  const field = () => find('input[type=search]');
  if (!field()) location.hash = '#/tasks';
  while (!field() || document.body.matches('.busy')) await pause(0.1);
  field().focus();
}

/** Moves through the rows of a list, or from one task to another. @param {number} by */
function step(by) {
  const links = [...document.querySelectorAll('main tbody tr')]
    .flatMap((row) => row.querySelector('a') || []);
  if (!links.length) return find(by > 0 ? 'main [rel=next]' : 'main [rel=prev]')?.click();
  const row = document.activeElement?.closest('tr');
  const place = links.findIndex((link) => row?.contains(link));
  const next = place < 0 ? 0 : Math.min(links.length - 1, Math.max(0, place + by));
  links[next]?.focus();
}

/** Ticks the row that has the focus, or no more. */
function tick() {
  const row = document.activeElement?.closest('tbody tr');
  if (row) find('.pick input', row)?.click();
}

/** Chooses the tab beside the chosen one. @param {number} by */
function turn(by) {
  const tabs = [...document.querySelectorAll('main .tabs a')];
  const next = tabs[tabs.findIndex((tab) => tab.hasAttribute('aria-current')) + by];
  if (next instanceof HTMLElement) next.click();
}

/** Presses the button that has this key: of the row that has the focus, or of the page.
 * @param {string} key */
function press(key) {
  const button = `[aria-keyshortcuts=${key}]`;
  const row = document.activeElement?.closest('tr');
  find(row ? button : `main ${button}:not(tr *)`, row || document)?.click();
}

/** Shows what there is, and where to switch it off. */
function showHelp() {
  const close = () => dialog.close();
  const list = h('dl', { class: 'pairs' });
  for (const [key, words] of KEYS) list.append(h('dt', {}, h('kbd', {}, key)), h('dd', {}, words));
  const dialog = h('dialog', { 'aria-labelledby': 'keys', onclose: () => dialog.remove() },
    h('h2', { id: 'keys' }, t('Keyboard')), list,
    h('p', { class: 'help' }, ...textWith('To switch them off: {account}',
      { account: h('a', { href: '#/account', onclick: close }, t('your account')) })),
    h('button', { class: 'button', onclick: close }, t('Close')));
  find('body').append(dialog);
  dialog.showModal();
}
