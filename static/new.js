// @ts-check
/** A new task: choose a function, fill in the form that its JSON Schema describes. */
import { get, request } from './api.js';
import { h, render } from './dom.js';
import {
  check, field, refusal, sampleHint, sendingForm, showButton, valuesOf,
} from './forms.js';
import { isAdmin, store } from './store.js';

/** @import {Page, Schema, Task, TaskFunction} from './types.js' */
/** @typedef {{name: string, schema: Schema, required: boolean}} Property */

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const zoneHelp = `Your time zone: ${ZONE || 'local time'}.`;
const SCALARS = ['string', 'integer', 'number'];
/** @type {Record<string, string>} */
const INPUTS = {
  date: 'date', time: 'time', password: 'password', 'date-time': 'datetime-local',
};
/** @type {Record<string, string>} */
const STEPS = { integer: '1', number: 'any', time: '1', 'datetime-local': '1' };

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  const from = params.get('from');
  const [catalogue, task] = await Promise.all([
    get('api/functions', signal),
    from && get(`api/tasks/${encodeURIComponent(from)}`, signal),
  ]);
  if (signal.aborted) return;
  store.set('catalogue', catalogue);
  const functions = /** @type {TaskFunction[]} */ (catalogue.functions)
    .filter(({ who }) => who === 'user' || (who === 'admin' && isAdmin()));
  const chosen = functions.find(({ name }) => name === id);
  if (chosen) showForm(chosen, task || null);
  else showChoice(functions, id);
}

/**
 * The functions, each with the first line of its documentation.
 * @param {TaskFunction[]} functions
 * @param {string} missing a function that was asked for and is not there
 */
function showChoice(functions, missing) {
  const items = functions.map(({ name, title }) => h('li', {},
    h('a', { href: `#/new/${encodeURIComponent(name)}` }, h('b', {}, name),
      title !== name && h('span', { class: 'help' }, title))));
  render('New task', h('h1', { tabindex: -1 }, 'New task'),
    missing && h('p', {}, `There is no function “${missing}” that you can add.`),
    h('p', { class: 'help' }, items.length ? 'What should run?'
      : 'There is no function that you can add.'),
    h('ul', { class: 'choices' }, ...items), ...sampleHint());
}

/**
 * The form of one function.
 * @param {TaskFunction} chosen
 * @param {Task|null} task an earlier task whose values are filled in
 */
function showForm(chosen, task) {
  const properties = propertiesOf(chosen.schema);
  const values = task?.arguments || {};
  const form = sendingForm('Add task', async (sent) => {
    const body = readForm(chosen, sent);
    const added = await request('POST', 'api/tasks', body);
    location.hash = `#/tasks/${added.id}`;
  }, ...properties.map((property) => fieldFor(property, values)), laterFields(chosen, task));
  form.lastElementChild?.append(h('a', { class: 'button', href: '#/new' }, 'Another function'));
  render(`New ${chosen.name}`, h('h1', { tabindex: -1 }, chosen.name),
    chosen.title !== chosen.name && h('p', { class: 'lead' }, chosen.title),
    chosen.description && h('p', { class: 'help text' }, chosen.description),
    !properties.length && h('p', { class: 'help' }, 'It takes no values.'), form);
}

/**
 * What hardly anyone needs, folded; empty fields mean what the function says.
 * @param {TaskFunction} chosen
 * @param {Task|null} task
 */
function laterFields({ options }, task) {
  /** @param {keyof TaskFunction['options']} name */
  const usual = (name) => ({
    name, placeholder: options[name], value: task && task[name] !== options[name] && task[name],
  });
  const unit = h('select', { name: 'unit', 'aria-label': 'Unit of the delay' },
    ...[['1', 'seconds'], ['60', 'minutes'], ['3600', 'hours'], ['86400', 'days']].map(
      ([value, word]) => h('option', { value, selected: value === '60' }, word)));
  const most = isAdmin() ? 100 : 0;
  return h('details', {}, h('summary', {}, 'Later and options'), h('div', { class: 'grid' },
    field('Start at', h('input', { name: 'run_at', type: 'datetime-local' }), { help: zoneHelp }),
    field('Or start after', number({ name: 'delay', min: 0, step: 'any' }), { after: unit }),
    field('Priority', number({ ...usual('priority'), min: -100, max: most }),
      { help: `From -100 to ${most}; larger goes first.` }),
    field('Queue', h('input', { ...usual('queue'), spellcheck: 'false' })),
    field('Retries', number({ ...usual('max_retries'), min: 0 }),
      { help: 'How often it is tried again after an error.' }),
    field('Time limit', number({ ...usual('timeout'), min: 1 }), { help: 'In seconds.' })));
}

/** A field for a number. @param {Record<string, unknown>} attributes */
const number = (attributes) => h('input', { type: 'number', step: 1, ...attributes });

/**
 * What is sent: the arguments, and of the options only those that were filled in.
 * @param {TaskFunction} chosen
 * @param {HTMLFormElement} form
 */
function readForm(chosen, form) {
  const values = valuesOf(form);
  const { run_at: at, delay, unit, queue } = values;
  if (at && delay) {
    throw refusal([{ field: 'delay', message: 'Fill in either this or the time above.' }]);
  }
  /** @type {Record<string, unknown>} */
  const body = {
    function: chosen.name,
    arguments: argumentsFrom(propertiesOf(chosen.schema), new FormData(form)),
  };
  for (const name of ['priority', 'max_retries', 'timeout']) {
    if (values[name]) body[name] = Number(values[name]);
  }
  if (queue.trim()) body.queue = queue.trim();
  if (at) body.run_at = utc(at);
  if (delay) body.delay = Number(delay) * Number(unit);
  return body;
}

/**
 * The properties of a function's schema, in the order of its signature.
 * @param {Schema} schema
 * @returns {Property[]}
 */
function propertiesOf({ properties = {}, required = [] }) {
  return Object.entries(properties).map(([name, schema]) => (
    { name, schema, required: required.includes(name) && !isNullable(schema) }));
}

/** Whether leaving it empty means None. @param {Schema} schema */
function isNullable({ type, enum: values }) {
  return Boolean((Array.isArray(type) && type.includes('null')) || values?.includes(null));
}

/** The type without null. @param {Schema} schema */
const typeOf = ({ type }) => (Array.isArray(type) ? type.find((one) => one !== 'null') : type);

/** How a property is asked for. @param {Schema} schema */
function kindOf(schema) {
  const type = typeOf(schema);
  if (schema.enum || (type === 'boolean' && isNullable(schema))) return 'choice';
  if (type === 'boolean') return 'check';
  if (type === 'object') return 'json';
  if (type === 'array') return isListOfScalars(schema) ? 'lines' : 'json';
  return String(schema.default ?? '').includes('\n') ? 'text' : 'input';
}

/** Whether one value per line can say it. @param {Schema} schema */
function isListOfScalars({ items }) {
  const type = items && typeOf(items);
  return !items?.enum && (!type || SCALARS.includes(type));
}

/**
 * One field of the form, with the value of an earlier task or the default filled in.
 * @param {Property} property
 * @param {Record<string, unknown>} values
 */
function fieldFor({ name, schema, required }, values) {
  const value = name in values ? values[name] : schema.default;
  const kind = kindOf(schema);
  const options = { name: `arguments.${name}`, required };
  const help = helpFor(schema, kind);
  if (kind === 'check') {
    const input = h('input', { ...options, required: false, type: 'checkbox', checked: value });
    return check(labelFor(name), input, help);
  }
  const control = CONTROLS[kind](schema, value, options);
  const password = schema.format === 'password';
  const after = password && showButton(/** @type {HTMLInputElement} */ (control), labelFor(name));
  return field(labelFor(name), control, { help, optional: !required, after });
}

/** A parameter's name as words. @param {string} name */
const labelFor = (name) => name.replace(/_/g, ' ').replace(/^./, (first) => first.toUpperCase());

/** What stands below a field. @param {Schema} schema @param {string} kind */
function helpFor(schema, kind) {
  const range = [schema.minimum, schema.maximum];
  return [
    schema.description,
    kind === 'lines' && 'One value per line.',
    kind === 'json' && 'As JSON.',
    schema.format === 'date-time' && zoneHelp,
    range[0] != null && range[1] != null && `From ${range[0]} to ${range[1]}.`,
  ].filter(Boolean).join(' ');
}

/** @type {Record<string, (schema: Schema, value: any, options: {}) => HTMLElement>} */
const CONTROLS = {
  choice: (schema, value, options) => h('select', options, ...choices(schema).map((one, index) => (
    h('option', { value: one === null ? '' : index, selected: one === value },
      choiceWords(one))))),
  lines: (_, value, options) => h('textarea', { ...options, rows: 4, spellcheck: 'false' },
    Array.isArray(value) ? value.join('\n') : ''),
  json: (_, value, options) => h('textarea', { ...options, rows: 4, spellcheck: 'false',
    class: 'mono' }, value == null ? '' : JSON.stringify(value, null, 2)),
  text: (_, value, options) => h('textarea', { ...options, rows: 4 }, String(value ?? '')),
  input: (schema, value, options) => {
    const type = inputType(schema);
    return h('input', { ...options, type, step: STEPS[typeOf(schema) || ''] || STEPS[type],
      min: schema.minimum, max: schema.maximum, value: inputValue(schema, value),
      autocomplete: type === 'password' ? 'new-password' : 'off' });
  },
};

/** What one can choose from; "nothing" first if that is allowed. @param {Schema} schema */
function choices(schema) {
  const values = schema.enum || [true, false];
  const some = values.filter((value) => value !== null);
  return isNullable(schema) ? [null, ...some] : some;
}

/** What a choice is called. @param {unknown} choice */
function choiceWords(choice) {
  if (choice === null) return '–';
  return typeof choice === 'boolean' ? (choice ? 'yes' : 'no') : String(choice);
}

/** The browser's own kind of input. @param {Schema} schema */
function inputType(schema) {
  if (['integer', 'number'].includes(typeOf(schema) || '')) return 'number';
  return INPUTS[schema.format || ''] || 'text';
}

/** A value as that input wants it. @param {Schema} schema @param {any} value */
function inputValue(schema, value) {
  if (value == null) return null;
  return schema.format === 'date-time' ? localTime(new Date(value)) : String(value);
}

/** A time as datetime-local wants it. @param {Date} time */
function localTime(time) {
  if (Number.isNaN(time.getTime())) return '';
  const shifted = new Date(time.getTime() - time.getTimezoneOffset() * 60000);
  return shifted.toISOString().slice(0, 19);
}

/** A datetime-local value in UTC, as the server wants it. @param {string} value */
const utc = (value) => new Date(value).toISOString().replace('.000Z', 'Z');

/**
 * The arguments as filled in; empty optional fields are left out.
 * @param {Property[]} properties
 * @param {FormData} data
 */
function argumentsFrom(properties, data) {
  /** @type {Record<string, unknown>} */
  const result = {};
  const errors = [];
  for (const { name, schema } of properties) {
    const text = String(data.get(`arguments.${name}`) ?? '');
    try {
      const value = READERS[kindOf(schema)](schema, text);
      if (value !== undefined) result[name] = value;
    } catch (error) {
      errors.push({ field: `arguments.${name}`, message: /** @type {Error} */ (error).message });
    }
  }
  if (errors.length) throw refusal(errors);
  return result;
}

/** @type {Record<string, (schema: Schema, text: string) => unknown>} */
const READERS = {
  choice: (schema, text) => (text === '' ? undefined : choices(schema)[Number(text)]),
  check: (_, text) => text !== '',
  lines: ({ items = {}, default: usual }, text) => {
    const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
    return lines.length || usual === undefined
      ? lines.map((line) => readScalar(items, line)) : undefined;
  },
  json: (_, text) => readJson(text),
  text: (_, text) => text || undefined,
  input: readScalar,
};

/** JSON as typed. @param {string} text */
function readJson(text) {
  if (!text.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/** One value as typed. @param {Schema} schema @param {string} text */
function readScalar(schema, text) {
  if (text === '') return undefined;
  const type = typeOf(schema);
  if (type === 'integer' || type === 'number') return readNumber(type, text);
  return schema.format === 'date-time' ? utc(text) : text;
}

/** A number that arrives as it was typed. @param {string} type @param {string} text */
function readNumber(type, text) {
  const number = Number(text);
  if (!Number.isFinite(number)) throw new Error(`“${text}” is not a number.`);
  if (type === 'number') return number;
  if (!Number.isInteger(number)) throw new Error('Please use a whole number.');
  if (!Number.isSafeInteger(number)) throw new Error('This number is too large for the page.');
  return number;
}
