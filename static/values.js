// @ts-check
/** Values as one sees them: the arguments of a task or schedule, and what a function returned. */
import { store } from './api.js';
import { h, table } from './dom.js';
import { Digits } from './digits.js';
import { copyBox, pairItems } from './forms.js';
import { t } from './language.js';

const MOST_ROWS = 200;
const MOST_LARGE = 60;
const MOST_ADDRESS = 2000;
const MOST_UNBROKEN = 36;
/** Of one value; what is longer is cut. */
export const MOST_CHARACTERS = 10000;

/** Whether it fits a line. @param {unknown} value */
const isScalar = (value) => value === null || typeof value !== 'object' || value instanceof Digits;

/**
 * Whether it has names and values.
 * @param {unknown} value @returns {value is Record<string, unknown>}
 */
const isDict = (value) => !isScalar(value) && !Array.isArray(value);

/** An http or https address as a link to another tab; undefined for other values. @param {unknown} value */
const addressLink = (value) => (typeof value === 'string' && value.length <= MOST_ADDRESS
  && /^https?:\/\/[^\s/]\S*$/i.test(value)
  ? h('a', { href: value, target: '_blank', rel: 'noopener noreferrer' }, value) : undefined);

/**
 * What a function returned.
 * @param {unknown} result @param {(value: unknown) => Node|undefined} [linkTo] what a file is shown as
 */
export function resultElement(result, linkTo = () => undefined) {
  const show = (/** @type {unknown} */ value) => linkTo(value) || addressLink(value);
  if (isScalar(result)) {
    const link = show(result);
    if (link) return h('p', {}, link);
    const text = scalar(result);
    return text.length > MOST_LARGE ? copyBox(text, t('Result'))
      : h('p', { class: 'scalar', dir: 'auto' }, text);
  }
  if (isDict(result)) {
    return pairs(Object.entries(result).map(([name, value]) => [name, linkTo(value) || value]));
  }
  if (Array.isArray(result) && result.length && result.every(isDict)) return tableOf(result);
  const links = Array.isArray(result) ? result.slice(0, MOST_ROWS).map(show) : [];
  if (links.length && links.length === /** @type {unknown[]} */ (result).length && links.every(Boolean)) {
    return h('div', { class: 'links' }, ...links);
  }
  return copyBox(shorten(JSON.stringify(result, null, 2)), t('Result'));
}

/**
 * The arguments of a task; secrets are masked, so the function must be known.
 * @param {{function: string, arguments: Record<string, unknown>}} task
 * @param {(value: unknown) => Node|undefined} [linkTo] what a file is shown as
 */
export function argumentsElement({ function: called, arguments: values }, linkTo = () => undefined) {
  const { catalogue } = store.state;
  if (!catalogue) return h('p', { class: 'help' }, '…');
  const schema = catalogue.functions.find(({ name }) => name === called)?.schema;
  const shown = Object.entries(values).map(([name, value]) => {
    const secret = Object.hasOwn(schema?.properties ?? {}, name)
      && schema?.properties?.[name].format === 'password';
    const links = [value].flat().flatMap((one) => linkTo(one) || []);
    return /** @type {[string, unknown]} */ ([name, secret ? '••••••'
      : links.length ? h('span', { class: 'links' }, ...links) : value]);
  });
  return shown.length ? pairs(shown) : h('p', { class: 'help' }, t('None.'));
}

/** Names and values in two columns. @param {[string, unknown][]} entries */
function pairs(entries) {
  return h('dl', { class: 'pairs' }, ...pairItems(entries.map(([name, value]) => [name, inline(value)])));
}

/**
 * A cell of a table. What is short does not break, such as a number or a date.
 * @param {Node|string} content @param {string} [text] of the content
 */
export const valueCell = (content, text = String(content)) => (
  h('td', { class: text.length <= MOST_UNBROKEN && 'whole' }, content));

/** Rows with the same names, as a table. @param {Record<string, unknown>[]} rows */
function tableOf(rows) {
  const shown = rows.slice(0, MOST_ROWS);
  const names = [...new Set(shown.flatMap(Object.keys))];
  const left = rows.length - shown.length;
  return h('div', { class: 'wide cells', tabindex: 0, role: 'group', 'aria-label': t('Result table') },
    table('', t('Result'), names, h('tbody', {}, ...shown.map((row) => h('tr', {},
      ...names.map((name) => (Object.hasOwn(row, name)
        ? valueCell(inline(row[name]), String(row[name])) : valueCell(''))))))),
    left > 0 && h('p', { class: 'help' },
      t.n('and {count} more row | and {count} more rows', left)));
}

/** A value within others. @param {unknown} value */
function inline(value) {
  if (value instanceof Node) return value;
  if (isScalar(value)) return h('bdi', {}, addressLink(value) || scalar(value));
  return h('code', {}, shorten(JSON.stringify(value)));
}

/** A single value in words. @param {unknown} value */
function scalar(value) {
  if (value === null) return '–';
  if (value === '') return t('(empty)');
  return typeof value === 'boolean' ? (value ? t('yes') : t('no')) : shorten(String(value));
}

/** What a browser can lay out at once. @param {string} text */
function shorten(text) {
  const left = text.length - MOST_CHARACTERS;
  return left > 0 ? text.slice(0, MOST_CHARACTERS)
    + t.n('… and {count} more character | … and {count} more characters', left) : text;
}
