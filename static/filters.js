// @ts-check
/** The list's filters: a form that says what the address says, and the other way round. */
import { get, isAdmin, store } from './api.js';
import { find, h } from './dom.js';
import { timeWords } from './format.js';
import { button, valuesOf } from './forms.js';
import { grouped, t } from './language.js';
import { address } from './places.js';

/** @import {TaskList} from './tasks.js' */

/** @type {string[]} */
let queueNames = [];
/** @type {string[]} */
let userNames = [];
/** @type {AbortSignal|undefined} the visit for which they were read */
let known;

/** Filters that are out of sight until somebody wants them. */
const MORE = ['queue', 'owner', 'since', 'until'];
/** So many the server sorts by what it has no index for. */
const SORTED = 5000;

/** Search, function and, behind a button, the rest. @param {TaskList} list */
export function buildFilters(list) {
  const { filters } = list;
  let timer = 0;
  const select = (/** @type {string} */ name, /** @type {string} */ label) => (
    h('select', { name, 'aria-label': label, hidden: name === 'queue' }));
  const day = (/** @type {string} */ name, /** @type {string} */ label) => h('label', {},
    label, ' ', h('input', { type: 'date', name }));
  const more = h('div', { class: 'more', id: 'more', hidden: true }, select('queue', t('Queue')),
    isAdmin() && select('owner', t('Owner')), day('since', t('Added from')), day('until', t('to')));
  const fold = button(t('Filters'), () => {
    more.hidden = !filters.classList.toggle('open');
    fold.ariaExpanded = String(!more.hidden);
  }, { 'aria-expanded': 'false', 'aria-controls': 'more' });
  filters.append(select('function', t('Function')), h('input', {
    type: 'search', name: 'q', 'aria-label': t('Search tasks'), maxlength: 200,
    placeholder: t('Number or words…'),
  }), fold, more, h('p', { class: 'chips' }));
  if (MORE.some((name) => list.params.has(name))) fold.click();
  filters.addEventListener('input', ({ target }) => {
    clearTimeout(timer);        // who types a year has a date after its first digit
    const rest = { 'select-one': 0, date: 900 }[/** @type {HTMLInputElement} */ (target).type] ?? 300;
    timer = setTimeout(() => filter(list), rest);
  });
  filters.addEventListener('submit', (event) => {
    event.preventDefault();
    filter(list);
  });
}

/**
 * What one can choose besides functions; read once for each visit.
 * @param {TaskList} list @param {AbortSignal} signal
 */
export async function readChoices(list, signal) {
  if (known === signal) return;
  /** @param {{name: string}[]} all */
  const names = (all) => all.map(({ name }) => name);
  queueNames = names((await get('api/queues', signal)).queues);
  if (isAdmin()) userNames = names((await get('api/users', signal)).users);
  known = signal;
  patchFilters(list);
}

/** The day of a moment as a date field has it; "" without one. @param {string|null} iso */
function dayOf(iso, later = 0) {
  const at = new Date(Date.parse(iso || '') + later);
  return Number.isNaN(+at) ? '' : new Date(+at - at.getTimezoneOffset() * 60000).toISOString()
    .slice(0, 10);
}

/** Puts what the form says into the address. @param {TaskList} list */
function filter({ filters, params }) {
  const values = valuesOf(filters);
  for (const [name, days] of /** @type {[string, number][]} */ ([['since', 0], ['until', 1]])) {
    const before = params.get(name) || '';
    const at = new Date(`${values[name]}T00:00`);
    at.setDate(at.getDate() + days);
    if (values[name] === dayOf(before, -days)) values[name] = before;
    else values[name] = Number.isNaN(+at) ? '' : at.toISOString();
  }
  const next = address(params, values);
  if (filters.isConnected && next !== address(params, {})) location.replace(next);
}

/** Puts what the address says into the form. @param {TaskList} list */
export function patchFilters(list) {
  const functions = store.state.catalogue?.functions.map(({ name }) => name) || [];
  patchChoice(list, 'function', t('All functions'), functions);
  patchChoice(list, 'queue', t('All queues'), queueNames);
  // One can choose a queue once there are two.
  find('[name=queue]', list.filters).hidden = queueNames.length < 2 && !list.params.has('queue');
  if (isAdmin()) patchChoice(list, 'owner', t('All owners'), userNames);
  const { filters, params } = list;
  for (const [name, value] of [['q', params.get('q') || ''], ['since', dayOf(params.get('since'))],
    ['until', dayOf(params.get('until'), -1)]]) {
    const input = /** @type {HTMLInputElement} */ (find(`[name=${name}]`, filters));
    if (input !== document.activeElement) input.value = value;
  }
  const chips = ['error', 'ended_since', 'ids'].filter((name) => params.has(name));
  const many = list.page.counts[params.get('status') || 'all'] > SORTED;
  find('.chips', filters).replaceChildren(/[nt]$/.test(params.get('sort') || '') && many
    ? t('Too many to sort: only the newest {count} are sorted.', { count: grouped(SORTED) }) : '',
  ...chips.map((name) => {
    const value = params.get(name) || '';
    const words = name === 'ended_since' ? t('since {time}', { time: timeWords(new Date(value)) })
      : value;
    return h('a', { href: address(params, { [name]: '' }) }, `${words} ✕`);
  }));
}

/**
 * Adds what one can choose, and chooses what the address says.
 * @param {TaskList} list
 * @param {string} name
 * @param {string} all what choosing nothing is called
 * @param {string[]} values
 */
function patchChoice({ filters, params }, name, all, values) {
  const select = /** @type {HTMLSelectElement} */ (find(`[name=${name}]`, filters));
  const chosen = params.get(name) || '';
  const known = new Set([...select.options].map(({ value }) => value));
  for (const value of new Set(['', ...values, chosen])) {
    if (!known.has(value)) select.append(h('option', { value }, value || all));
  }
  if (select !== document.activeElement) select.value = chosen;
}
