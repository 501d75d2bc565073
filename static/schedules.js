// @ts-check
/** The list of schedules; one of them and its form are in files of their own. */
import { get, poll } from './api.js';
import { h, icon, render, table } from './dom.js';
import { cell, patchRows, pauseWords, taskLink } from './forms.js';
import { timeElement } from './format.js';
import { store } from './store.js';

/** @import {Page, Schedule} from './types.js' */

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** @type {Page['show']} */
export async function show(route, signal) {
  const { id, params } = route;
  if (id === 'new' || params.has('change')) {
    return (await import('./schedule_form.js')).show(route, signal);
  }
  if (id) return (await import('./schedule.js')).show(route, signal);
  await showList(signal);
}

/** All that one may see, kept live. @param {AbortSignal} signal */
async function showList(signal) {
  const body = h('tbody');
  const titles = ['Schedule', 'When', 'Next run', 'Last run'];
  const list = table('plain schedules', 'Schedules', titles, body);
  const empty = h('div', { class: 'empty teach' }, h('h2', {}, 'No schedule yet'),
    h('p', {}, 'A schedule adds a task by itself: every hour, every Monday at 01:00, on the last '
      + 'day of the month.'));
  const refresh = async () => {
    const schedules = /** @type {Schedule[]} */ ((await get('api/schedules', signal)).schedules);
    list.hidden = !schedules.length;
    empty.hidden = !list.hidden;
    patchRows(body, schedules, ({ id }) => id, scheduleRow);
    return schedules.some(moves) ? 3 : 10;
  };
  const wait = await refresh();
  if (signal.aborted) return;
  render('Schedules', h('div', { class: 'head' }, h('h1', { tabindex: -1 }, 'Schedules'),
    h('a', { class: 'button primary', href: '#/schedules/new' }, icon('plus'), 'New schedule')),
  list, empty);
  poll(signal, refresh, wait);
}

/** Whether something is about to change. @param {Schedule} schedule */
const moves = ({ last_task: task, next_at: next, paused }) => (
  /pending|running/.test(task?.status || '')
    || (!paused && next !== null && Date.parse(next) < Date.now() + 60000));

/** What it is called. @param {Schedule} schedule */
export const titleOf = ({ source, name, function: called }) => (
  source === 'folder' ? name : called);

/** The rule in words; the zone of here need not be said. @param {{words: string}} rule */
export const wordsOf = ({ words }) => words.replace(` (${ZONE})`, '');

/** One schedule. @param {Schedule} schedule */
function scheduleRow(schedule) {
  const { id, owner, summary, rule, paused, problem, last_task: task, last_at: last } = schedule;
  const other = owner !== store.state.session?.user.name && h('span', { class: 'who' }, owner);
  return h('tr', {}, h('th', { scope: 'row' },
    h('a', { href: `#/schedules/${id}` }, titleOf(schedule)), ' ',
    h('bdi', { class: 'summary' }, summary), other),
  h('td', { title: rule }, wordsOf(schedule)),
  cell(paused || problem ? null : 'Next', nextElement(schedule)),
  cell('Last', task ? taskLink(task) : '–', ' ', last && timeElement(last)));
}

/** When it runs next, or why it does not. @param {Schedule} schedule */
export function nextElement(schedule) {
  const { paused, problem, next_at: next } = schedule;
  const badge = (/** @type {string} */ name, /** @type {string} */ words) => (
    h('span', { class: 'state', 'data-state': name }, icon(name), h('bdi', {}, words)));
  if (paused) return badge('paused', pauseWords(schedule));
  if (problem) return badge('alert', problem);
  return next ? timeElement(next) : h('span', { class: 'help' }, 'never');
}
