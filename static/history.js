// @ts-check
/** How it went: charts, functions and machines, over the range and of the owner that the address says. */
import { get, isAdmin, ownName } from './api.js';
import { now } from './clock.js';
import { h, setAttribute, setText, table } from './dom.js';
import { clock, countWords, day, duration, formatter, statusWord, timeWords, tookWords } from './format.js';
import { cell, patchRows, s } from './forms.js';
import { grouped, t } from './language.js';
import { address, seesAll } from './places.js';

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
/** What charts of times have in common. @type {Omit<Kind, 'title'>} */
const TIMES = { kind: 'lines', names: [t('median'), t('95th percentile')], least: 1, words: duration,
  sentence: (steps) => t('The median is at most {median}, the 95th percentile at most {high}.',
    { median: duration(most(steps, 0)), high: duration(most(steps, 1)) }) };
/**
 * Takes the median and the 95th percentile, or the longest where few were measured.
 * @param {Figures['ran']} times @returns {(number|null)[]}
 */
const percentiles = (times) => [times?.p50 ?? null, times?.p95 ?? times?.max ?? null];

/**
 * What the charts show of a step, and how. What is null was not measured.
 * @type {[Kind, (figures: Figures, step: number, maximum: number) => (number|null)[]][]}
 */
const CHARTS = [
  [{ title: t('Ended tasks'), kind: 'bars', names: [t('succeeded'), t('failed')], least: 5,
    words: plain, sentence: (steps) => t('{succeeded} succeeded, {failed} failed.',
      { succeeded: plain(sum(steps, 0)), failed: plain(sum(steps, 1)) }) },
  ({ succeeded, failed }) => [succeeded, failed]],
  [{ title: t('Waiting time'), ...TIMES }, ({ waited }) => percentiles(waited)],
  [{ title: t('Running time'), ...TIMES }, ({ ran }) => percentiles(ran)],
  [{ title: t('Worker utilization'), kind: 'bars', names: [t('busy')], least: 1, words: percent,
    sentence: (steps) => t('At most {share} of what the workers could do.',
      { share: percent(most(steps, 0)) }) },
  ({ busy_seconds: busy }, step, maximum) => [
    busy == null ? null : busy / (Math.max(1, maximum) * step)]],
];

/** Whose figures are shown: a name, or nothing for everybody's. @param {URLSearchParams} params */
export const ownerOf = (params) => (
  !seesAll() || (isAdmin() && params.get('whose') === 'mine') ? ownName() : '');

/**
 * The owner whom an admin chose, as a filter of tasks.
 * @param {URLSearchParams} params @returns {Record<string, string>}
 */
export const ownerFilter = (params) => (isAdmin() && ownerOf(params) ? { owner: ownerOf(params) } : {});

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
    const ranges = Object.entries(RANGES).map(([name, [words]]) => h('a', { 'data-range': name }, words));
    const people = isAdmin() ? [h('a', { 'data-whose': '' }, t('everybody')),
      h('a', { 'data-whose': 'mine' }, t('only mine'))] : [];
    this.whose = h('nav', { class: 'tabs', 'aria-label': t('Whose tasks'), hidden: !isAdmin() }, ...people);
    this.range = h('nav', { class: 'tabs', 'aria-label': t('How far back') }, ...ranges);
    this.links = [...ranges, ...people];
  }

  /** Marks what is chosen; the links keep the rest of the address. @param {URLSearchParams} params */
  patch(params) {
    const chosen = { range: rangeOf(params), whose: ownerOf(params) && 'mine' };
    for (const link of this.links) {
      const [[name, value = '']] = Object.entries(link.dataset);
      setAttribute(link, 'href', address(params, { [name]: value }, this.page));
      setAttribute(link, 'aria-current', value === chosen[name] && 'page');
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
  const query = new URLSearchParams({ from: new Date(from).toISOString(),
    to: new Date(to).toISOString(), step, ...more, ...owner && { owner } });
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

/** Says these in words. @param {Figures['ran']} times */
export const spread = (times) => percentiles(times).map((one) => (one === null ? '–' : duration(one)));

/**
 * The last runs: high and light is a success, low and dark a failure.
 * @param {Figures['recent']} runs
 */
function dots(runs = []) {
  const failed = runs.filter(({ status }) => status !== 'succeeded').length;
  return h('span', { class: 'dots', role: 'img',
    'aria-label': t('The last {count}: {failed} failed', { count: runs.length, failed }) },
  ...runs.map(({ id, status, seconds }) => h('i', { 'data-state': status,
    title: [id && `#${id}`, statusWord(status), tookWords(seconds)].filter(Boolean).join(' ') })));
}

/**
 * @typedef {{at: number, end: number, open: boolean, values: (number|null)[]}} Step times in
 *   milliseconds; `open`: it has not ended; null: nothing was measured
 * @typedef {{title: string, kind: 'bars'|'lines', names: string[], least: number,
 *   words: (value: number) => string, sentence: (steps: Step[]) => string}} Kind
 *   the last name is drawn heaviest; `least`: the scale ends there or higher
 */

const HEIGHT = 116;
const LABEL = 64;
const weekday = formatter({ weekday: 'short', day: 'numeric', month: 'short' });
let last = 0;

/**
 * Where a key leads from a place in a row; undefined for keys that lead nowhere.
 * @param {KeyboardEvent} event @param {number} here @param {number} end
 * @returns {number|undefined}
 */
export const placeAfter = ({ key }, here, end) => /** @type {Record<string, number>} */ (
  { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: end })[key];

const ROUND = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
/** Seconds of the units that durations are said in. */
const UNITS = [86400, 3600, 60];

/** The next round number, at most a third larger. @param {number} most */
function roundUp(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return ROUND.map((factor) => factor * size).find((round) => round >= most) || most;
}

/** The next round duration: whole minutes, hours or days where these are said. @param {number} most */
function roundDuration(most) {
  const unit = UNITS.find((one) => most > one);
  if (!unit) return roundUp(most);
  const count = most / unit;
  return unit * (count < 10 ? Math.ceil(count) : roundUp(count));
}

/** A span of time in the viewer's zone. @param {Step} step */
function spanWords({ at, end, open }) {
  const long = end - at >= DAY;
  const begin = new Date(at);
  const words = long ? weekday.format(begin)
    : t('{day} {from} to {to}', { day: weekday.format(begin), from: clock.format(begin),
      to: clock.format(new Date(end)) });
  const all = end - at > DAY
    ? t('{from} to {to}', { from: words, to: weekday.format(new Date(end - 1)) }) : words;
  return open ? t('{time}, so far', { time: all }) : all;
}

/**
 * The moments to label between two: hours of the day, days, or months, as clocks here show them.
 * @param {number} from @param {number} to @param {number} most
 */
function moments(from, to, most) {
  const days = (to - from) / DAY;
  /** @type {['Hours'|'Date'|'Month', number, number[]]} */
  const [size, each, units] = days < 3 ? ['Hours', 24, [2, 4, 6, 12]]
    : days < 100 ? ['Date', 1, [1, 2, 5, 10]] : ['Month', 1 / 30, [1, 2, 3, 6]];
  const unit = units.find((one) => days * each / one <= most) || 12;
  const start = new Date(from);
  if (size === 'Month') start.setDate(1);
  start.setHours(size === 'Hours' ? start.getHours() - (start.getHours() % unit) : 0, 0, 0, 0);
  const found = [];
  for (let n = 0; +start < to && n < 100; n += 1) {
    if (+start >= from) found.push(+start);
    start[`set${size}`](start[`get${size}`]() + unit);
  }
  return found;
}

/** One chart. What is operable lies above the picture, for readers drop what is in one. */
class Chart {
  /** @type {Step[]} */
  steps = [];
  at = -1;
  width = 0;
  top = 1;
  x = (/** @type {number} */ time) => {
    const { steps, width } = this;
    const { at: from } = steps[0];
    return ((time - from) / (steps[steps.length - 1].end - from)) * width;
  };

  y = (/** @type {number} */ value) => HEIGHT - 20 - (value / this.top) * (HEIGHT - 38);

  /** @param {Kind} kind */
  constructor(kind) {
    this.kind = kind;
    this.number = last += 1;
    this.picture = s('svg', { role: 'img', height: HEIGHT });
    this.total = h('p', { 'aria-hidden': 'true' });
    this.status = h('p', { role: 'status' });
    this.keys = h('div', { class: 'keys', tabindex: 0, role: 'application',
      'aria-label': t('{title}: arrow keys go from one time to the next', kind),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.press(event),
      onpointerdown: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event) });
    const shape = kind.kind === 'lines' ? 'curve ' : '';
    const names = kind.names.map((name, place) => h('span', { class: `${shape}k${place}` }, name));
    this.root = h('section', { class: 'chart' }, h('div', { class: 'bar' }, h('h3', {}, kind.title),
      h('p', { class: 'legend', 'aria-hidden': 'true' }, ...names)),
    h('div', { class: 'plot' }, this.picture, this.keys),
    h('div', { class: 'help reading' }, this.total, this.status));
    new ResizeObserver(() => this.draw()).observe(this.keys);
  }

  /** Shows other steps; what one looks at stays. @param {Step[]} steps */
  patch(steps) {
    if (JSON.stringify(steps) === JSON.stringify(this.steps)) return;
    const looked = this.steps[this.at]?.at;
    this.steps = steps;
    this.at = steps.findIndex(({ at }) => at === looked);
    setText(this.total, this.kind.sentence(steps));
    setAttribute(this.picture, 'aria-label', `${this.kind.title}. ${this.total.textContent}`);
    this.width = 0;
    this.draw();
    this.patchStatus();
  }

  /** Draws for the width that there is. */
  draw() {
    const width = this.keys.clientWidth;
    const { steps } = this;
    if (!steps.length || !width || width === this.width) return;
    this.width = width;
    setAttribute(this.picture, 'viewBox', `0 0 ${width} ${HEIGHT}`);
    const sums = steps.map(({ values }) => (this.kind.kind === 'bars'
      ? values.reduce((/** @type {number} */ sum, value) => sum + (value || 0), 0)
      : Math.max(...values.map((value) => value || 0))));
    this.top = (this.kind.kind === 'bars' ? roundUp : roundDuration)(Math.max(this.kind.least, ...sums));
    this.picture.replaceChildren(this.hatch(), ...this.frame(),
      ...this.kind.kind === 'bars' ? this.bars() : this.lines(),
      s('rect', { class: 'cursor', y: 14, height: HEIGHT - 34, width: 0 }));
    this.patchCursor();
  }

  /** What lies over a step that has not ended. */
  hatch() {
    return s('pattern', { id: `hatch${this.number}`, width: 5, height: 5,
      patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
    s('rect', { class: 'hatch', width: 2.5, height: 5 }));
  }

  /** Scale and times. */
  frame() {
    const { steps, width, x, y } = this;
    const { at: from } = steps[0];
    const to = steps[steps.length - 1].end;
    const long = to - from > 3 * DAY;
    const times = moments(from, to, Math.max(2, Math.floor(width / LABEL)));
    const label = s('text', { x: 0, y: 10 });
    setText(label, this.kind.words(this.top));
    return [label, ...[0, 0.5, 1].map((share) => s('line', { class: 'rule', x1: 0, x2: width,
      y1: y(share * this.top), y2: y(share * this.top) })),
    ...times.filter((time) => x(time) < width - 36).map((time) => {
      const text = s('text', { x: x(time), y: HEIGHT - 5 });
      const date = new Date(time);
      setText(text, (long || !date.getHours() ? day : clock).format(date));
      return text;
    })];
  }

  /** Stacked: the last name stands at the bottom, where it is best compared. */
  bars() {
    const { x, y } = this;
    return this.steps.flatMap(({ at, end, open, values }) => {
      const left = x(at) + 1;
      const width = Math.max(1, x(end) - x(at) - 2);
      let sum = 0;
      const parts = values.map((value, place) => ({ value, place })).reverse()
        .filter(({ value }) => value).map(({ value, place }) => {
          const before = y(sum);
          sum += value || 0;
          return s('rect', { class: `k${place}`, x: left, width, y: Math.min(y(sum), before - 1.5),
            height: Math.max(1.5, before - y(sum)) });
        });
      if (open && sum) {
        parts.push(s('rect', { x: left, width, y: y(sum), height: y(0) - y(sum),
          fill: `url(#hatch${this.number})` }));
      }
      return parts;
    });
  }

  /** A line for each name, with a gap where nothing was measured; dots stand for single steps. */
  lines() {
    const { x, y, steps } = this;
    return this.kind.names.flatMap((_, place) => {
      let path = '';
      let joined = false;
      const dots = steps.flatMap(({ at, end, open, values }) => {
        const value = values[place];
        if (value === null) return (joined = false) || [];
        const [left, top] = [x((at + end) / 2).toFixed(1), y(value).toFixed(1)];
        path += `${joined ? 'L' : 'M'}${left} ${top}`;
        joined = true;
        return s('circle', { class: `k${place}${open ? ' open' : ''}`, cx: left, cy: top, r: 2.5 });
      });
      return [s('path', { class: `k${place}`, d: path }), ...dots];
    });
  }

  /** Arrow keys, Home and End go through the steps. @param {KeyboardEvent} event */
  press(event) {
    const most = this.steps.length - 1;
    const wanted = placeAfter(event, this.at < 0 ? most + 1 : this.at, most);
    if (wanted === undefined || most < 0) return;
    event.preventDefault();
    this.look(Math.min(most, Math.max(0, wanted)));
  }

  /** A tap, or a mouse above it. @param {PointerEvent} event */
  point(event) {
    if (!this.width) return;
    const place = event.clientX - this.keys.getBoundingClientRect().left;
    this.look(this.steps.findIndex(({ end }) => this.x(end) > place));
  }

  /** @param {number} at */
  look(at) {
    if (at === this.at) return;
    this.at = at;
    this.patchCursor();
    this.patchStatus();
  }

  /** Marks the step one looks at. */
  patchCursor() {
    const step = this.steps[this.at];
    const cursor = this.picture.querySelector('.cursor');
    if (!cursor) return;
    setAttribute(cursor, 'x', step ? this.x(step.at) : 0);
    setAttribute(cursor, 'width', step ? this.x(step.end) - this.x(step.at) : 0);
  }

  /** Says what it holds. */
  patchStatus() {
    const step = this.steps[this.at];
    this.total.hidden = Boolean(step);
    setText(this.status, step ? `${spanWords(step)}: ${this.valuesOf(step)}` : '');
  }

  /** @param {Step} step */
  valuesOf({ values }) {
    const { names, words } = this.kind;
    if (values.every((value) => value === null)) return t('nothing measured');
    return names.map((name, place) => {
      const value = values[place];
      return value === null ? '' : `${words(value)} ${name}`;
    }).filter(Boolean).join(', ');
  }
}
