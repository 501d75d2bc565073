// @ts-check
/** The list of tasks: rows stay in place, new ones are announced above. */
import { get, poll, store } from './api.js';
import { find, h, icon, render, setAttribute, setText, setTitle } from './dom.js';
import { STATUSES, countWords, statusWord } from './format.js';
import { t } from './language.js';
import { address, seesAll } from './places.js';

/** @import {Page, Row, Session, TaskPage} from './types.js' */
/** @typedef {{element: HTMLElement, task: Row}} Shown */

const PAGE = 50;
/** What a column is called, and what it can be sorted by. @type {Record<string, string[]>} */
const COLUMNS = {
  pick: [''], id: ['#', 'id'], name: [t('Function'), 'function'], what: [t('Arguments')],
  status: [t('Status')], result: [t('Result')], who: [t('Owner')], when: [t('When'), 'started_at'],
  took: [t('Duration'), 'duration'], do: [t('Action')],
};
/** The list that was shown last. @type {TaskList|null} */
export let list = null;

/** @type {Page['show']} */
export async function show(route, signal) {
  const { session } = store.state;
  if (list?.session !== session) list = new TaskList(session);
  if (!list.root.isConnected) list.enter();
  await list.open(route.params, signal);
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
  build = (/** @type {Row} */ _) => h('tr');
  patchRow = (/** @type {Shown} */ _) => {};
  fit = () => {};
  files = h('p');
  held = h('div', { class: 'held' });
  /** @type {AbortSignal|undefined} of the visit */
  signal;
  /** Changes since the last look after which the rows are built anew. */
  resort = 1;
  /** The filters of the rows. */
  place = '';
  /** The filters and the count of the groups of failures. */
  grouped = '';
  seen = '';
  wait = 2;
  scroll = 0;

  /** @param {Session|null} session */
  constructor(session) {
    this.session = session;
    this.tabs = h('nav', { class: 'tabs', 'aria-label': t('Status') });
    this.body = h('tbody');
    this.more = h('button', { class: 'fresh', hidden: true, onclick: () => this.letIn() });
    this.heads = Object.entries(COLUMNS).filter(([name]) => name !== 'who' || seesAll())
      .map(([name, [title, sort]]) => h('th', { scope: 'col', class: name },
        sort ? h('a', { 'data-sort': sort }, title)
          : name === 'do' ? h('span', { class: 'hidden' }, title) : title));
    this.table = h('table', { class: 'list' }, h('caption', { class: 'hidden' }, t('Tasks')),
      h('thead', {}, h('tr', {}, ...this.heads)), this.body);
    this.table.hidden = true;
    this.groups = h('ul', { class: 'works' });
    this.empty = h('div', { class: 'empty' });
    this.pager = h('nav', { class: 'pager', 'aria-label': t('Older and newer tasks') });
    this.filters = h('form', { role: 'search', class: 'filters' });
    this.root = h('div', {}, h('div', { class: 'head' }, h('h1', { tabindex: -1 }, t('Tasks')),
      this.filters,
      h('a', { class: 'button primary', href: '#/new' }, icon('plus'), t('New task'))),
    this.tabs, h('div', { class: 'strip' }, this.more), this.held, this.groups, this.table,
    this.empty, this.pager);
  }

  /** Comes (back) into view, where one left it. */
  enter() {
    this.resort += 1;
    render(t('Tasks'), this.root);
    scrollTo(0, this.scroll);
  }

  /**
   * Shows what the address asks for, and keeps it live.
   * @param {URLSearchParams} params @param {AbortSignal} signal
   */
  async open(params, signal) {
    signal.addEventListener('abort', () => { this.scroll = scrollY; });
    if (`${params}` !== `${this.params}`) {
      this.resort += 1;
      scrollTo(0, 0);
    }
    this.params = params;
    this.signal = signal;
    this.patchTabs();
    this.table.ariaBusy = String(this.resort > 0);
    const wait = await this.refresh(signal);
    poll(signal, () => this.refresh(signal), wait);
  }

  /** One look; resolves with the seconds until the next. @param {AbortSignal} signal */
  async refresh(signal) {
    const { params } = this;
    const limit = String(Math.min(100, PAGE + this.fresh.length));
    const query = new URLSearchParams([...params, ['limit', limit], ['counts', '1'],
      ['fields', 'result'], ['held', '1']]);
    if (!/status|sort|cursor/.test(`${params}`)) query.set('running', '1');
    const { resort } = this;
    const kinds = () => `${params} ${this.page.counts.failed}`;
    if (params.get('status') === 'failed' && (resort || this.grouped !== kinds())) {
      query.set('failed', '1');
    }
    const page = await get(`api/tasks?${query}`, signal);
    if (signal.aborted) return 0;
    this.resort -= resort;              // what changed meanwhile is for the next look
    page.counts ||= resort ? {} : this.page.counts;
    const first = new Set(page.running?.map(({ id }) => id));
    page.tasks = [...page.running || [], ...page.tasks.filter(({ id }) => !first.has(id))];
    if (!query.has('failed')) page.failed = resort ? undefined : this.page.failed;
    this.page = page;
    if (query.has('failed')) this.grouped = kinds();
    const { initializeList, live } = await import('./list.js');
    initializeList(this);
    if (resort || !this.rows.size) this.letIn();
    return live(this, signal);
  }

  /** Shows the list as the server has it now, in its order. */
  letIn() {
    const asked = document.activeElement === this.more;
    const first = this.fresh[0];
    const { activeElement: held } = document;
    const inside = this.body.contains(held);
    const ids = new Set(this.page.tasks.map(({ id }) => id));
    // Of another list table and rows are new: what is kept would move.
    const other = this.place !== (this.place = `${this.params}`);
    if (other) this.empty.before(this.table);
    for (const id of this.rows.keys()) if (other || !ids.has(id)) this.rows.delete(id);
    this.body.replaceChildren(...this.page.tasks.map((task) => this.add(task)));
    this.fresh = [];
    this.table.ariaBusy = null;
    this.patchFrame();
    this.fit();
    if (asked && first) find('a', this.rows.get(first.id)?.element).focus();
    else if (inside) this.focus(held);
  }

  /** Gives the focus back to an element of the list, or to the first row. @param {Element|null} [before] */
  focus(before) {
    const to = before?.isConnected ? /** @type {HTMLElement} */ (before) : find('a', this.body) || find('h1');
    to.focus({ preventScroll: true });
  }

  /** Changes a row that is shown; false if it is not. @param {Row} task */
  update(task) {
    const shown = this.rows.get(task.id);
    if (!shown) return false;
    shown.task = task;
    this.patchRow(shown);
    return true;
  }

  /** The row of a task, up to date, made if there is none. @param {Row} task */
  add(task) {
    const shown = this.rows.get(task.id) || { element: this.build(task), task };
    this.rows.set(task.id, shown);
    this.update(task);
    return shown.element;
  }

  /** Everything around the rows. */
  patchFrame() {
    const { counts, next } = this.page;
    const { more, params, rows } = this;
    more.hidden = !this.fresh.length;
    setText(more, t('{count} new', { count: this.fresh.length }));
    this.table.hidden = !rows.size;
    this.root.classList.toggle('blank', counts.all === 0 && !`${params}`);
    this.patchTabs();
    const back = params.has('cursor') && h('a', { href: address(params, {}) }, t('← Newest'));
    const older = next && h('a', { href: address(params, { cursor: next }) }, t('Older tasks →'));
    this.pager.replaceChildren(back || '', older || '');
    setTitle(counts.running ? `◐ ${t('{count} running', { count: countWords(counts.running) })}`
      : t('Tasks'));
  }

  /** Tabs are links; their counts follow the other filters. */
  patchTabs() {
    const { counts } = this.page;
    const chosen = this.params.get('status') || '';
    const names = STATUSES.filter((name) => name !== 'waiting' || counts[name] || name === chosen);
    if (this.tabs.childElementCount !== names.length + 1) {
      this.tabs.replaceChildren(...['', ...names].map((name) => h('a', { 'data-status': name },
        name ? statusWord(name) : t('all'), h('b'))));
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
