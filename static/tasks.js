// @ts-check
/** The list of tasks: rows stay in place, new ones are announced above. */
import { get, poll } from './api.js';
import { find, h, icon, render, setAttribute, setText, setTitle, table } from './dom.js';
import {
  STATUSES, countWords, duration, elapsed, errorLine, patchState, patchTime, rangeWords, stateBadge,
} from './format.js';
import { store } from './store.js';

/** @import {Page, Row, Session, TaskPage} from './types.js' */
/** @typedef {{element: HTMLElement, task: Row}} Shown */

const PAGE = 50;
/** @type {TaskList|null} */
let list = null;

/** @type {Page['show']} */
export async function show(route, signal) {
  const { session } = store.state;
  if (list?.session !== session) list = new TaskList(session);
  if (!list.root.isConnected) list.enter();
  await list.open(route.params, signal);
}

/**
 * The address of the list with other filters; an empty value takes a filter away.
 * @param {URLSearchParams} params @param {Record<string, string>} changes @param {string} [page]
 */
export function address(params, changes, page = 'tasks') {
  const next = new URLSearchParams(params);
  next.delete('cursor');
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return `#/${page}?${next}`.replace(/\?$/, '');
}

/** What follows the state: an error, a message, why it waits. @param {Row} task */
function stateNote(task) {
  if (task.status === 'running') return task.message || '';
  if (task.status === 'pending') return task.expected_start ? rangeWords(task.expected_start) : '';
  if (task.status === 'waiting') return `for ${task.after?.map((id) => `#${id}`).join(', ')}`;
  if (task.status === 'scheduled' && task.reason) return `again after ${errorLine(task)}`;
  return task.status === 'failed' ? errorLine(task) : '';
}

/** A row's cells, still without what changes. @param {Row} task */
function buildRow(task) {
  const { id, owner, summary } = task;
  const other = owner !== store.state.session?.user.name && h('span', { class: 'who' }, owner);
  const name = task.function;
  return h('tr', {},
    h('td', { class: 'id' }, String(id)),
    h('th', { scope: 'row', class: 'name' },
      h('a', { href: `#/tasks/${id}`, 'aria-label': `${name} ${summary}`, title: name }, name)),
    h('td', { class: 'what', title: summary }, h('bdi', {}, summary), other),
    h('td', { class: 'status' }, stateBadge(task), h('progress', { 'aria-label': 'Progress' }),
      h('span', { class: 'note' })),
    h('td', { class: 'started' }, h('time')),
    h('td', { class: 'took' }),
    h('td', { class: 'do' }));
}

/** Brings a row up to date without replacing any element. @param {Shown} shown */
function patchRow({ element, task }) {
  const note = stateNote(task);
  const noteElement = find('.note', element);
  const bar = /** @type {HTMLProgressElement} */ (find('progress', element));
  const seconds = elapsed(task);
  patchState(find('.state', element), task);
  bar.hidden = task.status !== 'running' || task.progress === null;
  bar.value = task.progress || 0;
  setText(noteElement, note);
  setAttribute(noteElement, 'title', note);
  patchTime(find('time', element), task.status === 'scheduled' ? task.run_at : task.started_at);
  setText(find('.took', element), seconds === null ? '' : duration(seconds));
}

/** The page's parts and the rows that are in it. */
export class TaskList {
  /** @type {Map<number, Shown>} */
  rows = new Map();
  /** @type {Row[]} rows that wait to be let in */
  fresh = [];
  /** @type {TaskPage} */
  page = { tasks: [], next: null, counts: {} };
  params = new URLSearchParams();
  patchAction = (/** @type {Shown} */ _) => {};
  resort = true;
  seen = '';
  wait = 2;
  scroll = 0;

  /** @param {Session|null} session */
  constructor(session) {
    this.session = session;
    this.tabs = h('nav', { class: 'tabs', 'aria-label': 'Status' });
    this.body = h('tbody');
    this.more = h('button', { class: 'fresh', hidden: true, onclick: () => this.letIn() });
    this.table = table('list', 'Tasks, newest first', ['#', 'Function', 'Arguments', 'Status',
      'Started', 'Duration', h('span', { class: 'hidden' }, 'Action')], this.body);
    this.empty = h('div', { class: 'empty' });
    this.pager = h('nav', { class: 'pager', 'aria-label': 'Older and newer tasks' });
    this.filters = h('form', { role: 'search', class: 'filters' });
    this.root = h('div', {}, h('div', { class: 'head' }, h('h1', { tabindex: -1 }, 'Tasks'),
      this.filters, h('a', { class: 'button primary', href: '#/new' }, icon('plus'), 'New task')),
      this.tabs, h('div', { class: 'strip' }, this.more), this.table, this.empty, this.pager);
  }

  /** Comes (back) into view, where one left it. */
  enter() {
    this.resort = true;
    render('Tasks', this.root);
    scrollTo(0, this.scroll);
  }

  /**
   * Shows what the address asks for, and keeps it live.
   * @param {URLSearchParams} params @param {AbortSignal} signal
   */
  async open(params, signal) {
    signal.addEventListener('abort', () => { this.scroll = scrollY; });
    if (`${params}` !== `${this.params}`) {
      this.resort = true;
      scrollTo(0, 0);
    }
    this.params = params;
    this.patchTabs();
    this.table.ariaBusy = String(this.resort);
    const wait = await this.refresh(signal);
    poll(signal, () => this.refresh(signal), wait);
  }

  /** One look; resolves with the seconds until the next. @param {AbortSignal} signal */
  async refresh(signal) {
    const limit = String(Math.min(100, PAGE + this.fresh.length));
    const query = new URLSearchParams([...this.params, ['limit', limit], ['counts', '1']]);
    const page = await get(`api/tasks?${query}`, signal);
    if (signal.aborted) return 0;
    page.counts ||= this.resort ? {} : this.page.counts;
    this.page = page;
    if (this.resort || !this.rows.size) this.letIn();
    const { live } = await import('./list.js');
    return live(this, signal);
  }

  /** Shows the list as the server has it now, in its order. */
  letIn() {
    const asked = document.activeElement === this.more;
    const first = this.fresh[0];
    const ids = new Set(this.page.tasks.map(({ id }) => id));
    for (const id of this.rows.keys()) if (!ids.has(id)) this.rows.delete(id);
    this.body.replaceChildren(...this.page.tasks.map((task) => this.add(task)));
    this.fresh = [];
    this.resort = false;
    this.table.ariaBusy = null;
    this.patchFrame();
    if (asked && first) find('a', this.rows.get(first.id)?.element).focus();
  }

  /** Changes a row that is shown; false if it is not. @param {Row} task */
  update(task) {
    const shown = this.rows.get(task.id);
    if (!shown) return false;
    shown.task = task;
    patchRow(shown);
    this.patchAction(shown);
    return true;
  }

  /** The row of a task, up to date, made if there is none. @param {Row} task */
  add(task) {
    const shown = this.rows.get(task.id) || { element: buildRow(task), task };
    this.rows.set(task.id, shown);
    this.update(task);
    return shown.element;
  }

  /** Everything around the rows. */
  patchFrame() {
    const { counts, next } = this.page;
    const { more, params, rows } = this;
    more.hidden = !this.fresh.length;
    setText(more, `${this.fresh.length} new`);
    this.table.hidden = !rows.size;
    this.patchTabs();
    const back = params.has('cursor') && h('a', { href: address(params, {}) }, '← Newest');
    const older = next && h('a', { href: address(params, { cursor: next }) }, 'Older tasks →');
    this.pager.replaceChildren(back || '', older || '');
    setTitle(counts.running ? `◐ ${countWords(counts.running)} running` : 'Tasks');
  }

  /** Tabs are links; their counts follow the other filters. */
  patchTabs() {
    const { counts } = this.page;
    const chosen = this.params.get('status') || '';
    const names = STATUSES.filter((name) => name !== 'waiting' || counts[name]);
    if (this.tabs.childElementCount !== names.length + 1) {
      this.tabs.replaceChildren(...['', ...names].map((name) => h('a', { 'data-status': name },
        name || 'all', h('b'))));
    }
    for (const tab of this.tabs.querySelectorAll('a')) {
      const name = tab.dataset.status || '';
      tab.href = address(this.params, { status: name });
      setAttribute(tab, 'aria-current', name === chosen && 'page');
      const count = counts[name || 'all'];
      setText(find('b', tab), count === undefined ? '' : countWords(count));
    }
  }
}
