// @ts-check
/** What is done to many tasks at once: to those that are selected, or to all that match. */
import { ApiError, mayChange, request } from './api.js';
import { find, h, setText } from './dom.js';
import { countWords, isFinished, statusWord, timeWords } from './format.js';
import { askingButton, badge, button, say } from './forms.js';
import { grouped, t } from './language.js';
import { REASONS, saidWhole } from './said.js';

/** @import {TaskList} from './tasks.js' */
/** @import {Group, Row} from './types.js' */

const NARROW = matchMedia('(max-width: 640px)');

/** @typedef {'retry'|'cancel'|'delete'} Action */
/** @typedef {(count: number) => string} Said */
/** What an action is called, and what was done. @type {[Action, string, Said][]} */
const ACTIONS = [
  ['retry', t('Retry'), (count) => (
    t.n('{count} task was retried. | {count} tasks were retried.', count))],
  ['cancel', t('Cancel'), (count) => (
    t.n('{count} task was cancelled. | {count} tasks were cancelled.', count))],
  ['delete', t('Delete'), (count) => (
    t.n('{count} task was deleted. | {count} tasks were deleted.', count))],
];
/** To which tasks it can be done. @type {Record<Action, (task: Row) => boolean>} */
const CAN = {
  retry: ({ status }) => status === 'failed' || status === 'cancelled',
  cancel: (task) => !isFinished(task) && !task.cancel_requested,
  delete: () => true,
};

/** Tasks whose boxes are ticked, and the bar with what can be done to them. */
export class Picked {
  words = h('b');
  choices = h('div', { class: 'actions' });
  bar = h('div', { class: 'picked', role: 'region', 'aria-label': t('Selected tasks'),
    hidden: true }, this.words, this.choices,
  button('✕', () => this.tick(this.boxes(), false), { class: 'small', 'aria-label': t('Clear') }));
  all = h('input', { type: 'checkbox', 'aria-label': t('Select all of this page') });
  /** @type {HTMLInputElement|undefined} */
  last;
  said = '';
  place = '';

  /** @param {TaskList} list */
  constructor(list) {
    this.list = list;
    list.table.before(h('div', { class: 'hold' }, this.bar));
    list.heads[0].append(this.all);
    this.all.addEventListener('click', () => this.tick(this.boxes(), this.all.checked));
  }

  /** @returns {HTMLInputElement[]} */
  boxes() {
    return [...this.list.body.querySelectorAll('input')];
  }

  /** One was clicked; with shift all from the last one to this. @param {HTMLInputElement} box */
  pick(box, more = false) {
    const boxes = this.boxes();
    const here = boxes.indexOf(box);
    const there = more && this.last ? boxes.indexOf(this.last) : here;
    this.last = box;
    this.tick(there < 0 ? [box] : boxes.slice(Math.min(here, there), Math.max(here, there) + 1),
      box.checked);
  }

  /** @param {HTMLInputElement[]} boxes @param {boolean} checked */
  tick(boxes, checked) {
    for (const box of boxes) box.checked = checked;
    this.patch();
  }

  /** The bar, for what is ticked now; another list begins with nothing. */
  patch() {
    const { all, bar, choices, list, words } = this;
    const place = `${list.params}`;
    const boxes = this.boxes();
    if (this.place !== place) for (const box of boxes) box.checked = false;
    this.place = place;
    const ids = boxes.filter(({ checked }) => checked).map(({ value }) => Number(value));
    const tasks = ids.flatMap((id) => list.rows.get(id)?.task || []);
    bar.hidden = !ids.length;
    all.checked = !bar.hidden && ids.length === boxes.length;
    all.indeterminate = !bar.hidden && !all.checked;
    const counts = ACTIONS.map(([action]) => tasks.filter(CAN[action]).length);
    const said = `${place} ${ids} ${counts} ${list.page.counts.all}`;
    if (said === this.said || (ids.length && choices.querySelector('.question, [aria-busy]'))) return;
    this.said = said;
    this.patchFiles(ids);
    setText(words, t.n('{count} selected | {count} selected', ids.length));
    choices.replaceChildren(...this.offers(ids, counts));
  }

  /** The links below the list: those that are ticked as a file, or all that match. @param {number[]} ids */
  patchFiles(ids) {
    const { files, params, rows } = this.list;
    const which = ids.length ? new URLSearchParams({ ids: `${ids}` }) : new URLSearchParams(params);
    which.delete('cursor');
    if (!which.get('sort')?.endsWith('id')) which.delete('sort');
    files.hidden = !rows.size;
    setText(find('span', files), ids.length ? t('The selected tasks as a file:') : t('All that match as a file:'));
    for (const [place, link] of files.querySelectorAll('a').entries()) {
      which.set('format', ['csv', 'ndjson'][place]);
      link.href = `api/tasks?${which}`;
    }
  }

  /** What can be done; a retry loses nothing and is not asked for again.
   * @param {number[]} ids @param {number[]} counts */
  offers(ids, counts) {
    const { list, list: { page, params } } = this;
    const count = page.counts[params.get('status') || 'all'];
    const some = ACTIONS.flatMap(([action, label, said], place) => {
      if (!mayChange() || !counts[place]) return [];
      const words = `${label} ${counts[place]}`;
      const work = async () => {
        say(said((await request('POST', 'api/tasks/actions', { action, ids })).done), true);
        await this.leave();
      };
      return action === 'retry' ? button(words, work, { class: 'small', 'aria-keyshortcuts': 'r' })
        : askingButton(words, `${words}?`, work,
          { class: 'small', 'aria-keyshortcuts': action === 'cancel' && 'c' });
    });
    // On a phone nobody can tick the whole page.
    const all = NARROW.matches || (this.all.checked && (page.next || params.has('cursor')));
    return all ? [...some, button(t('All {count} that match…', { count: count ? countWords(count) : '' }),
      () => new Bulk(params, () => this.leave()), { class: 'small', 'aria-haspopup': 'dialog' })] : some;
  }

  /** Afterwards: nothing is ticked, and the list is as it is now. */
  async leave() {
    const { list } = this;
    const inside = this.bar.contains(document.activeElement);
    this.choices.replaceChildren();
    this.tick(this.boxes(), false);
    list.resort += 1;
    if (list.signal) await list.refresh(list.signal);
    if (inside) list.focus();
  }
}

/** A count in words, if need be "at least". @param {number} count @param {boolean} more */
export const atLeast = (count, more) => (
  more ? t('at least {count}', { count: countWords(count) }) : countWords(count));

/** How many failed. @param {number} count @param {boolean} more */
const failedBadge = (count, more) => badge('failed', atLeast(count, more));

/**
 * What failed for one reason, and what to do about it; `filter` are other filters.
 * @param {Group} group @param {Record<string, string>} filter @param {() => unknown} refresh
 * @param {boolean} [more] whether there may be more than were counted
 */
export function groupRow({ function: name, error, message, count, newest }, filter, refresh, more = false) {
  const which = new URLSearchParams({ ...filter, status: 'failed', function: name,
    error: error || '' });
  which.delete('cursor');
  const last = message && saidWhole(message);
  const kind = error && (REASONS[error] || error);
  const words = kind && last && count > 1 ? t('{error}, the newest: {message}', { error: kind, message: last })
    : [kind, last].filter(Boolean).join(': ') || t('no error message');
  return h('li', {}, failedBadge(count, more),
    h('a', { href: error ? `#/tasks?${which}` : `#/tasks/${newest}` }, name),
    h('bdi', { class: 'why' }, words.length > 160 ? `${words.slice(0, 160)}…` : words),
    error && retryButton(which, refresh));
}

/**
 * A button for tasks that failed with the same kind of error; a dialog says how many they are.
 * @param {URLSearchParams} filter @param {() => unknown} refresh
 */
export const retryButton = (filter, refresh) => button(t('Retry these'),
  () => new Bulk(filter, refresh, 'retry'), { class: 'small', 'aria-haspopup': 'dialog',
    'aria-label': `${t('Retry these')}: ${filter.get('function')}, ${filter.get('error')}` });

/**
 * The kinds of failures that are not shown, and a link to them.
 * @param {number} kinds @param {number} count @param {boolean} more @param {HTMLElement} link
 */
export const otherRow = (kinds, count, more, link) => h('li', {}, failedBadge(count, more),
  h('span', { class: 'why' }, t.n('{count} more kind of error | {count} more kinds of errors', kinds)), link);

/** The same in a line of words. @param {number} kinds @param {number} count of tasks */
export const restWords = (kinds, count) => [t.n('{count} more kind | {count} more kinds', kinds),
  t.n('{count} task | {count} tasks', count)].join(': ');

/** A dialog that offers what can be done to all tasks that match, or one thing of that. */
class Bulk {
  choices = h('div', { class: 'actions' }, t('Counting…'));
  bar = h('progress', { hidden: true, 'aria-label': t('Progress') });
  text = h('p', { class: 'help' });
  close = button(t('Close'), () => this.dialog.close());

  /** @param {URLSearchParams} params the filters @param {() => void} done @param {Action} [only] */
  constructor(params, done, only) {
    this.actions = ACTIONS.filter(([action]) => !only || action === only);
    this.filter = Object.fromEntries([...params].filter(([name]) => !/cursor|sort/.test(name)));
    const words = Object.entries(this.filter).map(([name, value]) => (name.endsWith('since')
      ? t('since {time}', { time: timeWords(new Date(value)) })
      : name === 'status' ? statusWord(value) : value)).join(' · ');
    this.dialog = h('dialog', { 'aria-labelledby': 'bulk', onclose: () => {
      this.dialog.remove();
      done();
    } }, h('h2', { id: 'bulk' }, only ? t('Retry these') : words ? t('All tasks that match') : t('All tasks')),
    words && h('p', { class: 'lead' }, h('bdi', {}, words)), this.choices, this.bar, this.text,
    h('div', { class: 'actions' }, this.close));
    find('body').append(this.dialog);
    this.dialog.showModal();
    this.offer().catch((error) => setText(this.choices, error.message));
  }

  /** Counts, and offers what can be done. */
  async offer() {
    const offers = await Promise.all(this.actions.map(async ([action, label, said]) => {
      const count = await countFor(action, this.filter);
      const words = `${label} ${grouped(count)}`;
      const work = () => this.run(action, said, count);
      return count > 0 && (action === 'retry' ? button(words, work, { class: 'button primary' })
        : askingButton(words, `${words}?`, work));
    }));
    const some = /** @type {HTMLElement[]} */ (offers.filter(Boolean));
    this.choices.replaceChildren(...some.length ? some : [t('No action is possible for these.')]);
    if (some.length === 1) some[0].focus();
    this.bar.hidden = true;
    this.choices.hidden = false;
    setText(this.close, t('Close'));
  }

  /**
   * Does it; what is not right any more is counted anew.
   * @param {Action} action @param {Said} said @param {number} count
   */
  async run(action, said, count) {
    this.bar.hidden = false;
    this.choices.hidden = true;
    setText(this.close, t('Stop'));
    this.close.focus();
    try {
      say(said(await this.goThrough(action, count)), true);
      this.dialog.close();
    } catch (error) {
      setText(this.text, /** @type {Error} */ (error).message);
      await this.offer();
    }
  }

  /**
   * One portion after the other, until all is done or the dialog is closed; how many were.
   * @param {Action} action @param {number} count
   */
  async goThrough(action, count) {
    const { bar, dialog, filter, text } = this;
    /** @type {Record<string, unknown>} */
    let rest = { expected_count: count };
    let all = 0;
    do {
      const part = await request('POST', 'api/tasks/actions', { action, filter, ...rest });
      all += part.done;
      bar.value = all / count;
      setText(text, t('{count} of {all} done', { count: grouped(all), all: grouped(count) }));
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
    await request('POST', 'api/tasks/actions', { action, filter, expected_count: 0 });
  } catch (error) {
    if (error instanceof ApiError && error.status === 409) return error.count;
    throw error;
  }
  return 0;
}
