// @ts-check
/** How it went: charts, functions and machines, over the range and of the owner that the address says. */
import { get, isAdmin, store } from './api.js';
import { Chart, spanWords } from './chart.js';
import { now } from './clock.js';
import { h, setAttribute, setText, table } from './dom.js';
import { countWords, duration, statusWord, timeWords } from './format.js';
import { cell, patchRows } from './forms.js';
import { grouped, t } from './language.js';
import { address, seesAll } from './places.js';

/** @import {Kind, Step} from './chart.js' */
/** @import {Figures, Metrics} from './types.js' */

const HOUR = 36e5;
const DAY = 24 * HOUR;
const FUNCTIONS_SHOWN = 5;
/** @typedef {readonly [string, number, string, number]} Range */
/**
 * What the address says: words, how far back, and the length of a step.
 * @type {Record<string, Range>}
 */
export const RANGES = {
  day: [t('24 hours'), DAY, 'hour', HOUR], week: [t('7 days'), 7 * DAY, '6h', 6 * HOUR],
  month: [t('30 days'), 30 * DAY, 'day', DAY], year: [t('a year'), 364 * DAY, 'week', 7 * DAY],
};

/** @param {number} value */
const plain = (value) => countWords(value, Infinity);
/** @param {number} value */
const percent = (value) => `${grouped(Math.round(value * 1000) / 10)} %`;
/** @param {Step[]} steps @param {number} place */
const sum = (steps, place) => steps.reduce((all, { values }) => all + (values[place] || 0), 0);
/** @param {Step[]} steps @param {number} place */
const most = (steps, place) => Math.max(0, ...steps.map(({ values }) => values[place] || 0));
/** @param {Step[]} steps */
const longest = (steps) => t('The median is at most {median}, the 95th percentile at most {high}.',
  { median: duration(most(steps, 0)), high: duration(most(steps, 1)) });
const PERCENTILES = [t('median'), t('95th percentile')];

/**
 * What the charts show of a step, and how. What is null was not measured.
 * @type {[Kind, (figures: Figures, step: number, maximum: number) => (number|null)[]][]}
 */
const CHARTS = [
  [{ title: t('Ended tasks'), kind: 'bars', names: [t('succeeded'), t('failed')], least: 5,
    words: plain, sentence: (steps) => t('{succeeded} succeeded, {failed} failed.',
      { succeeded: plain(sum(steps, 0)), failed: plain(sum(steps, 1)) }) },
  ({ succeeded, failed }) => [succeeded, failed]],
  [{ title: t('Waiting time'), kind: 'lines', names: PERCENTILES, least: 1, words: duration,
    sentence: longest },
  ({ waited }) => [waited?.p50 ?? null, waited?.p95 ?? waited?.max ?? null]],
  [{ title: t('Running time'), kind: 'lines', names: PERCENTILES, least: 1, words: duration,
    sentence: longest },
  ({ ran }) => [ran?.p50 ?? null, ran?.p95 ?? ran?.max ?? null]],
  [{ title: t('Worker utilization'), kind: 'bars', names: [t('busy')], least: 1, words: percent,
    sentence: (steps) => t('At most {share} of what the workers could do.',
      { share: percent(most(steps, 0)) }) },
  ({ busy_seconds: busy }, step, maximum) => [
    busy == null ? null : busy / (Math.max(1, maximum) * step)]],
];

/** Whose figures are shown: a name, or nothing for everybody's. @param {URLSearchParams} params */
export const ownerOf = (params) => (!seesAll() || (isAdmin() && params.get('whose') === 'mine')
  ? store.state.session?.user.name || '' : '');

/** The range that the address says. @param {URLSearchParams} params */
export function rangeOf(params) {
  const name = params.get('range') || '';
  return Object.hasOwn(RANGES, name) ? name : 'day';
}

/** Links to choose how far back figures go, and for admins whose they are. */
export class Choices {
  /** @param {string} page */
  constructor(page) {
    this.page = page;
    this.ranges = Object.entries(RANGES).map(([name, [words]]) => h('a', { 'data-range': name }, words));
    this.people = isAdmin() ? [h('a', { 'data-whose': '' }, t('everybody')),
      h('a', { 'data-whose': 'mine' }, t('only mine'))] : [];
    this.whose = h('nav', { class: 'tabs', 'aria-label': t('Whose tasks'), hidden: !isAdmin() },
      ...this.people);
    this.range = h('nav', { class: 'tabs', 'aria-label': t('How far back') }, ...this.ranges);
  }

  /** Marks what is chosen; the links keep the rest of the address. @param {URLSearchParams} params */
  patch(params) {
    for (const link of this.ranges) {
      const { range = '' } = link.dataset;
      setAttribute(link, 'href', address(params, { range }, this.page));
      setAttribute(link, 'aria-current', range === rangeOf(params) && 'page');
    }
    for (const link of this.people) {
      const { whose = '' } = link.dataset;
      setAttribute(link, 'href', address(params, { whose }, this.page));
      setAttribute(link, 'aria-current', Boolean(whose) === Boolean(ownerOf(params)) && 'page');
    }
  }
}

/**
 * Asks for the figures of a range and of an owner, which the address says, and of other filters.
 * @param {URLSearchParams} params @param {AbortSignal} signal @param {Record<string, string>} [more]
 * @returns {Promise<{found: Metrics, steps: (Step & {figures?: Figures})[], size: number}>}
 */
export async function readFigures(params, signal, more = {}) {
  const [, span, step, size] = RANGES[rangeOf(params)];
  const to = Math.ceil(now() / HOUR) * HOUR;
  const from = to - span;
  const owner = ownerOf(params);
  const query = new URLSearchParams({ from: iso(from), to: iso(to), step, ...more,
    ...owner && { owner } });
  const found = await get(`api/metrics?${query}`, signal);
  return { found, steps: places(found, from, to, size), size };
}

/** Says where figures begin later than the range does. @param {Metrics} found */
export const beginWords = ({ counted_from: from }) => (
  from ? t('Counted since {time}.', { time: timeWords(new Date(from)) }) : '');

/** How it went: charts, functions, machines; of the range that the address says. */
export class History {
  maximum = 1;
  params = new URLSearchParams();
  /** @type {Step[]} */
  steps = [];

  /** @param {Choices} choices */
  constructor(choices) {
    this.charts = CHARTS.map(([kind, pick]) => ({ chart: new Chart(kind), pick }));
    this.title = h('h2');
    this.note = h('p', { class: 'help' });
    this.rows = h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': t('Figures') });
    this.details = h('details', { ontoggle: () => this.patchTable() },
      h('summary', {}, t('Show as table')), this.rows);
    this.functions = h('tbody');
    this.all = h('a', {}, t('All functions'));
    this.table = h('section', { hidden: true }, h('div', { class: 'bar' },
      h('h2', {}, t('Functions')), this.all), functionTable(this.functions));
    this.machines = h('ul', { class: 'works' });
    this.place = h('section', { hidden: true }, h('h2', {}, t('Workers')), this.machines);
    this.root = h('div', { hidden: true }, h('div', { class: 'bar' }, this.title, choices.range),
      this.note, h('div', { class: 'charts' }, ...this.charts.map(({ chart }) => chart.root)),
      this.details, this.table, this.place);
  }

  /** The range and the owner that the address says. @param {URLSearchParams} params */
  choose(params) {
    const own = Boolean(ownerOf(params));
    this.params = params;
    setText(this.title, own ? t('How your tasks went') : t('How it went, everybody'));
    setAttribute(this.all, 'href', address(params, {}, 'functions'));
    this.charts[CHARTS.length - 1].chart.root.hidden = own;     // workers are everybody's
  }

  /** Asks for the figures; resolves with the seconds until the next look. @param {AbortSignal} signal */
  async read(signal) {
    const { found, steps, size } = await readFigures(this.params, signal);
    if (signal.aborted) return 0;
    this.steps = steps;
    for (const { chart, pick } of this.charts) {
      const nothing = chart.kind.names.map(() => null);
      chart.patch(steps.map(({ figures, ...step }) => ({ ...step,
        values: figures ? pick(figures, size / 1000, this.maximum) : nothing })));
    }
    setText(this.note, beginWords(found));
    this.patchTables(found);
    this.patchTable();
    if (found.points.some(({ added, succeeded, failed }) => added + succeeded + failed)) {
      this.root.hidden = false;
    }
    return 60;
  }

  /** @param {Metrics} found */
  patchTables({ functions, workers }) {
    this.table.hidden = !functions.length;
    this.place.hidden = workers.length < 2;     // the chart says it of a single machine
    patchFunctions(this.functions, functions.slice().sort(byFailures).slice(0, FUNCTIONS_SHOWN), this.params);
    patchRows(this.machines, workers, ({ machine }) => machine, (worker) => h('li', {},
      h('b', {}, worker.machine), h('span', {}, t.n('{count} task | {count} tasks', worker.tasks)),
      h('span', { class: 'help' }, t('busy for {busy} of {alive}', {
        busy: duration(worker.busy_seconds), alive: duration(worker.alive_seconds) }))));
  }

  /** All charts in numbers, while one wants that. */
  patchTable() {
    if (!this.details.open) return;
    const shown = this.charts.map(({ chart }) => chart).filter(({ root }) => !root.hidden);
    const heads = shown.flatMap(({ kind: { names, title } }) => (
      names.map((name) => `${title}: ${name}`)));
    this.rows.replaceChildren(table('', t('Figures'), [t('Time'), ...heads], h('tbody', {},
      ...this.steps.map((step, place) => h('tr', {}, h('th', { scope: 'row' }, spanWords(step)),
        ...shown.flatMap(({ kind, steps }) => steps[place].values.map((value) => (
          h('td', {}, value === null ? '–' : kind.words(value))))))).reverse())));
  }
}

/** @param {number} time */
const iso = (time) => new Date(time).toISOString().replace('.000Z', 'Z');

/**
 * All steps from one time to another, each with its figures if there are some.
 * @param {Metrics} found @param {number} from @param {number} to @param {number} size
 * @returns {(Step & {figures?: Figures})[]}
 */
function places({ points }, from, to, size) {
  const known = new Map(points.map((point) => [Date.parse(point.at || ''), point]));
  const [first] = known.keys();
  const steps = [];
  for (let at = from + ((((first ?? from) - from) % size) - size) % size; at < to; at += size) {
    const figures = known.get(at);
    if (at + size > from) {
      steps.push({ at, end: at + size, open: at + size > now(), values: [], figures });
    }
  }
  return steps;
}

/** What failed most comes first, then what ended most. @param {Figures} one @param {Figures} other */
export const byFailures = (one, other) => (
  other.failed - one.failed || other.succeeded - one.succeeded || other.added - one.added);

/** A table of functions; its rows come by patchFunctions(). @param {HTMLElement} body */
export const functionTable = (body) => table('plain functions', t('Functions'), [t('Function'),
  t('Ended'), t('Succeeded'), t('Waited, median'), '95 %', t('Ran, median'), '95 %', t('Last runs'),
  t('Memory')], body);

/**
 * Brings a table of functions up to date; the links keep the range and the owner.
 * @param {HTMLElement} body @param {Figures[]} functions @param {URLSearchParams} params
 */
export const patchFunctions = (body, functions, params) => patchRows(body,
  functions.map((figures) => ({ ...figures, query: `${params}` })),
  ({ name }) => name || '', functionRow);

/** How one function does. @param {Figures & {query: string}} figures */
function functionRow(figures) {
  const { name = '', succeeded, failed, waited, ran, recent = [], peak_memory: memory, query } = figures;
  const ended = succeeded + failed;
  const [waits, runs] = [waited, ran].map(spread);
  return h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/functions/${encodeURIComponent(name)}?${query}`.replace(/\?$/, '') }, name)),
  cell(t('Ended'), plain(ended)),
  cell(t('Succeeded'), ended ? percent(succeeded / ended) : '–', failed ? ' · ' : '', failed > 0
    && h('span', { 'data-state': 'failed' }, t('{count} failed', { count: plain(failed) }))),
  cell(t('Waited, median'), waits[0]), cell('95 %', waits[1]),
  cell(t('Ran, median'), runs[0]), cell('95 %', runs[1]),
  cell(t('Last runs'), recent.length > 0 && dots(recent)),
  cell(t('Memory'), memory ? `${Math.ceil(memory / 1048576)} MB` : '–'));
}

/** Median and 95th percentile; the longest where few were measured. @param {Figures['ran']} times */
export const spread = (times) => (times?.p50 == null ? ['–', '–']
  : [times.p50, times.p95 ?? times.max].map(duration));

/**
 * The last runs: high and light is a success, low and dark a failure.
 * @param {Figures['recent']} runs
 */
function dots(runs = []) {
  const failed = runs.filter(({ status }) => status !== 'succeeded').length;
  return h('span', { class: 'dots', role: 'img',
    'aria-label': t('The last {count}: {failed} failed', { count: runs.length, failed }) },
  ...runs.map(({ id, status, seconds }) => h('i', { 'data-state': status,
    title: [id && `#${id}`, statusWord(status),
      seconds != null && t('took {time}', { time: duration(seconds) })]
      .filter(Boolean).join(' ') })));
}
