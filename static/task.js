// @ts-check
/** One task: its state in words, its files, what came of it, and what can be done about it. */
import { ApiError, get, mayChange, ownName, pause, poll, request, store } from './api.js';
import { now } from './clock.js';
import { find, h, kept, render, setText, setTitle, table, textWith } from './dom.js';
import {
  duration, elapsed, formatter, isFinished, patchState, progressWords, stateBadge, stateWord, statusWord,
  timeWords, tookWords,
} from './format.js';
import { act, ask, badge, button, deleteButton, heading, patchRows, s, say, sizeWords } from './forms.js';
import { t } from './language.js';
import { LogView } from './log.js';
import { fromList, listPlace } from './places.js';
import {
  errorLine, eventWords, forecastWords, messageWords, said, saidName, waitingWords,
} from './said.js';
import { list } from './tasks.js';
import { askBrowser, isWatched, mailWords, tellingWords, watch } from './telling.js';
import { MOST_CHARACTERS, argumentsElement, resultElement, valueCell } from './values.js';

/** @import {Activity, Metrics, Page, Related, Sample, Success, Task, TaskFile} from './types.js' */

const SHAPES = { pending: '○', running: '◐', succeeded: '✓', failed: '✕', cancelled: '–',
  scheduled: '◷', waiting: '⋯' };

/** Of a RetryAfter without a message of its own. */
const NO_MESSAGE = /^asked to be retried$/;

const exact = formatter({ day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit',
  second: '2-digit' });
const clock = formatter({ hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  const [task, beside] = await Promise.all([get(`api/tasks/${encodeURIComponent(id)}`, signal),
    findBeside(Number(id), signal).catch(() => undefined)]);
  if (signal.aborted) return;
  const view = new TaskView(task, params, beside);
  const wait = await Promise.race([view.refresh(signal).catch(() => 2), pause(1).then(() => 1)]);
  if (signal.aborted) return;
  view.enter();
  poll(signal, () => view.refresh(signal), wait);
  store.on('catalogue', () => view.patchArguments(), signal);
  view.readUsual(signal).catch(() => null);
}

/** The page's parts; each look at the server brings them up to date in place. */
class TaskView {
  /**
   * @param {Task} task @param {URLSearchParams} params of the address
   * @param {(number|undefined)[]} [beside] the tasks before and after it in the list
   */
  constructor(task, params, beside) {
    this.task = task;
    this.beside = beside;
    this.shown = '';
    this.told = '';
    /** @type {Activity|undefined} its last end */
    this.end = undefined;
    this.looks = 0;
    this.log = new LogView(task.id, params);
    this.files = new FilesView(task.id);
    this.near = h('nav', { 'aria-label': t('Tasks beside this one') });
    this.usual = h('span');
    this.badge = stateBadge(task);
    this.sentence = h('span');
    this.bar = h('progress', { 'aria-label': t('Progress') });
    this.estimate = h('span');
    this.progress = h('div', { class: 'progress' }, this.bar, this.estimate);
    this.samples = h('div', { class: 'help samples' });
    this.actions = h('div', { class: 'actions' });
    this.copy = button(t('Copy link'), () => this.copyLink());
    this.tell = button('', () => this.changeTelling());
    this.telling = h('p', { class: 'help' });
    this.outcome = h('div');
    this.worked = h('p', { class: 'help', hidden: true });
    this.values = h('section');
    this.before = relatedPart(t('Comes after'));
    this.behind = relatedPart(t('Followed by'));
    this.facts = h('p', { class: 'help facts' });
    this.details = h('p', { class: 'help' });
    this.timeline = h('section');
  }

  /** Shows the page for the first time. */
  enter() {
    const { function: name, summary } = this.task;
    render('', h('div', { class: 'bar back' }, h('a', { href: listPlace }, t('← Tasks')), this.near),
      heading(name, ' ', h('bdi', { class: 'summary' }, summary)),
      h('div', { class: 'sentence' }, this.badge, this.sentence), this.facts, this.progress,
      this.actions, this.telling, this.samples,
      this.outcome, this.worked, h('div', { class: 'columns' }, this.before.root, this.behind.root),
      this.files.root, this.log.root, this.values, this.timeline, this.details);
    this.patch();
    this.log.enter();
  }

  /** One look; resolves with the seconds until the next. @param {AbortSignal} signal */
  async refresh(signal) {
    try {
      const task = this.looks ? await get(`api/tasks/${this.task.id}`, signal) : this.task;
      if (signal.aborted) return 0;
      this.looks += 1;
      this.task = task;
      this.patch();
      await Promise.all([this.log.follow(task, signal), this.readChanges(signal)]);
      if (!/pending|running/.test(task.status)) return 10;
      return this.looks < 10 ? 1 : 2;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.showGone();
      throw error;
    }
  }

  /** Someone else deleted it while it was shown. */
  showGone() {
    setText(this.sentence, t('This task was deleted.'));
    this.actions.replaceChildren();
  }

  /** Brings everything up to date; what is built anew only when the state changed. */
  patch() {
    const { task } = this;
    const word = stateWord(task);
    const sentence = sentenceFor(task, this.end);
    setTitle(`${SHAPES[task.status]} ${task.function} ${task.summary}`.slice(0, 80));
    patchState(this.badge, task);
    setText(this.sentence, sentence);
    this.patchProgress();
    this.patchSamples();
    this.before.patch(task.predecessors);
    this.behind.patch(task.followers);
    this.patchNear();
    const key = [word, task.attempts, task.run_at, task.finished_at].join();
    if (key === this.shown) return;
    if (this.shown) say([word, sentence, errorLine(task)].filter(Boolean).join(' '));
    this.shown = key;
    this.patchActions();
    this.patchOutcome();
    this.patchArguments();
    this.patchFacts();
  }

  /** Progress, its message and an estimate. */
  patchProgress() {
    const { bar, task } = this;
    const words = progressWords(task);
    this.progress.hidden = task.status !== 'running' || !words;
    bar.hidden = task.progress === null;
    bar.value = task.progress || 0;
    setText(this.estimate, words);
  }

  /** CPU and memory of the run, once there are two samples; their line has its room before. */
  patchSamples() {
    const { samples, status } = this.task;
    this.samples.hidden = status !== 'running';
    if (samples?.[1]) showSamples(this.samples, samples);
    else this.samples.replaceChildren();
  }

  /** What can be done in this state. */
  patchActions() {
    const { task } = this;
    if (!mayChange()) return this.actions.replaceChildren(this.copy);
    const focused = this.actions.contains(document.activeElement);
    const own = !isFinished(task) ? !task.cancel_requested && this.button('cancel',
      task.status === 'running' ? t('Stop') : t('Cancel'))
      : task.status === 'succeeded' ? this.againButton() : this.button('retry', t('Retry'));
    this.actions.replaceChildren(own || '', isFinished(task) ? '' : this.tell, this.changeButton(),
    this.copy, deleteButton(`#${task.id}`, `api/tasks/${task.id}`, () => { location.hash = listPlace; },
      { class: 'button apart' }));
    if (focused) find('h1').focus({ preventScroll: true });
    this.patchTelling();
  }

  /** The same values once more, unless some are another person's secrets. */
  againButton() {
    const { task } = this;
    return !Object.values(task.arguments).includes('•••') && button(t('Run again'), async () => {
      const { addAgain } = await import('./new.js');
      await addAgain(task);
    }, { class: 'button primary' });
  }

  /** Opens the form with the values of this task. A task that has not begun is cancelled before. */
  changeButton() {
    const { id, attempts, function: name, unique_key: key } = this.task;
    const form = `#/new/${encodeURIComponent(name)}?from=${id}`;
    if (attempts || isFinished(this.task)) {
      return h('a', { href: form, class: 'button' }, t('Run again with changes'));
    }
    const asked = button(t('Cancel and change'), () => ask(asked,
      t('Cancel {id} and open its values in a new form?', { id }), t('Cancel and change'), async () => {
        await request('POST', `api/tasks/${id}/cancel`);
        location.hash = `${form}&instead=${encodeURIComponent(key || '')}`;
      }));
    return asked;
  }

  /** Copies the address of this page; where the browser does not allow that, shows it. */
  async copyLink() {
    const address = `${location.origin}${location.pathname}#/tasks/${this.task.id}`;
    const copied = await navigator.clipboard?.writeText(address).then(() => true, () => false);
    say(copied ? t('Copied') : address, true);
  }

  /** Whether the end of this task is told to the one who is logged in. */
  isTold() {
    return isWatched(this.task) || (this.isOwn() && Boolean(this.task.notify));
  }

  isOwn() {
    return this.task.owner === ownName();
  }

  /** The end is told to the owner by mail, and in this browser if the person allows that; or no longer. */
  async changeTelling() {
    const { id } = this.task;
    const wanted = !this.isTold();
    watch(id, wanted && await askBrowser());
    if (this.isOwn()) {
      this.task = await request('PATCH', `api/tasks/${id}`, { notify: wanted ? 'end' : null });
      this.patchFacts();
    }
    this.patchTelling();
    if (wanted && !this.isTold()) say(t('This browser shows no notifications.'), true);
  }

  /** What the button would do, and how the end is told. */
  patchTelling() {
    setText(this.tell, this.isTold() ? t('Do not tell me') : t('Tell me when it is done'));
    this.telling.hidden = isFinished(this.task) || !this.isTold();
    this.telling.replaceChildren(...kept(tellingWords(this.task)));
  }

  /** What runs is not stopped unasked. @param {'cancel'|'retry'} name @param {string} label */
  button(name, label) {
    const { actions, task: { id, status } } = this;
    const work = async () => {
      this.task = await request('POST', `api/tasks/${id}/${name}`);
      this.patch();
    };
    const asked = button(label, () => (status === 'running'
      ? ask(asked, t('Stop {id}?', { id }), t('Stop'), work) : work()),
    { 'aria-keyshortcuts': name[0], 'data-changed': actions.firstChild && performance.now(),
      class: `button ${name === 'retry' ? 'primary' : ''}` });
    return asked;
  }

  /** The result of a success, the error of anything else that the sentence above does not say. */
  patchOutcome() {
    const { status, result, error, reason } = this.task;
    this.outcome.replaceChildren();
    if (status === 'succeeded') {
      const whole = (JSON.stringify(result) || '').length > MOST_CHARACTERS && h('p', {}, h('a', {
        href: `api/tasks/${this.task.id}`, download: `task-${this.task.id}.json`,
      }, t('Download all of it')));
      this.outcome.append(h('h2', {}, t('Result')), h('div', {},
        resultElement(result, (value) => this.files.elementOf(value)), whole));
    }
    if (error && reason !== 'dependency') this.outcome.append(errorElement(this.task) || '');
  }

  /** The values, masked where the schema says so; it may come later than the task. */
  patchArguments() {
    this.values.replaceChildren(h('h2', {}, t('Arguments')), argumentsElement(this.task, (value) => {
      const file = this.files.given.get(value);
      return file && this.files.link(file, file.name);
    }));
  }

  /** The tasks before and behind it, in the list or by number; answers to actions do not say. */
  patchNear() {
    const { beside, task } = this;
    if (!beside && task.previous === undefined) return;
    const [previous, next] = beside || [task.previous, task.next];
    const link = (/** @type {number|null|undefined} */ id, /** @type {'prev'|'next'} */ rel,
      /** @type {string} */ label, /** @type {string} */ words) => id && h('a', {
      href: `#/tasks/${id}`, rel, 'aria-label': `${label}: ${id}` }, words);
    patchRows(this.near, [[previous, next]], String, () => h('span', {},
      link(previous, 'prev', t('Previous task'), `‹ ${previous}`) || '',
      link(next, 'next', t('Next task'), `${next} ›`) || ''));
  }

  /** Which task it is, and when what happened, in one quiet line; what hardly counts at the end. */
  patchFacts() {
    const { id, owner, queue, priority, timeout, attempts, crashes, schedule, run_at: at,
      max_retries: retries, unique_key: key, after_failure: failure, function: name, notify } = this.task;
    this.facts.replaceChildren([`#${id}`, owner, attempts > 0 && (retries || attempts > 1)
      && t('attempt {attempt} of {most}', { attempt: attempts, most: Math.max(attempts, retries + 1) }),
    ...momentsOf(this.task)].filter(Boolean).join(' · '), ' · ', h('a', {
      href: `#/tasks?function=${encodeURIComponent(name)}` }, t('all of {name}', { name })), this.usual);
    this.details.replaceChildren([t('queue {queue}', { queue }),
      priority && t('priority {priority}', { priority }),
      crashes && t.n('{count} crash | {count} crashes', crashes),
      t('time limit {time}', { time: duration(timeout) }),
      at && !isFinished(this.task) && t('not before {time}', { time: exact.format(new Date(at)) }),
      key && t('unique key {key}', { key }),
      mailWords(notify),
      failure === 'run' && t('runs even if an earlier task fails')]
      .filter(Boolean).join(' · '), ...schedule ? [' · ', h('a', {
      href: `#/schedules/${schedule}` }, t('from schedule {id}', { id: schedule }))] : []);
  }

  /** The last success with the same values beside this failure. @param {Success|null} success */
  patchWorked(success) {
    this.worked.hidden = !success;
    if (!success) return;
    const { id, finished_at: at } = success;
    const ago = Math.max(1, (now() - Date.parse(at)) / 1000);
    const [before, after] = [success, this.end].map((run) => run && measuresOf(run));
    this.worked.replaceChildren(...textWith(
      'Worked {time} ago with the same values: {task}', {
        time: duration(ago > 3600 ? ago - ago % 3600 : ago),
        task: h('a', { href: `#/tasks/${id}` }, `#${id}`) }),
    ...before ? [` · ${before}`] : [],
    ...after ? [` · ${t('this time: {measures}', { measures: after })}`] : []);
  }

  /** How long most of the latest runs of its function took. @param {AbortSignal} signal */
  async readUsual(signal) {
    const from = new Date(now() - 8 * 7 * 864e5).toISOString();
    const name = this.task.function;
    const query = new URLSearchParams({ function: name, step: 'week', from });
    const { functions } = /** @type {Metrics} */ (await get(`api/metrics?${query}`, signal));
    const took = (functions[0]?.recent || []).filter((one) => one.status === 'succeeded')
      .map(({ seconds }) => seconds || 0).sort((one, other) => one - other);
    const most = took[Math.floor(took.length * 0.8)];
    if (took.length < 3 || most < 1) return;
    const [low, high] = [took[Math.floor(took.length * 0.2)], most].map(duration);
    setText(this.usual, ` · ${low === high ? t('usually takes {time}', { time: low })
      : t('usually takes {low} to {high}', { low, high })}`);
  }

  /** What happened to it since it was told, first things first. @param {AbortSignal} signal */
  async readChanges(signal) {
    const { shown, task } = this;
    if (this.told === shown) return;
    const failed = task.status === 'failed' && task.reason !== 'dependency';
    const [{ activity }, { success }] = await Promise.all([
      get(`api/activity?task=${task.id}&limit=200`, signal),
      failed ? get(`api/tasks/${task.id}/success`, signal) : { success: null },
      this.files.refresh(task.result, signal).catch(() => null)]);
    this.told = shown;
    if (this.files.returned.size) this.patchOutcome();
    if (this.files.given.size) this.patchArguments();
    this.end = activity.find((/** @type {Activity} */ { seconds }) => seconds != null);
    setText(this.sentence, sentenceFor(task, this.end));
    this.patchWorked(success);
    const items = /** @type {Activity[]} */ (activity).reverse()
      .map((entry) => activityElement(entry, task.schedule));
    this.timeline.replaceChildren(h('h2', {}, t('Timeline')),
      h('ol', { class: 'timeline' }, ...items));
  }
}

/**
 * Duration and memory of a run in words.
 * @param {{seconds: number|null, peak_memory: number|null}} run @param {number|null} [cpu] in seconds
 */
const measuresOf = ({ seconds, peak_memory: memory }, cpu) => [
  tookWords(seconds), cpu != null && t('{time} CPU', { time: duration(cpu) }),
  memory && t('{count} MB peak', { count: Math.ceil(memory / 1048576) })].filter(Boolean).join(', ');

const WIDTH = 64;                // pixels of the lines of CPU and memory

/** A share of one core. @param {number} load */
const percent = (load) => `${Math.round(load * 100)} %`;

/** A line, as high as its top. @param {string} label @param {number[]} times @param {number[]} values */
function line(label, times, values) {
  const [end, top] = [Math.max(...times), Math.max(1, ...values)];
  return s('svg', { role: 'img', 'aria-label': label, width: WIDTH, height: 16 },
    s('polyline', { fill: 'none', stroke: 'currentColor', points: values.map((value, place) => (
      [times[place] / end * WIDTH, 15 - value / top * 14])).join(' ') }));
}

/** Shows two samples or more. @param {HTMLElement} root @param {Sample[]} samples */
function showSamples(root, samples) {
  const times = samples.map(({ seconds }) => seconds);
  const sizes = samples.map(({ memory }) => memory);
  const loads = samples.map(({ seconds, cpu_seconds: cpu }, place) => {
    const before = samples[place - 1] || { seconds: 0, cpu_seconds: 0 };
    return (cpu - before.cpu_seconds) / (seconds - before.seconds || 1);
  });
  root.replaceChildren(
    `CPU ${percent(loads[loads.length - 1])}`,
    line(t('CPU over the run: at most {most}', { most: percent(Math.max(...loads)) }), times, loads),
    `· ${sizeWords(sizes[sizes.length - 1])}`,
    line(t('Memory over the run: at most {most}', { most: sizeWords(Math.max(...sizes)) }), times, sizes));
}

/**
 * The state's reason in words.
 * @param {Task} task @param {Activity} [end] its last one, which the timeline tells, too
 */
function sentenceFor(task, end) {
  const seconds = isFinished(task) && end?.attempt === task.attempts ? end.seconds : elapsed(task);
  const took = seconds === null ? '' : duration(seconds);
  const { reason } = task;
  const retries = task.attempts - 1;
  const tries = retries > 0 ? t.n('after {count} retry | after {count} retries', retries) : '';
  switch (task.status) {
    case 'running': return task.cancel_requested ? t('running for {time}', { time: took })
      : [t('for {time}', { time: took }), forecastOf(task)].filter(Boolean).join(' · ');
    case 'succeeded': return [tookWords(seconds), tries]
      .filter(Boolean).join(' ');
    case 'failed': return [tries, reason === 'error' ? '' : clip(errorLine({ ...task, error: null }))]
      .filter(Boolean).join(': ');
    case 'scheduled': return laterSentence(task);
    case 'waiting': return clip(waitingWords((task.predecessors || []).filter((one) => (
      one.status !== 'succeeded')).map(({ id }) => id)));
    case 'pending': return [t('added {time}', { time: timeWords(new Date(task.created_at)) }),
      task.blocked_text && said(task.blocked_text), forecastOf(task)].filter(Boolean).join(' · ');
    default: return took && t('after {time}', { time: took });
  }
}

/** When it was added, began and ended; the day once. @param {Task} task */
function momentsOf({ created_at: added, started_at: started, finished_at: ended }) {
  const moments = [[t('added'), added], [t('started'), started], [t('ended'), ended]];
  const day = new Date(String(added)).toDateString();
  return moments.filter(([, at]) => at).map(([words, at]) => {
    const time = new Date(String(at));
    const format = at === added || time.toDateString() !== day ? exact : clock;
    return `${words} ${format.format(time)}`;
  });
}

/** What is expected of it, unless the page says so anyway. @param {Task} task */
function forecastOf({ forecast, blocked_text: blocked, progress }) {
  return forecastWords(forecast && {
    ...forecast,
    ...progress && { expected_end: null },
    ...(progress || forecast.reason === blocked) && { reason: null },
  });
}

/** Tasks before or after this one, while there are any. @param {string} title */
function relatedPart(title) {
  const list = h('ul', { class: 'timeline' });
  const root = h('section', { hidden: true }, h('h2', {}, title), list);
  return { root, patch: (/** @type {Related[]} */ tasks = []) => {
    root.hidden = !tasks.length;
    patchRows(list, tasks, ({ id }) => id, (task) => h('li', {},
      h('a', { href: `#/tasks/${task.id}` }, `#${task.id} ${task.function}`),
      badge(task.status, statusWord(task.status))));
  } };
}

/** A message that is long stands in full further down. @param {string} text */
const clip = (text) => (text.length > 120 ? `${text.slice(0, 120)}…` : text);

/** When it starts, and why not now. @param {Task} task */
function laterSentence(task) {
  const time = task.run_at ? timeWords(new Date(task.run_at)) : '';
  if (!task.reason) return time;
  if (asksToWait(task)) return t('again {time}, as the function asked', { time });
  return t('again {time} after {error}', { time, error: errorLine({ ...task, error: null }) });
}

/** Whether its function raised RetryAfter, and gets its retry. @param {Task} task */
const asksToWait = ({ error, status }) => error?.type === 'RetryAfter' && status !== 'failed';

/** The last line of a traceback first, the rest folded; a wait needs only its message. @param {Task} task */
function errorElement(task) {
  const message = task.error?.message;
  if (asksToWait(task)) {
    return !NO_MESSAGE.test(message || '') && h('div', {}, h('h2', {}, t('Why it waits')),
      h('p', { class: 'code', dir: 'auto' }, message));
  }
  const traceback = task.error?.traceback;
  return h('div', {}, h('h2', {}, t('Error')),
    h('p', { class: 'mono code bad', dir: 'auto' }, errorLine(task)),
    traceback && h('details', {}, h('summary', {}, t('Traceback')),
      h('pre', { class: 'code', tabindex: 0, role: 'group', 'aria-label': t('Traceback') },
        traceback)));
}

/** One thing that happened. @param {Activity} entry @param {number|null} [schedule] */
function activityElement(entry, schedule) {
  const { at, event, attempt, waited } = entry;
  const words = entry.message === 'error' ? '' : messageWords(entry);
  const asked = event === 'retry' && /^asked for a retry in /.test(entry.message || '');
  const details = [
    event === 'started' && attempt && attempt > 1 && t('attempt {attempt}', { attempt }),
    waited != null && t('waited {time}', { time: duration(waited) }),
    measuresOf(entry, entry.cpu_seconds),
    event === 'started' && entry.worker && t('worker {id}', { id: entry.worker }),
    event === 'added' && schedule && t('from schedule {id}', { id: schedule }),
    entry.actor && t('by {name}', { name: saidName(entry.actor) }),
    event !== 'failed' && !asked && words,
  ].filter(Boolean).join(', ');
  return h('li', {}, h('time', { datetime: at }, exact.format(new Date(at))),
    h('span', {}, h('b', {}, asked ? words : eventWords(event)), details && ` ${details}`));
}

/** The ids of the list's rows, of the pages that were read since, and where the next page begins. */
let trail = { ids: [0], next: /** @type {string|null} */ (null), params: new URLSearchParams() };
/** @type {AbortSignal|undefined} the visit of the list of which these are */
let visit;

/**
 * The tasks before and after a task in the list; undefined if one did not come from there.
 * @param {number} id @param {AbortSignal} signal
 * @returns {Promise<(number|undefined)[]|undefined>}
 */
async function findBeside(id, signal) {
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

const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];
const SHOWN = 5;
const FIRST_ROWS = 10;
const MOST_LINES = 40;
const MOST_TEXT = 20000;

/** The list; it is read anew whenever the task's state has changed. */
class FilesView {
  root = h('section', { hidden: true });
  last = '';
  /** Those that it was given, by their ids. @type {Map<unknown, TaskFile>} */
  given = new Map();
  /** Those that the result names, by their names. @type {Map<unknown, TaskFile>} */
  returned = new Map();
  /** The returned pictures by their names. @type {Map<string, HTMLImageElement>} */
  pictures = new Map();

  /** @param {number} id of the task */
  constructor(id) {
    this.path = `api/tasks/${id}/files`;
  }

  /** @param {unknown} result of the task @param {AbortSignal} signal */
  async refresh(result, signal) {
    const { files } = /** @type {{files: TaskFile[]}} */ (await get(this.path, signal));
    const text = JSON.stringify([files, result]);
    if (signal.aborted || text === this.last) return;
    this.last = text;
    this.given = new Map(files.map((file) => [file.id, file]));
    const names = new Set(result && typeof result === 'object' ? Object.values(result) : [result]);
    this.returned = new Map(files.filter(({ id, name }) => !id && names.has(name))
      .map((file) => [file.name, file]));
    await this.readPictures();
    this.root.hidden = !files.length;
    this.root.replaceChildren(h('h2', {}, t('Files')), h('ul', { class: 'files' },
      .../** @type {TaskFile[]} */ (files).map((file, place) => (
        this.item(file, place < SHOWN && !file.id && !this.pictures.has(file.name))))));
  }

  /** Loads the first returned pictures: their height must be known before they are shown. */
  async readPictures() {
    const pictures = [...this.returned.values()].filter(({ type }) => PICTURES.includes(type))
      .slice(0, SHOWN).map((file) => h('img', { src: this.pathOf(file), alt: file.name }));
    await Promise.all(pictures.map((picture) => picture.decode().catch(() => null)));
    this.pictures = new Map(pictures.map((picture) => [picture.alt, picture]));
  }

  /** A file that the result names: the picture, which opens in full, or a link. @param {unknown} value */
  elementOf(value) {
    const file = this.returned.get(value);
    const picture = file && this.pictures.get(file.name);
    return picture ? h('a', { class: 'picture', href: picture.src, target: '_blank', rel: 'noopener' }, picture)
      : file && this.link(file, file.name);
  }

  /** @param {TaskFile} file */
  pathOf({ id, name }) {
    return `${this.path}/${encodeURIComponent(id || name)}`;
  }

  /** A link to save a file. @param {TaskFile} file @param {string} words */
  link(file, words) {
    return h('a', { href: this.pathOf(file), download: file.name }, words);
  }

  /** Name and size, and what can be seen of it. @param {TaskFile} file @param {boolean} open */
  item(file, open) {
    const { id, name, size, type } = file;
    const path = this.pathOf(file);
    const seen = PICTURES.includes(type) ? () => h('img', { src: path, alt: name })
      : /^text\//.test(type) && size > 0 && (() => beginningOf(path, name));
    return h('li', {}, h('p', {}, h('b', {}, h('bdi', {}, name)), h('span', { class: 'help' },
      sizeWords(size), id && ` · ${t('uploaded')}`), this.link(file, t('Download'))),
    seen && preview(seen, open));
  }
}

/**
 * What is made once it is unfolded.
 * @param {() => Node|Promise<Node>} make @param {boolean} open
 */
function preview(make, open) {
  const place = h('div');
  const fold = h('details', { open, ontoggle: () => (
    fold.open && !place.firstChild && act(place, async () => place.replaceChildren(await make()))) },
  h('summary', {}, t('Show')), place);
  return fold;
}

/** The first rows of a table, or the first lines of a text. @param {string} path @param {string} name */
async function beginningOf(path, name) {
  const [text, whole] = await readBeginning(path);
  const isTable = /\.(csv|tsv)$/i.test(name);
  const [shown, cut] = isTable ? await rowsOf(text, name) : linesOf(text);
  return h('div', {}, shown, (cut || !whole) && h('p', { class: 'help' },
    t('Only its beginning is shown.')));
}

/** @param {string} text @returns {[HTMLElement, boolean]} */
function linesOf(text) {
  const lines = text.split('\n');
  return [h('pre', { class: 'code', tabindex: 0, role: 'group', 'aria-label': t('Text') },
    lines.slice(0, MOST_LINES).join('\n')), lines.length > MOST_LINES + 1];
}

/** @param {string} text @param {string} name @returns {Promise<[HTMLElement, boolean]>} */
async function rowsOf(text, name) {
  const { readTable } = await import('./new.js');
  const { rows } = readTable(text.replace(/\r\n?/g, '\n').trimEnd(), false);
  const [titles, ...body] = rows.slice(0, FIRST_ROWS + 1);
  return [h('div', { class: 'wide cells', tabindex: 0, role: 'group', 'aria-label': name },
    table('', name, titles, h('tbody', {}, ...body.map((row) => h('tr', {},
      ...row.map((cell) => valueCell(cell))))))), rows.length > FIRST_ROWS + 1];
}

/** The first characters, and whether that is all. @param {string} path @returns {Promise<[string, boolean]>} */
async function readBeginning(path) {
  const { body, ok, status } = await fetch(path).catch(() => new Response(null, { status: 502 }));
  if (!ok || !body) throw new ApiError(status);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ''; ;) {
    const { done, value } = await reader.read();
    if (done) return [text, true];
    text += value;
    if (text.length > MOST_TEXT) {
      reader.cancel();
      return [text.slice(0, MOST_TEXT), false];
    }
  }
}
