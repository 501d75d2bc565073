// @ts-check
/** The rule of a schedule: its words, its times, and the fields that make it, with a preview. */
import { request } from './api.js';
import { h, setText } from './dom.js';
import { ZONE, unitWords } from './durations.js';
import { formatter } from './format.js';
import { choice, field, tellInput } from './forms.js';
import { number } from './functions.js';
import { locale, t } from './language.js';
import { said } from './said.js';

/** @import {Preview, Schedule, Slot} from './types.js' */

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
const ALL_DAYS = WEEK.join();
const dayFormat = formatter({ weekday: 'short' });
const monthFormat = formatter({ month: 'long' });
const yearDayFormat = formatter({ month: 'long', day: 'numeric' });
/** @param {string} name */
const weekday = (name) => (
  dayFormat.format(new Date(2001, 0, 1 + WEEK.indexOf(name.slice(0, 3).toLowerCase()))));

/** Days that are often chosen together. @type {[string, string][]} */
const QUICK = [[`${weekday('mon')}–${weekday('fri')}`, WEEK.slice(0, 5).join()],
  [t('Weekends'), WEEK.slice(5).join()], [t('Every day'), ALL_DAYS]];

/** @type {Record<string, string>} */
const UNITS = { s: 'second', m: 'minute', h: 'hour', d: 'day' };

/** What stands for a cron expression. @type {Record<string, string>} */
const SHORT_RULES = { '@hourly': '0 * * * *', '@midnight': 'daily 00:00', '@daily': 'daily 00:00',
  '@weekly': `weekly ${WEEK[6]} 00:00`, '@monthly': 'monthly 1 00:00', '@yearly': 'yearly 01-01 00:00',
  '@annually': 'yearly 01-01 00:00' };
const CRON_FIELDS = [said('second'), said('minute'), said('hour'), said('day of the month'),
  said('month'), said('weekday')];

/** Two digits. @param {string} number */
const two = (number) => number.padStart(2, '0');

/** Weekdays of a cron expression (1-5, mon,wed), as a weekly rule has them; '' for others. @param {string} text */
function weekdaysOf(text) {
  const names = text.toLowerCase().split(',').map((part) => part.split('-').map((day) => (
    /^[0-7]$/.test(day) ? (Number(day) + 6) % 7 : WEEK.indexOf(day.slice(0, 3)))));
  const isPlain = names.every((days) => (
    days.length < 3 && !days.includes(-1) && days[0] <= days[days.length - 1]));
  return isPlain ? WEEK.filter((_, place) => names.some(([first, last = first]) => (
    first <= place && place <= last))).join() : '';
}

/** A simpler rule that means the same as a cron expression, or the expression. @param {string} rule */
function simpler(rule) {
  const [minute, hour, date, month, days, more] = rule.split(' ');
  const rest = [date, month, days].join(' ');
  const step = /^\*\/(\d+)$/;
  const isNumber = (/** @type {string} */ text) => /^\d+$/.test(text);
  if (more || !days) return rule;
  const minutes = Number(step.exec(minute)?.[1]);
  const hours = Number(step.exec(hour)?.[1]);
  if (rest === '* * *' && hour === '*' && 60 % minutes === 0) return `every ${minutes}m`;
  if (rest === '* * *' && minute === '0' && 24 % hours === 0) return `every ${hours}h`;
  if (!isNumber(minute) || !isNumber(hour)) return rule;
  const time = `${two(hour)}:${two(minute)}`;
  if (rest === '* * *') return `daily ${time}`;
  if (date === '*' && month === '*' && weekdaysOf(days)) return `weekly ${weekdaysOf(days)} ${time}`;
  if (days !== '*' || !isNumber(date)) return rule;
  if (month === '*') return `monthly ${two(date)} ${time}`;
  return isNumber(month) ? `yearly ${two(month)}-${two(date)} ${time}` : rule;
}

/** Days of a week; three or more in a row as a range. @param {string} days */
function dayWords(days) {
  const places = days.split(',').map((day) => WEEK.indexOf(day));
  const isRow = places.length > 2 && places.every((place, index) => place === places[0] + index);
  const names = days.split(',').map(weekday);
  return isRow ? `${names[0]}–${names[names.length - 1]}` : names.join(', ');
}

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
  if (clock) words.unshift(`${two(hour)}:${two(minute)}`);
  return words.join(', ') || `${t('Every')} ${unitWords(1, values[5] ? 'second' : 'minute')}`;
}

/**
 * The rule in words; the zone of here need not be said. The server's are English.
 * @param {{words: string, rule?: string, zone?: string}} rule
 */
export function wordsOf({ words, rule = '', zone = '' }) {
  const { kind, count, unit, days, day, month, date, time, cron } = partsOf(SHORT_RULES[rule]
    || simpler(rule).replace(/^(every \d+) ([smhd])[a-z]+$/, '$1$2'));
  const label = KINDS.find(([name]) => name === kind)?.[1];
  const isOdd = !label || (kind === 'cron' && !/^[*\d]/.test(cron));
  if (locale === 'en-GB' || isOdd) return words.replace(` (${ZONE})`, '');
  if (count) return `${t('Every')} ${unitWords(Number(count), UNITS[unit || 's'])}`;
  const when = [
    days && dayWords(days),
    day && (day === 'last' ? t('the last day') : t('day {number}', { number: Number(day) })),
    month && yearDayFormat.format(new Date(2000, Number(month) - 1, Number(date))), time];
  const elsewhere = zone && zone !== ZONE ? ` (${zone})` : '';
  return `${cron ? cronWords(cron) : [label, ...when].filter(Boolean).join(', ')}${elsewhere}`;
}

/** A time in the rule's zone, and what the clocks do on that day. @param {Slot} slot */
export const slotItem = ({ local, note }) => h('li', {},
  h('span', {}, slotWords(local)), note && h('span', { class: 'mark' }, said(note)));

/** A local time with its weekday. @param {string} local */
export function slotWords(local) {
  const time = new Date(`${local.slice(0, 19)}Z`);
  const seconds = local.slice(17, 19);
  const words = Number.isNaN(time.getTime()) ? local : slotFormat.format(time);
  return seconds === '00' ? words : `${words}:${seconds}`;
}

/** When it runs: simple choices that become a rule's text, and what the server reads in it. */
export class RuleFields {
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
    this.quick = QUICK.map(([words, days]) => h('button', { type: 'button', class: 'button',
      onclick: () => this.choose(days) }, words));
    this.quickRow = h('div', { class: 'days quick' }, ...this.quick);
    const zones = h('datalist', { id: 'zones' }, ...zoneOptions());
    this.zone = h('input', { name: 'zone', list: 'zones', autocomplete: 'off', spellcheck: 'false',
      value: schedule?.zone || ZONE || 'UTC',
      onfocus: () => this.zone.select() });
    this.root.append(field(t('When'), this.kind), this.quickRow, ...Object.values(this.parts),
      field(t('Time zone'), this.zone), zones,
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

  /** Runs on these days, at the time that was chosen already. @param {string} days */
  choose(days) {
    const time = this.value('time');
    this.kind.value = days === ALL_DAYS ? 'daily' : 'weekly';
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (
      this.root.querySelectorAll('[name=days], [name=time]'))) {
      if (box.name === 'days') box.checked = days.split(',').includes(box.value);
      else if (time) box.value = time;
    }
    tellInput(this.kind);
  }

  showParts() {
    const days = { daily: ALL_DAYS, weekly: this.value('days') }[this.kind.value];
    this.quickRow.hidden = days === undefined;
    this.quick.forEach((button, place) => (
      button.setAttribute('aria-pressed', String(QUICK[place][1] === days))));
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
    weekly: h('div', {}, at(), h('fieldset', { class: 'days' }, h('legend', {}, t('On')),
      ...WEEK.map((value) => h('label', {}, h('input', { type: 'checkbox', name: 'days',
        value, checked: days.includes(value) }), weekday(value))))),
    monthly: h('div', { class: 'pair' }, field(t('On'), choice({ name: 'day' },
      [...numbers(31, (number) => t('day {number}', { number })), ['last', t('the last day')]],
      two(day))), at()),
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
  [two(String(i + 1)), words(i + 1)]));

const zoneOptions = () => (Intl.supportedValuesOf?.('timeZone') || []).map((value) => (
  h('option', { value })));
