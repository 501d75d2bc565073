// @ts-check
/** What happened, newest first: admins see everything, all others what is theirs. */
import { get, poll } from './api.js';
import { h, render, table } from './dom.js';
import { cell, field, patchRows, timeElement, valuesOf } from './forms.js';
import { duration } from './format.js';
import { isAdmin } from './store.js';
import { EVENTS } from './task.js';
import { address } from './tasks.js';

/** @import {Activity, Page} from './types.js' */

const PAGE = 50;
/** @type {Record<string, string>} what the form's fields are called, beside their label */
const FIELDS = { event: 'Event', function: 'Function', owner: 'Owner', worker: 'Worker' };
/** What the field for the event offers. */
const OFFERED = `added started succeeded failed retry crashed timeout cancelled retried deleted
  bulk_cancel bulk_retry bulk_delete worker_started worker_ended worker_lost worker_start_failed
  queue_changed queue_deleted schedule_added schedule_changed schedule_paused schedule_resumed
  schedule_deleted logged_in log_in_refused logged_out user_added user_changed user_deleted
  token_added token_revoked settings_changed`.split(/\s+/);

/** @type {Page['show']} */
export async function show({ params }, signal) {
  const query = new URLSearchParams([...params, ['limit', String(PAGE)]]);
  for (const name of ['since', 'until']) {
    const at = Date.parse(query.get(name) || '');
    if (at) query.set(name, new Date(at).toISOString().replace('.000Z', 'Z'));
    else query.delete(name);
  }
  const path = `api/activity?${query}`;
  const first = await get(path, signal);
  if (signal.aborted) return;
  const body = h('tbody');
  const pager = h('nav', { class: 'pager', 'aria-label': 'Older and newer activity' });
  const empty = h('p', { class: 'help' });
  const patch = (/** @type {{activity: Activity[], next: string|null}} */ { activity, next }) => {
    patchRows(body, activity, ({ id }) => id, activityRow);
    empty.textContent = activity.length ? '' : next ? 'Nothing so far. Look at older activity.'
      : 'Nothing that matches happened.';
    const older = next && h('a', { href: address(params, { cursor: next }, 'activity') }, 'Older →');
    const newest = params.has('cursor') && h('a', { href: address(params, {}, 'activity') }, '← Newest');
    if (pager.textContent !== `${newest ? '← Newest' : ''}${older ? 'Older →' : ''}`) {
      pager.replaceChildren(newest || '', older || '');
    }
    return params.has('cursor') ? 60 : 5;
  };
  const wait = patch(first);
  render('Activity', h('h1', { tabindex: -1 }, 'Activity'), filters(params),
    table('plain activity', 'Activity, newest first',
      ['Time', 'What', 'Task', 'Who', 'Details'], body),
    empty, pager);
  poll(signal, async () => patch(await get(path, signal)), wait);
}

/** The fields that make the address. @param {URLSearchParams} params */
function filters(params) {
  const names = Object.entries(FIELDS).filter(([name]) => isAdmin() || !/owner|worker/.test(name));
  const form = h('form', { class: 'narrow', role: 'search', 'aria-label': 'Activity',
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      location.hash = address(params, valuesOf(form), 'activity');
    } },
  ...names.map(([name, label]) => field(label, h('input', { name, value: params.get(name) || '',
    autocomplete: 'off', spellcheck: 'false', type: name === 'worker' ? 'number' : 'text',
    min: name === 'worker' && 1, list: name === 'event' && 'events' }))),
  ...['since', 'until'].map((name) => field(name === 'since' ? 'From' : 'Before', h('input', { name,
    type: 'datetime-local', value: params.get(name) || '' }))),
  h('datalist', { id: 'events' }, ...OFFERED.map((value) => h('option', { value },
    EVENTS[value] || value.replaceAll('_', ' ')))),
  h('div', { class: 'actions' }, h('button', { class: 'button' }, 'Show'),
    `${params}` && h('a', { href: '#/activity' }, 'Show everything')));
  return form;
}

/** One thing that happened. @param {Activity} entry */
function activityRow(entry) {
  const { actor, at, event, function: name, owner, queue, task, worker } = entry;
  const { attempt, message, seconds, waited } = entry;
  const details = [attempt && attempt > 1 && `attempt ${attempt}`,
    waited != null && waited >= 1 && `waited ${duration(waited)}`,
    seconds != null && `took ${duration(seconds)}`, worker && `worker ${worker}`,
    message !== actor && message]
    .filter(Boolean).join(', ');
  return h('tr', {}, cell(null, timeElement(at)),
    h('th', { scope: 'row' }, EVENTS[event] || event.replaceAll('_', ' ')),
    cell(null, task ? h('a', { href: `#/tasks/${task}` }, `${name || ''} #${task}`)
      : name || queue || ''),
    cell(null, actor && `by ${actor}`,
      owner && owner !== actor && h('span', { class: 'who' }, owner)),
    cell(null, details && h('bdi', { class: 'help' }, details)));
}
