// @ts-check
/** The text of a log as a terminal shows it: lines, colours, what carriage returns overwrite. */

/** @import {LogPart} from './types.js' */

const TAB = 8;
/** What programs tell terminals: parameters and kind, m for colours. */
// eslint-disable-next-line no-control-regex
const ESCAPE = new RegExp('\x1b(?:\\[([0-?]*)[ -/]*([@-~])|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?'
  + '|P[^\x1b]*(?:\x1b\\\\)?|[ -/]+[0-~]?|[@-Z\\\\-_]?)', 'g');
const PLAIN = { colour: '', bold: '' };

/** @typedef {[string, string]} Run classes, and a text that has them */
/** @typedef {string|Run[]} Line */

/** The lines of a text that comes in parts. */
export class Lines {
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
export const textOf = (line) => (
  typeof line === 'string' ? line : line.map(([, text]) => text).join(''));

/** How many columns a text needs; characters of Asia and pictures need two. @param {string} text */
export function widthOf(text) {
  if (!/[^ -~]/.test(text)) return text.length;
  let width = 0;
  for (const one of text) width += one === '\t' ? TAB - (width % TAB) : one < '\u1100' ? 1 : 2;
  return width;
}

/**
 * The first number for which something holds that holds for all behind it; the end if it never does.
 * @param {number} end @param {(place: number) => boolean} holds
 */
export function firstWith(end, holds) {
  let low = 0;
  while (low < end) {
    const middle = (low + end) >> 1;
    if (holds(middle)) end = middle;
    else low = middle + 1;
  }
  return low;
}
