// @ts-check
/** A new schedule, or changing one: what runs, and when, with the next times below it. */
import {
  ZONE, argumentFields, argumentsFrom, choice, functionChoices, introduction, number, optionFields,
  optionsFrom, readFunctions,
} from './arguments.js';
import { ApiError, get, request } from './api.js';
import { h, render, setText } from './dom.js';
import { field, sampleHint, sendingForm, valuesOf } from './forms.js';
import { CATCH_UP, OVERLAP, slotItems } from './schedule.js';
import { wordsOf } from './schedules.js';
import { isAdmin, store } from './store.js';

/** @import {Page, Preview, Schedule, TaskFunction} from './types.js' */

const RUNS = 10;
/** @type {[string, string][]} */
const KINDS = [['every', 'Again and again'], ['daily', 'Every day'], ['weekly', 'Every week'],
  ['monthly', 'Every month'], ['yearly', 'Every year'], ['cron', 'Cron expression']];
/** @type {[string, string][]} */
const EVERY = [['s', 'seconds'], ['m', 'minutes'], ['h', 'hours'], ['d', 'days']];
const WEEK = ['Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun'];
const MONTHS = ['January', 'February', 'March', 'April', 'May', 'June', 'July', 'August',
  'September', 'October', 'November', 'December'];
/** Each simple rule's text, and what its parts are. @type {[string, RegExp, string[]][]} */
const SHAPES = [
  ['every', /^every (\d+) ?([smhd]?)$/, ['count', 'unit']],
  ['daily', /^daily (\d?\d:\d\d)$/, ['time']],
  ['weekly', /^weekly ([a-z,]+) (\d?\d:\d\d)$/, ['days', 'time']],
  ['monthly', /^monthly (\d+|last) (\d?\d:\d\d)$/, ['day', 'time']],
  ['yearly', /^yearly (\d\d)-(\d\d) (\d?\d:\d\d)$/, ['month', 'date', 'time']],
];

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  const [functions, schedule] = await Promise.all([
    readFunctions(signal),
    id === 'new' ? null : get(`api/schedules/${encodeURIComponent(id)}`, signal),
  ]);
  if (signal.aborted) return;
  const wanted = schedule?.function || params.get('function');
  const known = schedule ? store.state.catalogue?.functions || [] : functions;
  const chosen = known.find(({ name }) => name === wanted);
  if (chosen) showForm(chosen, schedule);
  else showChoice(functions, wanted);
}

/** Which function. @param {TaskFunction[]} functions @param {string|null} missing */
function showChoice(functions, missing) {
  render('New schedule', h('a', { class: 'back', href: '#/schedules' }, '← Schedules'),
    h('h1', { tabindex: -1 }, 'New schedule'),
    missing && h('p', {}, `There is no function “${missing}” that you can add.`),
    h('p', { class: 'help' }, 'What should run?'),
    functionChoices(functions, (name) => `#/schedules/new?function=${name}`), ...sampleHint());
}

/** The form. @param {TaskFunction} chosen @param {Schedule|null} schedule the one to change */
function showForm(chosen, schedule) {
  const rule = new RuleFields(schedule);
  const form = sendingForm(schedule ? 'Save' : 'Add schedule', async (sent) => {
    const body = readForm(chosen, sent, rule);
    const path = schedule ? `api/schedules/${schedule.id}` : 'api/schedules';
    const saved = await request(schedule ? 'PATCH' : 'POST', path, body);
    location.hash = `#/schedules/${saved.id}`;
  }, rule.root, h('h2', {}, 'What'), ...argumentFields(chosen.schema, schedule?.arguments || {}),
  otherFields(chosen, schedule));
  form.classList.add('planning');
  const back = schedule ? `#/schedules/${schedule.id}` : '#/schedules/new';
  form.lastElementChild?.append(
    h('a', { class: 'button', href: back }, schedule ? 'Back' : 'Another function'));
  render(`Schedule ${chosen.name}`, h('a', { class: 'back', href: back }, '← Back'),
    h('h1', { tabindex: -1 }, schedule ? `Change when ${chosen.name} runs` : `Schedule ${chosen.name}`),
    ...introduction(chosen), form);
  rule.preview();
}

/** What is well as it is for most. @param {TaskFunction} chosen @param {Schedule|null} schedule */
function otherFields(chosen, schedule) {
  const entries = (/** @type {Record<string, string>} */ words) => Object.entries(words);
  return h('details', {}, h('summary', {}, 'Missed runs, overlaps and options'),
    h('div', { class: 'grid' },
      field('Runs missed while nothing ran', choice({ name: 'catch_up' }, entries(CATCH_UP),
        schedule?.catch_up), { help: 'After the computer was off or the queue stood still.' }),
      field('If the last run has not ended', choice({ name: 'overlap' }, entries(OVERLAP),
        schedule?.overlap)),
      ...optionFields(chosen, schedule?.options || {}),
      isAdmin() && !schedule && field('Owner', h('input', { name: 'owner', autocomplete: 'off',
        spellcheck: 'false', placeholder: store.state.session?.user.name }),
      { help: 'Whose tasks it adds.' })));
}

/**
 * What is sent.
 * @param {TaskFunction} chosen
 * @param {HTMLFormElement} form
 * @param {RuleFields} rule
 */
function readForm(chosen, form, rule) {
  const values = valuesOf(form);
  const { catch_up: missed, overlap, owner, zone } = values;
  return {
    function: chosen.name,
    arguments: argumentsFrom(chosen.schema, form),
    rule: rule.text(),
    zone: zone.trim(),
    catch_up: missed,
    overlap,
    options: optionsFrom(values),
    ...(owner?.trim() && { owner: owner.trim() }),
  };
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
    this.kind = choice({ name: 'kind' }, KINDS, parts.kind);
    this.parts = buildParts(parts);
    const zones = h('datalist', { id: 'zones' });
    const zone = h('input', { name: 'zone', list: 'zones', autocomplete: 'off', spellcheck: 'false',
      value: schedule?.zone || ZONE || 'UTC',
      onfocus: () => zones.childElementCount || zones.append(...zoneOptions()) });
    this.zone = zone;
    this.root.append(field('When', this.kind), ...Object.values(this.parts),
      field('Time zone', zone), zones,
      h('div', { class: 'preview' }, this.words, this.times));
    this.showParts();
  }

  /** The control of a part that is shown. @param {string} name */
  value(name) {
    const [control] = this.parts[this.kind.value].querySelectorAll(`[name=${name}]`);
    return /** @type {HTMLInputElement} */ (control).value.trim();
  }

  /** The rule as the server reads it. */
  text() {
    switch (this.kind.value) {
      case 'every': return `every ${this.value('count')}${this.value('unit')}`;
      case 'daily': return `daily ${this.value('time')}`;
      case 'weekly': return `weekly ${this.days().join(',')} ${this.value('time')}`;
      case 'monthly': return `monthly ${this.value('day')} ${this.value('time')}`;
      case 'yearly': return `yearly ${this.value('month')}-${this.value('date').padStart(2, '0')} `
        + this.value('time');
      default: return this.value('cron');
    }
  }

  /** The weekdays that are ticked. */
  days() {
    return [...this.parts.weekly.querySelectorAll('input:checked')].map(
      (box) => /** @type {HTMLInputElement} */ (box).value);
  }

  /** Only the fields of the chosen kind. */
  showParts() {
    for (const [name, part] of Object.entries(this.parts)) part.hidden = name !== this.kind.value;
  }

  /** Asks once one has stopped typing. */
  later() {
    this.showParts();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), 250);
  }

  /** What the rule means, and the next times; the last ones stay until there are others. */
  async preview() {
    const asked = (this.asked += 1);
    const body = { rule: this.text(), zone: this.zone.value.trim(), count: RUNS };
    try {
      const preview = await request('POST', 'api/schedules/preview', body);
      if (asked === this.asked) this.showPreview(preview);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked === this.asked) this.showProblem(error);
    }
  }

  /** @param {Preview} preview */
  showPreview(preview) {
    this.root.classList.remove('bad');
    setText(this.words, wordsOf(preview));
    this.times.replaceChildren(...slotItems(preview.times));
  }

  /** @param {ApiError} problem */
  showProblem({ errors, message }) {
    this.root.classList.add('bad');
    setText(this.words, errors.map((error) => error.message).join(' ') || message);
    this.times.replaceChildren();
  }
}

/** A rule's text taken apart. @param {string} rule @returns {Record<string, string>} */
function partsOf(rule) {
  for (const [kind, pattern, names] of SHAPES) {
    const found = pattern.exec(rule);
    if (found) return { kind, ...Object.fromEntries(names.map((name, i) => [name, found[i + 1]])) };
  }
  return { kind: 'cron', cron: rule };
}

/** The fields of each kind. @param {Record<string, string>} parts @returns {Record<string, HTMLElement>} */
function buildParts({ count = '15', unit = 'm', time = '01:00', days = 'mon', day = '1',
  month = '01', date = '1', cron = '0 1 * * mon-fri' }) {
  const at = () => field('At', h('input', { type: 'time', name: 'time',
    value: time.padStart(5, '0') }));
  const ticked = days.split(',').map((name) => name.slice(0, 3));
  return {
    every: h('div', {}, field('Every', number({ name: 'count', min: 1, value: count }),
      { after: choice({ name: 'unit', 'aria-label': 'Unit' }, EVERY, unit || 's') })),
    daily: h('div', {}, at()),
    weekly: h('div', {}, h('fieldset', { class: 'days' }, h('legend', {}, 'On'),
      ...WEEK.map((name) => h('label', {}, h('input', { type: 'checkbox', name: 'days',
        value: name.toLowerCase(), checked: ticked.includes(name.toLowerCase()) }), name))), at()),
    monthly: h('div', { class: 'pair' }, field('On', choice({ name: 'day' }, dayOptions(), day)), at()),
    yearly: h('div', { class: 'pair' }, field('On', number({ name: 'date', min: 1, max: 31,
      value: Number(date) }), { after: choice({ name: 'month', 'aria-label': 'Month' },
      MONTHS.map((name, i) => [String(i + 1).padStart(2, '0'), name]), month) }), at()),
    cron: h('div', {}, field('Expression', h('input', { name: 'cron', value: cron, class: 'mono',
      autocomplete: 'off', spellcheck: 'false' }), { help: 'Minute, hour, day, month, weekday; '
      + 'six fields begin with the second. Also @hourly, @daily, @weekly, @monthly, @yearly.' })),
  };
}

/** The days of a month. @returns {[string, string][]} */
const dayOptions = () => [
  ...Array.from({ length: 31 }, (_, i) => /** @type {[string, string]} */ (
    [String(i + 1), `day ${i + 1}`])), ['last', 'the last day']];

/** The zones that the browser knows. */
const zoneOptions = () => (Intl.supportedValuesOf?.('timeZone') || []).map((value) => (
  h('option', { value })));
