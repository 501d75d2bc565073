// @ts-check
/** Settings in groups: only what was changed is sent, a default as "back to the default". */
import { testButton } from './alerts.js';
import { get, request, store } from './api.js';
import { find, h, setText, textWith } from './dom.js';
import { durationText } from './durations.js';
import {
  button, choice, durationInput, field, page, say, secondsFrom, seekParts, sendingForm, tellInput,
  valuesOf,
} from './forms.js';
import { t } from './language.js';
import { said } from './said.js';

/** @import {Page, Setting, Values} from './types.js' */

/** @type {Page['show']} */
export async function show({ params }, signal) {
  const { settings } = await get('api/settings', signal);
  if (!signal.aborted) showSettings(settings, params.get('q') || '');
}

/** All settings in one form. @param {Setting[]} settings @param {string} wanted which are in sight */
function showSettings(settings, wanted) {
  const groups = new Map();
  for (const one of settings) groups.set(one.group, [...groups.get(one.group) || [], one]);
  const form = sendingForm(t('Save'), async (now, before) => {
    const changed = settings.filter(({ name }) => now[name] !== before[name]);
    if (!changed.length) return say(t('Nothing was changed.'), true);
    const changes = changed.map((one) => [one.name, valueOf(one, now)]);
    const answer = await request('PATCH', 'api/settings', Object.fromEntries(changes));
    const { session } = store.state;
    if (session && now.mail_server !== before.mail_server) session.mail = (await get('api/session')).mail;
    showSettings(answer.settings, search.value);
    find('main .primary').focus({ preventScroll: true });
    say(t('Saved.'), true);
  }, ...[...groups].map(([group, some]) => h('section', {}, h('h2', {}, said(group)),
    ...some.map(settingField))));
  if (wanted === said('Alerts')) form.lastElementChild?.append(testButton());
  const before = valuesOf(form);
  const rows = /** @type {NodeListOf<HTMLElement>} */ (form.querySelectorAll('.field'));
  const [search, none] = seekParts(t('Search settings'), [...rows], wanted);
  const count = h('span', { class: 'help', role: 'status' });
  form.lastElementChild?.append(count);
  form.addEventListener('input', () => {
    const now = valuesOf(form);
    const changes = settings.filter(({ name }) => now[name] !== before[name]).length;
    setText(count, changes ? t.n('{count} change not saved | {count} changes not saved', changes) : '');
  });
  form.classList.add('long', 'settings');
  page(t('Settings'), h('p', { class: 'lead' },
    ...textWith('{host}: what works here, what to do, lines to copy, backups.',
      { host: h('a', { href: '#/settings/host' }, t('This host')) })),
  search, none, form);
}

/** One setting; what was set elsewhere is only shown. @param {Setting} setting */
function settingField(setting) {
  const { name, label, unit, from, fixed, default: usual } = setting;
  const input = controlFor(setting);
  const after = [unit !== 'seconds' && unit && h('span', { class: 'help unit' }, said(unit))];
  if (from === 'table' && !fixed) after.push(resetButton(setting, input));
  const shown = setting.choices && usual ? said(String(usual)) : textOf(setting, usual);
  const element = field(said(label), input, { after: h('span', { class: 'with' }, ...after), help: [
    said(setting.help), shown && t('Default: {usual}.', { usual: shown }),
    from === 'environment' ? t('Set by the environment; change it there.')
      : fixed && t('Changed on the host only.'),
  ].filter(Boolean).join(' ') });
  find('label', element).append(' ', h('code', { class: 'help' }, name));
  element.dataset.group = said(setting.group);
  return element;
}

/** A value as its field has it. @param {Setting} setting @param {unknown} value */
const textOf = ({ unit }, value) => (
  unit === 'seconds' ? durationText(Number(value)) : String(value ?? ''));

/** A choice as people read it. @param {string} value */
const choiceWords = (value) => (value ? said(value) : t('never'));

/** What it is changed by. @param {Setting} setting */
function controlFor({ name, value, type, unit, fixed: disabled, minimum, maximum, choices }) {
  if (choices) {
    return choice({ name, disabled }, choices.map((one) => [one, choiceWords(one)]), String(value));
  }
  if (unit === 'seconds') return durationInput(name, value, { disabled });
  return h('input', { name, value, disabled, spellcheck: 'false', autocomplete: 'off',
    ...type === 'integer' ? { type: 'number', min: minimum, max: maximum } : {} });
}

/**
 * Puts the default into the field, to be saved with the rest.
 * @param {Setting} setting @param {HTMLInputElement|HTMLSelectElement} input
 */
function resetButton(setting, input) {
  const { label, default: usual } = setting;
  return button(t('Reset'), () => {
    input.value = textOf(setting, usual);
    tellInput(input);
  }, { class: 'small', 'aria-label': t('Reset: {label}', { label: said(label) }) });
}

/** What a field says, in the setting's type; null for its default. @param {Setting} setting @param {Values} now */
function valueOf({ name, type, unit, default: usual }, now) {
  const text = now[name];
  const value = unit === 'seconds' ? secondsFrom(now, name)
    : type === 'integer' && text ? Number(text) : text;
  return value === usual || value === '' ? null : value;
}
