// @ts-check
/** The list from which one came to a task, and the tasks beside a task in it. */
import { get } from './api.js';
import { fromList } from './places.js';
import { list } from './tasks.js';

/** The ids of the list's rows, of the pages that were read since, and where the next page begins. */
let trail = { ids: [0], next: /** @type {string|null} */ (null), params: new URLSearchParams() };
/** @type {AbortSignal|undefined} the visit of the list of which these are */
let visit;

/**
 * The tasks before and after a task in the list; undefined if one did not come from there.
 * @param {number} id @param {AbortSignal} signal
 * @returns {Promise<(number|undefined)[]|undefined>}
 */
export async function findBeside(id, signal) {
  if (!list || !fromList) return undefined;
  if (visit !== list.signal) {
    const ids = [...list.body.rows].map(({ dataset }) => Number(dataset.id));
    trail = { ids, next: list.page.next, params: list.params };
    visit = list.signal;
  }
  const { ids } = trail;
  if (ids[ids.length - 1] === id && trail.next) await readOn(signal);
  const place = ids.indexOf(id);
  return place < 0 ? undefined : [ids[place - 1], ids[place + 1]];
}

/** Reads the list's next page. @param {AbortSignal} signal */
async function readOn(signal) {
  const query = new URLSearchParams(trail.params);
  query.set('cursor', trail.next || '');
  const { tasks, next } = await get(`api/tasks?${query}`, signal);
  const known = new Set(trail.ids);
  for (const { id } of tasks) if (!known.has(id)) trail.ids.push(id);
  trail.next = next;
}
