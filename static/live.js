// @ts-check
/**
 * What follows the first view: lines, menu, keys, looks that nobody asks for; and of the list its
 * filters, new rows, clicks, and actions on all that match.
 */
import { ApiError, get, pause, poll, request } from './api.js';
import { find, h, icon, render, setText } from './dom.js';
import { countWords, isFinished } from './format.js';
import { ask, askingButton, button, sampleHint, valuesOf } from './forms.js';
import { isAdmin, store } from './store.js';
import { address } from './tasks.js';

/** @import {Shown, TaskList} from './tasks.js' */
/** @import {Catalogue, Row} from './types.js' */
/** @typedef {'retry'|'cancel'|'delete'} Action */

const OFF = 'jobqueue-keys-off';
const DAY = 864e5;
const DEAF = 1000;
/** How often the catalogue was asked for, and which of these was answered last. */
const asked = { last: 0, answered: 0 };
let learning = new AbortController();
let tried = 0;
let hush = 0;

/** What the lines above the page are about. */
const LINES = ['connection', 'exposed', 'service', 'code'];

/** The lines above the page, which say what is wrong; called at once. */
export function initializeLines() {
  find('.lines').append(...LINES.map((id) => (
    h('p', { id, hidden: true }, icon('alert'), h('span')))));
  find('#exposed').append(' ', h('a', { href: '#/settings/host' }, 'What was found'));
  store.on('trouble', patchConnection);
  store.on('service', patchService);
  store.on('session', patchService);
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
  initializeMenu();
  initializeSkip();
  initializeKeys();
  store.on('catalogue', patchCatalogue);
  patchCatalogue();
  store.on('session', learn);
  store.on('service', learnOfError);
  learn();
}

/**
 * Tells screen readers, and when `visible` everyone for some seconds.
 * @param {string} text
 * @param {boolean} [visible]
 */
export function say(text, visible = false) {
  const live = find('#live');
  if (!visible && live.matches('.toast')) return live.append(h('i', { class: 'hidden' }, text));
  live.classList.toggle('toast', visible);
  live.textContent = text;
  clearTimeout(hush);
  hush = setTimeout(() => live.classList.remove('toast'), 8000);
}

/** Instead of a page that could not be shown. @param {any} error */
export function showProblem(error) {
  if (!(error instanceof ApiError)) console.error(error);
  const { message, status } = error;
  const missing = status === 404;
  render(missing ? 'Not found' : 'Problem', h('h1', { tabindex: -1 }, missing
    ? 'There is nothing here' : status === 403 ? 'Only for admins' : 'That did not work'),
    h('p', {}, missing ? 'It was deleted, it belongs to someone else, or the address is wrong.'
      : message),
    h('p', {}, h('a', { href: '#/tasks' }, 'All tasks')));
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
  const words = `${status ? 'The server is busy' : 'Connection lost'}, trying again…`;
  patchLine('#connection', code && code !== 'busy' ? message : words);
}

/** The one sentence on what the queue is doing. */
function patchService() {
  const { service, session } = store.state;
  const shown = session && service && service.code !== 'ok' ? service : null;
  const { code = '' } = shown || {};
  find('#service').classList.toggle('calm', /busy|starting|paused|off|cron_wait/.test(code));
  find('#service').classList.toggle('brief', /busy|starting/.test(code));
  patchLine('#service', shown?.text);
}

/** What the session's beginning said is exposed. */
const readExposed = () => store.set('exposed', store.state.session?.exposed || []);

/** What anybody can read; it stays until a look finds nothing. */
function patchExposed() {
  const { exposed } = store.state;
  if (!exposed.length) return patchLine('#exposed');
  patchLine('#exposed', `Anybody can read this over the web: ${exposed.join(', ')}. Move it out of `
    + 'the web folder, or have the web server refuse it; then check again.');
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

/**
 * Does what a button asks for, once at a time, and says what went wrong. Who presses one that has
 * just come in the place of another meant that one.
 * @param {HTMLElement} button
 * @param {() => unknown} work
 */
export async function act(button, work) {
  const { ariaBusy, dataset: { changed } } = button;
  if (ariaBusy === 'true' || performance.now() - Number(changed) < DEAF) return;
  button.ariaBusy = 'true';
  try {
    await work();
  } catch (error) {
    say(problemWords(error), true);
  } finally {
    button.ariaBusy = null;
  }
}

/** What went wrong; what got no answer may have been done. @param {any} error */
export function problemWords({ message, safe, status }) {
  if (safe || ![0, 502, 504].includes(status)) return message;
  return message.replace('Please try again', 'See whether it was done before you try again');
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

/** Tells admins where their tasks.py is broken. */
function patchCatalogue() {
  const error = isAdmin() && store.state.catalogue?.error;
  if (!error) return patchLine('#code');
  const place = [error.file || 'tasks.py', error.line && `line ${error.line}`];
  patchLine('#code', `${place.filter(Boolean).join(', ')}: ${error.message}`);
}

/** The menu closes when one chooses, clicks or goes elsewhere, and on Escape. */
function initializeMenu() {
  const menu = /** @type {HTMLDetailsElement} */ (find('details.menu'));
  const elsewhere = (/** @type {Event} */ event) => {
    const target = /** @type {Node} */ (event.target);
    const inside = menu.contains(target);
    const chosen = event.type === 'click' && !find('summary', menu).contains(target);
    if (!inside || chosen) menu.open = false;
  };
  document.addEventListener('click', elsewhere);
  document.addEventListener('focusin', elsewhere);
  menu.addEventListener('keydown', ({ key }) => {
    if (key !== 'Escape') return;
    menu.open = false;
    find('summary', menu).focus();
  });
  const button = find('#leave');
  button.addEventListener('click', () => act(button, logOut));
}

/** Ends the session; the page then shows the log-in. */
async function logOut() {
  await request('DELETE', 'api/session');
  find('main').replaceChildren();
  store.set('session', null);
}

/** The skip link must not change the address, which says where one is. */
function initializeSkip() {
  find('.skip').addEventListener('click', (event) => {
    event.preventDefault();
    find('h1').focus();
  });
}

/** @type {[string, string, (() => unknown)?][]} */
const KEYS = [
  ['/', 'search', search],
  ['n', 'new task', () => { location.hash = '#/new'; }],
  ['j', 'next task', () => step(1)],
  ['k', 'previous task', () => step(-1)],
  ['Enter', 'open the task'],
  ['?', 'these keys', showHelp],
];

/** Listens on the whole page. */
function initializeKeys() {
  document.addEventListener('keydown', (event) => {
    const action = KEYS.find(([key]) => key === event.key)?.[2];
    if (!action || !isFree(event) || !keysAreOn()) return;
    event.preventDefault();
    action();
  });
}

/** Whether one wants them; remembered in this browser. */
export function keysAreOn() {
  try {
    return !localStorage.getItem(OFF);
  } catch {
    return true;
  }
}

/** Remembers it in this browser. @param {boolean} on */
export function switchKeys(on) {
  if (on) localStorage.removeItem(OFF);
  else localStorage.setItem(OFF, '1');
}

/** Whether nothing else wants this key. @param {KeyboardEvent} event */
function isFree({ target, ctrlKey, metaKey, altKey }) {
  const typing = /** @type {Element} */ (target).closest('input, select, textarea, dialog');
  return store.state.session && !typing && !ctrlKey && !metaKey && !altKey;
}

/** Goes to the search, on the list if need be. */
async function search() {
  const field = () => find('input[type=search]');
  if (!field()) location.hash = '#/tasks';
  while (!field() || document.body.matches('.busy')) await pause(0.1);
  field().focus();
}

/** Moves through the list. @param {number} by */
function step(by) {
  const links = [...(find('.list tbody')?.querySelectorAll('a') || [])];
  const row = document.activeElement?.closest('.list tbody tr');
  const place = links.findIndex((link) => row?.contains(link));
  const next = place < 0 ? 0 : Math.min(links.length - 1, Math.max(0, place + by));
  links[next]?.focus();
}

/** Shows what there is, and where to switch it off. */
function showHelp() {
  const close = () => dialog.close();
  const list = h('dl', { class: 'pairs' });
  for (const [key, words] of KEYS) list.append(h('dt', {}, h('kbd', {}, key)), h('dd', {}, words));
  const dialog = h('dialog', { 'aria-labelledby': 'keys', onclose: () => dialog.remove() },
    h('h2', { id: 'keys' }, 'Keyboard'), list,
    h('p', { class: 'help' }, 'To switch them off: ',
      h('a', { href: '#/account', onclick: close }, 'your account')),
    h('button', { class: 'button', onclick: close }, 'Close'));
  find('body').append(dialog);
  dialog.showModal();
}

/** @type {string[]} */
let queueNames = [];
/** @type {string[]} */
let userNames = [];
/** @type {AbortSignal|undefined} the visit for which they were read */
let known;

/**
 * After each look; the first builds the filters. Resolves with the seconds until the next.
 * @param {TaskList} list @param {AbortSignal} signal
 */
export async function live(list, signal) {
  if (!list.filters.childElementCount) initializeList(list);
  takeIn(list);
  patchFilters(list);
  patchEmpty(list);
  await lookAfter(list, signal);
  if (known !== signal) await readChoices(list, signal).catch(() => null);
  return restAfter(list);
}

/** Few seconds while more than progress changes. @param {TaskList} list */
function restAfter(list) {
  const { page: { counts, tasks }, seen, wait } = list;
  list.seen = JSON.stringify(counts) + tasks.map(({ id, status }) => id + status);
  const most = counts.pending || counts.running ? 8 : 15;
  return list.wait = list.seen === seen ? Math.min(wait * 2.5, most) : 2;
}

/** Brings rows up to date; new ones wait above the list to be let in. @param {TaskList} list */
function takeIn(list) {
  const { body, page, rows } = list;
  const lowest = Math.min(...rows.keys());
  const unseen = page.tasks.filter((task) => !list.update(task));
  body.append(...unseen.filter(({ id }) => id < lowest).map((task) => list.add(task)));
  const fresh = unseen.filter(({ id }) => id > lowest);
  if (fresh.length > list.fresh.length) say(`${fresh.length} new`);
  list.fresh = fresh;
  list.patchFrame();
}

/** What one can do to a task from the list. @param {Row} task */
function actionFor(task) {
  if (task.status === 'failed' || task.status === 'cancelled') return 'Retry';
  return isFinished(task) || task.cancel_requested ? '' : 'Cancel';
}

/**
 * The button of a row, or what it asks, until one can do something else.
 * @param {Shown} shown
 */
function patchAction({ element, task }) {
  const { id } = task;
  const place = find('.do', element);
  const action = actionFor(task);
  const { action: before } = place.dataset;
  if (before === action) return;
  const focused = place.contains(document.activeElement);
  place.dataset.action = action;
  place.replaceChildren(action && h('button', { class: 'small', 'data-id': id,
    'data-changed': before && performance.now(), 'aria-label': `${action} ${id}` }, action));
  if (focused) (place.querySelector('button') || find('a', element)).focus();
}

/** Builds the filters and listens. @param {TaskList} list */
function initializeList(list) {
  list.patchAction = patchAction;
  buildFilters(list);
  list.body.addEventListener('click', (event) => click(list, event));
  store.on('catalogue', () => patchFilters(list));
}

/** Search, function, queue and, for admins, owner. @param {TaskList} list */
function buildFilters(list) {
  const { filters } = list;
  let timer = 0;
  filters.append(h('select', { name: 'function', 'aria-label': 'Function' }));
  filters.append(h('select', { name: 'queue', 'aria-label': 'Queue', hidden: true }));
  if (isAdmin()) filters.append(h('select', { name: 'owner', 'aria-label': 'Owner' }));
  filters.append(h('input', {
    type: 'search', name: 'q', 'aria-label': 'Search tasks', maxlength: 200,
    placeholder: 'Number, words, error, owner…',
  }), button('Actions', () => new Bulk(list.params, () => { list.resort = true; }),
    { 'aria-haspopup': 'dialog', title: 'Retry, cancel or delete all that match' }));
  filters.addEventListener('change', () => filter(list));
  filters.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => filter(list), 300);
  });
  filters.addEventListener('submit', (event) => {
    event.preventDefault();
    filter(list);
  });
}

/** What one can choose besides functions. @param {TaskList} list @param {AbortSignal} signal */
async function readChoices(list, signal) {
  /** @param {{name: string}[]} all */
  const names = (all) => all.map(({ name }) => name);
  queueNames = names((await get('api/queues', signal)).queues);
  if (isAdmin()) userNames = names((await get('api/users', signal)).users);
  known = signal;
  patchFilters(list);
}

/** Puts what the form says into the address. @param {TaskList} list */
function filter({ filters, params }) {
  const next = address(params, valuesOf(filters));
  if (filters.isConnected && next !== address(params, {})) location.replace(next);
}

/** Puts what the address says into the form. @param {TaskList} list */
function patchFilters(list) {
  const functions = store.state.catalogue?.functions.map(({ name }) => name) || [];
  patchChoice(list, 'function', 'All functions', functions);
  patchChoice(list, 'queue', 'All queues', queueNames);
  // One can choose a queue once there are two.
  find('[name=queue]', list.filters).hidden = queueNames.length < 2 && !list.params.has('queue');
  if (isAdmin()) patchChoice(list, 'owner', 'All owners', userNames);
  const search = /** @type {HTMLInputElement} */ (find('input', list.filters));
  if (search !== document.activeElement) search.value = list.params.get('q') || '';
}

/**
 * Adds what one can choose, and chooses what the address says.
 * @param {TaskList} list
 * @param {string} name
 * @param {string} all what choosing nothing is called
 * @param {string[]} values
 */
function patchChoice({ filters, params }, name, all, values) {
  const select = /** @type {HTMLSelectElement} */ (find(`[name=${name}]`, filters));
  const chosen = params.get(name) || '';
  const known = new Set([...select.options].map(({ value }) => value));
  for (const value of new Set(['', ...values, chosen])) {
    if (!known.has(value)) select.append(h('option', { value }, value || all));
  }
  if (select !== document.activeElement) select.value = chosen;
}

/** Says what an empty list means, and what to do about it. @param {TaskList} list */
function patchEmpty({ empty, page, params, rows }) {
  const kind = rows.size ? 'none' : page.next ? 'partly' : `${params}` ? 'filtered' : 'first';
  if (empty.dataset.kind === kind) return;
  empty.dataset.kind = kind;
  if (kind === 'none') empty.replaceChildren();
  if (kind === 'partly') {
    empty.replaceChildren(h('p', {}, 'No task matches so far. Look at older tasks.'));
  }
  if (kind === 'filtered') {
    empty.replaceChildren(h('p', {}, 'No task matches. ',
      h('a', { href: '#/tasks' }, 'Show all tasks')));
  }
  if (kind === 'first') empty.replaceChildren(...firstSteps());
}

/** For who has no task yet. */
function firstSteps() {
  const holder = h('div', { class: 'teach' }, h('h2', {}, 'No task yet'),
    h('p', {}, 'A task runs one function with the values you give it, in the background. '
      + 'You can close this page meanwhile.'),
    h('p', {}, h('a', { class: 'button primary', href: '#/new' }, 'Add the first task')));
  const hint = h('div');
  const patch = () => hint.replaceChildren(...sampleHint());
  store.on('catalogue', patch);
  patch();
  return [holder, hint];
}

/**
 * Asks after rows that no longer match, for they stay; a few at a time.
 * @param {TaskList} list
 * @param {AbortSignal} signal
 */
async function lookAfter(list, signal) {
  const { page, params, rows } = list;
  const seen = new Set(page.tasks.map(({ id }) => id));
  const lowest = Math.min(...seen);
  const status = params.get('status');
  const missing = [...rows.values()].filter(({ task }) => !seen.has(task.id)
    && (!isFinished(task) || (task.id > lowest && (!status || task.status === status))));
  for (const shown of missing.slice(0, 4)) await lookAt(list, shown, signal);
}

/**
 * Asks after one task; it goes to the end of the line, so that all have their turn.
 * @param {TaskList} list
 * @param {Shown} shown
 * @param {AbortSignal} signal
 */
async function lookAt(list, shown, signal) {
  const { id } = shown.task;
  list.rows.delete(id);
  try {
    const task = await get(`api/tasks/${id}`, signal);
    list.rows.set(id, shown);
    list.update(task);
  } catch {
    if (signal.aborted) list.rows.set(id, shown);
    else shown.element.classList.add('gone');
  }
}

/**
 * A click anywhere in a row opens its task, one on its button does what that says.
 * @param {TaskList} list
 * @param {MouseEvent} event
 */
function click(list, event) {
  const target = /** @type {Element} */ (event.target);
  const row = target.closest('tr');
  const button = target.closest('button');
  if (button?.dataset.id) act(button, () => change(list, button));
  else if (button || !row || target.closest('a') || getSelection()?.toString()) return;
  else if (!event.ctrlKey && !event.metaKey) find('a', row).click();
}

/**
 * Retries or cancels from the list; what runs is not stopped unasked.
 * @param {TaskList} list @param {HTMLElement} button
 */
function change(list, button) {
  const id = Number(button.dataset.id);
  const path = `api/tasks/${id}/${button.textContent?.toLowerCase()}`;
  const work = async () => list.update(await request('POST', path));
  if (list.rows.get(id)?.task.status !== 'running') return work();
  return ask(button, `Stop ${id}?`, 'Stop', work, 'Keep running');
}

/** @type {[Action, string, string][]} what it is called, and what was done */
const ACTIONS = [['retry', 'Retry', 'retried'], ['cancel', 'Cancel', 'cancelled'],
  ['delete', 'Delete', 'deleted']];
const NAMES = ['status', 'function', 'queue', 'owner', 'q'];

/** @param {number} count */
const exact = (count) => countWords(count, Infinity);

/** A dialog that offers what can be done to all tasks that match. */
export class Bulk {
  choices = h('div', { class: 'actions' }, 'Counting…');
  bar = h('progress', { hidden: true, 'aria-label': 'Progress' });
  text = h('p', { class: 'help' });
  close = button('Close', () => this.dialog.close());

  /** @param {URLSearchParams} params the filters @param {() => void} done */
  constructor(params, done) {
    this.filter = Object.fromEntries([...params].filter(([name]) => NAMES.includes(name)));
    const words = Object.values(this.filter).join(' · ');
    this.dialog = h('dialog', { 'aria-labelledby': 'bulk', onclose: () => {
      this.dialog.remove();
      done();
    } }, h('h2', { id: 'bulk' }, words ? 'All tasks that match' : 'All tasks'),
    words && h('p', { class: 'lead' }, h('bdi', {}, words)), this.choices, this.bar, this.text,
    h('div', { class: 'actions' }, this.close));
    find('body').append(this.dialog);
    this.dialog.showModal();
    this.offer().catch((error) => setText(this.choices, error.message));
  }

  /** Counts, and offers what can be done. */
  async offer() {
    const offers = await Promise.all(ACTIONS.map(async ([action, label, past]) => {
      const count = await countFor(action, this.filter);
      const said = `${label} ${exact(count)}`;
      return count > 0 && askingButton(said, `${said}?`, () => this.run(action, past, count));
    }));
    const some = /** @type {HTMLElement[]} */ (offers.filter(Boolean));
    this.choices.replaceChildren(...some.length ? some : ['There is nothing to do to them.']);
    this.bar.hidden = true;
    this.choices.hidden = false;
    setText(this.close, 'Close');
  }

  /**
   * Does it; what is not right any more is counted anew.
   * @param {Action} action @param {string} past @param {number} count
   */
  async run(action, past, count) {
    this.bar.hidden = false;
    this.choices.hidden = true;
    setText(this.close, 'Stop');
    this.close.focus();
    try {
      const all = await this.goThrough(action, past, count);
      say(`${exact(all)} ${all === 1 ? 'task was' : 'tasks were'} ${past}.`, true);
      this.dialog.close();
    } catch (error) {
      setText(this.text, /** @type {Error} */ (error).message);
      await this.offer();
    }
  }

  /**
   * One portion after the other, until all is done or the dialog is closed; how many were.
   * @param {Action} action @param {string} past @param {number} count
   */
  async goThrough(action, past, count) {
    const { bar, dialog, filter, text } = this;
    /** @type {Record<string, unknown>} */
    let rest = { expected_count: count };
    let all = 0;
    do {
      const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
      all += part.done;
      bar.value = all / count;
      setText(text, `${exact(all)} of ${exact(count)} ${past}`);
      rest = { continue: part.continue };
    } while (rest.continue && dialog.open);
    return all;
  }
}

/**
 * How many tasks an action would change; asking without the right count is refused with it.
 * @param {Action} action
 * @param {{}} filter
 * @returns {Promise<number>}
 */
async function countFor(action, filter) {
  /** @type {Record<string, unknown>} */
  let rest = {};
  try {
    do {
      const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
      rest = { continue: part.continue };
    } while (rest.continue);
  } catch (error) {
    if (error instanceof ApiError && error.status === 409) return error.count;
    throw error;
  }
  return 0;
}
