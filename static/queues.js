// @ts-check
/** Queues: what limits each, what holds it up, and for admins the forms to change that. */
import { get, isAdmin, poll, request, store } from './api.js';
import { now } from './clock.js';
import { h, icon, render, table } from './dom.js';
import { rangeWords } from './durations.js';
import { countWords, duration, statusWord, timeWords } from './format.js';
import {
  badge, cell, change, deleteButton, durationInput, field, head, heading, patchRows, pauseButton, pauseWords,
  refusal, say, secondsFrom, sendingForm,
} from './forms.js';
import { number, readFunctions } from './functions.js';
import { t } from './language.js';
import { limitWords } from './said.js';

/** @import {Page, Queue, Queues, Values} from './types.js' */

const LATER = /** @type {const} */ (['scheduled', 'waiting']);

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
  render(t('Queues'), head(t('Queues'),
    isAdmin() && h('a', { class: 'button', href: '#/queues?new=1' }, icon('plus'), t('New queue'))),
  table('plain queues', t('Queues'),
    [t('Queue'), t('Status'), t('Running'), t('Pending'), t('Limits'), ...isAdmin() ? [t('Actions')] : []],
    body),
  h('p', { class: 'help' },
    t('A queue is a lane with its own limits; functions and tasks name it.')));
  poll(signal, refresh, wait);
}

/**
 * One queue, and what can be done.
 * @param {Queue} queue
 * @param {() => Promise<unknown>} refresh
 */
function queueRow(queue, refresh) {
  const { name, running, max_running: limit, pending } = queue;
  const row = h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/tasks?${new URLSearchParams({ queue: name })}` }, name)),
  cell(null, stateElement(queue)),
  cell(t('Running'), limit === null ? countWords(running)
    : t('{count} of {most}', { count: countWords(running), most: countWords(limit) }),
  limit !== null && h('progress', { 'aria-label': t('Running'), value: running, max: limit })),
  cell(t('Pending'), countWords(pending), ...laterWords(queue).map((words) => h('div', { class: 'help' }, words))),
  cell(null, ...allLimits(queue).map((words) => h('div', {}, words))));
  if (isAdmin()) row.append(h('td', {}, actionsFor(queue, refresh)));
  return row;
}

/** What limits it, in words. @param {Queue} queue */
function allLimits(queue) {
  const limits = [queue.external && t('for other programs'), ...limitWords(queue)].filter(Boolean);
  return limits.length ? limits : [h('span', { class: 'help' }, t('no limits'))];
}

/** How long the first waits, when all will be done, what is to come later. @param {Queue} queue */
function laterWords(queue) {
  const { oldest_at: oldest, empty_at: empty } = queue;
  const waited = oldest ? Math.max(0, (now() - Date.parse(oldest)) / 1000) : 0;
  return [
    oldest && t('oldest waits {time}', { time: duration(waited) }),
    empty && t('empty {when}', { when: rangeWords(empty) }),
    LATER.filter((name) => queue[name]).map((name) => (
      `${countWords(queue[name])} ${statusWord(name)}`)).join(' · '),
  ].filter(Boolean);
}

/** Whether its tasks start now, or why not. @param {Queue} queue */
function stateElement(queue) {
  const { blocked, machines, next_at: next } = queue;
  if (!blocked && !queue.paused) return h('span', { class: 'help' }, t('open'));
  const words = {
    paused: pauseWords(queue),
    max_running: t('limit of running tasks reached'),
    rate: next ? t('rate limit reached, next start {time}', { time: timeWords(new Date(next)) })
      : t('rate limit reached'),
    machines: t('waits for {names}', { names: machines?.join(', ') }),
    external: t('waits for other programs'),
  }[blocked || 'paused'];
  return badge(queue.paused ? 'paused' : 'waiting', words);
}

/** What an admin can do. @param {Queue} queue @param {() => Promise<unknown>} refresh */
function actionsFor(queue, refresh) {
  const { name } = queue;
  const path = pathOf(name);
  const actions = h('div', { class: 'actions' });
  actions.append(pauseButton(actions, queue, path, refresh), h('a', { class: 'button',
    href: `#/queues/${encodeURIComponent(name)}`, 'aria-label': t('Change {name}', { name }) },
  t('Change')));
  if (name !== 'default' && !isNamed(name)) {
    actions.append(deleteButton(name, path, refresh));
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
  const title = queue ? t('Queue {name}', queue) : t('New queue');
  const seen = machines.length && t('Known machines: {names}.', { names: machines.join(', ') });
  const form = sendingForm(queue ? t('Save') : t('Add queue'), async (now, before) => {
    const limits = limitsFrom(now);
    if (queue) await change(pathOf(queue.name), limitsFrom(before), limits);
    else await request('POST', 'api/queues', { name: now.name.trim(), ...limits });
    if (!signal.aborted) location.hash = '#/queues';
    say(t('Saved.'), true);
  }, !queue && field(t('Name'), h('input', { name: 'name', required: true, autocomplete: 'off',
    spellcheck: 'false' })),
  field(t('Running at the same time'), number({ name: 'max_running', min: 1, value: queue?.max_running }),
    { help: t('At most. Empty: no limit.') }),
  field(t('Starts at most'), number({ name: 'rate', min: 1, value: queue?.rate?.count }), {
    help: t('Starts are spread evenly. Empty: no limit.'),
    after: h('span', { class: 'with span' }, t('in'),
      durationInput('span', queue?.rate?.seconds || 3600, {
        'aria-label': t('Length of the time') })) }),
  field(t('Machines'), h('input', { name: 'machines', spellcheck: 'false', autocomplete: 'off',
    value: queue?.machines?.join(', ') }),
  { help: [t('Commas between them. Empty: any.'), seen].filter(Boolean).join(' ') }));
  render(title, h('a', { class: 'back', href: '#/queues' }, t('← Queues')),
    heading(title), form);
}

/** What the form says. @param {Values} values */
function limitsFrom(values) {
  const { max_running: most, rate, machines } = values;
  const seconds = secondsFrom(values, 'span');
  if (rate && !seconds) throw refusal([{ field: 'rate', message: t('Please enter the time for this number.') }]);
  const names = machines.split(',').map((machine) => machine.trim()).filter(Boolean);
  return {
    max_running: most ? Number(most) : null,
    rate: rate ? { count: Number(rate), seconds } : null,
    machines: names.length ? names : null,
  };
}
