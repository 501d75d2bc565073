// @ts-check
/** The first page: what runs, waits, failed lately and comes next; then charts of how it went. */
import { get, now, poll, store } from './api.js';
import { find, h, icon, render, setAttribute, setText, table } from './dom.js';
import {
  countWords, duration, elapsed, estimate, formatter, statusWord, timeWords,
} from './format.js';
import { badge, cell, patchRows, timeElement } from './forms.js';
import { grouped, t } from './language.js';
import { firstSteps, groupRow } from './list.js';
import { said } from './said.js';
import { seesAll } from './tasks.js';

/** @import {Figures, Metrics, Overview, Page, Planned, Row} from './types.js' */

const HOUR = 36e5;
const DAY = 24 * HOUR;
/** @typedef {readonly [string, number, string, number]} Range */
/**
 * What the address says: words, how far back, and the length of a step.
 * @type {Record<string, Range>}
 */
const RANGES = {
  day: [t('24 hours'), DAY, 'hour', HOUR], week: [t('7 days'), 7 * DAY, '6h', 6 * HOUR],
  month: [t('30 days'), 30 * DAY, 'day', DAY], year: [t('a year'), 364 * DAY, 'week', 7 * DAY],
};
const COMING = 5;
const MOST_TIMES = 24;
const clock = formatter({ hour: '2-digit', minute: '2-digit' });

/** @type {Page['show']} */
export async function show({ params }, signal) {
  const name = params.get('range') || '';
  const range = Object.hasOwn(RANGES, name) ? name : 'day';
  const found = await get('api/overview', signal);
  if (signal.aborted) return;
  const shown = document.querySelector('.overview');
  const view = (shown && views.get(shown)) || new View();
  view.choose(range);
  const wait = view.patch(found);
  if (!view.root.isConnected) view.enter();
  poll(signal, async () => view.patch(await get('api/overview', signal)), wait);
  poll(signal, () => view.measure(signal));
}

/** @type {WeakMap<Element, View>} that one is in, while only its range changes */
const views = new WeakMap();

/** Everything on the page; each look brings it up to date in place. */
class View {
  constructor() {
    this.range = RANGES.day;
    this.refresh = async () => this.patch(await get('api/overview'));
    this.glance = ['running', 'waiting', 'failed', 'next'].map((name) => (
      h('li', {}, h('a', { 'data-name': name }, h('b'), h('span')))));
    this.running = h('ul', { class: 'works' });
    this.idle = h('p', { class: 'help' });
    this.held = h('ul', { class: 'works' });
    this.groups = h('ul', { class: 'works' });
    this.calm = h('p', { class: 'help' });
    this.coming = h('ul', { class: 'works' });
    this.line = h('div', { class: 'day', role: 'img' });
    this.none = h('p', { class: 'help' }, t('No schedule is due within 24 hours.'));
    this.history = new History();
    this.first = h('div', { hidden: true });
    const part = (/** @type {string} */ title, /** @type {HTMLElement[]} */ ...parts) => (
      h('section', {}, h('h2', {}, title), ...parts));
    this.root = h('div', { class: 'overview' }, h('div', { class: 'head' },
      h('h1', { tabindex: -1 }, t('Overview')),
      h('a', { class: 'button primary', href: '#/new' }, icon('plus'), t('New task'))),
    h('ul', { class: 'glance', 'aria-label': t('At a glance') }, ...this.glance), this.first,
    h('div', { class: 'columns' }, part(t('Now'), this.idle, this.running, this.held),
      part(t('Failed in the last 24 hours'), this.calm, this.groups)),
    part(t('Next 24 hours'), this.none, this.line, this.coming), this.history.root);
    views.set(this.root, this);
  }

  /** Comes into view. */
  enter() {
    render(t('Overview'), this.root);
  }

  /** @param {string} name */
  choose(name) {
    this.range = RANGES[name];
    this.history.choose(name);
  }

  /** The figures of the range; resolves with the seconds until the next look. */
  async measure(/** @type {AbortSignal} */ signal) {
    return this.history.read(this.range, signal);
  }

  /** One look; resolves with the seconds until the next. @param {Overview} found */
  patch(found) {
    const { counts, failed, held, oldest, running, workers } = found;
    this.patchGlance(found);
    this.first.hidden = counts.all > 0;
    if (counts.all) this.history.root.hidden = false;
    if (!counts.all && !this.first.childElementCount) this.first.append(...firstSteps());
    patchRows(this.running, running, ({ id }) => id, runningRow);
    running.forEach((task, place) => setText(
      find('.state bdi', this.running.children[place]), ranWords(task)));
    patchRows(this.held, held, ({ queue }) => queue, ({ queue, text }) => h('li', {},
      badge('paused', said(text)),
      h('a', { href: `#/tasks?${new URLSearchParams({ queue })}` }, t('Tasks'))));
    patchRows(this.groups, failed.groups, (group) => `${group.function} ${group.error}`,
      (group) => groupRow(group, { ended_since: failed.since }, this.refresh));
    const rest = counts.running - running.length;
    setText(this.idle, rest > 0 ? t('The first {count} of {all}.',
      { count: running.length, all: countWords(counts.running) })
      : running.length ? '' : seesAll() ? t('Nothing is running.') : t('None of yours is running.'));
    setText(this.calm, failed.more ? t('There are more than these; all are in the list of tasks.')
      : failed.groups.length ? '' : t('Nothing failed.'));
    this.patchComing(found.schedules);
    this.history.maximum = workers.maximum;
    return running.length || oldest ? 2 : 10;
  }

  /** The four answers, each a link to more. @param {Overview} found */
  patchGlance({ counts, failed, next_at: nextAt, oldest, schedules, workers }) {
    const [first] = schedules;
    const many = failed.groups.reduce((sum, { count }) => sum + count, 0);
    const waited = oldest && (now() - Date.parse(oldest.since)) / 1000;
    const due = [nextAt, first?.times[0]].filter((at) => at != null).sort()[0];
    /** @type {[string, string, string][]} */
    const told = [
      [countWords(counts.running), t('running, {busy} of {maximum} workers busy', workers),
        '#/tasks?status=running'],
      [countWords(counts.pending), waited === null ? t('pending')
        : t('pending, the oldest for {time}', { time: duration(waited) }),
      '#/tasks?status=pending'],
      [countWords(many) + (failed.more ? '+' : ''), t('failed in 24 hours'),
        '#/tasks?status=failed'],
      [due ? timeWords(new Date(due)) : '–', !due ? t('nothing is planned')
        : due === nextAt ? t('the next scheduled task') : t('the next schedule'),
      due && due !== nextAt ? '#/schedules' : '#/tasks?status=scheduled']];
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

/** How often within the day. @param {Planned} planned */
const timesWords = ({ times: { length } }) => (
  length < 2 ? t('once') : length < MOST_TIMES ? t.n('{count} time | {count} times', length)
    : t('{count} or more times', { count: length }));

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
  const { id, function: name, message, owner, progress, summary } = task;
  const words = [progress !== null && `${Math.floor(progress * 100)} %`, message, estimate(task)]
    .filter(Boolean).join(' · ');
  return h('li', {}, badge('running', ranWords(task)),
    h('a', { href: `#/tasks/${id}` }, name),
    h('bdi', {}, summary),
    owner !== store.state.session?.user.name && h('span', { class: 'who' }, owner),
    progress !== null && h('progress',
      { value: progress, 'aria-label': t('Progress of {id}', { id }) }),
    words && h('span', { class: 'help' }, words));
}

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
  [{ title: t('Use of the workers'), kind: 'bars', names: [t('busy')], least: 1, words: percent,
    sentence: (steps) => t('At most {share} of what NbMaxWorker allows.',
      { share: percent(most(steps, 0)) }) },
  ({ busy_seconds: busy }, step, maximum) => [
    busy == null ? null : busy / (Math.max(1, maximum) * step)]],
];

/** How it went: charts, functions, machines; of the range that the address says. */
class History {
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
      h('span', { class: 'help' }, t('busy for {busy} of the {alive} that its workers lived', {
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
  return median === high ? median : t('{median}, 95 of 100 in {high}', { median, high });
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

// Charts over time: a picture, a line of words for the step one looks at, and a table behind.

/**
 * @typedef {{at: number, end: number, open: boolean, values: (number|null)[]}} Step times in
 *   milliseconds; `open`: it has not ended; null: nothing was measured
 * @typedef {{title: string, kind: 'bars'|'lines', names: string[], least: number,
 *   words: (value: number) => string, sentence: (steps: Step[]) => string}} Kind
 *   the last name is drawn heaviest; `least`: the scale ends there or higher
 */

const HEIGHT = 132;
const LABEL = 64;
const day = formatter({ day: 'numeric', month: 'short' });
const weekday = formatter({ weekday: 'short', day: 'numeric', month: 'short' });
let last = 0;

/**
 * An element of SVG.
 * @param {string} tag @param {Record<string, unknown>} attributes @param {...Node} children
 */
function s(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children);
  return element;
}

/** The next round number: 1, 2 or 5 and zeros. @param {number} most */
function roundUp(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((factor) => factor * size).find((round) => round >= most) || most;
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
  const [size, units] = days < 3 ? ['Hours', [2, 4, 6, 12]] : days < 100 ? ['Date', [1, 2, 5, 10]]
    : ['Month', [1, 2, 3, 6]];
  const unit = units.find((one) => (
    days * (size === 'Hours' ? 24 : size === 'Date' ? 1 : 1 / 30) / one <= most)) || 12;
  const start = new Date(from);
  if (size === 'Month') start.setDate(1);
  start.setHours(size === 'Hours' ? start.getHours() - (start.getHours() % unit) : 0, 0, 0, 0);
  const found = [];
  for (let n = 0; +start < to && n < 100; n += 1) {
    if (+start >= from) found.push(+start);
    if (size === 'Hours') start.setHours(start.getHours() + unit);
    else if (size === 'Date') start.setDate(start.getDate() + unit);
    else start.setMonth(start.getMonth() + unit);
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
    this.status = h('p', { class: 'help reading', role: 'status' });
    this.keys = h('div', { class: 'keys', tabindex: 0, role: 'application',
      'aria-label': t('{title}: arrow keys go from one time to the next', kind),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.press(event),
      onpointerdown: (/** @type {PointerEvent} */ event) => this.point(event),
      onpointermove: (/** @type {PointerEvent} */ event) => this.point(event) });
    this.details = h('details', { ontoggle: () => this.patchTable() },
      h('summary', {}, t('Show as table'), h('span', { class: 'hidden' }, `: ${kind.title}`)));
    this.rows = h('div', { class: 'wide', tabindex: 0, role: 'group',
      'aria-label': t('{title}, as a table', kind) });
    this.details.append(this.rows);
    const shape = kind.kind === 'lines' ? 'curve ' : '';
    const names = kind.names.map((name, place) => h('span', { class: `${shape}k${place}` }, name));
    this.root = h('section', { class: 'chart' }, h('div', { class: 'bar' }, h('h3', {}, kind.title),
      h('p', { class: 'legend', 'aria-hidden': 'true' }, ...names)),
    h('div', { class: 'plot' }, this.picture, this.keys), this.status, this.details);
    new ResizeObserver(() => this.draw()).observe(this.keys);
  }

  /** Shows other steps; what one looks at stays. @param {Step[]} steps */
  patch(steps) {
    if (JSON.stringify(steps) === JSON.stringify(this.steps)) return;
    const looked = this.steps[this.at]?.at;
    this.steps = steps;
    this.at = steps.findIndex(({ at }) => at === looked);
    setAttribute(this.picture, 'aria-label', `${this.kind.title}. ${this.kind.sentence(steps)}`);
    this.width = 0;
    this.draw();
    this.patchStatus();
    this.patchTable();
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
    this.top = roundUp(Math.max(this.kind.least, ...sums));
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
    const here = this.at < 0 ? most + 1 : this.at;
    /** @type {Record<string, number>} */
    const targets = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: most };
    if (!(event.key in targets) || most < 0) return;
    event.preventDefault();
    this.look(Math.min(most, Math.max(0, targets[event.key])));
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

  /** All of it in words, while one wants that. */
  patchTable() {
    if (!this.details.open) return;
    const { kind, rows, steps } = this;
    rows.replaceChildren(table('', kind.title, [t('Time'), ...kind.names],
      h('tbody', {}, ...[...steps].reverse().map((step) => h('tr', {},
        h('th', { scope: 'row' }, spanWords(step)),
        ...step.values.map((value) => h('td', {}, value === null ? '–' : kind.words(value))))))));
  }
}
