// @ts-check
/** Functions to choose from, and the fields of their tasks: arguments, from a JSON Schema, and other options. */
import { ApiError, get, isAdmin, mayChange, store } from './api.js';
import { now } from './clock.js';
import { parseJson } from './digits.js';
import { find, h, setText } from './dom.js';
import { ZONE, durationText } from './durations.js';
import {
  awaited, button, check, choice, durationInput, field, localTime, page, problemWords, refusal, sampleHint,
  secondsFrom, seekParts, showButton, sizeWords, tellInput,
} from './forms.js';
import { t } from './language.js';
import { readCatalogue } from './live.js';
import { saidProblem } from './said.js';

/** @import {Property, Queues, Schema, TaskFunction, Values} from './types.js' */

const SEARCHED = 8;
const USED_DAYS = 30;

/**
 * The functions that one may add, as they are now.
 * @param {AbortSignal} signal
 * @returns {Promise<TaskFunction[]>}
 */
export async function readFunctions(signal) {
  const { functions } = await readCatalogue(signal);
  return functions.filter(({ who }) => (
    who === 'user' || (who === 'admin' && isAdmin())));
}

/** Who only looks is not shown a form. */
export function needChange() {
  if (!mayChange()) throw new ApiError(403, { detail: t('Viewers cannot change anything.') });
}

/** What is used most lately comes first. @param {TaskFunction[]} functions @param {AbortSignal} signal */
async function byUse(functions, signal) {
  const from = new Date(now() - USED_DAYS * 864e5).toISOString();
  const figures = await get(`api/metrics?step=week&from=${from}`, signal).catch(() => null);
  const used = new Map(figures?.functions.map(
    (/** @type {{name: string, added: number}} */ one) => [one.name, one.added]));
  const usesOf = (/** @type {TaskFunction} */ { name }) => used.get(name) || 0;
  return [...functions].sort((one, other) => usesOf(other) - usesOf(one));
}

/**
 * Which function, each with the first line of its documentation; many can be searched.
 * @param {string} title
 * @param {TaskFunction[]} functions
 * @param {string|null} missing a function that was asked for and is not there
 * @param {(name: string) => string} address
 * @param {AbortSignal} signal
 */
export async function showFunctions(title, functions, missing, address, signal) {
  const many = functions.length >= SEARCHED;
  const sorted = many ? await byUse(functions, signal) : functions;
  if (signal.aborted) return;
  const rows = sorted.map(({ name, title: words }) => h('li', {},
    h('a', { href: address(encodeURIComponent(name)) }, h('b', {}, name),
      saysMore(words, name) && h('span', { class: 'help' }, words))));
  const seek = many ? seekParts(t('Search functions'), rows) : [];
  seek[0]?.addEventListener('keydown', (/** @type {any} */ { key }) => {
    const [match, ...more] = rows.filter((row) => !row.hidden);
    if (key === 'Enter' && match && !more.length) find('a', match).click();
  });
  page(title,
    missing && h('p', {}, t('There is no function “{name}” that you can add.', { name: missing })),
    h('p', { class: 'lead' }, functions.length ? t('What should run?')
      : t('There is no function that you can add.')),
    ...seek,
    h('ul', { class: 'choices' }, ...rows), ...sampleHint());
}

/** Whether a title is more than the name in words. @param {string} title @param {string} name */
const saysMore = (title, name) => title !== name.replaceAll('_', ' ');

/** What stands above the form of a function. @param {TaskFunction} chosen */
export const introduction = ({ name, title, description, remote }) => [
  saysMore(title, name) && h('p', { class: 'lead' }, title),
  description && h('p', { class: 'help text' }, description),
  remote && h('p', { class: 'help' },
    t('Only a remote worker can run it: {names}.', { names: remote.join(', ') })),
];

/** Leads back to the choice. @param {string} href */
export const otherFunction = (href) => h('a', { class: 'back', href }, t('← Another function'));

/** The names of all queues. @param {AbortSignal} signal @returns {Promise<string[]>} */
export async function readQueues(signal) {
  const { queues } = /** @type {Queues} */ (await get('api/queues', signal));
  return queues.map(({ name }) => name);
}

/**
 * Fields for what else can be said; empty ones mean what the function says.
 * @param {TaskFunction} chosen
 * @param {Record<string, unknown>} values those of an earlier task or a schedule
 * @param {string[]} queues to choose from
 */
export function optionFields({ options }, values, queues) {
  /** @param {keyof TaskFunction['options']} name */
  const usual = (name) => ({ name, placeholder: options[name], value: values[name] });
  const most = isAdmin() ? 100 : 0;
  const chosen = String(values.queue || '');
  const names = new Set([...queues, ...chosen ? [chosen] : []]);
  names.delete(options.queue);
  return [
    field(t('Priority'), number({ ...usual('priority'), min: -100, max: most }),
      { help: t('From -100 to {most}; larger goes first.', { most }) }),
    field(t('Queue'), choice({ name: 'queue' }, [['', options.queue],
      ...[...names].map((name) => /** @type {[string, string]} */ ([name, name]))], chosen)),
    field(t('Retries'), number({ ...usual('max_retries'), min: 0 }),
      { help: t('Number of retries after an error.') }),
    field(t('Time limit'), durationInput('timeout', values.timeout,
      { placeholder: durationText(options.timeout) }), { help: t('Such as 90 min or 2 h.') }),
  ];
}

/**
 * The options as they were, but for the fields that were changed.
 * @param {Values} now @param {Values} before
 * @param {Record<string, unknown>} [values] those of an earlier task or a schedule
 */
export function optionsFrom(now, before, values) {
  const options = { ...values };
  const changed = (/** @type {string} */ name) => now[name] !== before[name];
  for (const name of ['priority', 'max_retries'].filter(changed)) {
    options[name] = now[name].trim() ? Number(now[name]) : undefined;
  }
  if (changed('queue')) options.queue = now.queue || undefined;
  if (changed('notify')) options.notify = now.notify || null;
  if (changed('timeout')) options.timeout = secondsFrom(now, 'timeout') ?? undefined;
  return options;
}

export const zoneHelp = t('Your time zone: {zone}.', { zone: ZONE || t('local time') });
const SCALARS = ['string', 'integer', 'number'];
/** @type {Record<string, string>} */
const INPUTS = {
  date: 'date', time: 'time', password: 'password', 'date-time': 'datetime-local',
  integer: 'number', number: 'number', seconds: 'number',
};
/** @type {Record<string, string>} */
const STEPS = { integer: '1', number: 'any', time: '1', 'datetime-local': '1' };

/**
 * A field for each parameter.
 * @param {Schema} schema
 * @param {Record<string, unknown>} values
 */
export function argumentFields(schema, values) {
  const fields = formOf(schema, values).map(fieldFor);
  return fields.length ? fields : [h('p', { class: 'help' }, t('It has no parameters.'))];
}

/** A field for a number. @param {Record<string, unknown>} attributes */
export const number = (attributes) => h('input', { type: 'number', step: 1, ...attributes });

/**
 * The properties of a function's schema, in the order of its signature, with values or defaults.
 * @param {Schema} schema
 * @param {Record<string, unknown>} [values]
 * @returns {Property[]}
 */
export function propertiesOf({ properties = {}, required = [] }, values = {}) {
  return Object.entries(properties).map(([name, schema]) => ({ name, schema,
    required: required.includes(name) && !isNullable(schema),
    value: Object.hasOwn(values, name) ? values[name] : schema.default }));
}

/** What holds the parameters that have no name of their own: **more. */
const REST = '**';

/**
 * The fields of a form: one for each property, and one for all others where a function takes them.
 * @param {Schema} schema
 * @param {Record<string, unknown>} [values]
 */
function formOf(schema, values = {}) {
  const { properties = {}, additionalProperties } = schema;
  const fields = propertiesOf(schema, values);
  if (!additionalProperties) return fields;
  const others = Object.entries(values).filter(([name]) => !Object.hasOwn(properties, name));
  return [...fields, { name: REST, schema: { type: 'object' }, required: false,
    value: others.length ? Object.fromEntries(others) : undefined }];
}

/** Whether leaving it empty means None. @param {Schema} schema */
function isNullable({ type, enum: values }) {
  return Boolean((Array.isArray(type) && type.includes('null')) || values?.includes(null));
}

/** The types but null; a text is read as the first that it fits. @param {Schema} schema */
const typesOf = ({ type }) => [type ?? []].flat().filter((one) => one !== 'null');

/** The first type. @param {Schema} schema */
const typeOf = (schema) => typesOf(schema)[0];

/** What a list has at a place. @param {Schema} schema @param {number} place @returns {Schema} */
const itemOf = ({ prefixItems, items }, place) => prefixItems?.[place] ?? items ?? {};

/** Whether a parameter is a file, which goes with its task. @param {Schema} schema @param {string} name */
export const isFile = ({ properties = {} }, name) => kindOf(properties[name] || {}) === 'file';

/** How such a value is asked for. @param {Schema} schema @param {any} [value] */
function kindOf(schema, value) {
  const types = typesOf(schema);
  const type = types.length === 1 ? types[0] : '';
  if (/^(file|bytes)$/.test((schema.items || schema).format ?? '')) return 'file';
  if (schema.enum || (type === 'boolean' && isNullable(schema))) return 'choice';
  if (type === 'boolean') return 'check';
  if (type === 'array' && isLines(schema, value)) return 'lines';
  if (/array|object/.test(types.join() || typeof (value ?? ''))) return 'json';
  return schema.format !== 'password' && /[\r\n]/.test(`${value}${schema.default}`) ? 'text'
    : 'input';
}

/** Whether one value per line can say it. @param {Schema} schema @param {any} value */
function isLines(schema, value) {
  const places = schema.prefixItems || [schema.items || {}];
  return places.every((one) => !one.enum && SCALARS.includes(typeOf(one) || 'string'))
    && (value ?? []).every?.((/** @type {any} */ one, /** @type {number} */ place) => (
      /^\S(.*\S)?$/.test(one)
      && (typeof one === 'string') === ((typeOf(itemOf(schema, place)) || 'string') === 'string')));
}

/** One field of the form, filled in. @param {Property} property */
function fieldFor({ name, schema, required, value }) {
  const kind = kindOf(schema, value);
  const options = { name: `arguments.${name}`, required };
  const help = helpFor(schema, kind);
  if (kind === 'check') {
    const input = h('input', { ...options, required: false, type: 'checkbox', checked: value });
    return check(labelFor(name), input, help);
  }
  if (kind === 'file') {
    const [control, after] = fileControl({ ...options, multiple: Boolean(schema.items) }, value);
    return field(labelFor(name), control, { help, required, after });
  }
  const control = CONTROLS[kind](schema, value, options);
  const password = schema.format === 'password';
  const after = password && showButton(/** @type {HTMLInputElement} */ (control), labelFor(name));
  return field(labelFor(name), control, { help, required, after });
}

/** A parameter's name as words. @param {string} name */
const labelFor = (name) => (name === REST ? t('More parameters')
  : name.replace(/_/g, ' ').replace(/^./, (first) => first.toUpperCase()));

/** What stands below a field. @param {Schema} schema @param {string} kind */
function helpFor({ description, format, minimum, maximum }, kind) {
  return [
    description?.replace(/[\w)]$/, '$&.'),
    kind === 'lines' && t('One value per line.'),
    kind === 'json' && t('As JSON.'),
    kind === 'file' && t('Choose it or drop it here; at most {size}.', { size: sizeWords(mostBytes()) }),
    format === 'date-time' && zoneHelp,
    format === 'seconds' && t('In seconds.'),
    minimum != null && maximum != null && t('From {minimum} to {maximum}.', { minimum, maximum }),
  ].filter(Boolean).join(' ');
}

/** @type {Record<string, (schema: Schema, value: any, options: {}) => HTMLElement>} */
const CONTROLS = {
  choice: (schema, value, options) => h('select', options, ...choices(schema).map((one, index) => (
    h('option', { value: one === null ? '' : index,
      selected: [one, wordsOf(schema)(one)].includes(value) }, wordsOf(schema)(one))))),
  lines: (_, value, options) => h('textarea', { ...options, rows: 4, spellcheck: 'false' },
    (value ?? []).join('\n')),
  json: (_, value, options) => h('textarea', { ...options, rows: 4, spellcheck: 'false',
    class: 'mono' }, value == null ? '' : JSON.stringify(value, null, 2)),
  text: (_, value, options) => h('textarea', { ...options, rows: 4 }, String(value ?? '')),
  input: (schema, value, options) => {
    const type = inputType(schema);
    return h('input', { ...options, type, step: STEPS[typeOf(schema) || ''] || STEPS[type],
      min: schema.minimum, max: schema.maximum, maxlength: schema.maxLength, value: inputValue(schema, value),
      autocomplete: type === 'password' ? 'new-password' : 'off' });
  },
};

/** What one can choose from; "nothing" first if that is allowed. @param {Schema} schema */
function choices(schema) {
  const values = schema.enum || [true, false];
  const some = values.filter((value) => value !== null);
  return isNullable(schema) ? [null, ...some] : some;
}

/** What choices are called. @param {Schema} schema */
const wordsOf = ({ enum: values, enumNames }) => (/** @type {unknown} */ one) => (
  one === null ? '–' : enumNames?.[values?.indexOf(one) ?? -1]
    ?? (typeof one === 'boolean' ? (one ? t('yes') : t('no')) : String(one)));

/** The browser's own kind of input. @param {Schema} schema */
function inputType(schema) {
  const { format } = schema;
  const isSingle = typesOf(schema).length === 1 || format === 'password';
  return (isSingle && INPUTS[format || typeOf(schema) || '']) || 'text';
}

/** A value as that input wants it. @param {Schema} schema @param {any} value */
function inputValue(schema, value) {
  if (value == null) return null;
  return schema.format === 'date-time' ? localTime(new Date(value)) : String(value);
}

/** A datetime-local value in UTC, as the server wants it. @param {string} value */
export const utc = (value) => new Date(value).toISOString().replace('.000Z', 'Z');

/**
 * The arguments as filled in; what is left to its default is left out. What an earlier task or a
 * schedule has stays as it is, if there is no field for it or its field was not changed.
 * @param {Schema} described
 * @param {Values} now @param {Values} before
 * @param {Record<string, unknown>} [values]
 */
export function argumentsFrom(described, now, before, values) {
  const known = described.properties || {};
  const result = new Map(Object.entries(values || {}).filter(([name]) => (
    described.additionalProperties || Object.hasOwn(known, name))));
  const errors = [];
  for (const { name, schema, required, value } of formOf(described, values)) {
    const field = `arguments.${name}`;
    if (values && now[field] === before[field] && (result.has(name) || !required)) continue;
    try {
      const read = READERS[kindOf(schema, value)](schema, now[field] ?? '');
      if (name === REST) putOthers(result, known, read);
      else result.set(name, read === undefined ? emptied(schema, described.required?.includes(name)) : read);
    } catch (error) {
      errors.push({ field, message: /** @type {Error} */ (error).message });
    }
  }
  if (errors.length) throw refusal(errors);
  return Object.fromEntries(result);
}

/**
 * Replaces the arguments that have no field of their own.
 * @param {Map<string, unknown>} result @param {{}} known @param {any} others
 */
function putOthers(result, known, others = {}) {
  if (typeof others !== 'object' || !others || Array.isArray(others)
    || Object.keys(others).some((name) => Object.hasOwn(known, name))) {
    throw new Error(t('Please write other names, such as {example}.', { example: '{"a": 1}' }));
  }
  for (const name of result.keys()) if (!Object.hasOwn(known, name)) result.delete(name);
  for (const [name, value] of Object.entries(others)) result.set(name, value);
}

/**
 * What an empty field says: null, an empty list, an empty text, or (undefined) the default.
 * @param {Schema} schema @param {boolean} [required]
 */
function emptied(schema, required) {
  const usual = schema.default;
  if (usual === null || (usual === undefined && !required)) return undefined;
  if (isNullable(schema)) return null;
  if (usual === undefined) return undefined;
  const isText = typeOf(schema) === 'string' && /^(password)?$/.test(schema.format ?? '');
  return typeOf(schema) === 'array' ? [] : isText && !schema.enum ? '' : undefined;
}

/** @type {Record<string, (schema: Schema, text: string) => unknown>} */
const READERS = {
  choice: (schema, text) => (text === '' ? undefined : choices(schema)[Number(text)]),
  check: (_, text) => text !== '',
  lines: (schema, text) => {
    const lines = text.split('\n').map((line) => line.trim()).filter(Boolean);
    return lines.length ? lines.map((line, place) => readScalar(itemOf(schema, place), line)) : undefined;
  },
  json: (_, text) => readJson(text),
  text: readScalar,
  file: (schema, text) => READERS[schema.items ? 'lines' : 'input'](schema, text),
  input: readScalar,
};

/** A value as a cell of a table has it. @param {Schema} schema @param {string} text */
export function readCell(schema, text) {
  const kind = kindOf(schema);
  if (!text || !/choice|check/.test(kind)) return text ? READERS[kind](schema, text) : undefined;
  const all = choices(schema);
  const said = kind === 'check' ? text.toLowerCase() : text;
  const found = all.find((one) => [wordsOf(schema)(one), String(one),
    ...one === Boolean(one) ? [`${+one}`, one ? 'yes' : 'no'] : []].includes(said));
  if (found !== undefined) return found;
  const words = all.map(wordsOf(schema)).join(', ');
  throw new Error(t('“{text}” is none of {all}.', { text, all: words }));
}

/** JSON as typed. @param {string} text */
function readJson(text) {
  if (!text.trim()) return undefined;
  try {
    return parseJson(text);
  } catch (error) {
    throw new Error(t('This is not JSON: {message}', {
      message: /** @type {Error} */ (error).message }));
  }
}

/** One value as typed. @param {Schema} schema @param {string} text */
function readScalar(schema, text) {
  if (text === '') return undefined;
  const types = typesOf(schema);
  const [type] = types;
  if (types.length > 1 && type !== 'string') {
    if (types.includes('boolean') && /^(true|false)$/i.test(text)) return /^t/i.test(text);
    if (!Number.isFinite(Number(text.trim() || NaN))) return text;
  }
  if (type === 'integer' || type === 'number') return readNumber(type, text);
  return schema.format === 'date-time' ? utc(text) : text;
}

/** A number that arrives as it was typed. @param {string} type @param {string} text */
function readNumber(type, text) {
  const number = Number(text);
  if (!Number.isFinite(number)) throw new Error(t('This is not a number: {text}', { text }));
  if (type === 'number') return number;
  if (!Number.isInteger(number)) throw new Error(t('Please use a whole number.'));
  if (!Number.isSafeInteger(number)) throw new Error(t('This number is too large for the page.'));
  return number;
}

// A field for a file: it is sent as soon as it is chosen or dropped; its form waits for that.

/** @typedef {{id: string, name: string, size: number}} Stored */

/** What was stored, for who logs in again or comes back. @type {Map<string, Stored>} */
const known = new Map();

/** What a file may have. */
const mostBytes = () => (store.state.session?.max_file_mb || 0) * 2 ** 20;

/**
 * The control of such a field, and what stands behind it: the ids of the files are its value.
 * @param {{name?: string, required?: boolean, multiple?: boolean}} options
 * @param {string|string[]|null} value of an earlier task
 * @returns {[HTMLInputElement, HTMLElement]}
 */
function fileControl({ name, required, multiple }, value) {
  const field = new FileField({ name, multiple }, h('input', {
    type: 'hidden', name, required, value: [value ?? []].flat().join('\n') }));
  return [field.input, field.root];
}

/** Files on their way. */
class FileField {
  problem = '';
  /** @type {Promise<void>|undefined} */
  sending;
  stop = new AbortController();

  /** @param {{name?: string, multiple?: boolean}} options @param {HTMLInputElement} ids */
  constructor(options, ids) {
    this.ids = ids;
    const over = (/** @type {boolean} */ is) => () => this.input.classList.toggle('over', is);
    this.input = h('input', { ...options, type: 'file', onchange: () => this.choose(),
      ondragenter: over(true), ondragleave: over(false), ondrop: over(false) });
    this.bar = h('progress', { 'aria-label': t('Progress') });
    this.words = h('span', { role: 'status' });
    this.cancel = button('', () => this.leave(), { class: 'small' });
    this.again = button(t('Try again'), () => this.choose(), { class: 'small' });
    this.root = h('div', { class: 'sent' }, ids, this.bar, this.words, this.cancel, this.again);
    ids.addEventListener('input', () => this.patch());
    awaited.set(ids, () => this.wait());
    this.patch();
  }

  /** Resolves once all is stored, or nothing was chosen. */
  async wait() {
    await this.sending;
    if (!this.problem) return;
    throw refusal([{ field: this.input.name, message: t('Nothing is stored yet.') }]);
  }

  /** Sends what was chosen, unless it is too large. */
  choose() {
    const files = [...this.input.files || []];
    const most = mostBytes();
    const large = files.find(({ size }) => size > most);
    this.stop.abort();
    this.problem = large ? t('{name} has {size}; a file may have {most}.', { name: large.name,
      size: sizeWords(large.size), most: sizeWords(most) }) : '';
    this.keep([]);
    if (files.length && !large) this.sending = this.send(files);
  }

  /** @param {File[]} files */
  async send(files) {
    const { signal } = this.stop = new AbortController();
    const all = files.reduce((sum, { size }) => sum + size, 0) || 1;
    const ids = [];
    let before = 0;
    try {
      for (const file of files) {
        const stored = await upload(file, (sent) => this.show((before + sent) / all), signal);
        before += file.size;
        known.set(stored.id, stored);
        ids.push(stored.id);
      }
      this.keep(ids);
    } catch (error) {
      if (signal.aborted) return;
      this.problem = problemWords(error);
      this.patch();
    }
  }

  /** Sends it no more, or leaves out what there is. */
  leave() {
    this.input.value = '';
    this.choose();
    this.input.focus();
  }

  /** @param {string[]} ids */
  keep(ids) {
    this.ids.value = ids.join('\n');
    tellInput(this.ids);
  }

  /** How far it is. @param {number} part */
  show(part) {
    if (!this.input.isConnected) this.stop.abort();
    this.bar.hidden = this.cancel.hidden = false;
    setText(this.cancel, t('Cancel'));
    this.again.hidden = true;
    this.bar.value = part;
    setText(this.words, part < 1 ? `${Math.floor(part * 100)} %` : t('storing…'));
  }

  /** What came of it. */
  patch() {
    const { problem, ids: { value } } = this;
    this.bar.hidden = true;
    this.cancel.hidden = !value;
    setText(this.cancel, t('Remove'));
    this.again.hidden = !problem;
    setText(this.words, problem || (value && value.split('\n').map(storedWords).join(', ')));
    this.root.classList.toggle('bad', Boolean(problem));
  }
}

/** @param {string} id */
function storedWords(id) {
  const { name, size } = known.get(id) || {};
  return name ? t('{name}, {size}: stored', { name, size: sizeWords(size || 0) })
    : t('the file of the earlier task');
}

/**
 * Sends a file; fetch() does not tell how far it is.
 * @param {File} file @param {(part: number) => void} show @param {AbortSignal} signal
 * @returns {Promise<Stored>}
 */
async function upload(file, show, signal) {
  const kind = 'application/octet-stream';
  const { LEVELS, level, remember, wrap } = await import('./narrow.js');
  const send = (/** @type {boolean} */ wrapped) => sendFile(
    file.name, wrapped ? wrap(file, kind) : file, wrapped ? '' : kind, show, signal);
  if (level() === LEVELS) return send(true);
  return send(false).catch(async (error) => {
    if (error.code || error.status < 400 || error.status === 413) throw error;
    const stored = await send(true);
    remember(LEVELS);
    return stored;
  });
}

/**
 * One try.
 * @param {string} name @param {Blob|FormData} body @param {string} kind
 * @param {(part: number) => void} show @param {AbortSignal} signal @returns {Promise<Stored>}
 */
function sendFile(name, body, kind, show, signal) {
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    sent.open('POST', `api/files?name=${encodeURIComponent(name)}`);
    if (kind) sent.setRequestHeader('Content-Type', kind);
    sent.responseType = 'json';
    sent.upload.onprogress = ({ loaded }) => show(loaded);
    sent.onload = () => (sent.status === 201 && sent.response?.id ? resolve(sent.response)
      : reject(problemOf(sent)));
    sent.onerror = sent.onabort = () => reject(problemOf(sent));
    signal.addEventListener('abort', () => sent.abort());
    sent.send(body);
  });
}

/** Why it was not stored; a web server in front of ours may allow less. @param {XMLHttpRequest} sent */
function problemOf({ response, status }) {
  if (response?.code === 'unauthorized') store.set('session', null);
  if (response?.code) {
    saidProblem(response);
    return new ApiError(status, response);
  }
  const detail = status === 413
    ? t('The web server of this host takes no file as large as this; its limit is set there.')
    : !status && t('The connection broke off. If it does so every time, the web server of this host '
      + 'may take no file as large as this.');
  return new ApiError(status, detail && { detail, code: 'upload' });
}
