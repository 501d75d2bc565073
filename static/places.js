// @ts-check
/** The list of tasks as other pages know it: its address, where one left it, whose tasks it has. */
import { isAdmin, mayChange } from './api.js';

/** Whether others' tasks are there, too. */
export const seesAll = () => isAdmin() || !mayChange();

/** The list as one left it for a task, to come back to. */
export let listPlace = '#/tasks';
/** Whether one came from there. */
export let fromList = false;
addEventListener('hashchange', ({ oldURL = location.href }) => {
  const { hash } = new URL(oldURL);
  if (hash.startsWith('#/tasks/')) return;
  fromList = /^#\/tasks(\?|$)/.test(hash);
  listPlace = fromList ? hash : '#/tasks';
});

/**
 * The address of the list with other filters; an empty value takes a filter away.
 * @param {URLSearchParams} params @param {Record<string, string>} changes @param {string} [page]
 */
export function address(params, changes, page = 'tasks') {
  const next = new URLSearchParams(params);
  next.delete('cursor');
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return `#/${page}?${next}`.replace(/\?$/, '');
}
