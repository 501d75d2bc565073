// @ts-check
/** What follows the first view: lines above the page, looks that nobody asks for, menu, keys. */
import { get, isAdmin, mayChange, pause, poll, request, store } from './api.js';
import { find, h, icon, setText, textWith } from './dom.js';
import { act, choice, pairItems, say } from './forms.js';
import { LANGUAGES, keep, recall, t } from './language.js';
import { said } from './said.js';

/** @import {Catalogue} from './types.js' */

const DAY = 864e5;
/** How often the catalogue was asked for, and which of these was answered last. */
const asked = { last: 0, answered: 0 };
let learning = new AbortController();
let tried = 0;

/** What the lines above the page are about. */
const LINES = ['connection', 'exposed', 'service', 'code'];

/** The lines above the page, which say what is wrong; called at once. */
export function initializeLines() {
  find('.lines').append(...LINES.map((id) => (
    h('p', { id, hidden: true }, icon('alert'), h('span')))));
  find('#exposed').append(' ', h('a', { href: '#/settings/host' }, t('Show the files')));
  store.on('trouble', patchConnection);
  store.on('service', patchService);
  store.on('session', patchService);
  store.on('catalogue', patchService);
  store.on('session', readExposed);
  store.on('exposed', patchExposed);
  readExposed();
  patchConnection();
  patchService();
}

/** What else the frame needs; called after the first page. */
export function initializeFrame() {
  poll(new AbortController().signal, askService);
  workWhileOpen();
  // The skip link must not change the address, which says where one is.
  find('.skip').onclick = (event) => {
    event.preventDefault();
    find('h1').focus();
  };
  store.on('session', learn);
  store.on('service', learnOfError);
  learn();
  initializeMenu();
  initializeKeys();
}

/**
 * One line; hidden when there is nothing to say.
 * @param {string} selector
 * @param {string} [text]
 */
function patchLine(selector, text = '') {
  const line = find(selector);
  const words = find('span', line);
  if (text && words.textContent !== text) say(text);
  line.hidden = !text;
  setText(words, text);
}

/** Why there is no answer, while one goes on asking. */
function patchConnection() {
  const { trouble } = store.state;
  const lost = trouble?.status === 0;
  find('#connection').classList.toggle('calm', !lost);
  find('main').classList.toggle('lost', lost);
  if (!trouble) return patchLine('#connection');
  const { code, message, status } = trouble;
  const words = status ? t('The server is busy, trying again…')
    : t('Connection lost, trying again…');
  patchLine('#connection', code && code !== 'busy' ? message : words);
}

/** The one sentence on what the queue is doing. Admins read where their tasks.py is broken. */
function patchService() {
  const { catalogue, service, session } = store.state;
  const shown = session && service && service.code !== 'ok' ? service : null;
  const { code = '' } = shown || {};
  find('#service').classList.toggle('calm', /busy|starting|paused|cron_wait/.test(code));
  find('#service').classList.toggle('brief', /busy|starting/.test(code));
  const error = isAdmin() && catalogue?.error;
  const isCause = error && code === 'code_error';
  patchLine('#service', shown && !isCause ? said(shown.text) : '');
  if (!error) return patchLine('#code');
  const place = [error.file || 'tasks.py', error.line && t('line {line}', error)];
  const why = `${place.filter(Boolean).join(', ')}: ${said(error.message)}`;
  patchLine('#code', isCause ? t('Nothing new starts: {why}', { why }) : why);
}

/** What the session's beginning said is exposed. */
const readExposed = () => store.set('exposed', store.state.session?.exposed || []);

/** What anybody can read; it stays until a look finds nothing. */
function patchExposed() {
  const { exposed } = store.state;
  if (!exposed.length) return patchLine('#exposed');
  const files = exposed.join(', ');
  patchLine('#exposed', t('Anybody can read this over the web: {files}. Move it out of the web '
    + 'folder, or have the web server refuse it; then check again.', { files }));
}

/** Once a day an admin's browser sees whether it can fetch what is private. */
async function lookOutside() {
  const last = Date.parse(store.state.session?.looked_at || '') || 0;
  const next = Math.max(last + DAY, tried + DAY / 24);
  if (!isAdmin() || location.hash === '#/settings/host' || Date.now() < next) return;
  tried = Date.now();
  await import('./host.js').then(({ lookForExposed }) => lookForExposed()).catch(() => null);
}

/** Pages that do not ask for the sentence themselves still show it. */
async function askService() {
  if (store.state.session && !find('table.list')) await get('api/workers');
  await lookOutside();
  return store.state.service?.code === 'starting' ? 2 : 10;
}

/** Where tasks wait for who comes by: has some of them done, one portion after the other. */
async function workWhileOpen() {
  for (let rest = 2; ; await pause(rest)) {
    const { service, session } = store.state;
    if (document.hidden || !session || service?.code !== 'cron_wait') rest = 2;
    else {
      const { worked } = await request('POST', 'tick').catch(() => ({ worked: 0 }));
      rest = worked ? 1 : Math.min(60, rest * 2);
    }
  }
}

/** Reads it again once an error in tasks.py has come or gone. */
function learnOfError() {
  const { catalogue, service } = store.state;
  const known = Boolean(catalogue?.error);
  if (catalogue && isAdmin() && known !== (service?.code === 'code_error')) learn();
}

/** Reads the catalogue for who is logged in, as often as it takes. */
function learn() {
  learning.abort();
  const own = learning = new AbortController();
  if (!store.state.session) return store.set('catalogue', null);
  poll(own.signal, async () => {
    await readCatalogue(own.signal);
    own.abort();
    return 0;
  });
}

/**
 * The functions, for filters, forms and what is wrong in tasks.py; an answer that a later one
 * has overtaken is not kept.
 * @param {AbortSignal} signal
 * @returns {Promise<Catalogue>}
 */
export async function readCatalogue(signal) {
  const turn = asked.last += 1;
  const catalogue = await get('api/functions', signal);
  if (turn > asked.answered) {
    asked.answered = turn;
    store.set('catalogue', catalogue);
  }
  return catalogue;
}

const THEMES = { '': t('as the system has it'), light: t('light'), dark: t('dark') };

/** Adds what one can choose, and listens. */
function initializeMenu() {
  const button = find('#leave');
  button.before(choiceOf(t('Language'), LANGUAGES, document.documentElement.lang, (code) => {
    keep('language', code);
    location.reload();
  }), choiceOf(t('Theme'), THEMES, recall('theme'), (theme) => {
    keep('theme', theme);
    dispatchEvent(new Event('theme'));
  }));
  button.onclick = () => act(button, logOut);
}

/**
 * Something to choose, which this browser remembers.
 * @param {string} label @param {Record<string, string>} choices @param {string} chosen
 * @param {(value: string) => void} choose
 */
function choiceOf(label, choices, chosen, choose) {
  const select = choice({ onchange: () => choose(select.value) }, Object.entries(choices), chosen);
  return h('label', {}, label, select);
}

/** Ends the session; the page then shows the log-in. */
export async function logOut() {
  await request('DELETE', 'api/session');
  find('main').replaceChildren();
  store.set('session', null);
}

/** @type {[string, string, ((key: string) => unknown)?][]} */
const KEYS = [
  ['/', t('search'), search],
  ['n', t('new task'), () => { location.hash = '#/new'; }],
  ['j', t('next row or task'), () => step(1)],
  ['k', t('previous row or task'), () => step(-1)],
  ['Enter', t('open the row')],
  ['h', t('previous tab'), () => turn(-1)],
  ['l', t('next tab'), () => turn(1)],
  ['c', t('cancel the task, or the selected ones'), press],
  ['r', t('retry the task, or the selected ones'), press],
  ['x', t('select the row'), tick],
  ['u', t('back'), () => find('a.back, .back a')?.click()],
  ['?', t('these keys'), showHelp],
];

/** Those that one may use: viewers change nothing. */
const ownKeys = () => KEYS.filter(([key]) => mayChange() || !'ncrx'.includes(key));

/** Listens on the whole page. */
function initializeKeys() {
  document.addEventListener('keydown', (event) => {
    const action = ownKeys().find(([key]) => key === event.key)?.[2];
    if (!action || !isFree(event) || !keysAreOn()) return;
    event.preventDefault();
    action(event.key);
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

/** Presses the button that has this key: of the selected rows, of the row that has the focus, or of
 * the page. @param {string} key */
function press(key) {
  const button = `[aria-keyshortcuts=${key}]`;
  const part = find('.picked:not([hidden])') || document.activeElement?.closest('tr');
  find(part ? button : `main ${button}:not(tr *)`, part || document)?.click();
}

/** Shows what there is, and where to switch it off. */
function showHelp() {
  const close = () => dialog.close();
  const dialog = h('dialog', { 'aria-labelledby': 'keys', onclose: () => dialog.remove() },
    h('h2', { id: 'keys' }, t('Keyboard')), h('dl', { class: 'pairs' },
      ...pairItems(ownKeys().map(([key, words]) => [h('kbd', {}, key), words]))),
    h('p', { class: 'help' }, ...textWith('To switch them off: {account}',
      { account: h('a', { href: '#/account', onclick: close }, t('your account')) })),
    h('button', { class: 'button', onclick: close }, t('Close')));
  find('body').append(dialog);
  dialog.showModal();
}
