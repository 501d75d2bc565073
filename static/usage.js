// @ts-check
/** All functions with their figures, and the page of each: its form, tasks, times, failures, runs. */
import { ApiError, get, isAdmin, mayChange, poll } from './api.js';
import { h, render, setText } from './dom.js';
import { STATUSES, countWords, duration, elapsed, statusWord, timeWords, tookWords } from './format.js';
import { badge, head, pairItems, part, patchRows, timeElement } from './forms.js';
import { introduction } from './functions.js';
import {
  Choices, beginWords, byFailures, functionTable, ownerFilter, ownerOf, patchFunctions, placeAfter,
  readFigures, spread,
} from './history.js';
import { t } from './language.js';
import { groupRow, restWords } from './list.js';
import { readCatalogue } from './live.js';
import { address } from './places.js';
import { wordsOf } from './rules.js';

/** @import {Failures, Figures, Page, Row, Schedule, TaskFunction} from './types.js' */

const SECONDS = 10;
const RUNS = 50;
const SCHEDULES = 200;
const ENDED = 'succeeded,failed,cancelled';
/** What stands below a bar, so that a state is more than a colour. @type {Record<string, string>} */
const SIGNS = { succeeded: '✓', failed: '✕', cancelled: '–' };
/** @type {Record<string, string>} */
const WHO = { user: t('Users may add it.'), admin: t('Only admins may add it.'),
  nobody: t('It is added by programs only.') };

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  const { functions } = await readCatalogue(signal);
  const chosen = functions.find(({ name }) => name === id);
  if (id && !chosen && !(await get(`api/tasks?${new URLSearchParams({ function: id, limit: '1' })}`,
    signal)).tasks.length) {
    throw new ApiError(404);
  }
  if (signal.aborted) return;
  const choices = new Choices(id ? `functions/${encodeURIComponent(id)}` : 'functions');
  choices.patch(params);
  if (id) await new FunctionPage(id, chosen, choices, params).enter(signal);
  else await showAll(functions, choices, params, signal);
}

/**
 * A table of all functions, also of those that did not run.
 * @param {TaskFunction[]} functions @param {Choices} choices @param {URLSearchParams} params
 * @param {AbortSignal} signal
 */
async function showAll(functions, choices, params, signal) {
  const body = h('tbody');
  const note = h('p', { class: 'help' });
  const patch = async () => {
    const { found } = await readFigures(params, signal);
    if (signal.aborted) return 0;
    const ran = new Set(found.functions.map(({ name }) => name));
    const others = functions.filter(({ name }) => !ran.has(name)).map(({ name }) => (
      /** @type {Figures} */ ({ name, added: 0, succeeded: 0, failed: 0, waited: null, ran: null })));
    setText(note, beginWords(found));
    patchFunctions(body, [...found.functions.sort(byFailures), ...others], params);
    return 60;
  };
  const wait = await patch();
  if (signal.aborted) return;
  render(t('Functions'), h('div', { class: 'overview' },
    head(t('Functions'), choices.whose, choices.range), note, functionTable(body)));
  poll(signal, patch, wait);
}

/** The page of a function. */
class FunctionPage {
  /**
   * @param {string} name @param {TaskFunction|undefined} chosen @param {Choices} choices
   * @param {URLSearchParams} params
   */
  constructor(name, chosen, choices, params) {
    this.name = name;
    this.params = params;
    this.owner = ownerOf(params);
    this.states = h('p', { class: 'links' });
    this.facts = h('dl', { class: 'pairs' });
    this.note = h('p', { class: 'help' });
    this.failures = h('ul', { class: 'works' });
    this.calm = h('p', { class: 'help' });
    this.schedules = h('ul', { class: 'works' });
    this.none = h('p', { class: 'help' }, t('No schedule adds it.'));
    const tell = (/** @type {any} */ { target }) => {
      const link = target.closest('a');
      if (link) setText(this.reading, link.title);
    };
    this.runs = h('ol', { class: 'runs', onfocusin: tell, onpointerover: tell,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.press(event) });
    this.reading = h('p', { class: 'help reading' });
    const may = mayChange() && chosen && (chosen.who === 'user' || (chosen.who === 'admin' && isAdmin()));
    const query = new URLSearchParams({ function: name });
    this.root = h('div', { class: 'overview' },
      h('a', { class: 'back', href: address(params, {}, 'functions') }, t('← All functions')),
      head(name, choices.whose,
        may && h('a', { class: 'button primary', href: `#/new/${encodeURIComponent(name)}` }, t('New task'))),
      ...chosen ? introduction(chosen) : [],
      h('p', { class: 'help' }, chosen ? WHO[chosen.who] : t('tasks.py has no such function now.')),
      part(t('Last runs'), this.runs, this.reading),
      part(t('Tasks'), this.states),
      h('section', {}, h('div', { class: 'bar' }, h('h2', {}, t('Figures')), choices.range), this.note,
        this.facts),
      part(t('Failures by kind'), this.calm, this.failures),
      part(t('Schedules'), this.none, this.schedules,
        h('p', { hidden: !may }, h('a', { href: `#/schedules/new?${query}` }, t('New schedule')))));
  }

  /** The address of the list with these filters, the function and the owner.
   * @param {Record<string, string>} filter */
  listOf(filter) {
    return address(new URLSearchParams(), { ...filter, function: this.name, ...ownerFilter(this.params) });
  }

  /** Comes into view, with all that it tells. @param {AbortSignal} signal */
  async enter(signal) {
    await Promise.all([this.readTasks(signal), this.readFigures(signal), this.readSchedules(signal)]);
    if (signal.aborted) return;
    render(this.name, this.root);
    this.runs.scrollLeft = this.runs.scrollWidth;       // the newest runs are at the end
    poll(signal, () => this.readTasks(signal), SECONDS);
    poll(signal, () => this.readFigures(signal), 60);
  }

  /** Tasks by state, failures by kind and the last runs. @param {AbortSignal} signal */
  async readTasks(signal) {
    const query = new URLSearchParams({ function: this.name, status: ENDED, limit: `${RUNS}`, counts: '1',
      failed: '1', ...this.owner && { owner: this.owner } });
    const { counts, failed, tasks } = await get(`api/tasks?${query}`, signal);
    if (signal.aborted) return 0;
    this.states.replaceChildren(h('a', { href: this.listOf({}) }, t('all')), ...STATUSES.map((status) => (
      h('a', { href: this.listOf({ status }) }, statusWord(status),
        counts && ` ${countWords(counts[status])}`))));
    this.patchFailures(failed);
    this.patchRuns(tasks.reverse());
    return SECONDS;
  }

  /** @param {Failures} failed */
  patchFailures({ groups, more, other_count: count, other_kinds: kinds }) {
    patchRows(this.failures, groups, ({ error }) => error || '', (group) => (
      groupRow(group, ownerFilter(this.params), () => {}, more)));
    setText(this.calm, kinds ? restWords(kinds, count) : groups.length ? '' : t('Nothing failed, or all of it was retried.'));
  }

  /** A bar for each run: its height is the duration, its colour and sign the state. @param {Row[]} tasks */
  patchRuns(tasks) {
    const longest = Math.max(0.001, ...tasks.map((task) => elapsed(task) || 0));
    const chosen = this.runs.querySelector('[tabindex="0"]')?.closest('li')?.dataset.key;
    patchRows(this.runs, tasks, (task) => task.id, (task) => runBar(task, longest));
    const links = [...this.runs.querySelectorAll('a')];
    const first = links.at(tasks.findIndex(({ id }) => String(id) === chosen));    // else the last one
    for (const link of links) link.tabIndex = link === first ? 0 : -1;
    if (!this.reading.textContent) {
      setText(this.reading, tasks.length
        ? t('The longest of these runs took {time}.', { time: duration(longest) })
        : t('No run has ended.'));
    }
  }

  /** Arrow keys, Home and End go through the runs. @param {KeyboardEvent} event */
  press(event) {
    const links = [...this.runs.querySelectorAll('a')];
    const here = links.findIndex((link) => link === document.activeElement);
    const link = links[placeAfter(event, here, links.length - 1) ?? -1];
    if (!link) return;
    event.preventDefault();
    links[here].tabIndex = -1;
    link.tabIndex = 0;
    link.focus();
  }

  /** Median and 95th percentile, of the range that the address says. @param {AbortSignal} signal */
  async readFigures(signal) {
    const { found } = await readFigures(this.params, signal, { function: this.name });
    if (signal.aborted) return 0;
    const [waited, ran] = [found.totals.waited, found.totals.ran].map(spread);
    const { cancelled, failed, succeeded } = found.totals;
    const words = (/** @type {string[]} */ [median, high]) => (median === '–' ? median
      : t('{median}, 95 % within {high}', { median, high }));
    this.facts.replaceChildren(...pairItems([[t('Ended tasks'),
      t('{succeeded} succeeded, {failed} failed, {cancelled} cancelled.', {
        succeeded: countWords(succeeded, Infinity), failed: countWords(failed, Infinity),
        cancelled: countWords(cancelled, Infinity) })],
    [t('Ran, median'), words(ran)], [t('Waited, median'), words(waited)]]));
    setText(this.note, [this.owner ? t('Of your tasks.') : t('Of everybody’s tasks.'), beginWords(found)]
      .join(' ').trim());
    return 60;
  }

  /** Its schedules, among the first that one may see. @param {AbortSignal} signal */
  async readSchedules(signal) {
    const { schedules, next } = await get(`api/schedules?limit=${SCHEDULES}`, signal);
    if (signal.aborted) return;
    const own = /** @type {Schedule[]} */ (schedules).filter((one) => one.function === this.name);
    patchRows(this.schedules, own, ({ id }) => id, (one) => h('li', {},
      one.paused ? badge('paused', t('paused')) : one.next_at && timeElement(one.next_at),
      h('a', { href: `#/schedules/${one.id}` }, wordsOf(one)),
      h('bdi', { class: 'help' }, one.summary)));
    this.none.hidden = Boolean(own.length || next);
  }
}

/** One run. @param {Row} task @param {number} longest */
function runBar(task, longest) {
  const seconds = elapsed(task);
  const words = [`#${task.id}`, statusWord(task.status), tookWords(seconds),
    task.finished_at && timeWords(new Date(task.finished_at))].filter(Boolean).join(', ');
  const bar = h('i');
  bar.style.height = `${Math.max(4, Math.round(72 * ((seconds || 0) / longest)))}px`;
  return h('li', {}, h('a', { href: `#/tasks/${task.id}`, 'aria-label': words, title: words,
    'data-state': task.status, tabindex: -1 }, bar,
  h('span', { 'aria-hidden': 'true' }, SIGNS[task.status])));
}
