// @ts-check
/** Making and changing elements; text is only ever put in as text. */
import { t } from './language.js';

/** @typedef {Node|string|null|undefined|false} Child */

/**
 * An element with attributes (functions become listeners: `onclick`) and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, unknown>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...kept(children));
  return element;
}

/** The children that no condition left out. @param {Child[]} children */
export const kept = (children) => /** @type {(Node|string)[]} */ (
  children.filter((child) => child != null && child !== false));

/**
 * Sets, removes or listens, after the kind of value.
 * @param {Element} element
 * @param {string} name
 * @param {any} value
 */
export function setAttribute(element, name, value) {
  if (typeof value === 'function') element.addEventListener(name.slice(2), value);
  else if (value === false || value == null) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? '' : value);
}

/**
 * The element that must be there.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {HTMLElement}
 */
export function find(selector, root = document) {
  return /** @type {HTMLElement} */ (root.querySelector(selector));
}

/** Changes text in place, and only if it changed. @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Brings the chosen links into sight; on phones they are in rows wider than the screen. */
export function showChosen() {
  for (const nav of document.querySelectorAll('nav')) {
    nav.scrollLeft = (find('[aria-current]', nav) || nav).offsetLeft - nav.offsetLeft - 24;
  }
}

/**
 * A text in the chosen language, with elements at the places of their names in braces.
 * @param {string} english @param {Record<string, Child|Child[]>} places
 */
export const textWith = (english, places) => kept(t(english).split(/{(\w+)}/)
  .flatMap((part, index) => (index % 2 ? places[part] : part)));

/**
 * A table, with a name for screen readers.
 * @param {string} kind
 * @param {string} name
 * @param {Child[]} titles
 * @param {Node} body
 */
export const table = (kind, name, titles, body) => h('table', { class: kind },
  h('caption', { class: 'hidden' }, name),
  h('thead', {}, h('tr', {}, ...titles.map((title) => h('th', { scope: 'col' }, title)))), body);

/** An icon of the page's sprite; the word beside it says the same. @param {string} name */
export function icon(name) {
  const svg = /** @type {Element} */ (find('.icon').cloneNode(true));
  find('use', svg).setAttribute('href', `#i-${name}`);
  return svg;
}

/** Replaces the page's content and its title. @param {string} title @param {...Child} children */
export function render(title, ...children) {
  setTitle(title);
  find('main').replaceChildren(...kept(children));
}

/** The title, which also says the state. @param {string} title */
export const setTitle = (title) => setText(find('title'), `${title} · jobqueue`);
