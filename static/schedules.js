// @ts-check
/** Schedules, with their next runs; the form of one, with a preview of them. */
import { ZONE, argumentFields, argumentsFrom, number } from './arguments.js';
import { get, isAdmin, mayChange, poll, request, store } from './api.js';
import { find, h, icon, render, setText, table, textWith } from './dom.js';
import {
  badge, button, cell, change, choice, deleteButton, field, patchRows, pauseButton, pauseWords,
  sendingForm, taskLink, timeElement,
} from './forms.js';
import { duration, formatter, unitWords } from './format.js';
import {
  introduction, needChange, optionFields, optionsFrom, otherFunction, readFunctions, readQueues,
  showFunctions,
} from './functions.js';
import { locale, t } from './language.js';
import { say } from './live.js';
import { said } from './said.js';
import { argumentsElement } from './task.js';

/** @import {Fired, Page, Preview, Schedule, Slot, TaskFunction, Ticks} from './types.js' */

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
const slotFormat = formatter({ timeZone: 'UTC', weekday: 'short', day: '2-digit', month: 'short',
  year: 'numeric', hour: '2-digit', minute: '2-digit' });
/** Kinds of rules: name, words, text with parts in braces. @type {[string, string, string][]} */
const KINDS = [
  ['every', t('At an interval'), 'every {count}{unit}'],
  ['daily', t('Every day'), 'daily {time}'],
  ['weekly', t('Every week'), 'weekly {days} {time}'],
  ['monthly', t('Every month'), 'monthly {day} {time}'],
  ['yearly', t('Every year'), 'yearly {month}-{date} {time}'],
  ['cron', t('Cron expression'), '{cron}'],
];
const PART = /{(\w+)}/g;
/** What each part may be. @type {Record<string, string>} */
const PARTS = { count: '\\d+', unit: '[smhd]?', time: '\\d\\d:\\d\\d', days: '[a-z,]+',
  day: '\\d+|last', month: '\\d\\d', date: '\\d\\d', cron: '.*' };
/** @type {[string, string][]} */
const EVERY = [['s', t('seconds')], ['m', t('minutes')], ['h', t('hours')], ['d', t('days')]];
const WEEK = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];
const dayFormat = formatter({ weekday: 'short' });
const monthFormat = formatter({ month: 'long' });
const yearDayFormat = formatter({ month: 'long', day: 'numeric' });
/** @param {string} name */
const weekday = (name) => (
  dayFormat.format(new Date(2001, 0, 1 + WEEK.indexOf(name.slice(0, 3).toLowerCase()))));

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
    patchRows(body, schedules, ({ id }) => id, (one) => scheduleRow(one, refresh));
    return 5;
  };
  const wait = await refresh();
  if (signal.aborted) return;
  render(t('Schedules'), h('div', { class: 'head' }, h('h1', { tabindex: -1 }, t('Schedules')),
    h('a', { class: 'button primary', href: '#/schedules/new' }, icon('plus'), t('New schedule'))),
  list, empty, help);
  poll(signal, refresh, wait);
}

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

/** @type {Record<string, string>} */
const UNITS = { s: 'second', m: 'minute', h: 'hour', d: 'day' };

/** What stands for a cron expression. @type {Record<string, string>} */
const SHORT_RULES = { '@hourly': '0 * * * *', '@midnight': 'daily 00:00', '@daily': 'daily 00:00',
  '@weekly': `weekly ${WEEK[6]} 00:00`, '@monthly': 'monthly 1 00:00', '@yearly': 'yearly 01-01 00:00',
  '@annually': 'yearly 01-01 00:00' };
const CRON_FIELDS = [said('second'), said('minute'), said('hour'), said('day of the month'),
  said('month'), said('weekday')];

/** Each field of a cron expression that says something. @param {string} rule */
function cronWords(rule) {
  const values = rule.split(/\s+/);
  const month = (/** @type {string} */ name) => {
    const number = new Date(`1 ${name} 2000`).getMonth();
    return Number.isNaN(number) ? weekday(name) : monthFormat.format(new Date(2000, number));
  };
  const [minute, hour] = values;
  const clock = values.length === 5 && [hour, minute].every((value) => /^\d+$/.test(value));
  const words = CRON_FIELDS.slice(-values.length).map((name, place) => (
    values[place] === '*' || (clock && place < 2) ? ''
      : `${name} ${values[place].replace(/[a-z]{3,}/gi, month)}`)).filter(Boolean);
  if (clock) words.unshift(`${hour.padStart(2, '0')}:${minute.padStart(2, '0')}`);
  return words.join(', ') || `${t('Every')} ${unitWords(1, values[5] ? 'second' : 'minute')}`;
}

/**
 * The rule in words; the zone of here need not be said. The server's are English.
 * @param {{words: string, rule?: string, zone?: string}} rule
 */
function wordsOf({ words, rule = '', zone = '' }) {
  const { kind, count, unit, days, day, month, date, time, cron } = partsOf(SHORT_RULES[rule]
    || rule.replace(/^(every \d+) ([smhd])[a-z]+$/, '$1$2'));
  const label = KINDS.find(([name]) => name === kind)?.[1];
  const isOdd = !label || (kind === 'cron' && !/^[*\d]/.test(cron));
  if (locale === 'en-GB' || isOdd) return words.replace(` (${ZONE})`, '');
  if (count) return `${t('Every')} ${unitWords(Number(count), UNITS[unit || 's'])}`;
  const when = [
    days?.split(',').map(weekday).join(', '),
    day && (day === 'last' ? t('the last day') : t('day {number}', { number: Number(day) })),
    month && yearDayFormat.format(new Date(2000, Number(month) - 1, Number(date))), time];
  const elsewhere = zone && zone !== ZONE ? ` (${zone})` : '';
  return `${cron ? cronWords(cron) : [label, ...when].filter(Boolean).join(', ')}${elsewhere}`;
}

/** One schedule. @param {Schedule} schedule @param {() => Promise<unknown>} refresh */
function scheduleRow(schedule, refresh) {
  const { id, owner, rule, paused, problem, last_task: task, last_at: last } = schedule;
  const other = owner !== store.state.session?.user.name && h('span', { class: 'who' }, owner);
  const actions = h('div', { class: 'actions' });
  actions.append(...doingButtons(actions, schedule, refresh));
  return h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/schedules/${id}` }, titleOf(schedule)), ' ',
    summaryElement(schedule), ' ', other),
  h('td', { title: rule }, wordsOf(schedule)),
  cell(paused || problem ? null : t('Next run'), nextElement(schedule), warningElement(schedule)),
  cell(t('Last run'), task ? taskLink(task) : '–', ' ', last && timeElement(last)),
  mayChange() && h('td', {}, actions));
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

/** A time in the rule's zone, and what the clocks do on that day. @param {Slot} slot */
const slotItem = ({ local, note }) => h('li', {},
  h('span', {}, slotWords(local)), note && h('span', { class: 'mark' }, said(note)));

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
      h('h1', { tabindex: -1 }, title, ' ', summaryElement(schedule)),
      this.head, h('div', { class: 'doing' }, this.actions),
      h('div', { class: 'columns' },
        h('section', {}, h('h2', {}, t('Next runs'), ' ', this.zone), this.runs),
        h('section', {}, h('h2', {}, t('History')), this.history)),
      h('section', {}, h('h2', {}, t('Arguments')), this.values), this.facts);
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
      deleteButton(titleOf(schedule), this.path, () => { location.hash = '#/schedules'; })];
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
      ...Object.entries(options).map(([name, value]) => `${name.replace(/_/g, ' ')} ${value}`),
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
    autocomplete: 'off' }), { optional: true }), rule.root, h('h2', {}, t('Arguments')),
  ...argumentFields(chosen.schema, schedule?.arguments || {}),
  otherFields(chosen, schedule, queues));
  form.classList.add('planning');
  render(t('Schedule {name}', chosen), !schedule ? otherFunction('#/schedules/new')
    : h('a', { class: 'back', href: `#/schedules/${schedule.id}` }, t('← Back')),
    h('h1', { tabindex: -1 }, schedule ? t('Change schedule of {name}', chosen)
      : t('Schedule {name}', chosen)),
    ...introduction(chosen), form);
  rule.preview();
}

/**
 * What is well as it is for most.
 * @param {TaskFunction} chosen @param {Schedule|null} schedule @param {string[]} queues
 */
function otherFields(chosen, schedule, queues) {
  const entries = (/** @type {Record<string, string>} */ words) => Object.entries(words);
  return h('details', {}, h('summary', {}, t('Missed runs, overlaps and options')),
    h('div', { class: 'grid' },
      field(t('Missed runs'), choice({ name: 'catch_up' }, entries(CATCH_UP),
        schedule?.catch_up), { help: t('After the computer was off, or while nothing checked.') }),
      field(t('If the last run has not ended'), choice({ name: 'overlap' }, entries(OVERLAP),
        schedule?.overlap)),
      ...optionFields(chosen, schedule?.options || {}, queues),
      isAdmin() && !schedule && field(t('Owner'), h('input', { name: 'owner', autocomplete: 'off',
        spellcheck: 'false', placeholder: store.state.session?.user.name }),
      { help: t('Whose tasks it adds.') })));
}

/** When it runs: simple choices that become a rule's text, and what the server reads in it. */
class RuleFields {
  asked = 0;
  timer = 0;
  root = h('div', { class: 'rule', 'data-field': 'rule', oninput: () => this.later() });
  words = h('p', { class: 'words', 'aria-live': 'polite' });
  times = h('ol', { class: 'slots' });

  /** @param {Schedule|null} schedule */
  constructor(schedule) {
    const parts = partsOf(schedule?.rule || 'daily 01:00');
    this.kind = choice({ name: 'kind' }, KINDS.map(([kind, said]) => [kind, said]), parts.kind);
    this.parts = buildParts(parts);
    const zones = h('datalist', { id: 'zones' });
    const zone = h('input', { name: 'zone', list: 'zones', autocomplete: 'off', spellcheck: 'false',
      value: schedule?.zone || ZONE || 'UTC',
      onfocus: () => zones.childElementCount || zones.append(...zoneOptions()) });
    this.zone = zone;
    this.root.append(field(t('When'), this.kind), ...Object.values(this.parts),
      field(t('Time zone'), zone), zones,
      h('div', { class: 'preview' }, this.words, this.times));
    this.showParts();
    this.first = this.text();
    this.rule = schedule?.rule;
  }

  /** What was chosen for a part. @param {string} name */
  value(name) {
    const chosen = `[name=${name}]:not([type=checkbox]), [name=${name}]:checked`;
    const controls = this.parts[this.kind.value].querySelectorAll(chosen);
    return [...controls].map((one) => /** @type {HTMLInputElement} */ (one).value.trim()).join();
  }

  /** The rule as the server reads it; as it was, if nothing was changed. */
  text() {
    const [, , text = ''] = KINDS.find(([kind]) => kind === this.kind.value) || [];
    const rule = text.replace(PART, (_, name) => this.value(name));
    return rule === this.first && this.rule || rule;
  }

  showParts() {
    for (const [name, part] of Object.entries(this.parts)) part.hidden = name !== this.kind.value;
  }

  later() {
    this.showParts();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), 250);
  }

  /** What the rule means, or what is wrong with it, and the next times. */
  async preview() {
    const asked = (this.asked += 1);
    const body = { rule: this.text(), zone: this.zone.value.trim(), count: 10 };
    /** @type {Preview & {bad?: boolean}} */
    const preview = await request('POST', 'api/schedules/preview', body)
      .catch(({ errors, message }) => ({ times: [], bad: true,
        words: errors?.map((/** @type {Error} */ error) => error.message).join(' ') || message }));
    if (asked !== this.asked) return;
    this.root.classList.toggle('bad', Boolean(preview.bad));
    setText(this.words, wordsOf(preview));
    this.times.replaceChildren(...preview.times.map(slotItem));
  }
}

/** A rule's text taken apart. @param {string} rule @returns {Record<string, string>} */
function partsOf(rule) {
  for (const [kind, , text] of KINDS) {
    const pattern = text.replace(PART, (_, name) => `(?<${name}>${PARTS[name]})`);
    const found = new RegExp(`^${pattern}$`).exec(rule);
    if (found) return { kind, ...found.groups };
  }
  return {};
}

/**
 * The fields of each kind.
 * @param {Record<string, string>} parts @returns {Record<string, HTMLElement>}
 */
function buildParts({ count = '15', unit = 'm', time = '01:00', days = 'mon', day = '01',
  month = '01', date = '01', cron = '0 1 * * mon-fri' }) {
  const at = () => field(t('At'), h('input', { type: 'time', name: 'time', value: time }));
  return {
    every: h('div', {}, field(t('Every'), number({ name: 'count', min: 1, value: count }),
      { after: choice({ name: 'unit', 'aria-label': t('Unit') }, EVERY, unit || 's') })),
    daily: h('div', {}, at()),
    weekly: h('div', {}, h('fieldset', { class: 'days' }, h('legend', {}, t('On')),
      ...WEEK.map((value, place) => h('label', {}, h('input', { type: 'checkbox', name: 'days',
        value, checked: days.includes(value) }), dayFormat.format(new Date(2001, 0, 1 + place))))),
    at()),
    monthly: h('div', { class: 'pair' }, field(t('On'), choice({ name: 'day' },
      [...numbers(31, (number) => t('day {number}', { number })), ['last', t('the last day')]],
      day.padStart(2, '0'))), at()),
    yearly: h('div', { class: 'pair' }, field(t('On'),
      choice({ name: 'date' }, numbers(31, String), date), {
        after: choice({ name: 'month', 'aria-label': t('Month') }, numbers(12, (i) => (
          monthFormat.format(new Date(2000, i - 1)))), month) }), at()),
    cron: h('div', {}, field(t('Expression'), h('input', { name: 'cron', value: cron, class: 'mono',
      autocomplete: 'off', spellcheck: 'false' }), { help: t('Minute, hour, day, month, weekday; '
      + 'six fields begin with the second. Also @hourly, @daily, @weekly, @monthly, @yearly.') })),
  };
}

/**
 * Two digits to choose from, in words.
 * @param {number} most @param {(i: number) => string} words @returns {[string, string][]}
 */
const numbers = (most, words) => Array.from({ length: most }, (_, i) => (
  [String(i + 1).padStart(2, '0'), words(i + 1)]));

const zoneOptions = () => (Intl.supportedValuesOf?.('timeZone') || []).map((value) => (
  h('option', { value })));
