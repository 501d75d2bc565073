// @ts-check
/** Retrying, cancelling or deleting all tasks that match the filters of the list. */
import { ApiError, request } from './api.js';
import { find, h, say, setText } from './dom.js';
import { askingButton } from './forms.js';
import { countWords } from './format.js';

/** @typedef {'retry'|'cancel'|'delete'} Action */

/** @type {[Action, string, string][]} what it is called, and what was done */
const ACTIONS = [['retry', 'Retry', 'retried'], ['cancel', 'Cancel', 'cancelled'],
  ['delete', 'Delete', 'deleted']];
const NAMES = ['status', 'function', 'queue', 'owner', 'q'];

/** @param {number} count */
const exact = (count) => countWords(count, Infinity);

/** A dialog that offers what can be done to all tasks that match. */
export class Bulk {
  choices = h('div', { class: 'actions' }, 'Counting…');
  bar = h('progress', { hidden: true, 'aria-label': 'Progress' });
  text = h('p', { class: 'help' });
  close = h('button', { class: 'button', onclick: () => this.dialog.close() }, 'Close');

  /** @param {URLSearchParams} params the filters @param {() => void} done */
  constructor(params, done) {
    this.filter = Object.fromEntries([...params].filter(([name]) => NAMES.includes(name)));
    const words = Object.values(this.filter).join(' · ');
    this.dialog = h('dialog', { 'aria-labelledby': 'bulk', onclose: () => {
      this.dialog.remove();
      done();
    } }, h('h2', { id: 'bulk' }, words ? 'All tasks that match' : 'All tasks'),
    words && h('p', { class: 'lead' }, h('bdi', {}, words)), this.choices, this.bar, this.text,
    h('div', { class: 'actions' }, this.close));
    find('body').append(this.dialog);
    this.dialog.showModal();
    this.offer().catch((error) => setText(this.choices, error.message));
  }

  /** Counts, and offers what can be done. */
  async offer() {
    const offers = await Promise.all(ACTIONS.map(async ([action, label, past]) => {
      const count = await countFor(action, this.filter);
      const said = `${label} ${exact(count)}`;
      return count > 0 && askingButton(said, `${said}?`, () => this.run(action, past, count));
    }));
    const some = /** @type {HTMLElement[]} */ (offers.filter(Boolean));
    this.choices.replaceChildren(...some.length ? some : ['There is nothing to do to them.']);
    this.bar.hidden = true;
    this.choices.hidden = false;
    setText(this.close, 'Close');
  }

  /**
   * Does it; what is not right any more is counted anew.
   * @param {Action} action @param {string} past @param {number} count
   */
  async run(action, past, count) {
    this.bar.hidden = false;
    this.choices.hidden = true;
    setText(this.close, 'Stop');
    this.close.focus();
    try {
      const all = await this.goThrough(action, past, count);
      say(`${exact(all)} ${all === 1 ? 'task was' : 'tasks were'} ${past}.`, true);
      this.dialog.close();
    } catch (error) {
      setText(this.text, /** @type {Error} */ (error).message);
      await this.offer();
    }
  }

  /**
   * One portion after the other, until all is done or the dialog is closed; how many were.
   * @param {Action} action @param {string} past @param {number} count
   */
  async goThrough(action, past, count) {
    const { bar, dialog, filter, text } = this;
    /** @type {Record<string, unknown>} */
    let rest = { expected_count: count };
    let all = 0;
    do {
      const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
      all += part.done;
      bar.value = all / count;
      setText(text, `${exact(all)} of ${exact(count)} ${past}`);
      rest = { continue: part.continue };
    } while (rest.continue && dialog.open);
    return all;
  }
}

/**
 * How many tasks an action would change; asking without the right count is refused with it.
 * @param {Action} action
 * @param {{}} filter
 * @returns {Promise<number>}
 */
async function countFor(action, filter) {
  try {
    await request('POST', 'api/tasks/actions', { action, filter, expected_count: null });
  } catch (error) {
    if (error instanceof ApiError && error.status === 409) return error.count;
    throw error;
  }
  return 0;
}
