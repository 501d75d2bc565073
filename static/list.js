// @ts-check
/** What follows the list's first rows: filters, new rows, clicks, and actions on all that match. */
import { ApiError, get, request } from './api.js';
import { find, h, setText } from './dom.js';
import { countWords, isFinished, timeWords } from './format.js';
import { ask, askingButton, button, sampleHint, valuesOf } from './forms.js';
import { act, say } from './live.js';
import { isAdmin, store } from './store.js';
import { address } from './tasks.js';

/** @import {Shown, TaskList} from './tasks.js' */
/** @import {Row} from './types.js' */
/** @typedef {'retry'|'cancel'|'delete'} Action */

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
export function firstSteps() {
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
const NAMES = ['status', 'function', 'queue', 'owner', 'q', 'error', 'ended_since'];

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
    const words = Object.entries(this.filter).map(([name, value]) => (name === 'ended_since'
      ? `since ${timeWords(new Date(value))}` : value)).join(' · ');
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
