// @ts-check
/** What follows the list's first rows: filters, widths, new rows, clicks, doing it to many. */
import { ApiError, get, isAdmin, mayChange, request, store } from './api.js';
import { find, h, setAttribute, setText } from './dom.js';
import {
  countWords, isFinished, rangeWords, statusWord, timeWords, waitingWords,
} from './format.js';
import { ask, askingButton, badge, button, patchRows, sampleHint, valuesOf } from './forms.js';
import { grouped, t } from './language.js';
import { act, say } from './live.js';
import { errorLine, saidWhole } from './said.js';
import { address } from './tasks.js';

/** @import {Shown, TaskList} from './tasks.js' */
/** @import {Group, Row} from './types.js' */

/** @type {string[]} */
let queueNames = [];
/** @type {string[]} */
let userNames = [];
/** @type {AbortSignal|undefined} the visit for which they were read */
let known;

const NARROW = matchMedia('(max-width: 640px)');
/** Filters that are out of sight until somebody wants them. */
const MORE = ['queue', 'owner', 'since', 'until'];
/** So many the server sorts by what it has no index for. */
const SORTED = 5000;
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

/** What one can choose besides functions. @param {TaskList} list @param {AbortSignal} signal */
async function readChoices(list, signal) {
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
    ? t('Of so many, only the newest {count} are sorted.', { count: grouped(SORTED) }) : '',
  ...chips.map((name) => {
    const value = params.get(name) || '';
    const words = name === 'ended_since' ? t('since {time}', { time: timeWords(new Date(value)) })
      : value;
    return h('a', { href: address(params, { [name]: '' }) }, `${words} ✕`);
  }));
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
    empty.replaceChildren(h('p', {}, t('No task matches so far. Look at older tasks.')));
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
class Picked {
  words = h('b');
  choices = h('div', { class: 'actions' });
  bar = h('div', { class: 'picked', role: 'region', 'aria-label': t('Selected tasks'),
    hidden: true }, this.words, this.choices);
  all = h('input', { type: 'checkbox', 'aria-label': t('Select all of this page') });
  /** @type {HTMLInputElement|undefined} */
  last;
  said = '';
  place = '';

  /** @param {TaskList} list */
  constructor(list) {
    this.list = list;
    list.table.after(this.bar);
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
    setText(words, t.n('{count} selected | {count} selected', ids.length));
    choices.replaceChildren(...this.offers(ids, counts));
  }

  /** What can be done. @param {number[]} ids @param {number[]} counts */
  offers(ids, counts) {
    const { list } = this;
    const all = list.page.counts[list.params.get('status') || 'all'];
    const some = ACTIONS.flatMap(([action, label, said], place) => {
      const words = `${label} ${counts[place]}`;
      return mayChange() && counts[place] ? askingButton(words, `${words}?`, async () => {
        say(said((await request('POST', 'api/tasks/actions', { action, ids })).done), true);
        await this.leave();
      }) : [];
    });
    return [...some,
      h('a', { class: 'button', href: `api/tasks?format=csv&ids=${ids}`, download: '' }, 'CSV'),
      button(t('All {count} that match…', { count: all ? countWords(all) : '' }),
        () => new Bulk(list.params, () => this.leave()), { 'aria-haspopup': 'dialog' }),
      button(t('Clear'), () => this.tick(this.boxes(), false))];
  }

  /** Afterwards: nothing is ticked, and the list is as it is now. */
  async leave() {
    const { list } = this;
    this.choices.replaceChildren();
    this.tick(this.boxes(), false);
    list.resort += 1;
    if (list.signal) await list.refresh(list.signal);
  }
}

/**
 * What failed for one reason, and what to do about it; `more` are other filters.
 * @param {Group} group @param {Record<string, string>} more @param {() => unknown} refresh
 */
export function groupRow({ function: name, error, message, count, newest }, more, refresh) {
  const filter = new URLSearchParams({ ...more, status: 'failed', function: name,
    error: error || '' });
  const last = message && saidWhole(message);
  const words = error && last && count > 1 ? t('{error}, the last: {message}', { error, message: last })
    : [error, last].filter(Boolean).join(': ') || t('no error was told');
  return h('li', {}, badge('failed', countWords(count)),
    h('a', { href: error ? `#/tasks?${filter}` : `#/tasks/${newest}` }, name),
    h('bdi', { class: 'why' }, words.length > 160 ? `${words.slice(0, 160)}…` : words),
    error && button(t('Retry these'), () => new Bulk(filter, refresh, 'retry'),
      { class: 'small', 'aria-haspopup': 'dialog',
        'aria-label': `${t('Retry these')}: ${name}, ${error}` }));
}

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
    const words = Object.entries(this.filter).map(([name, value]) => (name.endsWith('since')
      ? t('since {time}', { time: timeWords(new Date(value)) })
      : name === 'status' ? statusWord(value) : value)).join(' · ');
    this.dialog = h('dialog', { 'aria-labelledby': 'bulk', onclose: () => {
      this.dialog.remove();
      done();
    } }, h('h2', { id: 'bulk' }, only ? t('Retry these') : words ? t('All tasks that match') : t('All tasks')),
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
    this.choices.replaceChildren(...some.length ? some : [t('There is nothing to do to them.')]);
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
