// @ts-check
/** What forms and pages share: messages, fields with errors beside them, secrets, questions in place, copying. */
import { ApiError, isAdmin, ownName, request, store } from './api.js';
import { find, h, icon, render, setAttribute, textWith } from './dom.js';
import { durationText, readDuration } from './durations.js';
import { patchTime, stateBadge, statusWord, timeWords } from './format.js';
import { locale, t } from './language.js';
import { saidName } from './said.js';

/** @import {Child} from './dom.js' */
/** @import {Row, TaskLink, Values} from './types.js' */

let ids = 0;

/** @type {WeakMap<Element, {key: string, touched: Set<any>}>} whose form it is, and what was typed */
const drafts = new WeakMap();
/** Forms that were open when the session ended. @type {Element[]} */
let left = [];
const openForms = () => [...document.querySelectorAll('main > form')];
store.on('session', () => {
  if (!store.state.session) left = openForms();
});

/** Forgets that something was typed, because it is kept elsewhere. */
export const forgetTyped = () => openForms().forEach((form) => drafts.get(form)?.touched.clear());

/** Whether something was typed that is not sent. */
const isUnsent = () => openForms().some((form) => (
  drafts.get(form)?.touched.size && !form.querySelector('[aria-busy]')));
addEventListener('beforeunload', (event) => isUnsent() && event.preventDefault());
store.addEventListener('leave', (event) => {
  const stays = isUnsent() && !confirm(t('Leave this page? What you changed is not saved.'));
  if (stays) event.preventDefault();
});

/**
 * One field: label above, help and error below, joined for screen readers.
 * @param {string} label
 * @param {HTMLElement} control
 * @param {{help?: string, required?: boolean, after?: Child}} [more]
 */
export function field(label, control, { help = '', required = false, after } = {}) {
  const id = `f${(ids += 1)}`;
  const name = control.getAttribute('name');
  control.id = id;
  control.setAttribute('aria-describedby', `${id}h ${id}e`);
  return h('div', { class: 'field', 'data-field': name },
    h('label', { for: id }, label,
      required && h('span', { class: 'help', 'aria-hidden': 'true' }, ` ${t('required')}`)),
    after ? h('div', { class: 'with' }, control, after) : control,
    h('p', { id: `${id}h`, class: 'help', hidden: !help }, help),
    h('p', { id: `${id}e`, class: 'error', hidden: true }));
}

/**
 * Something to choose from.
 * @param {Record<string, unknown>} attributes
 * @param {string[][]} options values and words
 * @param {string} [chosen]
 */
export const choice = (attributes, options, chosen) => h('select', attributes,
  ...options.map(([value, words]) => h('option', { value, selected: value === chosen }, words)));

/**
 * A checkbox; its label stands beside it.
 * @param {string} label
 * @param {HTMLInputElement} control
 * @param {string} [help]
 */
export function check(label, control, help) {
  const element = field(label, control, { help });
  control.after(find('label', element));
  element.classList.add('check');
  return element;
}

/**
 * A password with a button to see it.
 * @param {string} label
 * @param {string} name
 * @param {string} autocomplete
 */
export function secretField(label, name, autocomplete) {
  const input = h('input', { type: 'password', name, autocomplete, required: true });
  return field(label, input, { after: showButton(input, label) });
}

/** Shows or hides a password. @param {HTMLInputElement} input @param {string} label */
export function showButton(input, label) {
  const show = button(t('Show'), () => {
    const hidden = input.type === 'password';
    input.type = hidden ? 'text' : 'password';
    show.setAttribute('aria-pressed', String(hidden));
    show.textContent = hidden ? t('Hide') : t('Show');
  }, { 'aria-pressed': 'false', 'aria-label': t('Show {name}', { name: label }) });
  return show;
}

/**
 * A button that does one thing at a time.
 * @param {string} label
 * @param {() => unknown} work
 * @param {Record<string, unknown>} [more] attributes
 */
export function button(label, work, more) {
  const element = h('button', { type: 'button', class: 'button', ...more,
    onclick: () => act(element, work) }, label);
  return element;
}

/**
 * A form that sends what its fields say and said at first, once at a time, and puts each error
 * beside its field; values stay, also for whoever has to log in again meanwhile.
 * @param {string} label what sending is called
 * @param {(now: Values, before: Values) => Promise<unknown>} send
 * @param {...Child} children
 */
export function sendingForm(label, send, ...children) {
  const submit = h('button', { class: 'button primary' }, label);
  const touched = new Set();
  const form = h('form', { class: 'form', novalidate: true,
    oninput: (/** @type {Event} */ { target }) => touched.add(target),
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      act(submit, () => trySending(form, async () => {
        await send(valuesOf(form), before);
        touched.clear();
      }));
    } }, ...children, h('p', { class: 'error', 'data-all': true, hidden: true }),
  h('div', { class: 'actions' }, submit));
  const before = valuesOf(form);
  const key = `${ownName()} ${location.hash} ${label}`;
  drafts.set(form, { key, touched });
  left = left.filter((before) => drafts.get(before)?.key !== key || takeOver(before, form));
  return form;
}

/**
 * Puts what was typed into one form into another, but no secrets.
 * @param {Element} before
 * @param {HTMLFormElement} form
 */
function takeOver(before, form) {
  const places = [.../** @type {HTMLFormElement} */ (before).elements];
  for (const old of drafts.get(before)?.touched || []) {
    const control = /** @type {HTMLInputElement} */ (form.elements[places.indexOf(old)]);
    if (control?.name !== old.name || /file|password/.test(old.type)) continue;
    control.value = old.value;
    control.checked = old.checked;
    control.closest('details')?.setAttribute('open', '');
    tellInput(control);
  }
}

/** Tells the form of a control that it has another value. @param {HTMLElement} control */
export const tellInput = (control) => control.dispatchEvent(new Event('input', { bubbles: true }));

/**
 * Sends, or shows what is wrong.
 * @param {HTMLFormElement} form @param {() => Promise<unknown>} send
 */
async function trySending(form, send) {
  clearErrors(form);
  try {
    await Promise.all([...form.elements].map((control) => awaited.get(control)?.()));
    checkFilledIn(form);
    await send();
  } catch (error) {
    if (!(error instanceof ApiError) || !form.isConnected) throw error;
    showErrors(form, error);
  }
}

/** What the value of a control waits for. @type {WeakMap<Element, () => Promise<unknown>>} */
export const awaited = new WeakMap();

/**
 * What the page itself finds wrong, as the server would say it.
 * @param {{field: string, message: string}[]} errors
 */
export const refusal = (errors) => new ApiError(422, { errors });

/** Takes the last errors away. @param {HTMLFormElement} form */
function clearErrors(form) {
  for (const line of /** @type {NodeListOf<HTMLElement>} */ (form.querySelectorAll('.error'))) {
    line.hidden = true;
  }
  for (const bad of form.querySelectorAll('[aria-invalid]')) bad.removeAttribute('aria-invalid');
}

/** Throws if a field is empty or cannot be read. @param {HTMLFormElement} form */
function checkFilledIn(form) {
  const controls = /** @type {HTMLInputElement[]} */ (
    [...form.elements].filter((one) => 'name' in one));
  const errors = controls.flatMap(({ name, required, disabled, value, validity }) => {
    if (validity.badInput) return { field: name, message: t('This cannot be read.') };
    return required && !disabled && !value.trim() ? { field: name, message: t('Please fill this in.') } : [];
  });
  if (errors.length) throw refusal(errors);
}

/**
 * Each message beside its field, the rest above the button; the first one gets the focus.
 * @param {HTMLFormElement} form
 * @param {ApiError} problem
 */
function showErrors(form, problem) {
  const rest = problem.errors.filter(({ field: name, message }) => !showError(form, name, message));
  const words = rest.map(({ field: name, message }) => (name ? `${name}: ${message}` : message));
  const all = find('[data-all]', form);
  const some = rest.length < problem.errors.length;
  all.textContent = words.join('\n') || (some ? '' : problemWords(problem));
  all.hidden = !all.textContent;
  if (all.textContent) say(all.textContent);
  const first = find('[aria-invalid]', form);
  first?.closest('details')?.setAttribute('open', '');
  first?.focus();
}

/**
 * Puts a message beside its field; false if there is none.
 * @param {HTMLFormElement} form
 * @param {string} name
 * @param {string} message
 */
function showError(form, name, message) {
  const fields = /** @type {NodeListOf<HTMLElement>} */ (form.querySelectorAll('[data-field]'));
  const found = [...fields].find(({ dataset }) => dataset.field === name
    || dataset.field === String(name).replace(/\[?\.?\d+\]?$/, ''));
  if (!found) return false;
  found.hidden = false;
  const line = find('.error', found);
  line.textContent = line.hidden ? message : `${line.textContent} ${message}`;
  line.hidden = false;
  found.querySelector('input, select, textarea')?.setAttribute('aria-invalid', 'true');
  return true;
}

/** Bytes as people say them. @param {number} bytes */
export function sizeWords(bytes) {
  const power = Math.min(3, Math.floor(Math.log2(bytes || 1) / 10));
  return (bytes / 1024 ** power).toLocaleString(locale, { style: 'unit', unitDisplay: power ? 'short' : 'long',
    unit: ['byte', 'kilobyte', 'megabyte', 'gigabyte'][power], maximumSignificantDigits: 3 });
}

/** Builds the title of a page. @param {...Child} children */
export const heading = (...children) => h('h1', { tabindex: -1 }, ...children);

/** Builds the title of a page, with what stands beside it. @param {string} title @param {...Child} beside */
export const head = (title, ...beside) => h('div', { class: 'head' }, heading(title), ...beside);

/** A part of a page under its title. @param {string} title @param {...Child} children */
export const part = (title, ...children) => h('section', {}, h('h2', {}, title), ...children);

/** A page under its title. @param {string} title @param {...Child} children */
export const page = (title, ...children) => render(title, heading(title), ...children);

/**
 * A search that leaves only those rows in sight that have what is typed.
 * @param {string} label @param {HTMLElement[]} rows @param {string} [value] typed already
 * @returns {[HTMLInputElement, HTMLElement]} the field, and what is said if nothing has it
 */
export function seekParts(label, rows, value) {
  const none = h('p', { class: 'help' }, t('Nothing matches.'));
  const look = () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = !`${row.dataset.group || ''} ${row.textContent}`.toLowerCase().includes(wanted);
    }
    none.hidden = !rows.length || rows.some((row) => !row.hidden);
  };
  const search = h('input', { type: 'search', class: 'seek', 'aria-label': label, value,
    placeholder: label, autocomplete: 'off', oninput: look });
  look();
  return [search, none];
}

/** A time as datetime-local wants it; "" for none. @param {Date} time */
export const localTime = (time) => (Number.isNaN(+time) ? ''
  : new Date(+time - time.getTimezoneOffset() * 60000).toISOString().slice(0, 19));

/** The values of a form by name. @param {HTMLFormElement} form */
export const valuesOf = (form) => (
  /** @type {Values} */ (Object.fromEntries(new FormData(form))));

/**
 * Sends only what is not as it was, so that two people do not undo each other's work.
 * @param {string} path @param {Record<string, unknown>} was @param {Record<string, unknown>} now
 */
export function change(path, was, now) {
  const changes = Object.entries(now).filter(([name, value]) => (
    JSON.stringify(value) !== JSON.stringify(was[name])));
  return changes.length ? request('PATCH', path, Object.fromEntries(changes)) : was;
}

/**
 * Asks in the place of a button before what cannot be undone is done.
 * @param {HTMLElement} asked
 * @param {string} question
 * @param {string} label
 * @param {() => unknown} work
 */
export const ask = (asked, question, label, work) => offer(asked, question, t('No'),
  [button(label, work, { class: 'button danger' })]).focus();

/**
 * Offers buttons in the place of another; returns the one that takes them away again.
 * @param {HTMLElement} asked
 * @param {string} question
 * @param {string} leaving what that one is called
 * @param {HTMLElement[]} buttons
 */
export function offer(asked, question, leaving, buttons) {
  const back = () => {
    group.replaceWith(asked);
    focusBack(asked);
  };
  const leave = button(leaving, back);
  const group = h('span', { class: 'question', role: 'group', 'aria-label': question,
    onkeydown: (/** @type {KeyboardEvent} */ { key }) => key === 'Escape' && back() },
  question, ...buttons, leave);
  asked.replaceWith(group);
  return leave;
}

/** The focus again, or the menu that closed over it. @param {HTMLElement} button */
function focusBack(button) {
  const menu = /** @type {HTMLElement|null|undefined} */ (
    (button.closest('.menu') || button).querySelector('summary'));
  (menu || button).focus();
}

/**
 * A button that asks first.
 * @param {string} label
 * @param {string} question
 * @param {() => Promise<unknown>} work
 * @param {Record<string, unknown>} [more] attributes
 */
export function askingButton(label, question, work, more) {
  const asked = button(label, () => (
    ask(asked.closest('.menu')?.parentElement || asked, question, label, work)), more);
  return asked;
}

/**
 * A menu of what is seldom done; a question of it stands in the place of all that is beside it.
 * @param {string} name of what it is about
 * @param {...HTMLElement} buttons
 */
export const moreMenu = (name, ...buttons) => menuOf(t('More'), h('div', {}, ...buttons),
  { 'aria-label': t('More: {name}', { name }) });

/**
 * A menu of what was saved by name; its content is loaded when it is opened.
 * @param {() => Promise<{fillSaved: Function}>} load
 * @param {string} page @param {() => {}} read what would be saved
 * @param {(saved: any) => string} address where it is used
 */
export function savedMenu(load, page, read, address) {
  const body = h('div');
  const menu = menuOf(t('Saved'), body);
  menu.addEventListener('toggle', () => (
    menu.open ? act(menu, async () => (await load()).fillSaved(body, page, read, address))
      : body.replaceChildren()));
  return h('span', {}, menu);
}

/** A button with what it opens below. @param {string} label @param {HTMLElement} body @param {{}} [more] attributes */
const menuOf = (label, body, more) => h('details', { class: 'menu' },
  h('summary', { class: 'button', ...more }, label, icon('down')), body);

/** Closes a menu when one goes on, clicks or goes elsewhere, and on Escape. @param {any} event */
function closeMenus({ key, target, type }) {
  for (const menu of /** @type {NodeListOf<HTMLDetailsElement>} */ (
    document.querySelectorAll('.menu[open]'))) {
    const inside = menu.contains(target);
    const escapes = inside && key === 'Escape';
    if (escapes) find('summary', menu).focus();
    if (escapes || (type !== 'keydown' && !inside)
      || (type === 'click' && !target.closest('summary, label'))) menu.open = false;
  }
}
// Before what was clicked takes the menu out of the page.
for (const type of ['click', 'focusin', 'keydown']) document.addEventListener(type, closeMenus, true);

/**
 * A button that deletes what has this address, once asked.
 * @param {string} name
 * @param {string} path
 * @param {() => unknown} gone what the page does then
 * @param {Record<string, unknown>} [more] attributes
 */
export const deleteButton = (name, path, gone, more) => askingButton(t('Delete'),
  t('Delete {name}?', { name }), async () => {
    await request('DELETE', path);
    await gone();
    say(t('{name} was deleted.', { name }), true);
    find('h1').focus({ preventScroll: true });
  }, more);

/**
 * A button that opens a small form in the place of the actions it stands among.
 * @param {HTMLElement} actions
 * @param {string} label
 * @param {string} name of what it is about
 * @param {(back: () => void) => HTMLFormElement} build
 */
export function openingButton(actions, label, name, build) {
  const about = name ? `${label}: ${name}` : null;
  const open = button(label, () => {
    const back = () => {
      form.replaceWith(actions);
      focusBack(open);
    };
    const form = build(back);
    form.lastElementChild?.append(button(t('Cancel'), back));
    actions.replaceWith(form);
    find('input', form).focus();
  }, { 'aria-label': about });
  return open;
}

/**
 * Pauses, and asks why; or resumes.
 * @param {HTMLElement} actions
 * @param {{name: string, paused: boolean}} what
 * @param {string} path
 * @param {() => Promise<unknown>} refresh
 */
export function pauseButton(actions, { name, paused }, path, refresh) {
  if (paused) {
    return button(t('Resume'), () => request('PATCH', path, { paused: false }).then(refresh));
  }
  return openingButton(actions, t('Pause'), name, (back) => sendingForm(t('Pause'),
    async ({ why }) => {
      await request('PATCH', path, { paused: true, paused_why: why.trim() });
      back();
      await refresh();
    }, field(t('Why'), h('input', { name: 'why', autocomplete: 'off' }),
      { help: t('Shown to everyone.') })));
}

/**
 * Who paused it, when and why, in words.
 * @param {{paused_by: string|null, paused_at: string|null, paused_why: string|null}} what
 */
export function pauseWords({ paused_by: who, paused_at: at, paused_why: why }) {
  const words = [t('paused'), who && t('by {name}', { name: saidName(who) }), at && timeWords(new Date(at))];
  return words.filter(Boolean).join(' ') + (why ? `: ${why}` : '');
}

/** A <time> with the full time and zone as its tooltip. @param {string|null} iso */
export function timeElement(iso) {
  const element = h('time');
  patchTime(element, iso);
  return element;
}

/** A shape and words. @param {string} shape @param {string} words */
export const badge = (shape, words) => h('span', { class: 'state', 'data-state': shape },
  icon(shape), h('bdi', {}, words));

/** A link to a task: its state, as a badge. @param {TaskLink} task */
export const taskLink = (task) => h('a', { class: 'task', href: `#/tasks/${task.id}`,
  'aria-label': `${t('Task {id}', task)}, ${statusWord(task.status)}` },
stateBadge(/** @type {Row} */ (task)));

/**
 * An element of SVG.
 * @param {string} tag @param {Record<string, unknown>} attributes @param {...Node} children
 */
export function s(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children);
  return element;
}

/** @type {WeakMap<Element, string>} what each row was built from */
const built = new WeakMap();

/**
 * Brings rows up to date. Only those whose data changed are built anew, none that asks something.
 * @template {{}} T
 * @param {HTMLElement} body
 * @param {T[]} items
 * @param {(item: T) => string|number} keyOf
 * @param {(item: T) => HTMLElement} build
 */
export function patchRows(body, items, keyOf, build) {
  const rows = /** @type {HTMLElement[]} */ ([...body.children]);
  const old = new Map(rows.map((row) => [row.dataset.key, row]));
  const minute = Math.floor(Date.now() / 60000);        // words such as "just now" grow old
  let place = body.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const text = JSON.stringify([item, minute]);
    const before = old.get(key);
    let row = before;
    if (!row || (built.get(row) !== text && !row.querySelector('.question, form'))) {
      row = build(item);
      row.dataset.key = key;
      built.set(row, text);
      if (before) replaceRow(before, row);
    }
    if (place === before && before) place = row;
    if (place === row) place = row.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (; place; place = body.children[items.length]) place.remove();
  for (const time of body.querySelectorAll('time')) patchTime(time, time.getAttribute('datetime'));
}

/** The same of its buttons keeps the focus. @param {Element} before @param {Element} row */
function replaceRow(before, row) {
  const all = (/** @type {Element} */ one) => (
    /** @type {(Element|null)[]} */ ([...one.querySelectorAll('a, button')]));
  const place = all(before).indexOf(document.activeElement);
  before.replaceWith(row);
  /** @type {HTMLElement|undefined} */ (all(row)[place])?.focus();
}

/**
 * Text to take along. Where the browser allows no copying it is selected instead.
 * @param {string} text
 * @param {string} label
 */
export function copyBox(text, label) {
  const code = h('pre', { class: 'code', tabindex: 0, role: 'group', 'aria-label': label }, text);
  const copy = button(t('Copy'), async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(t('Copied'), true);
    } catch {
      getSelection()?.selectAllChildren(code);
      say(t('Selected; copy it with your keyboard or menu.'), true);
    }
  }, { class: 'small' });
  return h('div', { class: 'copy' }, code, copy);
}

/** Builds the items of a dl of names and what stands beside them. @param {[Child, Child][]} pairs */
export const pairItems = (pairs) => pairs.flatMap(([name, value]) => (
  [h('dt', {}, name), h('dd', {}, value)]));

/** A cell; its label is shown where columns have no room. @param {string|null} label */
export const cell = (label, /** @type {Child[]} */ ...children) => (
  h('td', { 'data-label': label }, ...children));

const EXAMPLE = [
  'from jobqueue import task',
  '',
  '@task',
  'def hello(name: str):',
  '    print("greeting", name)',
  '    return "Hello " + name',
  '',
].join('\n');

/** While the functions are only samples: how to have one's own. */
export function sampleHint() {
  if (!store.state.catalogue?.samples || !isAdmin()) return [];
  return [h('section', { class: 'teach' }, h('h2', {}, t('Your own functions')),
    h('p', {}, ...textWith('These are samples. Put these lines into the file {file}:',
      { file: h('code', {}, store.state.catalogue.file) })),
    copyBox(EXAMPLE, 'tasks.py'),
    h('p', { class: 'help' }, t('Its parameters become the fields of a form. Its output is the log of a '
      + 'task, its return value the result.')))];
}

const DEAF = 1000;
let hush = 0;
/** The view that what was said last belongs to. */
let place = '';

/**
 * Tells screen readers, and when `visible` everyone for some seconds.
 * @param {string} text
 * @param {boolean} [visible]
 */
export function say(text, visible = false) {
  const live = find('#live');
  if (!visible && live.matches('.toast')) return live.append(h('i', { class: 'hidden' }, text));
  live.classList.toggle('toast', visible);
  live.textContent = text;
  place = location.hash;
  clearTimeout(hush);
  hush = setTimeout(hide, 8000);
}

/** Takes away what was said; screen readers have had it. */
const hide = () => find('#live').classList.remove('toast');
addEventListener('hashchange', () => location.hash === place || hide());

/** Instead of a page that could not be shown. @param {any} error */
export function showProblem(error) {
  if (!(error instanceof ApiError)) console.error(error);
  const { message, status } = error;
  const missing = status === 404;
  render(missing ? t('Not found') : t('Problem'), heading(missing
    ? t('There is nothing here') : status === 403 ? t('Not allowed') : t('That did not work')),
  h('p', {}, missing ? t('It was deleted, it belongs to someone else, or the address is wrong.')
    : message),
  h('p', {}, h('a', { href: '#/tasks' }, t('All tasks'))));
}

/**
 * Does what a button asks for, once at a time, and says what went wrong. Who presses one that has
 * just come in the place of another meant that one.
 * @param {HTMLElement} button
 * @param {() => unknown} work
 */
export async function act(button, work) {
  const { ariaBusy, dataset: { changed } } = button;
  if (ariaBusy === 'true' || performance.now() - Number(changed) < DEAF) return;
  button.ariaBusy = 'true';
  try {
    await work();
  } catch (error) {
    say(problemWords(error), true);
  } finally {
    button.ariaBusy = null;
  }
}

/** What went wrong; what got no answer may have been done. @param {any} error */
export function problemWords({ message, safe, status }) {
  if (safe || ![0, 502, 504].includes(status)) return message;
  return message.replace(t('Please try again'), t('Check whether it was done before you try again'));
}

/**
 * A field's control for a duration.
 * @param {string} name @param {unknown} seconds @param {Record<string, unknown>} [more]
 */
export const durationInput = (name, seconds, more) => h('input', { name, autocomplete: 'off',
  spellcheck: 'false', value: seconds == null ? null : durationText(Number(seconds)), ...more });

/**
 * What was typed into such a field, in seconds; null if it is empty.
 * @param {Values} values @param {string} name
 */
export function secondsFrom(values, name) {
  if (!values[name].trim()) return null;
  const seconds = readDuration(values[name]);
  if (!Number.isNaN(seconds)) return seconds;
  const message = t('Please write it as 90 min, 1 h 30 or 2 days.');
  throw refusal([{ field: name, message }]);
}
