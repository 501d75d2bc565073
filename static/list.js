// @ts-check
/** What follows the list's first rows: widths, new rows, heads, groups, clicks, filters. */
import { get, isAdmin, request, store } from './api.js';
import { find, h, setAttribute, setText } from './dom.js';
import { rangeWords } from './durations.js';
import {
  duration, elapsed, isFinished, patchState, patchTime, stateBadge, stateWord, timeWords,
} from './format.js';
import { act, ask, badge, button, lateMenu, patchRows, sampleHint, say, valuesOf } from './forms.js';
import { grouped, t } from './language.js';
import { Picked, groupRow, otherRow } from './many.js';
import { address, seesAll } from './places.js';
import { errorLine, said, waitingWords } from './said.js';

/** @import {Action} from './many.js' */
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

/** What one can do to a task from the list. @param {Row} task @returns {Action|''} */
function actionFor(task) {
  if (task.status === 'failed' || task.status === 'cancelled') return 'retry';
  return isFinished(task) || task.cancel_requested ? '' : 'cancel';
}

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
    return task.expected_start ? rangeWords(task.expected_start) : held ? said(held.text) : '';
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
  const action = actionFor(task);
  const { action: before } = place.dataset;
  if (before === action) return;
  const focused = place.contains(document.activeElement);
  place.dataset.action = action;
  const label = action && (action === 'retry' ? t('Retry') : t('Cancel'));
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
  list.filters.after(lateMenu(t('Saved'), async (body) => (await import('./saved.js')).fillSaved(body, 'tasks',
    () => ({ query: address(list.params, {}).slice(8) }), ({ value }) => `#/tasks?${value.query}`)));
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
      + 'You can close this page meanwhile.')),
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
function dayOf(iso, later = 0) {
  const at = new Date(Date.parse(iso || '') + later);
  return Number.isNaN(+at) ? '' : new Date(+at - at.getTimezoneOffset() * 60000).toISOString()
    .slice(0, 10);
}

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
    const words = name === 'ended_since' ? t('since {time}', { time: timeWords(new Date(value)) })
      : value;
    return h('a', { href: address(params, { [name]: '' }) }, `${words} ✕`);
  }));
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
