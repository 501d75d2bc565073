// @ts-check
/** The first page: what runs, waits, failed lately and comes next; then how it went. */
import { get, ownName, poll } from './api.js';
import { now } from './clock.js';
import { find, h, icon, render, setAttribute, setText } from './dom.js';
import { ZONE } from './durations.js';
import { clock, countWords, duration, elapsed, progressWords, timeWords } from './format.js';
import { badge, head, part, patchRows, timeElement } from './forms.js';
import { Choices, History, ownerFilter, ownerOf } from './history.js';
import { t } from './language.js';
import { atLeast, firstSteps, groupRow, restWords } from './list.js';
import { address } from './places.js';
import { said } from './said.js';

/** @import {Overview, Page, Planned, Row} from './types.js' */

const DAY = 864e5;
const COMING = 5;
const GROUPS = 5;
const RUNNING = 5;
const MOST_TIMES = 24;

/** @type {Page['show']} */
export async function show({ params }, signal) {
  const [found, summary] = await Promise.all([read(params, signal),
    read(params, signal, 'summary').catch(() => null)]);
  if (signal.aborted) return;
  const shown = document.querySelector('.overview');
  const view = (shown && views.get(shown)) || new View();
  view.choose(params);
  const wait = view.patch(found);
  view.patchSummary(found.counts.all > 0 && summary);
  if (!view.root.isConnected) view.enter();
  poll(signal, async () => view.patch(await read(params, signal)), wait);
  poll(signal, () => view.history.read(signal));
}

/** One look, at everybody's tasks or at one's own; days are those of the time zone here.
 * @param {URLSearchParams} params @param {AbortSignal} [signal] @param {'overview'|'summary'} [what] */
const read = (params, signal, what = 'overview') => get(`api/${what}?${new URLSearchParams({
  ...ownerOf(params) && { owner: ownerOf(params) }, ...what === 'summary' && ZONE && { zone: ZONE } })}`, signal);

/** @type {WeakMap<Element, View>} that one is in, while only its range changes */
const views = new WeakMap();

/** Everything on the page; each look brings it up to date in place. */
class View {
  constructor() {
    this.params = new URLSearchParams();
    this.refresh = async () => this.patch(await read(this.params));
    this.glance = ['running', 'waiting', 'failed', 'next'].map((name) => (
      h('li', {}, h('a', { 'data-name': name }, h('b'), h('span')))));
    this.summary = h('p', { class: 'help' });
    this.running = h('ul', { class: 'works' });
    this.idle = h('p', { class: 'help' });
    this.held = h('ul', { class: 'works' });
    this.groups = h('ul', { class: 'works' });
    this.calm = h('p', { class: 'help' });
    this.others = h('p', { class: 'help', hidden: true }, h('span'), ' · ', h('a'));
    this.coming = h('ul', { class: 'works coming' });
    this.line = h('div', { class: 'day', role: 'img' });
    this.none = h('p', { class: 'help' }, t('No schedule is due within 24 hours.'));
    this.choices = new Choices('overview');
    this.history = new History(this.choices);
    this.first = h('div', { hidden: true });
    this.root = h('div', { class: 'overview' }, head(t('Overview'), this.choices.whose,
      h('a', { class: 'button primary', href: '#/new' }, icon('plus'), t('New task'))), this.summary,
    h('ul', { class: 'glance', 'aria-label': t('At a glance') }, ...this.glance), this.first,
    h('div', { class: 'columns' }, part(t('Now'), this.idle, this.running, this.held),
      part(t('Failed in the last 24 hours'), this.calm, this.groups, this.others)),
    part(t('Next 24 hours'), this.none, this.line, this.coming), this.history.root);
    views.set(this.root, this);
  }

  /** Comes into view. */
  enter() {
    render(t('Overview'), this.root);
  }

  /** The range and the owner that the address says. @param {URLSearchParams} params */
  choose(params) {
    this.params = params;
    this.choices.patch(params);
    this.history.choose(params);
  }

  /** The address of the list with these filters, and the owner's. @param {Record<string, string>} filter */
  listOf(filter) {
    return address(new URLSearchParams(), { ...filter, ...ownerFilter(this.params) });
  }

  /** One look; resolves with the seconds until the next. @param {Overview} found */
  patch(found) {
    const { counts, failed, held, oldest, running, workers } = found;
    this.patchGlance(found);
    this.first.hidden = counts.all > 0;
    if (counts.all) this.history.root.hidden = false;
    if (!counts.all && !this.first.childElementCount) this.first.append(...firstSteps());
    const shown = running.slice(0, RUNNING);
    patchRows(this.running, shown, ({ id }) => id, runningRow);
    shown.forEach((task, place) => setText(
      find('.state bdi', this.running.children[place]), ranWords(task)));
    patchRows(this.held, held, ({ queue }) => queue, ({ queue, text }) => h('li', {},
      badge('paused', said(text)),
      h('a', { href: this.listOf({ queue }) }, t('Tasks'))));
    const filter = { ended_since: failed.since, ...ownerFilter(this.params) };
    patchRows(this.groups, failed.groups.slice(0, GROUPS), (group) => `${group.function} ${group.error}`,
      (group) => groupRow(group, filter, this.refresh, failed.more));
    const rest = counts.running - shown.length;
    setText(this.idle, rest > 0 ? t('The first {count} of {all}.',
      { count: shown.length, all: countWords(counts.running) })
      : shown.length ? '' : ownerOf(this.params) ? t('None of your tasks is running.') : t('Nothing is running.'));
    setText(this.calm, failed.groups.length ? '' : t('Nothing failed, or all of it was retried.'));
    this.patchOthers(failed);
    this.patchComing(found.schedules);
    this.history.maximum = workers.maximum;
    return running.length || oldest ? 2 : 10;
  }

  /** A sentence about yesterday, and one about last week. @param {{yesterday: string, last_week: string}|null|false} summary */
  patchSummary(summary) {
    this.summary.hidden = !summary;
    if (summary) {
      this.summary.replaceChildren(`${said(summary.yesterday)} ${said(summary.last_week)} `,
        h('a', { href: '#/account' }, t('By mail')));
    }
  }

  /** How many kinds of failures have no row, with a link to all. @param {Overview['failed']} failed */
  patchOthers({ count: all, groups, more, other_count: count, other_kinds: kinds, since }) {
    const hidden = groups.slice(GROUPS);
    this.others.hidden = !(kinds + hidden.length);
    setText(find('span', this.others), restWords(kinds + hidden.length,
      hidden.reduce((sum, group) => sum + group.count, count)));
    setText(find('a', this.others), `${t('all')} ${atLeast(all, more)}`);
    setAttribute(find('a', this.others), 'href', this.listOf({ status: 'failed', ended_since: since }));
  }

  /** The four answers, each a link to more. @param {Overview} found */
  patchGlance({ counts, failed, next_at: nextAt, oldest, schedules, workers }) {
    const [first] = schedules;
    const many = failed.count;
    const waited = oldest && (now() - Date.parse(oldest.since)) / 1000;
    const due = [nextAt, first?.times[0]].filter((at) => at != null).sort()[0];
    /** @type {[string, string, string][]} */
    const told = [
      [countWords(counts.running), workers.maximum
        ? t('running, {busy} of {maximum} workers busy', workers) : t('running'),
      this.listOf({ status: 'running' })],
      [countWords(counts.pending), waited === null ? t('pending')
        : t('pending, the oldest for {time}', { time: duration(waited) }),
      this.listOf({ status: 'pending' })],
      [atLeast(many, failed.more), t('failed in 24 hours'),
        this.listOf({ status: 'failed', ended_since: failed.since })],
      [due ? timeWords(new Date(due)) : '–', !due ? t('none in 24 hours')
        : due === nextAt ? t('the next scheduled task') : t('the next schedule'),
      due && due !== nextAt ? '#/schedules' : this.listOf({ status: 'scheduled' })]];
    this.glance.forEach((item, place) => {
      const link = find('a', item);
      const [figure, words, address] = told[place];
      setAttribute(link, 'href', address);
      setText(find('b', link), figure);
      setText(find('span', link), words);
    });
    setAttribute(find('a', this.glance[2]), 'data-state', many > 0 && 'failed');
  }

  /** What is due next, and all of the day on one line. @param {Planned[]} schedules */
  patchComing(schedules) {
    this.none.hidden = schedules.length > 0;
    this.line.hidden = !schedules.length;
    patchRows(this.coming, schedules.slice(0, COMING), ({ id }) => id, (planned) => h('li', {},
      timeElement(planned.times[0]), h('a', { href: `#/schedules/${planned.id}` },
        planned.name || planned.function), h('bdi', { class: 'help' }, planned.summary),
      h('span', { class: 'help' }, timesWords(planned))));
    setAttribute(this.line, 'aria-label', t('Runs in the next 24 hours: {names}', {
      names: schedules.map((planned) => (
        `${planned.name || planned.function} ${timesWords(planned)}`)).join(', ') }));
    const start = now();
    this.line.replaceChildren(...schedules.flatMap(({ times }) => dayMarks(times, start)),
      ...hourMarks(start));
  }
}

/** How often within the day: of many times the pace, if it is even. @param {Planned} planned */
function timesWords({ times }) {
  const { length } = times;
  if (length < MOST_TIMES) return length < 2 ? t('once') : t.n('{count} time | {count} times', length);
  const gaps = times.slice(1).map((at, place) => Date.parse(at) - Date.parse(times[place]));
  return gaps.every((gap) => gap === gaps[0]) ? t('every {time}', { time: duration(gaps[0] / 1000) })
    : t('at least {count} times', { count: length });
}

/**
 * Puts something at its time on the line of a day.
 * @template {HTMLElement} T @param {T} element @param {number} at @param {number} start
 */
function place(element, at, start) {
  element.style.left = `${Math.max(0, Math.min(100, ((at - start) / DAY) * 100))}%`;
  return element;
}

/**
 * The runs of one schedule; the server tells only so many.
 * @param {string[]} times @param {number} start
 */
function dayMarks(times, start) {
  const marks = times.map((at) => place(h('i'), Date.parse(at), start));
  if (times.length < MOST_TIMES) return marks;
  const rest = place(h('i', { class: 'rest' }), Date.parse(times[times.length - 1]), start);
  rest.style.width = `calc(100% - ${rest.style.left})`;
  return [...marks, rest];
}

/** Times below the line, as clocks here show them. @param {number} start */
function hourMarks(start) {
  const at = new Date(start);
  at.setHours(at.getHours() - (at.getHours() % 6) + 6, 0, 0, 0);
  const marks = [];
  for (; +at < start + 0.84 * DAY; at.setHours(at.getHours() + 6)) {
    marks.push(place(h('span', {}, clock.format(at)), +at, start));
  }
  return marks;
}

/** How long it runs already. @param {Row} task */
const ranWords = (task) => t('for {time}', { time: duration(elapsed(task) || 0) });

/** A task that runs: how far it is. @param {Row} task */
function runningRow(task) {
  const { id, function: name, owner, progress, summary } = task;
  const words = progressWords(task);
  return h('li', {}, badge('running', ranWords(task)),
    h('a', { href: `#/tasks/${id}` }, name),
    h('bdi', {}, summary),
    owner !== ownName() && h('span', { class: 'who' }, owner),
    progress !== null && h('progress',
      { value: progress, 'aria-label': t('Progress of {id}', { id }) }),
    words && h('span', { class: 'help' }, words));
}
