// @ts-check
/** Functions to choose from, and what can be said of their tasks besides the arguments. */
import { number } from './arguments.js';
import { ApiError, get, isAdmin, mayChange } from './api.js';
import { now } from './clock.js';
import { find, h } from './dom.js';
import { durationText } from './durations.js';
import { choice, durationInput, field, page, sampleHint, secondsFrom, seekParts } from './forms.js';
import { t } from './language.js';
import { readCatalogue } from './live.js';

/** @import {Queues, TaskFunction, Values} from './types.js' */

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
