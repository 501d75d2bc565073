// @ts-check
/** A new task: choose a function, fill in its form. */
import {
  UNITS, argumentFields, argumentsFrom, choice, functionChoices, introduction, number,
  optionFields, optionsFrom, readFunctions, utc, zoneHelp,
} from './arguments.js';
import { get, request } from './api.js';
import { h, render } from './dom.js';
import { field, refusal, sampleHint, sendingForm, valuesOf } from './forms.js';

/** @import {Page, Task, TaskFunction} from './types.js' */

/** @type {Page['show']} */
export async function show({ id, params }, signal) {
  const from = params.get('from');
  const [functions, task] = await Promise.all([
    readFunctions(signal), from && get(`api/tasks/${encodeURIComponent(from)}`, signal),
  ]);
  if (signal.aborted) return;
  const chosen = functions.find(({ name }) => name === id);
  if (chosen) showForm(chosen, task || null);
  else showChoice(functions, id);
}

/**
 * Which function.
 * @param {TaskFunction[]} functions
 * @param {string} missing a function that was asked for and is not there
 */
function showChoice(functions, missing) {
  render('New task', h('h1', { tabindex: -1 }, 'New task'),
    missing && h('p', {}, `There is no function “${missing}” that you can add.`),
    h('p', { class: 'help' }, functions.length ? 'What should run?'
      : 'There is no function that you can add.'),
    functionChoices(functions, (name) => `#/new/${name}`), ...sampleHint());
}

/**
 * The form of one function.
 * @param {TaskFunction} chosen
 * @param {Task|null} task an earlier task whose values are filled in
 */
function showForm(chosen, task) {
  const name = encodeURIComponent(chosen.name);
  const form = sendingForm('Add task', async (sent) => {
    const body = readForm(chosen, sent);
    const added = await request('POST', 'api/tasks', body);
    location.hash = `#/tasks/${added.id}`;
  }, ...argumentFields(chosen.schema, task?.arguments || {}), laterFields(chosen, task));
  form.lastElementChild?.append(
    h('a', { class: 'button', href: `#/schedules/new?function=${name}` }, 'On a schedule'),
    h('a', { class: 'button', href: '#/new' }, 'Another function'));
  render(`New ${chosen.name}`, h('h1', { tabindex: -1 }, chosen.name), ...introduction(chosen),
    form);
}

/**
 * What hardly anyone needs, folded; empty fields mean what the function says.
 * @param {TaskFunction} chosen
 * @param {Task|null} task
 */
function laterFields(chosen, task) {
  const unit = choice({ name: 'unit', 'aria-label': 'Unit of the delay' }, UNITS, '60');
  return h('details', {}, h('summary', {}, 'Later and options'), h('div', { class: 'grid' },
    field('Start at', h('input', { name: 'run_at', type: 'datetime-local' }), { help: zoneHelp }),
    field('Or start after', number({ name: 'delay', min: 0, step: 'any' }), { after: unit }),
    ...optionFields(chosen, task || {})));
}

/**
 * What is sent: the arguments, and of the options only those that were filled in.
 * @param {TaskFunction} chosen
 * @param {HTMLFormElement} form
 */
function readForm(chosen, form) {
  const values = valuesOf(form);
  const { run_at: at, delay, unit } = values;
  if (at && delay) {
    throw refusal([{ field: 'delay', message: 'Fill in either this or the time above.' }]);
  }
  /** @type {Record<string, unknown>} */
  const body = {
    function: chosen.name,
    arguments: argumentsFrom(chosen.schema, form),
    ...optionsFrom(values),
  };
  if (at) body.run_at = utc(at);
  if (delay) body.delay = Number(delay) * Number(unit);
  return body;
}
