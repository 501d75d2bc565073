// @ts-check
/** New tasks: choose a function, fill in its form, or give a table with a task per line. */
import { ApiError, get, isAdmin, ownName, poll, request } from './api.js';
import { now } from './clock.js';
import { find, h, render, setText, table, textWith } from './dom.js';
import { countWords } from './format.js';
import {
  choice, durationInput, field, head, heading, localTime, refusal, savedMenu, say, secondsFrom,
  sendingForm,
  valuesOf,
} from './forms.js';
import {
  argumentFields, argumentsFrom, introduction, isFile, needChange, optionFields, optionsFrom,
  otherFunction, propertiesOf, readCell, readFunctions, readQueues, showFunctions, utc, zoneHelp,
} from './functions.js';
import { t } from './language.js';
import { forecastWords } from './said.js';
import { mailField } from './telling.js';

/** @import {Columns, Line, Page, Row, Saved, Task, TaskFunction, Values} from './types.js' */

const SHOWN = 5;
const LINES = 'application/x-ndjson';
const FIX = { field: 'lines', message: t('Please fix the errors below.') };
const MOST = 100000;
const SEPARATORS = ['\t', ';', ','];

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  needChange();
  const from = params.get('from');
  const [functions, queues, task, last] = await Promise.all([
    readFunctions(signal), id ? readQueues(signal) : [],
    from ? get(`api/tasks/${encodeURIComponent(from)}`, signal) : readSaved(id, params.get('saved'), signal),
    id && !from ? readLast(id, signal) : null,
  ]);
  if (signal.aborted) return;
  const chosen = functions.find(({ name }) => name === id);
  if (chosen && params.has('many')) showMany(chosen, queues, signal);
  else if (chosen) showForm(chosen, queues, task, last, signal, params.get('instead'));
  else await showFunctions(t('New task'), functions, id, (name) => `#/new/${name}`, signal);
}

/**
 * One's own last task of a function.
 * @param {string} name @param {AbortSignal} signal @returns {Promise<Row|undefined>}
 */
async function readLast(name, signal) {
  const query = new URLSearchParams({ function: name, owner: ownName(), limit: '1' });
  return (await get(`api/tasks?${query}`, signal)).tasks[0];
}

/** Values of a function that were saved by name.
 * @param {string} name @param {string|null} id @param {AbortSignal} signal */
async function readSaved(name, id, signal) {
  if (!id) return null;
  const { saved } = await get('api/saved', signal);
  const one = saved.find((/** @type {Saved} */ one) => `${one.page}?${one.id}` === `new/${name}?${id}`);
  if (!one) throw new ApiError(404);
  return one.value;
}

/**
 * The form of one function.
 * @param {TaskFunction} chosen
 * @param {string[]} queues
 * @param {Task|null} task an earlier task whose values are filled in
 * @param {Row|null|undefined} last whose values could be
 * @param {AbortSignal} signal
 * @param {string|null} instead the unique key of the earlier task, or "", if the new one replaces it
 */
function showForm(chosen, queues, task, last, signal, instead) {
  const name = encodeURIComponent(chosen.name);
  const options = task ? chosenOf(chosen, task) : {};
  // What was masked is another's secret: it is asked for anew.
  const given = task ? Object.fromEntries(
    Object.entries(task.arguments).filter(([, value]) => value !== '•••')) : undefined;
  const form = sendingForm(t('Add task'), async (now, before) => {
    const added = await add({
      arguments: argumentsFrom(chosen.schema, now, before, given),
      ...readOptions(chosen, now, before, options),
    });
    if (!signal.aborted) location.hash = `#/tasks/${added.id}`;
    else say(t('Task {id} was added.', added), true);
  }, ...argumentFields(chosen.schema, given || {}), mailField(chosen, options),
  laterFields(chosen, options, queues, task && instead !== null
    ? { ...task, unique_key: instead } : undefined));
  form.lastElementChild?.before(forecastLine(chosen, form, signal));
  form.lastElementChild?.append(
    h('a', { class: 'button', href: `#/new/${name}?many=1` }, t('Add many (CSV)')),
    h('a', { class: 'button', href: `#/schedules/new?function=${name}` }, t('Schedule it')));
  const before = valuesOf(form);
  const menu = chosen.schema.properties && savedMenu(() => import('./saved.js'), `new/${chosen.name}`, () => ({
    arguments: Object.fromEntries(Object.entries(argumentsFrom(chosen.schema, valuesOf(form), before, given))
      .filter(([parameter]) => !isFile(chosen.schema, parameter))),
    ...optionsFrom(valuesOf(form), before, options),
  }), ({ id }) => `#/new/${name}?saved=${id}`);
  render(t('New {name}', chosen), otherFunction('#/new'), head(chosen.name, menu),
    ...introduction(chosen), last && chosen.schema.properties && lastLine(name, last), form);
}

/** Offers the values of the last task. @param {string} name @param {Row} last */
const lastLine = (name, { id, summary }) => h('p', { class: 'help' },
  h('a', { href: `#/new/${name}?from=${id}` }, t('Use the values of {task}', { task: `#${id}` })),
  summary && ': ', h('bdi', {}, summary));

/**
 * When the task would begin, in the queue and with the priority that the form says.
 * @param {TaskFunction} chosen @param {HTMLFormElement} form @param {AbortSignal} signal
 */
function forecastLine(chosen, form, signal) {
  const line = h('p', { class: 'help' });
  const look = async () => {
    const { queue = '', priority = '' } = valuesOf(form);
    const query = new URLSearchParams({ function: chosen.name, queue: queue.trim(), priority });
    const words = forecastWords(await get(`api/forecast?${query}`, signal));
    setText(line, words && t('If you add it now: {words}', { words }));
    return 10;
  };
  const failed = () => setText(line, '');
  form.addEventListener('change', () => look().catch(failed));
  poll(signal, look);
  return line;
}

/**
 * A table instead of a form.
 * @param {TaskFunction} chosen @param {string[]} queues @param {AbortSignal} signal
 */
function showMany(chosen, queues, signal) {
  const fields = new Sheet(chosen, (count, wrong) => {
    const button = /** @type {HTMLButtonElement} */ (find('.primary', form));
    button.disabled = wrong > 0;
    setText(button, wrong ? t.n('Fix the error first | Fix {count} errors first', wrong)
      : count ? t.n('Add {count} task | Add {count} tasks', count, shown(count)) : t('Add tasks'));
  });
  const form = sendingForm(t('Add tasks'), async (now, before) => {
    const body = fields.body(readOptions(chosen, now, before, {}));
    const { created } = await add(body).catch((error) => {
      throw fields.explain(error);
    });
    if (!signal.aborted) location.hash = `#/tasks?function=${encodeURIComponent(chosen.name)}`;
    say(t.n('{count} task added. | {count} tasks added.', created), true);
  }, fields.root, mailField(chosen, {}), laterFields(chosen, {}, queues));
  const one = `#/new/${encodeURIComponent(chosen.name)}`;
  form.lastElementChild?.append(h('a', { class: 'button', href: one }, t('Add one')));
  render(t('New {name}', chosen), otherFunction('#/new'), heading(chosen.name, ' ',
    h('span', { class: 'summary' }, t('many at once'))), ...introduction(chosen), form);
}

let last = { text: '', key: '' };

/** Adds tasks; once, if it is tried again because the answer was lost. @param {{}} body */
async function add(body) {
  const text = body instanceof Blob ? await body.text() : JSON.stringify(body);
  if (text !== last.text) last = { text, key: crypto.getRandomValues(new Uint32Array(4)).join() };
  const added = await request('POST', 'api/tasks', body, undefined, last.key).catch((error) => {
    error.safe = true;
    throw error;
  });
  last.text = '';
  return added;
}

/**
 * Adds a task with the values and options of an earlier one, and shows it.
 * @param {Task} task
 */
export async function addAgain(task) {
  const { arguments: values, function: name } = task;
  const functions = await readFunctions(new AbortController().signal);
  const chosen = functions.find((one) => one.name === name);
  const added = await add({ function: name, arguments: values, ...chosen && chosenOf(chosen, task) });
  location.hash = `#/tasks/${added.id}`;
}

/**
 * The options of a task that are not those of its function; less care is for admins to choose.
 * @param {TaskFunction} chosen
 * @param {Task} task
 */
const chosenOf = ({ options }, task) => Object.fromEntries(Object.entries(task).filter(
  ([name, value]) => name in options && value !== options[name]
    && (name !== 'on_crash' || value === 'fail' || isAdmin())));

/**
 * What hardly anyone needs, folded; empty fields mean what the function says.
 * @param {TaskFunction} chosen
 * @param {Record<string, unknown>} options
 * @param {string[]} queues
 * @param {Task} [earlier] which the new one replaces
 */
function laterFields(chosen, options, queues, earlier) {
  const { after = [], after_failure: failure = '', unique_key: key, run_at: at } = earlier || {};
  const isLater = Boolean(at) && Date.parse(String(at)) > now();
  return h('details', { open: isLater || after.length > 0 || Boolean(key) }, h('summary', {}, t('Start time and options')), h('div', { class: 'grid' },
    field(t('Start at'), h('input', { name: 'run_at', type: 'datetime-local',
      value: isLater && localTime(new Date(String(at))) }),
      { help: zoneHelp }),
    field(t('Or start after'), durationInput('delay', null), { help: t('Such as 90 min or 2 h.') }),
    ...optionFields(chosen, options, queues),
    field(t('After'), h('input', { name: 'after', inputmode: 'numeric', autocomplete: 'off',
      value: after.join(', ') }),
      { help: t('Numbers of tasks that must have succeeded, such as 7, 8.') }),
    field(t('If one of them fails'), choice({ name: 'after_failure' },
      [['', t('fail too')], ['run', t('run anyway')]], failure || '')),
    field(t('Unique key'), h('input', { name: 'unique_key', autocomplete: 'off', value: key }),
      { help: t('While a task with this key is not finished, no second one is added.') })));
}

/**
 * Of the options only those that were filled in or were chosen before.
 * @param {TaskFunction} chosen
 * @param {Values} now @param {Values} before
 * @param {Record<string, unknown>} old
 */
function readOptions(chosen, now, before, old) {
  const { run_at: at, after, after_failure: failure, unique_key: key } = now;
  const delay = secondsFrom(now, 'delay');
  if (at && delay !== null) {
    throw refusal([{ field: 'delay', message: t('Fill in either this or the time above.') }]);
  }
  const ids = after.split(/[\s,#]+/).filter(Boolean);
  if (ids.some((id) => !/^\d+$/.test(id))) {
    throw refusal([{ field: 'after', message: t('Please use numbers of tasks.') }]);
  }
  return { function: chosen.name,
    ...optionsFrom(now, before, old),
    run_at: at ? utc(at) : null,
    delay,
    after: ids.map(Number),
    after_failure: failure || null,
    unique_key: key.trim() || null };
}

/**
 * Read the rows of a text; cells in quotes may hold anything. `broken` is the number of the row
 * whose quotes cannot be read, after which there are no rows, or 0.
 * @param {string} text @param {boolean} trims spaces around cells, as people type them
 */
export function readTable(text, trims = true) {
  const hint = text.match(/^"?sep=(.)"?\n/);      // as Excel writes it for itself
  text = text.slice(hint?.[0].length || 0);
  const [head] = text.match(/^(?:[^"\n]|"(?:[^"]|"")*")*/) || [''];
  const first = head.replace(/"(?:[^"]|"")*"/g, '');
  const separator = hint?.[1] || SEPARATORS.reduce((best, one) => (
    first.split(one).length > first.split(best).length ? one : best));
  const sign = separator.replace(/[^\w\s]/, '\\$&');
  const plain = `[^${sign}\n]*`;
  const space = trims ? ' *' : '';
  const quotes = `${space}"((?:[^"]|"")*)"${space}`;
  const cell = new RegExp(`(?:${quotes}|(?!${space}")(${plain}))(${sign}|\n|$)`, 'gy');
  /** @type {string[][]} */
  const rows = [[]];
  for (const [, quoted, bare, end] of text.matchAll(cell)) {
    rows[rows.length - 1].push(quoted?.replace(/""/g, '"') ?? (trims ? bare.trim() : bare));
    if (!end) return { rows, broken: 0 };
    if (end === '\n') rows.push([]);
  }
  return { rows, broken: rows.length };
}

/** The table of many tasks: what is read from it, and what is sent. */
class Sheet {
  /** @type {Line[]} */
  lines = [];
  /** @type {string[]} */
  errors = [];
  /** @type {string[]} */
  names = [];
  file = '';
  timer = 0;
  text = h('textarea', { name: 'lines', rows: 8, spellcheck: 'false', class: 'mono', wrap: 'off',
    oninput: () => this.later() });
  choice = h('input', { type: 'file', name: 'file', accept: '.csv,.txt',
    onclick: () => { this.choice.value = ''; }, onchange: () => this.open() });
  note = h('p', { class: 'help', role: 'status' });
  wrong = h('p', { class: 'error text' });
  preview = h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': t('First rows') });

  /** @param {TaskFunction} chosen @param {(count: number, wrong: number) => void} changed */
  constructor(chosen, changed) {
    this.properties = propertiesOf(chosen.schema);
    this.more = chosen.schema.additionalProperties;
    this.changed = changed;
    const names = this.properties.map(({ name }) => name).join(', ');
    this.root = h('div', {}, field(t('Table'), this.text, { help: t('One task per line, with '
      + 'commas, semicolons or tabs between the values. The first line names the parameters: '
      + '{names}.', { names }) }), field(t('Or a CSV file'), this.choice),
    this.note, this.wrong, this.preview);
  }

  /** Reads once one has stopped typing. */
  later() {
    this.choice.value = this.file = '';
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.read(), 300);
  }

  /** A chosen file; spreadsheets do not always write UTF-8. */
  async open() {
    const [file] = this.choice.files || [];
    if (!file) return;
    const bytes = await file.arrayBuffer();
    try {
      this.file = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    } catch {
      this.file = new TextDecoder('windows-1252').decode(bytes);
    }
    this.text.value = '';
    // A small file is shown in the table, to be mended there.
    if (this.file.length < MOST) [this.text.value, this.file] = [this.file, ''];
    this.read();
  }

  /** Reads all of it, and shows what it means. */
  read() {
    const text = (this.file || this.text.value).replace(/\r\n?/g, '\n');
    const { rows: [first, ...rows], broken } = readTable(text, !this.file);
    const columns = first.map((cell) => this.columnOf(cell.trim()));
    this.lines = [];
    this.names = first;
    this.errors = text.trim() ? this.errorsIn(first, columns) : [];
    rows.forEach((cells, place) => {
      if (!this.errors.length || this.lines.length) this.take(cells, place + 2, columns);
    });
    if (broken) {
      this.errors.unshift(t('Row {row}: a quote is not closed, or something follows it. Write a '
        + 'quote inside quotes twice.', { row: broken }));
    }
    if (this.lines.length > MOST) {
      this.errors.unshift(t('At most {count} tasks at once.', { count: MOST }));
    }
    this.patch();
  }

  /** The parameter of a column; names may differ in case. @param {string} cell @returns {Columns[number]} */
  columnOf(cell) {
    const { more, properties } = this;
    return properties.find(({ name }) => name === cell)
      || properties.find(({ name }) => name.toLowerCase() === cell.toLowerCase())
      || (more && cell ? { name: cell, required: false, value: undefined, schema: Object(more) } : undefined);
  }

  /** What is wrong with the first row. @param {string[]} first @param {Columns} columns */
  errorsIn(first, columns) {
    const missing = this.properties.filter((one) => one.required && !columns.includes(one));
    return [
      ...first.flatMap((cell, place) => {
        const name = cell.slice(0, 40);
        if (!columns[place]) return t('Row 1: there is no parameter “{name}”.', { name });
        return columns.findIndex((one) => one?.name === columns[place]?.name) < place
          ? t('Row 1: {name} is there twice.', { name }) : [];
      }),
      ...missing.map(({ name }) => t('Row 1: {name} is missing.', { name })),
    ];
  }

  /** Unless it is empty. @param {string[]} cells @param {number} row @param {Columns} columns */
  take(cells, row, columns) {
    if (!cells.some(Boolean)) return;
    /** @type {Record<string, unknown>} */
    const values = {};
    const before = this.errors.length;
    if (cells.length !== columns.length) {
      this.errors.push(t('Row {row} must have as many cells as row 1, {most}; it has {count}.',
        { row, most: columns.length, count: cells.length }));
    }
    columns.forEach((column, place) => {
      if (!column || place >= cells.length) return;
      const { name, schema, required } = column;
      try {
        const value = readCell(schema, cells[place]);
        if (value !== undefined) values[name] = value;
        else if (required) throw new Error(t('Please fill this in.'));
      } catch (error) {
        this.errors.push(rowWords(row, name, /** @type {Error} */ (error).message));
      }
    });
    this.lines.push({ row, cells, arguments: values, wrong: this.errors.length > before });
  }

  /** The count, the first rows, and what is wrong. */
  patch() {
    const { lines, errors, names } = this;
    const wrong = lines.filter((line) => line.wrong);
    const some = lines.length > SHOWN && wrong.length ? wrong : lines;
    const { length } = lines;
    setText(this.note, length <= SHOWN ? '' : some === wrong
      ? t('{count} tasks, with errors in:', shown(length))
      : t('{count} tasks, beginning with:', shown(length)));
    this.wrong.hidden = !errors.length;
    setText(this.wrong, [...errors.slice(0, 10),
      errors.length > 10 && t('and {count} more', { count: errors.length - 10 })]
      .filter(Boolean).join('\n'));
    this.preview.replaceChildren(lines.length ? table('', t('First rows'), [t('Row'), ...names],
      h('tbody', {}, ...some.slice(0, SHOWN).map(lineRow))) : '');
    this.changed(lines.length, errors.length);
  }

  /** One JSON object a line. @param {Record<string, unknown>} options for all of them */
  body(options) {
    this.read();
    if (this.errors.length || !this.lines.length) {
      const empty = this.names.some(Boolean) ? t('There is no row below the first one.')
        : t('Please fill this in.');
      throw refusal([this.errors.length ? FIX : { ...FIX, message: empty }]);
    }
    return new Blob(this.lines.map((line) => (
      `${JSON.stringify({ ...options, arguments: line.arguments })}\n`)), { type: LINES });
  }

  /** Names rows as the table counts them, what all rows share once. @param {any} error */
  explain(error) {
    const rest = new Map();
    for (const { index, field: name, message } of error.errors || []) {
      const line = this.lines[index];
      if (!line || !name.startsWith('arguments')) rest.set(name, { field: name, message });
      else {
        this.errors.push(rowWords(line.row, name.slice(10), message));
        line.wrong = true;
      }
    }
    if (this.errors.length) rest.set('lines', FIX);
    error.errors = [...rest.values()];
    this.patch();
    return error;
  }
}

/** @param {number} count */
const shown = (count) => ({ count: countWords(count, MOST) });

/** What is wrong with a cell. @param {number} row @param {string} name @param {string} message */
const rowWords = (row, name, message) => t('Row {row}, {name}: {message}', { row, name, message });

/** A row as it was given; a mark says that it is wrong. @param {Line} line */
const lineRow = ({ row, cells, wrong }) => h('tr', { 'data-state': wrong && 'failed' },
  h('th', { scope: 'row' }, `${wrong ? '✕ ' : ''}${row}`), ...cells.map((text) => h('td', {}, text)));
