// @ts-check
/** What follows the list's first rows: widths, new rows, heads, groups, clicks. */
import { get, request, store } from './api.js';
import { find, h, setAttribute, setText } from './dom.js';
import { buildFilters, patchFilters, readChoices } from './filters.js';
import { isFinished, waitingWords } from './format.js';
import { ask, patchRows, sampleHint } from './forms.js';
import { t } from './language.js';
import { Picked, groupRow } from './many.js';
import { act, say } from './messages.js';
import { address } from './places.js';
import { rangeWords } from './ranges.js';
import { errorLine } from './said.js';

/** @import {Action} from './many.js' */
/** @import {Shown, TaskList} from './tasks.js' */
/** @import {Row} from './types.js' */

const NARROW = matchMedia('(max-width: 640px)');
/** @type {WeakMap<TaskList, Picked>} */
const picked = new WeakMap();

/**
 * After each look. Resolves with the seconds until the next.
 * @param {TaskList} list @param {AbortSignal} signal
 */
export async function live(list, signal) {
  takeIn(list);
  patchFilters(list);
  patchHeads(list);
  patchGroups(list);
  patchEmpty(list);
  picked.get(list)?.patch();
  await lookAfter(list, signal);
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

/** What came of it so far: a result, an error, a message, why it waits. @param {Row} task */
function resultNote(task) {
  if (task.status === 'succeeded') return resultWords(task.result);
  if (task.status === 'running') return task.message || '';
  if (task.status === 'pending') return task.expected_start ? rangeWords(task.expected_start) : '';
  if (task.status === 'waiting') return waitingWords(task.after || []);
  if (task.status === 'scheduled' && task.reason) {
    return t('again after {error}', { error: errorLine(task) });
  }
  return task.status === 'failed' ? errorLine(task) : '';
}

/**
 * What came of it; the button of a row, or what it asks, until one can do something else.
 * @param {Shown} shown
 */
function patchAction({ element, task }) {
  const { id } = task;
  const note = find('.note', element);
  setText(note, resultNote(task));
  note.title = note.textContent || '';
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
  list.patchAction = patchAction;
  list.fit = () => fit(list);
  addEventListener('resize', list.fit);
  buildFilters(list);
  list.files = h('p', { class: 'help' }, t('All that match as a file:'), ' ',
    h('a', { download: '' }, 'CSV'), ' · ', h('a', { download: '' }, 'JSON'));
  list.pager.after(list.files);
  list.body.addEventListener('click', (event) => click(list, event));
  store.on('catalogue', () => patchFilters(list));
}

/** Columns as wide as what is in them, up to the screen's; then they stay. @param {TaskList} list */
function fit({ heads, root, rows, table: { classList, style } }) {
  if (!rows.size || !root.isConnected) return;
  for (const { style: one } of [...heads, { style }]) one.width = '';
  if (NARROW.matches) return;
  classList.add('loose');
  const widths = heads.map((head) => Math.ceil(head.getBoundingClientRect().width));
  classList.remove('loose');
  const sum = (/** @type {number[]} */ all) => all.reduce((one, other) => one + other);
  const most = document.body.clientWidth - root.getBoundingClientRect().left - 24;
  const all = Math.max(Math.min(1120, most), Math.min(sum(widths), most));
  const soft = heads.map(({ className }) => /name|what|result/.test(className));
  const within = (/** @type {number} */ limit) => widths.map((width, place) => (
    soft[place] ? Math.min(width, limit) : width));
  let limit = 460;
  while (limit > 96 && sum(within(limit)) > all) limit -= 4;
  const share = Math.max(0, all - sum(within(limit))) / 3;
  within(limit).forEach((width, place) => {
    heads[place].style.width = `${width + (soft[place] ? share : 0)}px`;
  });
  style.width = `${all}px`;
}

/** Links that sort, and the order there is; all that matches as files. @param {TaskList} list */
function patchHeads({ files, heads, params, rows }) {
  const sort = params.get('sort') || '-id';
  for (const head of heads) {
    const link = head.querySelector('a');
    const name = link?.dataset.sort;
    const falls = sort === `-${name}`;
    if (link) link.href = address(params, { sort: falls ? `${name}` : `-${name}` });
    setAttribute(head, 'aria-sort', !head.matches('.added') && (
      falls ? 'descending' : sort === name && 'ascending'));
  }
  files.hidden = !rows.size;
  const all = new URLSearchParams(params);
  all.delete('cursor');
  if (!sort.endsWith('id')) all.delete('sort');
  for (const [place, link] of files.querySelectorAll('a').entries()) {
    all.set('format', ['csv', 'ndjson'][place]);
    setAttribute(link, 'href', `api/tasks?${all}`);
  }
}

/** What failed, by function and error, above the tasks that failed. @param {TaskList} list */
function patchGroups(list) {
  const { groups, page: { counts, failed }, params } = list;
  const some = failed && counts.failed > 1 && !params.has('error') ? failed.groups : [];
  patchRows(groups, some, (group) => `${group.function} ${group.error}`, (group) => (
    groupRow(group, Object.fromEntries(params), () => { list.resort += 1; })));
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
