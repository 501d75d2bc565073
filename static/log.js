// @ts-check
/** The log of a task as a terminal shows it: one attempt at a time, followed to its end until one scrolls up. */
import { get } from './api.js';
import { h, setAttribute, setText } from './dom.js';
import { formatter } from './format.js';
import { act } from './forms.js';
import { t } from './language.js';

/** @import {LogPart, Task} from './types.js' */

const HEIGHT = 20;              // of a row, as pages.css says
const BESIDE = 40;              // lines in the document above and below those in sight
const MOST_CHARACTERS = 5000;   // of a line; what a browser can lay out at once
const MOST_TEXT = 4e6;
const clock = formatter({ hour: '2-digit', minute: '2-digit', second: '2-digit' });
/** What one chose last. */
const looks = { wrap: true, times: false };

/**
 * Of many lines only those in sight are in the document, between two gaps as high as the others.
 * All characters are equally wide: so is known how many rows a line has where it wraps.
 */
class Sight {
  lines = new Lines();
  /** The lines in the document. */
  from = 0;
  to = 0;
  columns = 80;
  /** The box as it was when it was drawn. */
  size = '';
  /** Whether the last line was in sight when it was drawn. */
  isAtEnd = true;
  /** How many rows are above each line that wraps. */
  rows = [0];
  above = h('div');
  body = h('div');
  below = h('div');

  /** @param {(line: number) => HTMLElement} build @param {() => void} moved */
  constructor(build, moved) {
    this.build = build;
    this.moved = moved;
    this.box = h('div', { class: 'log mono', tabindex: 0, role: 'group',
      'aria-label': t('Log text'), onscroll: () => this.sizeOf() === this.size && this.draw() },
    this.above, this.body, this.below);
    new ResizeObserver(() => this.resize()).observe(this.box);
  }

  /** Shows the last line; it may be higher than it seemed before it was there. */
  toEnd() {
    for (let looked = 0; looked < 2; looked += 1) {
      this.box.scrollTop = this.box.scrollHeight;
      this.draw();
    }
  }

  /** Shows a line amid others. @param {number} line */
  show(line) {
    this.box.scrollTop = this.topOf(line) - this.box.clientHeight / 3;
    this.draw();
  }

  /** Does what changes how high lines are, or how they look; what is in sight stays there.
   * @param {() => void} change */
  keep(change) {
    const { isAtEnd, box } = this;
    const line = this.lineAt(box.scrollTop);
    change();
    this.changed(0);
    if (isAtEnd) this.toEnd();
    else box.scrollTop = this.topOf(line);
  }

  /** Whoever saw the end still sees it; what scrolled by itself meanwhile does not count. */
  resize() {
    this.measure();
    this.size = this.sizeOf();
    if (this.isAtEnd) this.toEnd();
    else this.draw();
  }

  sizeOf() {
    return `${this.box.clientWidth} ${this.box.clientHeight}`;
  }

  /** Counts the columns, which change with the window. */
  measure() {
    const { box } = this;
    if (!box.clientWidth) return;
    const ruler = h('span', {}, '0'.repeat(100));
    this.body.append(ruler);
    const digits = String(this.lines.count).length;
    const width = ruler.getBoundingClientRect().width / 100;
    ruler.remove();
    const beside = digits + (looks.times ? 12 : 2);
    const columns = Math.floor((box.clientWidth - 24) / width - beside + 0.01);
    box.style.setProperty('--digits', String(digits));
    if (columns !== this.columns) this.keep(() => { this.columns = Math.max(8, columns); });
  }

  /** Draws lines from this one on anew. @param {number} first */
  changed(first) {
    const { all, count } = this.lines;
    for (; this.to > Math.max(first, this.from); this.to -= 1) this.body.lastChild?.remove();
    this.box.classList.toggle('wrap', looks.wrap);
    this.rows.length = Math.min(first + 1, this.rows.length);
    for (let line = this.rows.length; looks.wrap && line <= count; line += 1) {
      const width = widthOf(textOf(all[line - 1]).slice(0, MOST_CHARACTERS));
      this.rows.push(this.rows[line - 1] + (Math.ceil(width / this.columns) || 1));
    }
    this.patchGaps();
    this.draw();
  }

  /** In pixels. @param {number} line */
  topOf(line) {
    return HEIGHT * (looks.wrap ? this.rows[line] : line);
  }

  /** The one at a place, or the number of all lines. @param {number} top in pixels */
  lineAt(top) {
    const row = Math.floor(top / HEIGHT);
    const { rows, lines: { count } } = this;
    return Math.min(count, looks.wrap
      ? Math.max(0, firstWith(rows.length, (line) => rows[line] > row) - 1) : row);
  }

  /** Puts what is in sight into the document, and takes the rest out. */
  draw() {
    const { box, lines: { count } } = this;
    const first = this.lineAt(box.scrollTop);
    const last = Math.min(count, this.lineAt(box.scrollTop + box.clientHeight) + 1);
    if (first < this.from || last > this.to) {
      this.replace(Math.max(0, first - BESIDE), Math.min(count, last + BESIDE));
    }
    this.patchGaps();
    this.isAtEnd = box.scrollTop + box.clientHeight > box.scrollHeight - HEIGHT;
    this.moved();
  }

  /** What stays does not move, should others not be as high as they seemed.
   * @param {number} from @param {number} to */
  replace(from, to) {
    const { body, box } = this;
    if (from >= this.to || to <= this.from) {
      body.replaceChildren();
      this.from = this.to = from;
    }
    const staying = /** @type {HTMLElement|undefined} */ (body.children[Math.max(0, from - this.from)]);
    const top = staying?.offsetTop || 0;
    for (; this.from < from; this.from += 1) body.firstChild?.remove();
    for (; this.to > to; this.to -= 1) body.lastChild?.remove();
    body.prepend(...this.between(from, this.from));
    body.append(...this.between(this.to, to));
    this.from = from;
    this.to = to;
    this.patchGaps();
    if (staying && looks.wrap) box.scrollTop += staying.offsetTop - top;
    this.below.style.width = looks.wrap ? '' : `${body.scrollWidth}px`;
  }

  /** As high as the lines that are not there. */
  patchGaps() {
    this.above.style.height = `${this.topOf(this.from)}px`;
    this.below.style.height = `${this.topOf(this.lines.count) - this.topOf(this.to)}px`;
  }

  /** @param {number} from @param {number} to */
  between(from, to) {
    return Array.from({ length: Math.max(0, to - from) }, (_, place) => this.build(from + place));
  }
}

/** What can be done with a log, and reading it. */
export class LogView {
  offset = 0;
  attempt = 0;
  known = 0;
  ended = false;
  /** How many lines there were when one last saw the end. */
  seen = 0;
  /** The line that the address names or the search has found. */
  current = -1;
  /** @type {RegExp|null} */
  pattern = null;
  /** Lines in which it is. @type {number[]} */
  found = [];

  /** @param {number} id of the task @param {URLSearchParams} params of the address */
  constructor(id, params) {
    this.id = id;
    this.wanted = { line: Number(params.get('line')), attempt: Number(params.get('attempt')) };
    this.sight = new Sight((line) => this.build(line), () => this.patchEnd());
    this.sight.body.onclick = (event) => this.point(event);
    this.choice = h('select', { 'aria-label': t('Attempt'), onchange: () => this.choose() });
    this.search = h('input', { type: 'search', placeholder: t('Search the log'),
      'aria-label': t('Search the log'), oninput: () => this.find(),
      onkeydown: (/** @type {KeyboardEvent} */ { key, shiftKey, isComposing }) => (
        key === 'Enter' && !isComposing && this.step(shiftKey ? -1 : 1)) });
    this.place = h('span', { class: 'help', role: 'status' });
    this.steps = h('span', { hidden: true }, ...[-1, 1].map((by) => h('button', {
      class: 'small', onclick: () => this.step(by),
      'aria-label': by < 0 ? t('Previous line found') : t('Next line found') }, by < 0 ? '↑' : '↓')));
    this.times = lookButton(t('Times'), looks.times, (on) => this.look('times', on));
    this.download = h('a', { download: '' }, t('Download'));
    this.note = h('p', { class: 'help', hidden: true },
      t('The middle of this log was cut out: it was too long.'));
    this.end = h('button', { class: 'small', onclick: () => this.sight.toEnd() });
    /** What needs lines. */
    this.controls = [h('div', { class: 'search' }, this.search, this.place, this.steps),
      lookButton(t('Wrap'), looks.wrap, (on) => this.look('wrap', on)), this.times,
      lookButton(t('Full height'), false, (on) => this.stretch(on)), this.download];
    this.root = h('section', { class: 'logs', hidden: true }, h('div', { class: 'bar' },
      h('h2', {}, t('Log')), this.choice, ...this.controls),
    this.note, this.sight.box, h('div', { class: 'end' }, this.end));
  }

  /** Once it is in the document. */
  enter() {
    this.sight.measure();
    this.sight.toEnd();
    this.toWanted();
  }

  /** Starts again with the chosen attempt. */
  choose() {
    this.start(Number(this.choice.value));
    act(this.sight.box, () => this.read());
  }

  /** @param {number} attempt */
  start(attempt) {
    this.attempt = attempt;
    this.offset = this.seen = 0;
    this.current = -1;
    this.ended = false;
    this.note.hidden = true;
    this.sight.lines = new Lines();
    this.sight.changed(0);
    this.find();
  }

  /**
   * A new attempt is shown at once, if one was looking at the one before. The traceback that the
   * page shows as the task's error is not shown again.
   * @param {Task} task @param {AbortSignal} signal
   */
  async follow({ attempts, error }, signal) {
    if (!attempts) return;
    if (attempts > this.known && this.attempt === this.known) {
      const { attempt } = this.wanted;
      this.start(!this.known && attempt > 0 ? Math.min(attempt, attempts) : attempts);
    }
    if (attempts > this.known) this.listAttempts(attempts);
    if (!this.ended) await this.read(signal);
    const { lines } = this.sight;
    const isLast = this.ended && this.attempt === attempts;
    if (isLast && error?.traceback && lines.cut(error.traceback)) {
      this.patch(lines.count, true);
    }
  }

  /** @param {number} attempts */
  listAttempts(attempts) {
    for (let attempt = this.known + 1; attempt <= attempts; attempt += 1) {
      this.choice.append(h('option', { value: attempt }, t('Attempt {attempt}', { attempt })));
    }
    this.known = attempts;
    this.choice.value = String(this.attempt);
    this.choice.hidden = attempts < 2;
  }

  /** Reads until there is no more for now. @param {AbortSignal} [signal] */
  async read(signal) {
    const { attempt } = this;
    let offset;
    const path = `api/tasks/${this.id}/log?attempt=${attempt}`;
    let part;
    do {
      ({ offset } = this);
      part = await get(`${path}&offset=${offset}`, signal);
      if (signal?.aborted || attempt !== this.attempt || offset !== this.offset) return;
      this.take(part);
    } while (part.text);
    this.ended = part.complete;
    setAttribute(this.download, 'href', `${path}&download=1`);
    this.toWanted();
  }

  /** Text that is too much for a browser is read anew, without its middle. @param {LogPart} part */
  take(part) {
    const { lines } = this.sight;
    if (lines.size > MOST_TEXT) return this.start(this.attempt);
    this.offset = part.next;
    this.note.hidden &&= !part.cut;
    const last = lines.all.length - 1;
    if (part.text) lines.add(part);
    this.patch(last, part.complete);
  }

  /**
   * Lines from this one on are new, or not as they were.
   * @param {number} first @param {boolean} complete
   */
  patch(first, complete) {
    const { sight, sight: { isAtEnd, lines } } = this;
    this.root.hidden = false;
    for (const control of this.controls) control.hidden = !lines.count;
    this.times.hidden ||= !lines.times.some(([, at]) => at);
    const nothing = complete ? t('It printed nothing.') : t('Nothing printed yet.');
    setAttribute(sight.box, 'data-empty', lines.count ? null : nothing);
    sight.measure();
    sight.changed(first);
    this.findFrom(first);
    if (isAtEnd) sight.toEnd();
  }

  /** Once: the line that the address names. */
  toWanted() {
    const { line } = this.wanted;
    if (!line || line > this.sight.lines.count || !this.root.isConnected) return;
    this.wanted.line = 0;
    this.mark(line - 1);
    this.root.scrollIntoView({ block: 'nearest' });
  }

  /** Marks a line, and shows it. @param {number} line */
  mark(line) {
    this.current = line;
    this.sight.changed(0);
    this.sight.show(line);
  }

  /** A line with its number, which leads to its address. @param {number} line */
  build(line) {
    const { lines } = this.sight;
    const text = lines.all[line];
    const at = looks.times && lines.timeOf(line);
    const current = line === this.current;
    const attempt = this.known > 1 ? `&attempt=${this.attempt}` : '';
    return h('div', { class: 'line', 'aria-current': current && 'true' },
      h('a', { href: `#/tasks/${this.id}?line=${line + 1}${attempt}`, 'aria-hidden': String(!current),
        'aria-label': t('Line {number}', { number: line + 1 }), tabindex: current ? 0 : -1 },
      String(line + 1)), looks.times && h('time', {}, at ? clock.format(new Date(at)) : ''),
      h('span', {}, ...runsOf(text).map(([style, words]) => (
        h('span', { class: style }, ...this.marked(words))))));
  }

  /** A text, with marks where it has what is looked for. @param {string} text */
  marked(text) {
    return !this.pattern ? [text] : text.split(this.pattern).map((part, place) => (
      place % 2 ? h('mark', {}, part) : part));
  }

  /** A number that is clicked becomes the page's address. @param {MouseEvent} event */
  point(event) {
    const link = /** @type {Element} */ (event.target).closest('a');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.replaceState(null, '', link.href);
    this.current = Number(link.textContent) - 1;
    this.sight.changed(0);
  }

  /** Looks for what was typed, and shows the next line that has it. */
  find() {
    const { value } = this.search;
    this.pattern = value ? new RegExp(`(${value.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')})`, 'iu')
      : null;
    this.findFrom(0);
    const { sight, found } = this;
    sight.changed(0);
    if (!found.length) return;
    const first = sight.lineAt(sight.box.scrollTop);
    this.mark(found.find((line) => line >= first) ?? found[0]);
    this.patchPlace();
  }

  /** The lines from this one on that have what is looked for. @param {number} first */
  findFrom(first) {
    const { pattern, sight: { lines } } = this;
    this.found = this.found.filter((line) => line < first);
    for (let line = first; pattern && line < lines.count; line += 1) {
      if (pattern.test(textOf(lines.all[line]))) this.found.push(line);
    }
    this.patchPlace();
  }

  /** Goes to the next line found, after the last one to the first. @param {number} by 1 or -1 */
  step(by) {
    const { found, current } = this;
    if (!found.length) return;
    const place = firstWith(found.length, (at) => found[at] >= current + (by > 0 ? 1 : 0));
    this.mark(found[(place + (by > 0 ? 0 : -1) + found.length) % found.length]);
    this.patchPlace();
  }

  /** Which of the lines found is marked. */
  patchPlace() {
    const { found, pattern } = this;
    const place = found.indexOf(this.current) + 1;
    this.steps.hidden = !found.length;
    setText(this.place, !pattern ? '' : place ? t('{place} of {count}', { place, count: found.length })
      : t.n('{count} line | {count} lines', found.length));
  }

  /** @param {'wrap'|'times'} name @param {boolean} on */
  look(name, on) {
    this.sight.keep(() => { looks[name] = on; });
    this.sight.measure();
  }

  /** As high as the window. @param {boolean} on */
  stretch(on) {
    this.sight.keep(() => this.root.classList.toggle('tall', on));
    if (on) this.root.scrollIntoView();
  }

  /** The way back to the end, for who scrolled up. */
  patchEnd() {
    const { isAtEnd, lines: { count } } = this.sight;
    if (isAtEnd) this.seen = count;
    this.end.hidden = isAtEnd;
    setText(this.end, count > this.seen ? t.n('{count} new line ↓ | {count} new lines ↓',
      count - this.seen) : t('To the end ↓'));
  }
}

/** A line's texts with their classes, as far as they are shown. @param {Line} line */
function runsOf(line) {
  const runs = typeof line === 'string' ? [['', line]] : line;
  let left = MOST_CHARACTERS;
  const shown = runs.map(([style, text]) => {
    const some = text.slice(0, Math.max(0, left));
    left -= text.length;
    return [style, some];
  });
  return left >= 0 ? shown : [...shown, ['',
    t.n('… and {count} more character | … and {count} more characters', -left)]];
}

/**
 * A button that is on or off.
 * @param {string} label @param {boolean} on @param {(on: boolean) => void} work
 */
function lookButton(label, on, work) {
  const button = h('button', { class: 'small', 'aria-pressed': String(on), onclick: () => {
    const now = button.ariaPressed !== 'true';
    button.ariaPressed = String(now);
    work(now);
  } }, label);
  return button;
}

const TAB = 8;
/** What programs tell terminals: parameters and kind, m for colours. */
// eslint-disable-next-line no-control-regex
const ESCAPE = new RegExp('\x1b(?:\\[([0-?]*)[ -/]*([@-~])|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?'
  + '|P[^\x1b]*(?:\x1b\\\\)?|[ -/]+[0-~]?|[@-Z\\\\-_]?)', 'g');
const PLAIN = { colour: '', bold: '' };

/** @typedef {[string, string]} Run classes, and a text that has them */
/** @typedef {string|Run[]} Line */

/** The lines of a text that comes in parts. */
class Lines {
  /** @type {Line[]} */
  all = [''];
  /** From which line on, when it came. @type {[number, string|null][]} */
  times = [];
  /** The last line as it came. */
  rest = '';
  style = PLAIN;
  size = 0;
  isCut = false;

  /** How many; an empty one at the end is none. */
  get count() {
    return this.all.length - (this.rest ? 0 : 1);
  }

  /** Goes on with the last line. @param {LogPart} part */
  add({ text, times }) {
    const last = this.all.length - 1;
    for (const [ends, at] of times) this.times.push([last + ends, at]);
    const lines = (this.rest + text).split('\n');
    this.rest = overwritten(/** @type {string} */ (lines.pop()));
    this.all.pop();
    for (const line of lines) this.all.push(this.read(line));
    const { style } = this;
    this.all.push(this.read(this.rest));
    this.style = style;
    this.size += text.length;
  }

  /** Leaves out a text at the end, once; whether it was there. @param {string} text */
  cut(text) {
    const last = text.trimEnd().split('\n');
    const from = this.count - last.length;
    if (this.isCut || from < 0) return false;
    this.isCut = last.every((line, place) => textOf(this.all[from + place]) === line);
    if (this.isCut) this.all.splice(from, Infinity, this.rest = '');
    return this.isCut;
  }

  /** When a line came. @param {number} line */
  timeOf(line) {
    const { times } = this;
    return times[firstWith(times.length, (place) => times[place][0] > line) - 1]?.[1];
  }

  /** A line as it is shown, in the style of what was before. @param {string} line */
  read(line) {
    const text = overwritten(line);
    if (this.style === PLAIN && !text.includes('\x1b')) return text;
    /** @type {Run[]} */
    const runs = [];
    let from = 0;
    const take = (/** @type {number} */ to) => {
      const { colour, bold } = this.style;
      if (to > from) runs.push([colour + bold, text.slice(from, to)]);
    };
    for (const { 0: { length }, 1: codes, 2: kind, index = 0 } of text.matchAll(ESCAPE)) {
      take(index);
      from = index + length;
      if (kind === 'm') this.style = styleAfter(this.style, codes);
    }
    take(text.length);
    return runs;
  }
}

/** What is seen of a line after carriage returns have led back. @param {string} line */
function overwritten(line) {
  if (!line.includes('\r')) return line;
  const end = line.replace(/\r+$/, '');
  return end.slice(end.lastIndexOf('\r') + 1);
}

/**
 * Of all that terminals can do, the 16 colours of text and bold.
 * @param {typeof PLAIN} style @param {string} codes
 */
function styleAfter({ colour, bold }, codes) {
  const numbers = codes.split(/[;:]/).map(Number);
  while (numbers.length) {
    const code = Number(numbers.shift());
    if (!code) colour = bold = '';
    if (code === 1) bold = ' strong';
    if (code === 22) bold = '';
    if (code === 39) colour = '';
    if (code >= 30 && code < 38) colour = colourOf(code - 30);
    if (code >= 90 && code < 98) colour = colourOf(code - 82);
    if (code === 38 || code === 48) {
      const [number, ...more] = numbers.splice(0, numbers.shift() === 5 ? 1 : 3);
      if (code === 38) colour = more.length ? '' : colourOf(number);
    }
  }
  return colour || bold ? { colour, bold } : PLAIN;
}

/** Its class; none of more than 16. @param {number} number */
const colourOf = (number) => (number < 16 ? `c${number % 8}${number > 7 ? ' bright' : ''}` : '');

/** @param {Line} line */
const textOf = (line) => (
  typeof line === 'string' ? line : line.map(([, text]) => text).join(''));

/** How many columns a text needs; characters of Asia and pictures need two. @param {string} text */
function widthOf(text) {
  if (!/[^ -~]/.test(text)) return text.length;
  let width = 0;
  for (const one of text) width += one === '\t' ? TAB - (width % TAB) : one < '\u1100' ? 1 : 2;
  return width;
}

/**
 * The first number for which something holds that holds for all behind it; the end if it never does.
 * @param {number} end @param {(place: number) => boolean} holds
 */
function firstWith(end, holds) {
  let low = 0;
  while (low < end) {
    const middle = (low + end) >> 1;
    if (holds(middle)) end = middle;
    else low = middle + 1;
  }
  return low;
}
