// @ts-check
/** Schedules with their next runs: all, one, and the form of one. */
import { get, isAdmin, mayChange, ownName, poll, request, store } from './api.js';
import { find, h, icon, render, setText, table, textWith } from './dom.js';
import { ZONE } from './durations.js';
import { duration, statusWord, timeWords } from './format.js';
import {
  badge, button, cell, change, choice, deleteButton, field, head, heading, part, patchRows, pauseButton,
  pauseWords, say, sendingForm, taskLink, timeElement,
} from './forms.js';
import {
  argumentFields, argumentsFrom, introduction, needChange, optionFields, optionsFrom,
  otherFunction, readFunctions, readQueues, showFunctions,
} from './functions.js';
import { t } from './language.js';
import { RuleFields, slotItem, slotWords, wordsOf } from './rules.js';
import { said } from './said.js';
import { mailField, mailWords } from './telling.js';
import { argumentsElement } from './values.js';

/** @import {Fired, Page, Schedule, TaskFunction, Ticks} from './types.js' */

/** @type {Record<string, string>} */
const CATCH_UP = {
  once: t('run once'), none: t('skip them'), all: t('run each of them'),
};
/** @type {typeof CATCH_UP} */
const OVERLAP = {
  skip: t('skip this run'), queue: t('wait until it has ended'), allow: t('run both at once'),
};
/** @type {typeof CATCH_UP} */
const SOURCES = {
  code: t('It comes from tasks.py; change or remove it there.'),
  folder: t('It comes from a file in the folder schedules; change or remove it there.'),
};

/** @type {Page['show']} */
export async function show(route, signal) {
  const { id, params } = route;
  if (id === 'new' || params.has('change')) return showPlanning(route, signal);
  if (!id) return showList(signal);
  const view = new ScheduleView(await get(`api/schedules/${encodeURIComponent(id)}`, signal));
  if (signal.aborted) return;
  view.enter();
  store.on('catalogue', () => view.patchFacts(), signal);
  poll(signal, () => view.refresh(signal), 3);
}

/** All that one may see, kept live. @param {AbortSignal} signal */
async function showList(signal) {
  const body = h('tbody');
  const titles = [t('Schedule'), t('When'), t('Next run'), t('Last run'),
    ...mayChange() ? [t('Actions')] : []];
  const list = table('plain schedules', t('Schedules'), titles, body);
  const empty = h('div', { class: 'empty teach' }, h('h2', {}, t('No schedule yet')),
    h('p', {}, t('A schedule adds tasks by itself, such as one every Monday at 01:00.')));
  const help = h('p', { class: 'help' });
  const refresh = async () => {
    const schedules = [];
    let answer;
    do {
      answer = await get(`api/schedules?limit=200&cursor=${answer?.next || ''}`, signal);
      schedules.push(...answer.schedules);
    } while (answer.next);
    help.replaceChildren(h('span', {}, ...schedules.length ? tickWords(answer.ticks) : []));
    list.hidden = !schedules.length;
    empty.hidden = !list.hidden;
    schedules.sort(byNextRun);
    patchRows(body, schedules, ({ id }) => id, (one) => scheduleRow(one, refresh));
    return 5;
  };
  const wait = await refresh();
  if (signal.aborted) return;
  render(t('Schedules'), head(t('Schedules'),
    h('a', { class: 'button primary', href: '#/schedules/new' }, icon('plus'), t('New schedule'))),
  list, empty, help);
  poll(signal, refresh, wait);
}

/** The next run first, then those without one. @param {Schedule} a @param {Schedule} b */
const byNextRun = ({ next_at: a }, { next_at: b }) => (
  (Date.parse(a || '') || Infinity) - (Date.parse(b || '') || Infinity) || 0);

/** How often somebody sees to what is due, unless it is all the time. @param {Ticks|null} ticks */
function tickWords(ticks) {
  const { last_at: last, period, resident } = ticks || {};
  if (resident || !last) return [];
  const places = { time: duration(period || 0), when: timeElement(last) };
  return period ? textWith('Due runs are checked about every {time}, last {when}.', places)
    : textWith('Due runs were last checked {when}.', places);
}

/** What it is called; those in tasks.py have names for the program only. @param {Schedule} schedule */
const titleOf = ({ source, name, function: called }) => (
  (source !== 'code' && name) || called);

/** What it does, unless its name says it. @param {Schedule} schedule */
const summaryElement = ({ source, name, function: called, summary }) => (
  h('bdi', { class: 'summary' }, source !== 'folder'
    && [source !== 'code' && name && called, summary].filter(Boolean).join(' ')));

/** One schedule. @param {Schedule} schedule @param {() => Promise<unknown>} refresh */
function scheduleRow(schedule, refresh) {
  const { id, owner, rule, paused, problem, last_task: task, last_at: last, recent } = schedule;
  const other = owner !== ownName() && h('span', { class: 'who' }, owner);
  const actions = h('div', { class: 'actions' });
  actions.append(...doingButtons(actions, schedule, refresh));
  return h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/schedules/${id}` }, titleOf(schedule)), ' ',
    summaryElement(schedule), ' ', other),
  h('td', { title: rule }, wordsOf(schedule)),
  cell(paused || problem ? null : t('Next run'), nextElement(schedule), warningElement(schedule)),
  cell(t('Last run'), task ? taskLink(task) : '–', ' ', last && timeElement(last), dots(recent)),
  mayChange() && h('td', {}, actions));
}

/**
 * The last runs, the newest on the right: links for the pointer, and one text for screen readers.
 * By keyboard the history on the schedule's own page leads to the same tasks.
 * @param {Fired[]} [runs]
 */
function dots(runs = []) {
  if (runs.length < 2) return null;
  const failed = runs.filter(({ task }) => task?.status === 'failed').length;
  const skipped = runs.filter(({ task, message }) => !task && message).length;
  const words = [t('The last {count}: {failed} failed', { count: runs.length, failed }),
    skipped && t('{count} without a task', { count: skipped })].filter(Boolean).join(', ');
  return h('div', { class: 'past' }, h('span', { class: 'hidden' }, words),
    h('span', { class: 'dots', 'aria-hidden': 'true' }, ...runs.map(dot)));
}

/** One run, or why there was none. @param {Fired} run */
function dot({ at, task, message }) {
  const when = timeWords(new Date(at));
  return task ? h('a', { href: `#/tasks/${task.id}`, tabindex: -1, 'data-state': task.status,
    title: `#${task.id} ${statusWord(task.status)}, ${when}` })
    : h('i', { 'data-state': 'skipped', title: `${when}: ${said(message || '')}` });
}

/**
 * Buttons to run and to pause it.
 * @param {HTMLElement} actions they stand among
 * @param {Schedule} schedule @param {() => Promise<unknown>} refresh
 */
function doingButtons(actions, schedule, refresh) {
  const path = `api/schedules/${schedule.id}`;
  const name = titleOf(schedule);
  return [button(t('Run now'), async () => {
    say(t('Task {id} was added.', await request('POST', `${path}/run`)), true);
    await refresh();
  }, { 'aria-label': t('Run now: {name}', { name }) }),
  pauseButton(actions, { ...schedule, name }, path, refresh)];
}

/** When it runs next, or why it does not. @param {Schedule} schedule */
function nextElement(schedule) {
  const { paused, problem, next_at: next, zone } = schedule;
  if (paused) return badge('paused', pauseWords(schedule));
  if (problem) return badge('alert', said(problem));
  if (!next) return h('span', { class: 'help' }, t('never'));
  const time = timeElement(next);
  return h('span', {}, time, zone !== ZONE && /:/.test(time.innerText) && ` ${t('your time')}`);
}

/** What is to be known although it runs. @param {Schedule} schedule */
const warningElement = ({ warning }) => (
  warning && h('p', { class: 'warning' }, badge('alert', said(warning))));

/** The page's parts; each look at the server brings them up to date in place. */
class ScheduleView {
  shown = '';
  doing = '';
  head = h('div');
  actions = h('div', { class: 'actions' });
  zone = h('span', { class: 'summary' });
  runs = h('ol', { class: 'slots' });
  history = h('ol', { class: 'timeline' });
  values = h('div');
  facts = h('p', { class: 'help' });

  /** @param {Schedule} schedule */
  constructor(schedule) {
    this.schedule = schedule;
    this.path = `api/schedules/${schedule.id}`;
  }

  enter() {
    const { schedule } = this;
    const title = titleOf(schedule);
    render(title, h('a', { class: 'back', href: '#/schedules' }, t('← Schedules')),
      heading(title, ' ', summaryElement(schedule)),
      this.head, h('div', { class: 'doing' }, this.actions),
      h('div', { class: 'columns' },
        h('section', {}, h('h2', {}, t('Next runs'), ' ', this.zone), this.runs),
        part(t('History'), this.history)),
      part(t('Arguments'), this.values), this.facts);
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
    const { history = [], upcoming = [], last_task: _, ...schedule } = this.schedule;
    patchRows(this.history, history.length ? history : [{ at: '', task: null, message: null }],
      ({ at, task }) => `${at} ${task?.id}`, historyItem);
    patchRows(this.runs, upcoming, ({ at }) => at, slotItem);
    this.runs.classList.toggle('off', schedule.paused || !schedule.next_at);
    this.patchActions();
    patchRows(this.head, [{ ...schedule, upcoming: upcoming.slice(0, 1) }], () => '', sentence);
    setText(this.zone, schedule.zone);
    const key = JSON.stringify(schedule);
    if (key === this.shown) return;
    this.shown = key;
    this.patchFacts();
  }

  /** What can be done; built anew only when that changed, and nothing is asked. */
  patchActions() {
    const { actions, schedule } = this;
    const { id, source, paused } = schedule;
    const doing = source + paused;
    if (doing === this.doing || actions.querySelector('.question')) return;
    this.doing = doing;
    const own = source === 'person' && [
      h('a', { class: 'button', href: `#/schedules/${id}?change=1` }, t('Change')),
      deleteButton(titleOf(schedule), this.path, () => { location.hash = '#/schedules'; },
        { class: 'button apart' })];
    const focused = actions.contains(document.activeElement);
    actions.replaceChildren(...doingButtons(actions, schedule, () => this.refresh()),
      ...own || []);
    if (focused) find('h1').focus({ preventScroll: true });
  }

  /** The values, and what else is known in a quiet line. */
  patchFacts() {
    const { schedule, values, facts } = this;
    const { id, owner, source, options, catch_up: missed, overlap } = schedule;
    values.replaceChildren(argumentsElement(schedule));
    facts.replaceChildren([t('Schedule {id}', { id }), t('owner {owner}', { owner }),
      ...Object.entries(options).map(([name, value]) => (name === 'notify' ? mailWords(value)
        : `${name.replace(/_/g, ' ')} ${value}`)).filter(Boolean),
      t('missed runs: {what}', { what: CATCH_UP[missed] }),
      t('if the last has not ended: {what}', { what: OVERLAP[overlap] })].join(' · '),
    ...source in SOURCES ? [h('br'), SOURCES[source]] : []);
  }
}

/** The rule in words, and when it runs next. @param {Omit<Schedule, 'last_task'>} schedule */
function sentence(schedule) {
  const whole = /** @type {Schedule} */ (schedule);
  const { rule, paused, problem, zone, upcoming: [first] = [] } = whole;
  const local = first && zone !== ZONE && `${slotWords(first.local)} ${zone}, `;
  return h('div', {}, h('p', { class: 'sentence', title: rule }, wordsOf(whole)),
    h('p', { class: 'lead' }, !paused && !problem && `${t('Next run')} ${local || ''}`,
      nextElement(whole)), warningElement(whole));
}

/** One time that it ran, or did not. @param {Fired} fired */
function historyItem({ at, task, message }) {
  if (!at) return h('li', { class: 'help' }, t('It has not run yet.'));
  return h('li', {}, timeElement(at), h('span', {}, task && taskLink(task), ' ',
    message && said(message)));
}

/** Which function, then the form. @type {Page['show']} */
async function showPlanning({ id, params }, signal) {
  needChange();
  const [functions, queues, schedule] = await Promise.all([
    readFunctions(signal), readQueues(signal),
    id === 'new' ? null : get(`api/schedules/${encodeURIComponent(id)}`, signal),
  ]);
  if (signal.aborted) return;
  const wanted = schedule?.function || params.get('function');
  const known = schedule ? store.state.catalogue?.functions || [] : functions;
  const chosen = known.find(({ name }) => name === wanted);
  if (chosen) return showForm(chosen, schedule, queues, signal);
  await showFunctions(t('New schedule'), functions, wanted,
    (name) => `#/schedules/new?function=${name}`, signal);
}

/**
 * The form; `schedule` is the one to change.
 * @param {TaskFunction} chosen @param {Schedule|null} schedule
 * @param {string[]} queues @param {AbortSignal} signal
 */
function showForm(chosen, schedule, queues, signal) {
  const rule = new RuleFields(schedule);
  const form = sendingForm(schedule ? t('Save') : t('Add schedule'), async (now, before) => {
    const body = {
      name: now.name.trim() || null,
      function: chosen.name,
      arguments: argumentsFrom(chosen.schema, now, before, schedule?.arguments),
      rule: rule.text(),
      zone: now.zone.trim(),
      catch_up: now.catch_up,
      overlap: now.overlap,
      options: optionsFrom(now, before, schedule?.options),
      owner: now.owner?.trim() || schedule?.owner,
    };
    const saved = schedule ? await change(`api/schedules/${schedule.id}`, schedule, body)
      : await request('POST', 'api/schedules', body);
    if (!signal.aborted) location.hash = `#/schedules/${saved.id}`;
  }, field(t('Name'), h('input', { name: 'name', value: schedule?.name, maxlength: 100,
    autocomplete: 'off' })), rule.root, h('h2', {}, t('Arguments')),
  ...argumentFields(chosen.schema, schedule?.arguments || {}),
  mailField(chosen, schedule?.options || {}, schedule?.owner), otherFields(chosen, schedule, queues));
  form.classList.add('planning');
  render(t('Schedule {name}', chosen), !schedule ? otherFunction('#/schedules/new')
    : h('a', { class: 'back', href: `#/schedules/${schedule.id}` }, t('← Back')),
    heading(schedule ? t('Change schedule of {name}', chosen)
      : t('Schedule {name}', chosen)),
    ...introduction(chosen), form);
  rule.preview();
}

/**
 * What is well as it is for most.
 * @param {TaskFunction} chosen @param {Schedule|null} schedule @param {string[]} queues
 */
function otherFields(chosen, schedule, queues) {
  return h('details', {}, h('summary', {}, t('Missed runs, overlaps and options')),
    h('div', { class: 'grid' },
      field(t('Missed runs'), choice({ name: 'catch_up' }, Object.entries(CATCH_UP),
        schedule?.catch_up), { help: t('Runs that were due while the computer was off.') }),
      field(t('If the last run has not ended'), choice({ name: 'overlap' }, Object.entries(OVERLAP),
        schedule?.overlap)),
      ...optionFields(chosen, schedule?.options || {}, queues),
      isAdmin() && !schedule && field(t('Owner'), h('input', { name: 'owner', autocomplete: 'off',
        spellcheck: 'false', placeholder: ownName() }),
      { help: t('The owner of its tasks.') })));
}
