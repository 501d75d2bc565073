// @ts-check
/** What follows the list's first rows: widths, new rows, heads, groups, clicks, filters, the bar of many. */
import { ApiError, get, isAdmin, mayChange, request, store } from './api.js';
import { find, h, setAttribute, setText } from './dom.js';
import { rangeWords } from './durations.js';
import {
  countWords, duration, elapsed, isFinished, patchState, patchTime, stateBadge, stateWord, statusWord,
  timeWords,
} from './format.js';
import {
  act, ask, askingButton, badge, button, localTime, patchRows, sampleHint, savedMenu, say, valuesOf,
} from './forms.js';
import { grouped, t } from './language.js';
import { address, seesAll } from './places.js';
import { REASONS, errorLine, said, saidWhole, waitingWords } from './said.js';

/** @import {Shown, TaskList} from './tasks.js' */
/** @import {Group, Held, Row} from './types.js' */

const LONG = 400;               // characters of a text of which more is never seen
const GAP = 12;                 // pixels between columns
const NARROWEST = 96;           // pixels of a column
const LINE_SHARE = 0.53;        // of a text, which is broken between words, in each of two lines
const NARROW = matchMedia('(max-width: 640px)');
/** @type {WeakMap<TaskList, Picked>} */
const picked = new WeakMap();

/**
 * After each look. Resolves with the seconds until the next.
 * @param {TaskList} list @param {AbortSignal} signal
 */
export async function live(list, signal) {
  takeIn(list);
  showFilled(list);
  patchFilters(list);
  patchHeads(list);
  patchHeld(list);
  patchGroups(list);
  patchEmpty(list);
  picked.get(list)?.patch();
  await lookAfter(list, signal);
  showFilled(list);
  await readChoices(list, signal).catch(() => null);
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
  const { body, page: { tasks }, rows } = list;
  const last = tasks.map(({ id }) => rows.has(id)).lastIndexOf(true);
  const unseen = tasks.filter((task) => !list.update(task));
  body.append(...unseen.filter((task) => tasks.indexOf(task) > last).map((task) => list.add(task)));
  const fresh = unseen.filter((task) => tasks.indexOf(task) < last);
  if (fresh.length > list.fresh.length) say(t('{count} new', { count: fresh.length }));
  list.fresh = fresh;
  list.patchFrame();
}

/** Shows a column again that has something now. @param {TaskList} list */
function showFilled(list) {
  const idle = idleColumns(list);
  const { without = '' } = list.table.dataset;
  if (without.split(' ').some((name) => name && !idle.includes(name))) fit(list);
}

/** What one can do to a task from the list. @param {Row} task */
const actionFor = (task) => ACTIONS.slice(0, 2).find(([action]) => CAN[action](task)) || [''];

/** What a function returned, in one line. @param {unknown} result @returns {string} */
function resultWords(result) {
  if (result == null || typeof result !== 'object') return String(result ?? '');
  return Object.entries(result).map(([name, one]) => (Array.isArray(result) ? '' : `${name}: `)
    + (typeof one === 'object' ? JSON.stringify(one) : one)).join(', ');
}

/** A text that may be broken after its marks, as addresses and errors have them. @param {string} text */
function breakable(text) {
  const parts = text.slice(0, LONG).split(/(?<=[/\\.,(=:;&?@|](?=\w))(?<!\d[.,:])/);
  return [...parts.flatMap((part, place) => (place ? [h('wbr'), part] : part)), text.slice(LONG)];
}

/**
 * What came of it so far: a result, an error, a message, why it waits.
 * @param {Row} task @param {Held} [held] why its queue starts nothing
 */
function resultNote(task, held) {
  if (task.status === 'succeeded') return resultWords(task.result);
  if (task.status === 'running') return task.message || '';
  if (task.status === 'pending') {
    if (held?.code === 'paused') return t('queue paused');
    return task.expected_start ? t('starts {when}', { when: rangeWords(task.expected_start) })
      : held ? said(held.text) : '';
  }
  if (task.status === 'waiting') return waitingWords(task.after || []);
  if (task.status === 'scheduled' && task.reason) {
    return t('again after {error}', { error: errorLine(task) });
  }
  return task.status === 'failed' ? errorLine(task) : '';
}

/** A row's cells, still without what changes. @param {TaskList} list @param {Row} task */
function buildRow(list, { id, function: name, owner, status, summary }) {
  // Where all rows have one function, the arguments are the row's name.
  const bare = list.params.has('function');
  const link = (/** @type {string} */ words) => h('a', { href: `#/tasks/${id}`,
    'aria-label': `${name} ${summary}`, title: bare ? summary : name }, ...breakable(words));
  return h('tr', { 'data-id': id },
    h('td', { class: 'pick' }, h('input', { type: 'checkbox', value: id,
      'aria-label': t('Select {id}', { id }) })),
    h('td', { class: 'id' }, String(id)),
    !bare && h('th', { scope: 'row', class: 'name' }, link(name)),
    h(bare ? 'th' : 'td', { class: 'what', scope: bare && 'row', title: summary },
      h('bdi', {}, ...bare ? [link(summary || name)] : breakable(summary))),
    h('td', { class: 'status' }, stateBadge(/** @type {Row} */ ({ status }))),
    h('td', { class: 'result' }, h('progress', { 'aria-label': t('Progress') }),
      h('bdi', { class: 'note' })),
    seesAll() && h('td', { class: 'who' }, owner),
    h('td', { class: 'when' }, h('time')),
    h('td', { class: 'took' }),
    h('td', { class: 'do' }));
}

/**
 * Brings a row up to date without replacing any element; its button, or what it asks, stays
 * until one can do something else.
 * @param {TaskList} list @param {Shown} shown
 */
function patchRow({ page, params }, { element, task }) {
  const bar = /** @type {HTMLProgressElement} */ (find('progress', element));
  const seconds = elapsed(task);
  patchState(find('.state', element), task);
  bar.hidden = task.status !== 'running' || task.progress === null;
  bar.value = task.progress || 0;
  patchTime(find('.when time', element),
    task.status === 'scheduled' ? task.run_at : task.started_at || task.created_at);
  setText(find('.took', element), seconds === null ? '' : duration(seconds));
  const { id } = task;
  const held = page.held?.find(({ queue }) => queue === task.queue);
  const note = find('.note', element);
  // The tab says the state in words, for all rows but those that have left it.
  const left = params.get('status') === 'failed' && task.status !== 'failed' && stateWord(task);
  const words = [left, resultNote(task, held)].filter(Boolean).join(' · ');
  if (note.textContent !== words) note.replaceChildren(...breakable(words));
  note.title = held && task.status === 'pending' ? said(held.text) : words;
  const place = find('.do', element);
  const [action, label = ''] = actionFor(task);
  const { action: before } = place.dataset;
  if (before === action) return;
  const focused = place.contains(document.activeElement);
  place.dataset.action = action;
  place.replaceChildren(label && h('button', { class: 'small', 'data-id': id,
    'aria-keyshortcuts': action[0], 'data-changed': before && performance.now(),
    'aria-label': `${label} ${id}` }, label));
  if (focused) (place.querySelector('button') || find('a', element)).focus();
}

/** Builds what the first view does without, and listens; once. @param {TaskList} list */
export function initializeList(list) {
  if (picked.has(list)) return;
  picked.set(list, new Picked(list));
  list.build = (task) => buildRow(list, task);
  list.patchRow = (shown) => patchRow(list, shown);
  list.fit = () => fit(list);
  addEventListener('resize', list.fit);
  buildFilters(list);
  list.filters.after(savedMenu(() => import('./saved.js'), 'tasks',
    () => ({ query: address(list.params, {}).slice(8) }), ({ value }) => `#/tasks?${value.query}`));
  list.files = h('p', { class: 'help' }, h('span'), ' ', h('a', { download: '' }, 'CSV'), ' · ',
    h('a', { download: '' }, 'JSON'));
  list.pager.after(list.files);
  list.body.addEventListener('click', (event) => click(list, event));
  store.on('catalogue', () => patchFilters(list));
}

/** Columns that are the same or empty in all rows. @param {TaskList} list */
function idleColumns({ params, rows }) {
  const all = [...rows.values()];
  const isEmpty = (/** @type {string} */ cell) => all.every(({ element }) => (
    !element.querySelector(`${cell} progress:not([hidden])`) && !find(cell, element).textContent));
  /** @type {[string, boolean][]} */
  const idle = [['name', params.has('function')],
    ['what', isEmpty('.what')], ['who', params.has('owner')],
    ['result', isEmpty('.result')], ['took', isEmpty('.took')]];
  return idle.filter(([, is]) => is).map(([name]) => name);
}

/** The width that a cell needs, in one line or in two. @param {HTMLElement} row @param {string} name */
function neededWidth(row, name) {
  const cell = find(`.${name}`, row);
  const words = find('bdi', cell).getBoundingClientRect().width;
  const bar = cell.querySelector('progress:not([hidden])') ? 76 : 0;
  return GAP + (row.matches('.tall') ? words * LINE_SHARE : words + bar);
}

/** Columns as wide as what is in them, up to the list's; then they stay. @param {TaskList} list */
function fit(list) {
  const { heads, page, params, root, rows, table: { classList, dataset } } = list;
  if (!rows.size || !root.isConnected) return;
  const above = new Set(page.running?.map(({ id }) => id));
  const failed = params.get('status') === 'failed';
  classList.toggle('failures', failed);
  for (const [id, { element, task }] of rows) {
    element.classList.toggle('above', above.has(id));
    element.classList.toggle('tall', failed || task.status === 'failed');
  }
  dataset.without = idleColumns(list).join(' ');
  for (const { style } of heads) style.width = '';
  if (NARROW.matches) return;
  classList.add('loose');
  const widths = heads.map((head) => Math.ceil(head.getBoundingClientRect().width));
  const soft = heads.map(({ className: name }, place) => (/what|result/.test(name) && widths[place]
    ? Math.max(NARROWEST, ...[...rows.values()].map(({ element }) => neededWidth(element, name))) : 0));
  classList.remove('loose');
  const sum = (/** @type {number[]} */ all) => all.reduce((one, other) => one + other, 0);
  const room = root.clientWidth - sum(widths.filter((_, place) => !soft[place]));
  const within = (/** @type {number} */ limit) => soft.map((width) => Math.min(width, limit));
  let limit = 1000;
  while (limit > NARROWEST && sum(within(limit)) > room) limit -= 4;
  const share = Math.max(0, room - sum(within(limit))) / soft.filter(Boolean).length;
  within(limit).forEach((width, place) => {
    heads[place].style.width = `${soft[place] ? width + share : widths[place]}px`;
  });
}

/** Links that sort, and the order there is; all that matches as files. @param {TaskList} list */
function patchHeads({ heads, params }) {
  const sort = params.get('sort') || '-id';
  for (const head of heads) {
    const link = head.querySelector('a');
    const name = link?.dataset.sort;
    const falls = sort === `-${name}`;
    if (link) link.href = address(params, { sort: falls ? `${name}` : `-${name}` });
    setAttribute(head, 'aria-sort', falls ? 'descending' : sort === name && 'ascending');
  }
}

/** Why the queue of the filter starts nothing. @param {TaskList} list */
function patchHeld({ held, page, params }) {
  const paused = (page.held || []).filter(({ code, queue }) => (
    code === 'paused' && queue === params.get('queue')));
  patchRows(held, paused, ({ queue }) => queue, ({ text }) => h('p', {}, badge('paused', said(text))));
}

/** What failed, by function and error, above the tasks that failed. @param {TaskList} list */
function patchGroups(list) {
  const { groups, page: { failed }, params } = list;
  const { groups: all = [], other_kinds: kinds = 0, other_count: count = 0, more = false } = failed || {};
  const few = params.has('error') || (failed?.count || 0) < 2;
  const filter = Object.fromEntries(params);
  /** @type {({filter: {}, more: boolean} & Partial<Group> & {kinds?: number, count: number})[]} */
  const items = few ? [] : all.map((group) => ({ ...group, filter, more }));
  if (kinds && !few) items.push({ kinds, count, filter, more });
  patchRows(groups, items, (item) => `${item.function} ${item.error}`, (item) => (
    item.kinds ? otherRow(item.kinds, count, more, h('a', { href: address(params, { sort: 'function' }) },
      t('Sort by function')))
      : groupRow(/** @type {Group} */ (item), filter, () => { list.resort += 1; }, more)));
}

/** Says what an empty list means, and what to do about it. @param {TaskList} list */
function patchEmpty({ empty, page, params, rows }) {
  const kind = rows.size ? 'none' : page.next ? 'partly' : `${params}` ? 'filtered' : 'first';
  if (empty.dataset.kind === kind) return;
  empty.dataset.kind = kind;
  if (kind === 'none') empty.replaceChildren();
  if (kind === 'partly') {
    empty.replaceChildren(h('p', {}, t('No task matches so far. Search older tasks.')));
  }
  if (kind === 'filtered') {
    empty.replaceChildren(h('p', {}, t('No task matches.'), ' ',
      h('a', { href: '#/tasks' }, t('Show all tasks'))));
  }
  if (kind === 'first') empty.replaceChildren(...firstSteps());
}

/** For who has no task yet. */
export function firstSteps() {
  const holder = h('div', { class: 'teach' }, h('h2', {}, t('No task yet')),
    h('p', {}, t('A task runs one function with the values you give it, in the background. '
      + 'You can close this page meanwhile.'), ' ', !seesAll() && t('You see only your own tasks.')),
    h('p', {}, h('a', { class: 'button primary', href: '#/new' }, t('Add the first task'))));
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
  for (const { id } of page.running || []) seen.delete(id);
  const lowest = params.has('sort') ? Infinity : Math.min(...seen);
  const status = params.get('status');
  const missing = [...rows.values()].filter(({ task }) => !page.tasks.some(({ id }) => id === task.id)
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
  const box = /** @type {HTMLInputElement|null} */ (target.closest('.pick')?.querySelector('input'));
  if (box && target !== box) box.click();
  else if (box) picked.get(list)?.pick(box, event.shiftKey);
  else if (button?.dataset.id) act(button, () => change(list, button));
  else if (button || !row || target.closest('a') || getSelection()?.toString()) return;
  else if (!event.ctrlKey && !event.metaKey) find('a', row).click();
}

/**
 * Retries or cancels from the list; what runs is not stopped unasked.
 * @param {TaskList} list @param {HTMLElement} button
 */
function change(list, button) {
  const id = Number(button.dataset.id);
  const path = `api/tasks/${id}/${find('.do', list.rows.get(id)?.element).dataset.action}`;
  const work = async () => list.update(await request('POST', path));
  if (list.rows.get(id)?.task.status !== 'running') return work();
  return ask(button, t('Stop {id}?', { id }), t('Stop'), work);
}

/** @type {string[]} */
let queueNames = [];
/** @type {string[]} */
let userNames = [];
/** @type {AbortSignal|undefined} the visit for which they were read */
let known;

/** Filters that are out of sight until somebody wants them. */
const MORE = ['queue', 'owner', 'since', 'until'];
/** So many the server sorts by what it has no index for. */
const SORTED = 5000;

/** Search, function and, behind a button, the rest. @param {TaskList} list */
function buildFilters(list) {
  const { filters } = list;
  let timer = 0;
  const select = (/** @type {string} */ name, /** @type {string} */ label) => (
    h('select', { name, 'aria-label': label, hidden: name === 'queue' }));
  const day = (/** @type {string} */ name, /** @type {string} */ label) => h('label', {},
    label, ' ', h('input', { type: 'date', name }));
  const more = h('div', { class: 'more', id: 'more', hidden: true }, select('queue', t('Queue')),
    isAdmin() && select('owner', t('Owner')), day('since', t('Added from')), day('until', t('to')));
  const fold = button(t('Filters'), () => {
    more.hidden = !filters.classList.toggle('open');
    fold.ariaExpanded = String(!more.hidden);
  }, { 'aria-expanded': 'false', 'aria-controls': 'more' });
  filters.append(select('function', t('Function')), h('input', {
    type: 'search', name: 'q', 'aria-label': t('Search tasks'), maxlength: 200,
    placeholder: t('Number or words…'),
  }), fold, more, h('p', { class: 'chips' }));
  if (MORE.some((name) => list.params.has(name))) fold.click();
  filters.addEventListener('input', ({ target }) => {
    clearTimeout(timer);        // who types a year has a date after its first digit
    const rest = { 'select-one': 0, date: 900 }[/** @type {HTMLInputElement} */ (target).type] ?? 300;
    timer = setTimeout(() => filter(list), rest);
  });
  filters.addEventListener('submit', (event) => {
    event.preventDefault();
    filter(list);
  });
}

/**
 * What one can choose besides functions; read once for each visit.
 * @param {TaskList} list @param {AbortSignal} signal
 */
async function readChoices(list, signal) {
  if (known === signal) return;
  /** @param {{name: string}[]} all */
  const names = (all) => all.map(({ name }) => name);
  queueNames = names((await get('api/queues', signal)).queues);
  if (isAdmin()) userNames = names((await get('api/users', signal)).users);
  known = signal;
  patchFilters(list);
}

/** The day of a moment as a date field has it; "" without one. @param {string|null} iso */
const dayOf = (iso, later = 0) => localTime(new Date(Date.parse(iso || '') + later)).slice(0, 10);

/** Puts what the form says into the address. @param {TaskList} list */
function filter({ filters, params }) {
  const values = valuesOf(filters);
  for (const [name, days] of /** @type {[string, number][]} */ ([['since', 0], ['until', 1]])) {
    const before = params.get(name) || '';
    const at = new Date(`${values[name]}T00:00`);
    at.setDate(at.getDate() + days);
    if (values[name] === dayOf(before, -days)) values[name] = before;
    else values[name] = Number.isNaN(+at) ? '' : at.toISOString();
  }
  const next = address(params, values);
  if (filters.isConnected && next !== address(params, {})) location.replace(next);
}

/** Puts what the address says into the form. @param {TaskList} list */
function patchFilters(list) {
  const functions = store.state.catalogue?.functions.map(({ name }) => name) || [];
  patchChoice(list, 'function', t('All functions'), functions);
  patchChoice(list, 'queue', t('All queues'), queueNames);
  // One can choose a queue once there are two.
  find('[name=queue]', list.filters).hidden = queueNames.length < 2 && !list.params.has('queue');
  if (isAdmin()) patchChoice(list, 'owner', t('All owners'), userNames);
  const { filters, params } = list;
  for (const [name, value] of [['q', params.get('q') || ''], ['since', dayOf(params.get('since'))],
    ['until', dayOf(params.get('until'), -1)]]) {
    const input = /** @type {HTMLInputElement} */ (find(`[name=${name}]`, filters));
    if (input !== document.activeElement) input.value = value;
  }
  const chips = ['error', 'ended_since', 'ids'].filter((name) => params.has(name));
  const many = list.page.counts[params.get('status') || 'all'] > SORTED;
  find('.chips', filters).replaceChildren(/[nt]$/.test(params.get('sort') || '') && many
    ? t('Too many to sort: only the newest {count} are sorted.', { count: grouped(SORTED) }) : '',
  ...chips.map((name) => {
    const value = params.get(name) || '';
    return h('a', { href: address(params, { [name]: '' }) }, `${filterWords(name, value)} ✕`);
  }));
}

/** A filter in words. @param {string} name @param {string} value */
function filterWords(name, value) {
  if (name === 'status') return statusWord(value);
  if (!/since|until/.test(name)) return value;
  const time = timeWords(new Date(value));
  return name === 'since' ? time : t('ended since {time}', { time });
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

// What is done to many tasks at once: to those that are selected, or to all that match.

/** @typedef {'retry'|'cancel'|'delete'} Action */
/** @typedef {(count: number) => string} Said */
/** What an action is called, and what was done. @type {[Action, string, Said][]} */
const ACTIONS = [
  ['retry', t('Retry'), (count) => (
    t.n('{count} task was retried. | {count} tasks were retried.', count))],
  ['cancel', t('Cancel'), (count) => (
    t.n('{count} task was cancelled. | {count} tasks were cancelled.', count))],
  ['delete', t('Delete'), (count) => (
    t.n('{count} task was deleted. | {count} tasks were deleted.', count))],
];
/** To which tasks it can be done. @type {Record<Action, (task: Row) => boolean>} */
const CAN = {
  retry: ({ status }) => status === 'failed' || status === 'cancelled',
  cancel: (task) => !isFinished(task) && !task.cancel_requested,
  delete: () => true,
};

/** Tasks whose boxes are ticked, and the bar with what can be done to them. */
export class Picked {
  words = h('b');
  choices = h('div', { class: 'actions' });
  bar = h('div', { class: 'picked', role: 'region', 'aria-label': t('Selected tasks'),
    hidden: true }, this.words, this.choices,
  button('✕', () => this.tick(this.boxes(), false), { class: 'small', 'aria-label': t('Clear') }));
  all = h('input', { type: 'checkbox', 'aria-label': t('Select all of this page') });
  /** @type {HTMLInputElement|undefined} */
  last;
  said = '';
  place = '';

  /** @param {TaskList} list */
  constructor(list) {
    this.list = list;
    list.table.before(h('div', { class: 'hold' }, this.bar));
    list.heads[0].append(this.all);
    this.all.addEventListener('click', () => this.tick(this.boxes(), this.all.checked));
  }

  /** @returns {HTMLInputElement[]} */
  boxes() {
    return [...this.list.body.querySelectorAll('input')];
  }

  /** One was clicked; with shift all from the last one to this. @param {HTMLInputElement} box */
  pick(box, more = false) {
    const boxes = this.boxes();
    const here = boxes.indexOf(box);
    const there = more && this.last ? boxes.indexOf(this.last) : here;
    this.last = box;
    this.tick(there < 0 ? [box] : boxes.slice(Math.min(here, there), Math.max(here, there) + 1),
      box.checked);
  }

  /** @param {HTMLInputElement[]} boxes @param {boolean} checked */
  tick(boxes, checked) {
    for (const box of boxes) box.checked = checked;
    this.patch();
  }

  /** The bar, for what is ticked now; another list begins with nothing. */
  patch() {
    const { all, bar, choices, list, words } = this;
    const place = `${list.params}`;
    const boxes = this.boxes();
    if (this.place !== place) for (const box of boxes) box.checked = false;
    this.place = place;
    const ids = boxes.filter(({ checked }) => checked).map(({ value }) => Number(value));
    const tasks = ids.flatMap((id) => list.rows.get(id)?.task || []);
    bar.hidden = !ids.length;
    all.checked = !bar.hidden && ids.length === boxes.length;
    all.indeterminate = !bar.hidden && !all.checked;
    const counts = ACTIONS.map(([action]) => tasks.filter(CAN[action]).length);
    const said = `${place} ${ids} ${counts} ${list.page.counts.all}`;
    if (said === this.said || (ids.length && choices.querySelector('.question, [aria-busy]'))) return;
    this.said = said;
    this.patchFiles(ids);
    setText(words, t.n('{count} selected | {count} selected', ids.length));
    choices.replaceChildren(...this.offers(ids, counts));
  }

  /** The links below the list: those that are ticked as a file, or all that match. @param {number[]} ids */
  patchFiles(ids) {
    const { files, params, rows } = this.list;
    const which = ids.length ? new URLSearchParams({ ids: `${ids}` }) : new URLSearchParams(params);
    which.delete('cursor');
    if (!which.get('sort')?.endsWith('id')) which.delete('sort');
    files.hidden = !rows.size;
    setText(find('span', files), ids.length ? t('The selected tasks as a file:')
      : t('All that match as a file:'));
    for (const [place, link] of files.querySelectorAll('a').entries()) {
      which.set('format', ['csv', 'ndjson'][place]);
      link.href = `api/tasks?${which}`;
    }
  }

  /** What can be done; a retry loses nothing and is not asked for again.
   * @param {number[]} ids @param {number[]} counts */
  offers(ids, counts) {
    const { list, list: { page, params } } = this;
    const count = page.counts[params.get('status') || 'all'];
    const some = ACTIONS.flatMap(([action, label, said], place) => {
      if (!mayChange() || !counts[place]) return [];
      const words = `${label} ${counts[place]}`;
      const work = async () => {
        say(said((await request('POST', 'api/tasks/actions', { action, ids })).done), true);
        await this.leave();
      };
      return action === 'retry' ? button(words, work, { class: 'small', 'aria-keyshortcuts': 'r' })
        : askingButton(words, `${words}?`, work,
          { class: 'small', 'aria-keyshortcuts': action === 'cancel' && 'c' });
    });
    // On a phone nobody can tick the whole page.
    const all = NARROW.matches || (this.all.checked && (page.next || params.has('cursor')));
    return all ? [...some, button(t('All {count} that match…', { count: count ? countWords(count) : '' }),
      () => new Bulk(params, () => this.leave()), { class: 'small', 'aria-haspopup': 'dialog' })] : some;
  }

  /** Afterwards: nothing is ticked, and the list is as it is now. */
  async leave() {
    const { list } = this;
    const inside = this.bar.contains(document.activeElement);
    this.choices.replaceChildren();
    this.tick(this.boxes(), false);
    list.resort += 1;
    if (list.signal) await list.refresh(list.signal);
    if (inside) list.focus();
  }
}

/** A count in words, if need be "at least". @param {number} count @param {boolean} more */
export const atLeast = (count, more) => (
  more ? t('at least {count}', { count: countWords(count) }) : countWords(count));

/** How many failed. @param {number} count @param {boolean} more */
const failedBadge = (count, more) => badge('failed', atLeast(count, more));

/**
 * What failed for one reason, and what to do about it; `filter` are other filters.
 * @param {Group} group @param {Record<string, string>} filter @param {() => unknown} refresh
 * @param {boolean} [more] whether there may be more than were counted
 */
export function groupRow({ function: name, error, message, count, newest }, filter, refresh, more = false) {
  const which = new URLSearchParams({ ...filter, status: 'failed', function: name,
    error: error || '' });
  which.delete('cursor');
  const last = message && saidWhole(message);
  const kind = error && (REASONS[error] || error);
  const words = kind && last && count > 1
    ? t('{error}, the newest: {message}', { error: kind, message: last })
    : [kind, last].filter(Boolean).join(': ') || t('no error message');
  return h('li', {}, failedBadge(count, more),
    h('a', { href: error ? `#/tasks?${which}` : `#/tasks/${newest}` }, name),
    h('bdi', { class: 'why' }, words.length > 160 ? `${words.slice(0, 160)}…` : words),
    error && retryButton(which, refresh));
}

/**
 * A button for tasks that failed with the same kind of error; a dialog says how many they are.
 * @param {URLSearchParams} filter @param {() => unknown} refresh
 */
export const retryButton = (filter, refresh) => button(t('Retry these'),
  () => new Bulk(filter, refresh, 'retry'), { class: 'small', 'aria-haspopup': 'dialog',
    'aria-label': `${t('Retry these')}: ${filter.get('function')}, ${filter.get('error')}` });

/**
 * The kinds of failures that are not shown, and a link to them.
 * @param {number} kinds @param {number} count @param {boolean} more @param {HTMLElement} link
 */
const otherRow = (kinds, count, more, link) => h('li', {}, failedBadge(count, more),
  h('span', { class: 'why' }, t.n('{count} more kind of error | {count} more kinds of errors', kinds)), link);

/** The same in a line of words. @param {number} kinds @param {number} count of tasks */
export const restWords = (kinds, count) => [t.n('{count} more kind | {count} more kinds', kinds),
  t.n('{count} task | {count} tasks', count)].join(': ');

/** A dialog that offers what can be done to all tasks that match, or one thing of that. */
class Bulk {
  choices = h('div', { class: 'actions' }, t('Counting…'));
  bar = h('progress', { hidden: true, 'aria-label': t('Progress') });
  text = h('p', { class: 'help' });
  close = button(t('Close'), () => this.dialog.close());

  /** @param {URLSearchParams} params the filters @param {() => void} done @param {Action} [only] */
  constructor(params, done, only) {
    this.actions = ACTIONS.filter(([action]) => !only || action === only);
    this.filter = Object.fromEntries([...params].filter(([name]) => !/cursor|sort/.test(name)));
    const words = Object.entries(this.filter).map(([name, value]) => filterWords(name, value)).join(' · ');
    this.dialog = h('dialog', { 'aria-labelledby': 'bulk', onclose: () => {
      this.dialog.remove();
      done();
    } }, h('h2', { id: 'bulk' }, only ? t('Retry these') : words ? t('All tasks that match')
      : t('All tasks')),
    words && h('p', { class: 'lead' }, h('bdi', {}, words)), this.choices, this.bar, this.text,
    h('div', { class: 'actions' }, this.close));
    find('body').append(this.dialog);
    this.dialog.showModal();
    this.offer().catch((error) => setText(this.choices, error.message));
  }

  /** Counts, and offers what can be done. */
  async offer() {
    const offers = await Promise.all(this.actions.map(async ([action, label, said]) => {
      const count = await countFor(action, this.filter);
      const words = `${label} ${grouped(count)}`;
      const work = () => this.run(action, said, count);
      return count > 0 && (action === 'retry' ? button(words, work, { class: 'button primary' })
        : askingButton(words, `${words}?`, work));
    }));
    const some = /** @type {HTMLElement[]} */ (offers.filter(Boolean));
    this.choices.replaceChildren(...some.length ? some : [t('No action is possible for these.')]);
    if (some.length === 1) some[0].focus();
    this.bar.hidden = true;
    this.choices.hidden = false;
    setText(this.close, t('Close'));
  }

  /**
   * Does it; what is not right any more is counted anew.
   * @param {Action} action @param {Said} said @param {number} count
   */
  async run(action, said, count) {
    this.bar.hidden = false;
    this.choices.hidden = true;
    setText(this.close, t('Stop'));
    this.close.focus();
    try {
      say(said(await this.goThrough(action, count)), true);
      this.dialog.close();
    } catch (error) {
      setText(this.text, /** @type {Error} */ (error).message);
      await this.offer();
    }
  }

  /**
   * One portion after the other, until all is done or the dialog is closed; how many were.
   * @param {Action} action @param {number} count
   */
  async goThrough(action, count) {
    const { bar, dialog, filter, text } = this;
    /** @type {Record<string, unknown>} */
    let rest = { expected_count: count };
    let all = 0;
    do {
      const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
      all += part.done;
      bar.value = all / count;
      setText(text, t('{count} of {all} done', { count: grouped(all), all: grouped(count) }));
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
  try {
    await request('POST', 'api/tasks/actions', { action, filter, expected_count: 0 });
  } catch (error) {
    if (error instanceof ApiError && error.status === 409) return error.count;
    throw error;
  }
  return 0;
}
