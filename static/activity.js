// @ts-check
/** What happened, newest first: admins see everything, all others what is theirs. */
import { get, isAdmin, poll } from './api.js';
import { h, table } from './dom.js';
import { duration, tookWords } from './format.js';
import { cell, choice, field, page, patchRows, timeElement, valuesOf } from './forms.js';
import { readFunctions } from './functions.js';
import { t } from './language.js';
import { address } from './places.js';
import { EVENTS, eventWords, messageWords, saidName } from './said.js';

/** @import {Activity, Page} from './types.js' */

const PAGE = 50;
/** @type {Record<string, string>} what the form's fields are called, beside their label */
const FIELDS = { event: t('Event'), function: t('Function'), owner: t('Owner'),
  worker: t('Worker') };
/** @type {Page['show']} */
export async function show({ params }, signal) {
  const query = new URLSearchParams([...params, ['limit', String(PAGE)]]);
  for (const name of ['since', 'until']) {
    const at = Date.parse(query.get(name) || '');
    if (at) query.set(name, new Date(at).toISOString());
    else query.delete(name);
  }
  const path = `api/activity?${query}`;
  const [first, functions, owners] = await Promise.all([get(path, signal),
    readFunctions(signal), isAdmin() ? get('api/users', signal) : { users: [] }]);
  if (signal.aborted) return;
  /** @type {Record<string, [string, string][]>} */
  const choices = { event: Object.entries(EVENTS), function: named(functions),
    owner: named(owners.users) };
  const body = h('tbody');
  const pager = h('nav', { class: 'pager', 'aria-label': t('Older and newer activity') });
  const empty = h('p', { class: 'help' });
  const patch = (/** @type {{activity: Activity[], next: string|null}} */ { activity, next }) => {
    patchRows(body, activity, ({ id }) => id, activityRow);
    empty.textContent = activity.length ? '' : next ? t('No match so far. Search older activity.')
      : t('No activity matches.');
    const links = [...params.has('cursor') ? [['', t('← Newest')]] : [],
      ...next ? [[next, t('Older →')]] : []];
    patchRows(pager, links, ([, words]) => words, ([cursor, words]) => h('span', {},
      h('a', { href: address(params, { cursor }, 'activity') }, words)));
    return params.has('cursor') ? 60 : 5;
  };
  const wait = patch(first);
  page(t('Activity'), filters(params, choices),
    table('plain activity', t('Activity, newest first'),
      [t('Time'), t('What'), t('Task'), t('Who'), t('Details')], body),
    empty, pager);
  poll(signal, async () => patch(await get(path, signal)), wait);
}

/** To choose from. @param {{name: string}[]} all @returns {[string, string][]} */
const named = (all) => all.map(({ name }) => [name, name]);

/**
 * The fields that make the address.
 * @param {URLSearchParams} params @param {Record<string, [string, string][]>} choices
 */
function filters(params, choices) {
  const names = Object.entries(FIELDS).filter(([name]) => isAdmin() || !/owner|worker/.test(name));
  const form = h('form', { class: 'narrow', role: 'search', 'aria-label': t('Activity'),
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      location.hash = address(params, valuesOf(form), 'activity');
    } },
  ...names.map(([name, label]) => field(label, chooser(name, choices[name], params.get(name) || ''))),
  ...[['since', t('From')], ['until', t('Before')]].map(([name, label]) => field(label,
    h('input', { name, type: 'datetime-local', value: params.get(name) || '' }))),
  h('div', { class: 'actions' }, h('button', { class: 'button' }, t('Show')),
    `${params}` && h('a', { href: '#/activity' }, t('Show everything'))));
  return form;
}

/**
 * A list, with what the address says although the list does not have it; or the number of a worker.
 * @param {string} name @param {[string, string][]|undefined} options @param {string} value
 */
function chooser(name, options, value) {
  if (!options) return h('input', { name, value, type: 'number', min: 1, autocomplete: 'off' });
  const isListed = !value || options.some(([one]) => one === value);
  return choice({ name }, [['', t('all')], ...options, ...isListed ? []
    : /** @type {[string, string][]} */ ([[value, value]])], value);
}

/** One thing that happened. @param {Activity} entry */
function activityRow(entry) {
  const { actor, at, event, function: name, owner, queue, task, worker } = entry;
  const { attempt, message, seconds, waited } = entry;
  const details = [attempt && attempt > 1 && t('attempt {attempt}', { attempt }),
    waited != null && waited >= 1 && t('waited {time}', { time: duration(waited) }),
    tookWords(seconds), worker && t('worker {worker}', { worker }),
    message !== actor && messageWords(entry)]
    .filter(Boolean).join(', ');
  return h('tr', {}, cell(null, timeElement(at)),
    h('th', { scope: 'row' }, eventWords(event)),
    cell(null, task ? h('a', { href: `#/tasks/${task}` }, `${name || ''} #${task}`)
      : name || queue || ''),
    cell(null, actor && h('span', { class: 'who' }, t('by {name}', { name: saidName(actor) })), ' ',
      owner && owner !== actor && h('span', { class: 'who' }, owner)),
    cell(null, details && h('bdi', { class: 'help' }, details)));
}
