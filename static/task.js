// @ts-check
/** One task: its state in words, what came of it, and what can be done about it. */
import { ApiError, get, pause, poll, request } from './api.js';
import { find, h, render, setAttribute, setText, setTitle, table } from './dom.js';
import { ask, askingButton, badge, button, copyBox, patchRows } from './forms.js';
import {
  duration, elapsed, errorLine, estimate, forecastWords, formatter, isFinished, patchState,
  stateBadge, stateWord, timeWords,
} from './format.js';
import { act, say } from './live.js';
import { store } from './store.js';

/** @import {Activity, LogPart, Page, Related, Task} from './types.js' */

const MOST_ROWS = 200;
const MOST_LARGE = 60;
const MOST_CHARACTERS = 10000;
const SHAPES = { pending: '○', running: '◐', succeeded: '✓', failed: '✕', cancelled: '–',
  scheduled: '◷', waiting: '⋯' };

const exact = formatter({ day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit',
  second: '2-digit' });

/** @type {Page['show']} */
export async function show({ id }, signal) {
  const task = await get(`api/tasks/${encodeURIComponent(id)}`, signal);
  if (signal.aborted) return;
  const view = new TaskView(task);
  const wait = await Promise.race([view.refresh(signal).catch(() => 2), pause(1).then(() => 1)]);
  if (signal.aborted) return;
  view.enter();
  poll(signal, () => view.refresh(signal), wait);
  store.on('catalogue', () => view.patchArguments(), signal);
}

/** The page's parts; each look at the server brings them up to date in place. */
class TaskView {
  /** @param {Task} task */
  constructor(task) {
    this.task = task;
    this.shown = '';
    this.told = '';
    this.looks = 0;
    this.log = new LogView(task.id);
    this.badge = stateBadge(task);
    this.sentence = h('span');
    this.bar = h('progress', { 'aria-label': 'Progress' });
    this.estimate = h('span');
    this.progress = h('div', { class: 'progress' }, this.bar, this.estimate);
    this.actions = h('div', { class: 'actions' });
    this.outcome = h('div');
    this.values = h('section');
    this.before = relatedPart('Comes after');
    this.behind = relatedPart('Followed by');
    this.facts = h('p', { class: 'help' });
    this.timeline = h('section');
  }

  /** Shows the page for the first time. */
  enter() {
    const { function: name, summary } = this.task;
    render('', h('a', { class: 'back', href: '#/tasks' }, '← Tasks'),
      h('h1', { tabindex: -1 }, name, ' ', h('bdi', { class: 'summary' }, summary)),
      h('div', { class: 'sentence' }, this.badge, this.sentence), this.progress, this.actions,
      this.outcome, h('div', { class: 'columns' }, this.before.root, this.behind.root),
      this.log.root, this.values, this.timeline, this.facts);
    this.patch();
    this.log.toEnd();
  }

  /** One look; resolves with the seconds until the next. @param {AbortSignal} signal */
  async refresh(signal) {
    try {
      const task = this.looks ? await get(`api/tasks/${this.task.id}`, signal) : this.task;
      if (signal.aborted) return 0;
      this.looks += 1;
      this.task = task;
      this.patch();
      await Promise.all([this.log.follow(task, signal), this.readActivity(signal)]);
      if (!/pending|running/.test(task.status)) return 10;
      return this.looks < 10 ? 1 : 2;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.showGone();
      throw error;
    }
  }

  /** Someone else deleted it while it was shown. */
  showGone() {
    setText(this.sentence, 'This task was deleted.');
    this.actions.replaceChildren();
  }

  /** Brings everything up to date; what is built anew only when the state changed. */
  patch() {
    const { task } = this;
    const word = stateWord(task);
    const sentence = sentenceFor(task);
    setTitle(`${SHAPES[task.status]} ${task.function} ${task.summary}`.slice(0, 80));
    patchState(this.badge, task);
    setText(this.sentence, sentence);
    this.patchProgress();
    this.before.patch(task.predecessors);
    this.behind.patch(task.followers);
    const key = [word, task.attempts, task.run_at, task.finished_at].join();
    if (key === this.shown) return;
    if (this.shown) say(`${word} ${sentence}`);
    this.shown = key;
    this.patchActions();
    this.patchOutcome();
    this.patchArguments();
    this.patchFacts();
  }

  /** Progress, its message and an estimate. */
  patchProgress() {
    const { bar, task } = this;
    const { progress, status, message } = task;
    this.progress.hidden = status !== 'running' || (progress === null && !message);
    bar.hidden = progress === null;
    bar.value = progress || 0;
    const percent = progress !== null && `${Math.floor(progress * 100)} %`;
    setText(this.estimate, [percent, message, estimate(task)].filter(Boolean).join(' · '));
  }

  /** What can be done in this state. */
  patchActions() {
    const { task } = this;
    const again = `#/new/${encodeURIComponent(task.function)}?from=${task.id}`;
    const focused = this.actions.contains(document.activeElement);
    const own = !isFinished(task) ? !task.cancel_requested && this.button('Cancel')
      : task.status !== 'succeeded' && this.button('Retry');
    this.actions.replaceChildren(own || '',
      h('a', { class: 'button', href: again }, 'Run again with changes'),
      askingButton('Delete', `Delete ${task.id}?`, () => this.remove()));
    if (focused) find('h1').focus({ preventScroll: true });
  }

  /** What runs is not stopped unasked. @param {'Cancel'|'Retry'} name */
  button(name) {
    const { actions, task: { id, status } } = this;
    const work = async () => {
      this.task = await request('POST', `api/tasks/${id}/${name.toLowerCase()}`);
      this.patch();
    };
    const asked = button(name, () => (
      status === 'running' ? ask(asked, `Stop ${id}?`, 'Stop', work, 'Keep running') : work()),
    { 'data-changed': actions.firstChild && performance.now() });
    return asked;
  }

  /** Deletes the task, then shows the others. */
  async remove() {
    await request('DELETE', `api/tasks/${this.task.id}`);
    location.hash = '#/tasks';
    say(`Task ${this.task.id} was deleted.`, true);
  }

  /** The result of a success, the error of anything else that the sentence above does not say. */
  patchOutcome() {
    const { status, result, error, reason } = this.task;
    this.outcome.replaceChildren();
    if (status === 'succeeded') {
      const whole = (JSON.stringify(result) || '').length > MOST_CHARACTERS && h('p', {}, h('a', {
        href: `api/tasks/${this.task.id}`, download: `task-${this.task.id}.json`,
      }, 'Download all of it'));
      this.outcome.append(h('h2', {}, 'Result'), h('div', {}, resultElement(result), whole));
    }
    if (error && reason !== 'dependency') this.outcome.append(errorElement(this.task));
  }

  /** The values, masked where the schema says so; it may come later than the task. */
  patchArguments() {
    this.values.replaceChildren(h('h2', {}, 'Arguments'), argumentsElement(this.task));
  }

  /** What else is known, in one quiet line. */
  patchFacts() {
    const { id, owner, queue, priority, timeout, attempts, crashes, schedule, run_at: at,
      unique_key: key, after_failure: failure } = this.task;
    this.facts.replaceChildren([`Task ${id}`, `owner ${owner}`, `queue ${queue}`,
      priority && `priority ${priority}`, attempts > 1 && `attempt ${attempts}`,
      crashes && `${crashes} crashes`, `time limit ${duration(timeout)}`,
      at && `not before ${exact.format(new Date(at))}`, key && `unique key ${key}`,
      failure === 'run' && 'runs even if an earlier task fails']
      .filter(Boolean).join(' · '), schedule ? ' · from ' : '', schedule
      ? h('a', { href: `#/schedules/${schedule}` }, `schedule ${schedule}`) : '');
  }

  /** What happened to it since it was told, first things first. @param {AbortSignal} signal */
  async readActivity(signal) {
    const { shown, task } = this;
    if (this.told === shown) return;
    const { activity } = await get(`api/activity?task=${task.id}&limit=200`, signal);
    this.told = shown;
    const items = /** @type {Activity[]} */ (activity).reverse().map(activityElement);
    this.timeline.replaceChildren(h('h2', {}, 'Timeline'),
      h('ol', { class: 'timeline' }, ...items));
  }
}

/** The state's reason in words. @param {Task} task */
function sentenceFor(task) {
  const seconds = elapsed(task);
  const took = seconds === null ? '' : duration(seconds);
  const retries = task.attempts - 1;
  const tries = retries > 0 ? `after ${retries} ${retries > 1 ? 'retries' : 'retry'}` : '';
  switch (task.status) {
    case 'running': return task.cancel_requested ? `running for ${took}`
      : [`for ${took}`, forecastOf(task)].filter(Boolean).join(' · ');
    case 'succeeded': return ['in', took, tries].filter(Boolean).join(' ');
    case 'failed': return `${tries}: ${clip(errorLine(task))}`.replace(/^: /, '');
    case 'scheduled': return laterSentence(task);
    case 'waiting': return clip(`for ${task.predecessors?.filter(({ status }) => (
      status !== 'succeeded')).map(({ id }) => `#${id}`).join(', ')}`);
    case 'pending': return [`added ${timeWords(new Date(task.created_at))}`, task.blocked_text,
      forecastOf(task)].filter(Boolean).join(' · ');
    default: return took && `after ${took}`;
  }
}

/** What is expected of it, unless the page says so anyway. @param {Task} task */
function forecastOf({ forecast, blocked_text: blocked, progress }) {
  if (forecast?.reason && forecast.reason === blocked) return '';
  return forecastWords(forecast && progress ? { ...forecast, expected_end: null } : forecast);
}

/** Tasks before or after this one, while there are any. @param {string} title */
function relatedPart(title) {
  const list = h('ul', { class: 'timeline' });
  const root = h('section', { hidden: true }, h('h2', {}, title), list);
  return { root, patch: (/** @type {Related[]} */ tasks = []) => {
    root.hidden = !tasks.length;
    patchRows(list, tasks, ({ id }) => id, (task) => h('li', {},
      h('a', { href: `#/tasks/${task.id}` }, `#${task.id} ${task.function}`),
      badge(task.status, task.status)));
  } };
}

/** A message that is long stands in full further down. @param {string} text */
const clip = (text) => (text.length > 120 ? `${text.slice(0, 120)}…` : text);

/** When it starts, and why not now. @param {Task} task */
function laterSentence(task) {
  const time = task.run_at ? timeWords(new Date(task.run_at)) : '';
  if (!task.reason) return time;
  return `again ${time} after ${clip(errorLine(task))}`;
}

/** The last line of a traceback first, the rest folded. @param {Task} task */
function errorElement(task) {
  const traceback = task.error?.traceback;
  return h('div', {}, h('h2', {}, 'Error'),
    h('p', { class: 'mono code bad', dir: 'auto' }, errorLine(task)),
    traceback && h('details', {}, h('summary', {}, 'Traceback'),
      h('pre', { class: 'code', tabindex: 0, role: 'group', 'aria-label': 'Traceback' },
        traceback)));
}

/** @type {Record<string, string>} */
export const EVENTS = {
  retry: 'failed, will retry',
  cancel_requested: 'asked to stop',
  timeout: 'reached its time limit',
  put_back: 'put back',
  promoted: 'became due',
  released: 'no longer waits for others',
};

/** One thing that happened. @param {Activity} entry */
function activityElement(entry) {
  const { at, event, attempt, waited, seconds, cpu_seconds: cpu, peak_memory: memory } = entry;
  const details = [
    event === 'started' && attempt && attempt > 1 && `attempt ${attempt}`,
    waited != null && `waited ${duration(waited)}`,
    seconds != null && `took ${duration(seconds)}`,
    cpu != null && `${duration(cpu)} CPU`,
    memory && `${Math.ceil(memory / 1048576)} MB peak`,
    entry.actor && `by ${entry.actor}`,
    entry.message,
  ].filter(Boolean).join(', ');
  return h('li', {}, h('time', { datetime: at }, exact.format(new Date(at))),
    h('span', {}, h('b', {}, EVENTS[event] || event), details && ` ${details}`));
}

/** Whether it fits a line. @param {unknown} value */
const isScalar = (value) => value === null || typeof value !== 'object';

/**
 * Whether it has names and values.
 * @param {unknown} value @returns {value is Record<string, unknown>}
 */
const isDict = (value) => !isScalar(value) && !Array.isArray(value);

/** What a function returned. @param {unknown} result */
function resultElement(result) {
  if (isScalar(result)) {
    const text = scalar(result);
    return text.length > MOST_LARGE ? copyBox(text, 'Result')
      : h('p', { class: 'scalar', dir: 'auto' }, text);
  }
  if (isDict(result)) return pairs(Object.entries(result));
  if (Array.isArray(result) && result.length && result.every(isDict)) return tableOf(result);
  return copyBox(shorten(JSON.stringify(result, null, 2)), 'Result');
}

/**
 * The arguments of a task; secrets are masked, so the function must be known.
 * @param {{function: string, arguments: Record<string, unknown>}} task
 */
export function argumentsElement({ function: called, arguments: values }) {
  const { catalogue } = store.state;
  if (!catalogue) return h('p', { class: 'help' }, '…');
  const schema = catalogue.functions.find(({ name }) => name === called)?.schema;
  const shown = Object.entries(values).map(([name, value]) => {
    const secret = schema?.properties?.[name]?.format === 'password';
    return /** @type {[string, unknown]} */ ([name, secret ? '••••••' : value]);
  });
  return shown.length ? pairs(shown) : h('p', { class: 'help' }, 'None.');
}

/** Names and values in two columns. @param {[string, unknown][]} entries */
function pairs(entries) {
  return h('dl', { class: 'pairs' }, ...entries.flatMap(([name, value]) => (
    [h('dt', {}, name), h('dd', {}, inline(value))])));
}

/** Rows with the same names, as a table. @param {Record<string, unknown>[]} rows */
function tableOf(rows) {
  const shown = rows.slice(0, MOST_ROWS);
  const names = [...new Set(shown.flatMap(Object.keys))];
  const left = rows.length - shown.length;
  return h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': 'Result table' },
    table('', 'Result', names, h('tbody', {}, ...shown.map((row) => h('tr', {},
      ...names.map((name) => h('td', {}, name in row ? inline(row[name]) : '')))))),
    left > 0 && h('p', { class: 'help' }, `and ${left} more rows`));
}

/** A value within others. @param {unknown} value */
function inline(value) {
  if (isScalar(value)) return h('bdi', {}, scalar(value));
  return h('code', {}, shorten(JSON.stringify(value)));
}

/** A single value in words. @param {unknown} value */
function scalar(value) {
  if (value === null) return '–';
  if (value === '') return '(empty)';
  return typeof value === 'boolean' ? (value ? 'yes' : 'no') : shorten(String(value));
}

/** What a browser can lay out at once. @param {string} text */
function shorten(text) {
  const left = text.length - MOST_CHARACTERS;
  return left > 0 ? `${text.slice(0, MOST_CHARACTERS)}… and ${left} more characters` : text;
}

/** The log of one attempt at a time: followed to its end, until one scrolls up. */
class LogView {
  offset = 0;
  attempt = 0;
  known = 0;
  ended = false;

  /** @param {number} id of the task */
  constructor(id) {
    this.id = id;
    this.text = h('pre', { class: 'log', tabindex: 0, role: 'group', 'aria-label': 'Log text',
      onscroll: () => this.patchEnd() });
    this.choice = h('select', { 'aria-label': 'Attempt', onchange: () => this.choose() });
    this.end = h('button', { class: 'small', onclick: () => this.toEnd() }, 'To the end ↓');
    this.download = h('a', { download: '' }, 'Download');
    this.note = h('p', { class: 'help', hidden: true },
      'The middle of this log was cut out: it was too long.');
    this.root = h('section', { hidden: true }, h('div', { class: 'bar' },
      h('h2', {}, 'Log'), this.choice, this.end, this.download), this.note, this.text);
  }

  /** Starts again with the chosen attempt. */
  choose() {
    this.start(Number(this.choice.value));
    act(this.text, () => this.read());
  }

  /** @param {number} attempt */
  start(attempt) {
    this.attempt = attempt;
    this.offset = 0;
    this.ended = false;
    this.text.replaceChildren();
  }

  /**
   * A new attempt is shown at once, if one was looking at the one before.
   * @param {Task} task @param {AbortSignal} signal
   */
  async follow({ attempts }, signal) {
    if (!attempts) return;
    if (attempts > this.known && this.attempt === this.known) this.start(attempts);
    if (attempts > this.known) this.listAttempts(attempts);
    if (!this.ended) await this.read(signal);
  }

  /** @param {number} attempts */
  listAttempts(attempts) {
    for (let attempt = this.known + 1; attempt <= attempts; attempt += 1) {
      this.choice.append(h('option', { value: attempt }, `Attempt ${attempt}`));
    }
    this.known = attempts;
    this.choice.value = String(this.attempt);
    this.choice.hidden = attempts < 2;
  }

  /** Reads until there is no more for now. @param {AbortSignal} [signal] */
  async read(signal) {
    const { attempt } = this;
    let offset;
    const path = `api/tasks/${this.id}/log?attempt=${attempt}`;
    let part;
    do {
      ({ offset } = this);
      part = await get(`${path}&offset=${offset}`, signal);
      if (signal?.aborted || attempt !== this.attempt || offset !== this.offset) return;
      this.take(part);
    } while (part.text);
    this.ended = part.complete;
    setAttribute(this.download, 'href', `${path}&download=1`);
  }

  /** @param {LogPart} part */
  take({ text, next, cut, complete }) {
    const follow = this.isAtEnd();
    this.root.hidden = false;
    this.offset = next;
    this.note.hidden = !cut;
    if (text) this.text.append(text);
    const nothing = complete ? 'It printed nothing.' : 'Nothing printed yet.';
    setAttribute(this.text, 'data-empty', this.text.textContent ? null : nothing);
    if (follow) this.toEnd();
    this.patchEnd();
  }

  /** Whether the last line is in sight. */
  isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.text;
    return scrollTop + clientHeight > scrollHeight - 24;
  }

  /** Shows the last line. */
  toEnd() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  /** The way back to the end, for who scrolled up. */
  patchEnd() {
    this.end.hidden = this.isAtEnd();
  }
}
