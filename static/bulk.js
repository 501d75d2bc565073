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

/**
 * Asks what to do to all tasks that match.
 * @param {URLSearchParams} params the filters
 * @param {() => void} done
 */
export function openBulk(params, done) {
  const filter = Object.fromEntries(NAMES.flatMap((name) => (
    params.get(name) ? [[name, params.get(name)]] : [])));
  const words = Object.values(filter).join(' · ');
  const choices = h('div', { class: 'actions' }, 'Counting…');
  const bar = h('progress', { max: 1, hidden: true, 'aria-label': 'Progress' });
  const text = h('p', { class: 'help' });
  let open = true;
  const close = h('button', { class: 'button', onclick: () => dialog.close() }, 'Close');
  const dialog = h('dialog', { class: 'bulk', 'aria-labelledby': 'bulk', onclose: () => {
    open = false;
    dialog.remove();
    done();
  } }, h('h2', { id: 'bulk' }, words ? 'All tasks that match' : 'All tasks'),
  words && h('p', { class: 'lead' }, h('bdi', {}, words)), choices, bar, text,
  h('div', { class: 'actions' }, close));

  /** Counts anew, and offers what can be done. */
  const offer = async () => {
    const offers = await Promise.all(ACTIONS.map(async ([action, label, past]) => {
      const count = await countFor(action, filter);
      const said = `${label} ${countWords(count, Infinity)}`;
      return count > 0 && askingButton(said, `${said}?`, () => run(action, past, count));
    }));
    const some = /** @type {HTMLElement[]} */ (offers.filter(Boolean));
    choices.replaceChildren(...some.length ? some : ['There is nothing to do to them.']);
  };

  /**
   * One portion after the other, until all is done or the dialog is closed.
   * @param {Action} action @param {string} past @param {number} count
   */
  const run = async (action, past, count) => {
    bar.hidden = false;
    choices.hidden = true;
    setText(close, 'Stop');
    close.focus();
    let all = 0;
    /** @type {Record<string, unknown>} */
    let rest = { expected_count: count };
    try {
      do {
        const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
        all += part.done;
        bar.value = all / count;
        setText(text, `${countWords(all, Infinity)} of ${countWords(count, Infinity)} ${past}`);
        rest = { continue: part.continue };
      } while (rest.continue && open);
      say(`${countWords(all, Infinity)} ${all === 1 ? 'task was' : 'tasks were'} ${past}.`, true);
      dialog.close();
    } catch (error) {
      setText(text, /** @type {Error} */ (error).message);
      setText(close, 'Close');
      choices.hidden = false;
      await offer();
    }
  };

  find('body').append(dialog);
  dialog.showModal();
  offer().catch((error) => setText(choices, error.message));
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
