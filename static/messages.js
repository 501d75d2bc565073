// @ts-check
/** Short messages to the person: what was done, or what went wrong. */
import { ApiError } from './api.js';
import { find, h, render } from './dom.js';
import { t } from './language.js';

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
  render(missing ? t('Not found') : t('Problem'), h('h1', { tabindex: -1 }, missing
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
