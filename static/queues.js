// @ts-check
/** Queues: what limits each, what holds it up, and for admins the forms to change that. */
import { UNITS, choice, number, readFunctions } from './arguments.js';
import { get, poll, request } from './api.js';
import { h, icon, render, table } from './dom.js';
import {
  askingButton, badge, change, field, patchRows, pauseButton, pauseWords, refusal, sendingForm,
} from './forms.js';
import { countWords, rangeWords, timeWords } from './format.js';
import { say } from './live.js';
import { isAdmin, store } from './store.js';

/** @import {Page, Queue, Queues, Values} from './types.js' */

const COUNTED = /** @type {const} */ (['running', 'pending', 'scheduled', 'waiting']);

/** All queues, or the form of one. @type {Page['show']} */
export async function show({ id, params }, signal) {
  const [known] = /** @type {[Queues, unknown]} */ (await Promise.all([
    get('api/queues', signal), readFunctions(signal)]));
  if (signal.aborted) return;
  const chosen = known.queues.find(({ name }) => name === id);
  if (isAdmin() && (chosen || params.has('new'))) return showQueueForm(chosen, known, signal);
  showQueueList(known, signal);
}

/** All queues, kept live. @param {Queues} known @param {AbortSignal} signal */
function showQueueList(known, signal) {
  const body = h('tbody');
  const patch = (/** @type {Queues} */ { queues }) => {
    patchRows(body, queues, ({ name }) => name, (queue) => queueRow(queue, refresh));
    return queues.some(({ running, pending }) => running || pending) ? 2 : 10;
  };
  const refresh = async () => patch(await get('api/queues', signal));
  const wait = patch(known);
  render('Queues', h('div', { class: 'head' }, h('h1', { tabindex: -1 }, 'Queues'),
    isAdmin() && h('a', { class: 'button', href: '#/queues?new=1' }, icon('plus'), 'New queue')),
  table('plain queues', 'Queues',
    ['Queue', 'Limits', 'Now', ...isAdmin() ? ['Actions'] : []], body),
  h('p', { class: 'help' }, 'A queue is a lane with its own limits; functions and tasks name it.'));
  poll(signal, refresh, wait);
}

/** One queue, and what can be done. @param {Queue} queue @param {() => Promise<unknown>} refresh */
function queueRow(queue, refresh) {
  const { name } = queue;
  const row = h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/tasks?${new URLSearchParams({ queue: name })}` }, name)),
  h('td', {}, limitWords(queue)), h('td', {}, countsOf(queue), blockedElement(queue),
    queue.empty_at && h('div', { class: 'help' }, `empty ${rangeWords(queue.empty_at)}`)));
  if (isAdmin()) row.append(h('td', {}, actionsFor(queue, refresh)));
  return row;
}

/** What limits it, in words. @param {Queue} queue */
function limitWords({ max_running: most, rate, machines, external }) {
  return [
    external && 'for other programs',
    most !== null && `at most ${countWords(most)} at once`,
    rate && `${countWords(rate.count)} in ${spanWords(rate.seconds)}`,
    machines && `${machines.length > 1 ? 'machines' : 'machine'} ${machines.join(', ')}`,
  ].filter(Boolean).join(' · ') || h('span', { class: 'help' }, 'no limits');
}

/** The largest unit that a number of seconds is a multiple of. @param {number} seconds */
const unitOf = (seconds) => (
  [...UNITS].reverse().find(([size]) => seconds % Number(size) === 0) || UNITS[0]);

/** A span as one would set it: 1 hour, 30 seconds. @param {number} seconds */
function spanWords(seconds) {
  const [size, words] = unitOf(seconds);
  const count = seconds / Number(size);
  return `${count} ${count === 1 ? words.slice(0, -1) : words}`;
}

/** How many tasks are in it. @param {Queue} queue */
function countsOf(queue) {
  const words = COUNTED.filter((name) => queue[name]).map((name) => (
    `${countWords(queue[name])} ${name}`));
  return words.join(' · ') || 'empty';
}

/** Why its tasks do not start now. @param {Queue} queue */
function blockedElement(queue) {
  const { blocked, machines, next_at: next } = queue;
  if (!blocked && !queue.paused) return null;
  const words = {
    paused: pauseWords(queue),
    max_running: 'as many run as it allows',
    rate: `its rate is used up${next ? `, goes on ${timeWords(new Date(next))}` : ''}`,
    machines: `waits for ${machines?.join(' or ')}`,
    external: 'waits for other programs',
  }[blocked || 'paused'];
  return h('div', {}, badge(queue.paused ? 'paused' : 'waiting', words));
}

/** What an admin can do. @param {Queue} queue @param {() => Promise<unknown>} refresh */
function actionsFor(queue, refresh) {
  const { name } = queue;
  const path = pathOf(name);
  const actions = h('div', { class: 'actions' });
  actions.append(pauseButton(actions, queue, path, refresh), h('a', { class: 'button',
    href: `#/queues/${encodeURIComponent(name)}`, 'aria-label': `Change ${name}` }, 'Change'));
  if (name !== 'default' && !isNamed(name)) {
    actions.append(askingButton('Delete', `Delete ${name}?`, async () => {
      await request('DELETE', path);
      await refresh();
      say(`The queue ${name} was deleted.`, true);
    }));
  }
  return actions;
}

/** Whether a function names it, so that it cannot go. @param {string} queue */
const isNamed = (queue) => store.state.catalogue?.functions.some(({ options }) => (
  options.queue === queue));

/** @param {string} name */
const pathOf = (name) => `api/queues/${encodeURIComponent(name)}`;

/**
 * A new queue, or other limits for one.
 * @param {Queue|undefined} queue
 * @param {Queues} known
 * @param {AbortSignal} signal
 */
function showQueueForm(queue, { machines }, signal) {
  const title = queue ? `Queue ${queue.name}` : 'New queue';
  const [size] = unitOf(queue?.rate?.seconds || 3600);
  const seen = machines.length ? ` Seen so far: ${machines.join(', ')}.` : '';
  const form = sendingForm(queue ? 'Save' : 'Add queue', async (now, before) => {
    const limits = limitsFrom(now);
    if (queue) await change(pathOf(queue.name), limitsFrom(before), limits);
    else await request('POST', 'api/queues', { name: now.name.trim(), ...limits });
    if (!signal.aborted) location.hash = '#/queues';
    say('Saved.', true);
  }, !queue && field('Name', h('input', { name: 'name', required: true, autocomplete: 'off',
    spellcheck: 'false' })),
  field('Runs at most', number({ name: 'max_running', min: 1, value: queue?.max_running }),
    { help: 'At once. Empty: no limit.' }),
  field('Starts at most', number({ name: 'rate', min: 1, value: queue?.rate?.count }), {
    help: 'Spread over that time. Empty: no limit.',
    after: h('span', { class: 'with span' }, 'in',
      number({ name: 'span', min: 1, 'aria-label': 'Length of the time',
        value: queue?.rate ? queue.rate.seconds / Number(size) : 1 }),
      choice({ name: 'unit', 'aria-label': 'Unit of the time' }, UNITS, size)) }),
  field('Machines', h('input', { name: 'machines', spellcheck: 'false', autocomplete: 'off',
    value: queue?.machines?.join(', ') }),
  { help: `Commas between them. Empty: any.${seen}` }));
  form.lastElementChild?.append(h('a', { class: 'button', href: '#/queues' }, 'Back'));
  render(title, h('a', { class: 'back', href: '#/queues' }, '← Queues'),
    h('h1', { tabindex: -1 }, title), form);
}

/** What the form says. @param {Values} values */
function limitsFrom({ max_running: most, rate, span, unit, machines }) {
  if (rate && !span) throw refusal([{ field: 'rate', message: 'In which time?' }]);
  const names = machines.split(',').map((machine) => machine.trim()).filter(Boolean);
  return {
    max_running: most ? Number(most) : null,
    rate: rate ? { count: Number(rate), seconds: Number(span) * Number(unit) } : null,
    machines: names.length ? names : null,
  };
}
