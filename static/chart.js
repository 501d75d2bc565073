// @ts-check
/** A chart over time: a picture, and a line of words for all of it or for the step one looks at. */
import { h, setAttribute, setText } from './dom.js';
import { formatter } from './format.js';
import { t } from './language.js';

/**
 * @typedef {{at: number, end: number, open: boolean, values: (number|null)[]}} Step times in
 *   milliseconds; `open`: it has not ended; null: nothing was measured
 * @typedef {{title: string, kind: 'bars'|'lines', names: string[], least: number,
 *   words: (value: number) => string, sentence: (steps: Step[]) => string}} Kind
 *   the last name is drawn heaviest; `least`: the scale ends there or higher
 */

const DAY = 864e5;
const HEIGHT = 116;
const LABEL = 64;
const clock = formatter({ hour: '2-digit', minute: '2-digit' });
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

const ROUND = [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];
/** Seconds of the units that durations are said in. */
const UNITS = [86400, 3600, 60];

/** The next round number, at most a third larger. @param {number} most */
function roundUp(most) {
  const size = 10 ** Math.floor(Math.log10(most));
  return ROUND.map((factor) => factor * size).find((round) => round >= most) || most;
}

/** The next round duration: whole minutes, hours or days where these are said. @param {number} most */
export function roundDuration(most) {
  const unit = UNITS.find((one) => most > one);
  if (!unit) return roundUp(most);
  const count = most / unit;
  return unit * (count < 10 ? Math.ceil(count) : roundUp(count));
}

/** A span of time in the viewer's zone. @param {Step} step */
export function spanWords({ at, end, open }) {
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
export class Chart {
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
