// @ts-check
/** How it went: charts, functions and machines, over the range that the address says. */
import { get } from './api.js';
import { Chart } from './chart.js';
import { now } from './clock.js';
import { h, setAttribute, table } from './dom.js';
import { countWords, duration, statusWord } from './format.js';
import { cell, patchRows } from './forms.js';
import { grouped, t } from './language.js';

/** @import {Kind, Step} from './chart.js' */
/** @import {Figures, Metrics} from './types.js' */

const HOUR = 36e5;
const DAY = 24 * HOUR;
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
    sentence: (steps) => t('At most {share} of what NbMaxWorker allows.',
      { share: percent(most(steps, 0)) }) },
  ({ busy_seconds: busy }, step, maximum) => [
    busy == null ? null : busy / (Math.max(1, maximum) * step)]],
];

/** How it went: charts, functions, machines; of the range that the address says. */
export class History {
  maximum = 1;

  constructor() {
    this.links = Object.entries(RANGES).map(([name, [words]]) => (
      h('a', { href: `#/overview?range=${name}`, 'data-range': name }, words)));
    this.charts = CHARTS.map(([kind, pick]) => ({ chart: new Chart(kind), pick }));
    this.note = h('p', { class: 'help', hidden: true });
    this.functions = h('tbody');
    this.table = h('section', { hidden: true }, h('h2', {}, t('Functions')),
      table('plain functions', t('Functions'), [t('Function'), t('Ended'), t('Succeeded'),
        t('Waiting time'), t('Running time'), t('Last runs'), t('Memory')], this.functions));
    this.machines = h('ul', { class: 'works' });
    this.place = h('section', { hidden: true }, h('h2', {}, t('Workers')), this.machines);
    this.root = h('div', { hidden: true }, h('div', { class: 'bar' }, h('h2', {}, t('How it went')),
      h('nav', { class: 'tabs', 'aria-label': t('How far back') }, ...this.links)), this.note,
    h('div', { class: 'charts' }, ...this.charts.map(({ chart }) => chart.root)),
    this.table, this.place);
  }

  /** @param {string} name */
  choose(name) {
    for (const link of this.links) {
      setAttribute(link, 'aria-current', link.dataset.range === name && 'page');
    }
  }

  /**
   * Asks for the figures; resolves with the seconds until the next look.
   * @param {Range} range @param {AbortSignal} signal
   */
  async read([, span, step, size], signal) {
    const to = Math.ceil(now() / HOUR) * HOUR;
    const from = to - span;
    const query = new URLSearchParams({ from: iso(from), to: iso(to), step });
    /** @type {Metrics} */
    const found = await get(`api/metrics?${query}`, signal);
    if (signal.aborted) return 0;
    const steps = places(found, from, to, size);
    for (const { chart, pick } of this.charts) {
      const nothing = chart.kind.names.map(() => null);
      chart.patch(steps.map(({ figures, ...step }) => ({ ...step,
        values: figures ? pick(figures, size / 1000, this.maximum) : nothing })));
    }
    this.patchTables(found);
    if (found.points.some(({ added, succeeded, failed }) => added + succeeded + failed)) {
      this.root.hidden = false;
    }
    return 60;
  }

  /** @param {Metrics} found */
  patchTables({ functions, workers }) {
    this.table.hidden = !functions.length;
    this.place.hidden = !workers.length;
    patchRows(this.functions, functions, ({ name }) => name || '', functionRow);
    patchRows(this.machines, workers, ({ machine }) => machine, (worker) => h('li', {},
      h('b', {}, worker.machine), h('span', {}, t.n('{count} task | {count} tasks', worker.tasks)),
      h('span', { class: 'help' }, t('busy for {busy} of {alive}', {
        busy: duration(worker.busy_seconds), alive: duration(worker.alive_seconds) }))));
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

/** How one function does. @param {Figures} figures */
function functionRow(figures) {
  const { name = '', succeeded, failed, waited, ran, recent = [], peak_memory: memory } = figures;
  const ended = succeeded + failed;
  const query = new URLSearchParams({ function: name });
  return h('tr', {}, h('th', { scope: 'row' }, h('a', { href: `#/tasks?${query}` }, name)),
    cell(t('Ended'), plain(ended)),
    cell(t('Succeeded'), ended ? percent(succeeded / ended) : '–', failed ? ' · ' : '', failed > 0
      && h('a', { href: `#/tasks?status=failed&${query}` },
        t('{count} failed', { count: plain(failed) }))),
    cell(t('Waiting time'), spread(waited)), cell(t('Running time'), spread(ran)),
    cell(t('Last runs'), recent.length > 0 && dots(recent)),
    cell(t('Memory'), memory ? `${Math.ceil(memory / 1048576)} MB` : '–'));
}

/** Median and 95th percentile. @param {Figures['ran']} times */
function spread(times) {
  if (times?.p50 == null) return '–';
  const [median, high] = [times.p50, times.p95 ?? times.max].map(duration);
  return median === high ? median : t('{median} (95 %: {high})', { median, high });
}

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
