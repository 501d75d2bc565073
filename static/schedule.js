// @ts-check
/** One schedule: when it runs, what it did, and what can be done about it. */
import { get, poll, request } from './api.js';
import { h, render, say } from './dom.js';
import { askingButton, patchRows, pauseButton, taskLink } from './forms.js';
import { timeElement } from './format.js';
import { act } from './live.js';
import { nextElement, titleOf, wordsOf } from './schedules.js';
import { store } from './store.js';
import { argumentsElement } from './task.js';

/** @import {Fired, Page, Preview, Schedule, Slot} from './types.js' */

const RUNS = 10;
/** @type {Record<string, string>} */
export const CATCH_UP = {
  once: 'run once', none: 'leave them out', all: 'run each of them',
};
/** @type {Record<string, string>} */
export const OVERLAP = {
  skip: 'leave this run out', queue: 'wait until it has ended', allow: 'run both at once',
};
/** @type {Record<string, string>} */
const SOURCES = { code: 'It comes from tasks.py; change or remove it there.',
  folder: 'It comes from a file in the folder schedules; change or remove it there.' };
const slotFormat = new Intl.DateTimeFormat('en-GB', { timeZone: 'UTC', weekday: 'short',
  day: '2-digit', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit' });

/** @type {Page['show']} */
export async function show({ id }, signal) {
  const view = new ScheduleView(await get(`api/schedules/${encodeURIComponent(id)}`, signal));
  if (signal.aborted) return;
  view.enter();
  poll(signal, () => view.refresh(signal), 3);
}

/** Times that a rule gives, in its own zone; what is special about one stands beside it. @param {Slot[]} times */
export const slotItems = (times) => times.map(({ at, local, note }) => h('li', {},
  h('time', { datetime: at }, slotWords(local)), note && h('span', { class: 'mark' }, note)));

/** A local time with its weekday. @param {string} local */
function slotWords(local) {
  const time = new Date(`${local.slice(0, 19)}Z`);
  const seconds = local.slice(17, 19);
  const words = Number.isNaN(time.getTime()) ? local : slotFormat.format(time);
  return seconds === '00' ? words : `${words}:${seconds}`;
}

/** The page's parts; each look at the server brings them up to date in place. */
class ScheduleView {
  shown = '';
  head = h('div');
  actions = h('div', { class: 'actions' });
  runs = h('ol', { class: 'slots' });
  history = h('ol', { class: 'timeline' });
  values = h('div');
  facts = h('p', { class: 'help' });

  /** @param {Schedule} schedule */
  constructor(schedule) {
    this.schedule = schedule;
    this.path = `api/schedules/${schedule.id}`;
  }

  /** Shows the page for the first time. */
  enter() {
    const { schedule } = this;
    const title = titleOf(schedule);
    render(title, h('a', { class: 'back', href: '#/schedules' }, '← Schedules'),
      h('h1', { tabindex: -1 }, title, ' ', h('bdi', { class: 'summary' }, schedule.summary)),
      this.head, h('div', { class: 'doing' }, this.actions),
      h('div', { class: 'columns' },
        h('section', {}, h('h2', {}, 'Next runs'), this.runs),
        h('section', {}, h('h2', {}, 'History'), this.history)),
      h('section', {}, h('h2', {}, 'Arguments'), this.values), this.facts);
    this.patch();
  }

  /** One look; resolves with the seconds until the next. @param {AbortSignal} [signal] */
  async refresh(signal) {
    const schedule = await get(this.path, signal);
    if (signal?.aborted) return 0;
    this.schedule = schedule;
    this.patch();
    return /pending|running/.test(schedule.last_task?.status) ? 2 : 5;
  }

  /** Brings everything up to date; what is built anew only when it changed. */
  patch() {
    const { history = [], last_task: _, ...schedule } = this.schedule;
    patchRows(this.history, history.length ? history : [{ at: '', task: null, message: null }],
      ({ at, task }) => `${at} ${task?.id}`, historyItem);
    patchRows(this.head, [schedule], () => '', sentence);
    const key = JSON.stringify(schedule);
    if (key === this.shown) return;
    this.shown = key;
    this.patchActions();
    this.patchRuns();
    this.patchFacts();
  }

  /** What can be done. */
  patchActions() {
    const { actions, schedule } = this;
    const { id, source } = schedule;
    const run = h('button', { class: 'button', onclick: () => act(run, () => this.run()) }, 'Run now');
    const own = source === 'person' && [
      h('a', { class: 'button', href: `#/schedules/${id}?change=1` }, 'Change'),
      askingButton('Delete', 'Delete this schedule?', () => this.remove())];
    const focused = actions.contains(document.activeElement);
    actions.replaceChildren(run, pauseButton(actions, schedule, (body) => this.change(body)),
      ...own || []);
    if (focused) actions.querySelector('button')?.focus();
  }

  /** Adds its task now. */
  async run() {
    const task = await request('POST', `${this.path}/run`);
    say(`Task ${task.id} was added.`, true);
    await this.refresh();
  }

  /** @param {Record<string, unknown>} body */
  async change(body) {
    await request('PATCH', this.path, body);
    await this.refresh();
  }

  /** Deletes it, then shows the others. */
  async remove() {
    await request('DELETE', this.path);
    location.hash = '#/schedules';
    say('The schedule was deleted.', true);
  }

  /** The times to come. */
  async patchRuns() {
    const { rule, zone, next_at: next, paused } = this.schedule;
    const { times } = /** @type {Preview} */ (
      await request('POST', 'api/schedules/preview', { rule, zone, count: RUNS }));
    this.runs.replaceChildren(...slotItems(times));
    this.runs.classList.toggle('off', paused || !next);
  }

  /** The values, and what else is known in a quiet line. */
  patchFacts() {
    const { schedule, values, facts } = this;
    const { id, owner, source, options, catch_up: missed, overlap } = schedule;
    const schema = store.state.catalogue?.functions
      .find(({ name }) => name === schedule.function)?.schema;
    values.replaceChildren(argumentsElement(schedule.arguments, schema));
    facts.replaceChildren([`Schedule ${id}`, `owner ${owner}`,
      ...Object.entries(options).map(([name, value]) => `${name.replace(/_/g, ' ')} ${value}`),
      `missed runs: ${CATCH_UP[missed]}`, `if the last has not ended: ${OVERLAP[overlap]}`]
      .join(' · '), ...source in SOURCES ? [h('br'), SOURCES[source]] : []);
  }
}

/** The rule in words, and when it runs next. @param {Omit<Schedule, 'last_task'>} schedule */
function sentence(schedule) {
  const whole = /** @type {Schedule} */ (schedule);
  const { rule, paused, problem } = whole;
  return h('div', {}, h('p', { class: 'sentence', title: rule }, wordsOf(whole)),
    h('p', { class: 'lead' }, !paused && !problem && 'Next run ', nextElement(whole)));
}

/** One time that it ran, or did not. @param {Fired} fired */
function historyItem({ at, task, message }) {
  if (!at) return h('li', { class: 'help' }, 'It has not run yet.');
  return h('li', {}, timeElement(at), h('span', {}, task && taskLink(task), ' ', message));
}
