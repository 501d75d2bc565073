// @ts-check
/** Telling a person when a task has ended: by mail, and by the browser while this tab is open. */
import { get, isAdmin, ownName, store } from './api.js';
import { find, h, textWith } from './dom.js';
import { isFinished, statusWord } from './format.js';
import { choice, field, say } from './forms.js';
import { t } from './language.js';
import { errorLine, said } from './said.js';

/** @import {Row, Task, TaskFunction} from './types.js' */

const SECONDS = 15;
const PLACE = 'jobqueue.watched';
/** @type {[string, string][]} */
const CHOICES = [['', t('no')], ['end', t('when it has ended')], ['failure', t('only if it fails')]];
/** Tasks whose end this tab shows. @type {Set<number>} */
const watched = new Set(recallWatched());
let timer = 0;

/** The tasks of before the page was loaded again; none if this browser keeps nothing. */
function recallWatched() {
  try {
    return JSON.parse(sessionStorage.getItem(PLACE) || '[]');
  } catch {
    return [];
  }
}

/** A link to all settings of messages. @param {string} words */
export const settingsLink = (words) => h('a', {
  href: `#/settings?${new URLSearchParams({ q: said('Alerts') })}` }, words);

/** What is missing before mail can arrive: nothing, a mail server or an address. */
export function mailHint() {
  const { session } = store.state;
  const settings = settingsLink(t('settings'));
  const account = h('a', { href: '#/account' }, t('Account'));
  if (session?.mail === false) get('api/session').then(({ mail }) => { session.mail = mail; }, () => null);
  return [...session?.mail ? [] : [...isAdmin()
    ? textWith('No mail can be sent yet: set up a mail server in the {settings}.', { settings })
    : [t('No mail can be sent yet: an admin has to set up a mail server.')], ' '],
  ...session?.user.email ? [] : isAdmin()
    ? textWith('Mail needs your address: see the page {account}.', { account })
    : [t('Mail needs your address, which an admin enters.')]];
}

/**
 * Whether the owner gets mail about the end of a task.
 * @param {TaskFunction} chosen
 * @param {Record<string, unknown>} values those of an earlier task or a schedule
 * @param {string} [owner] of the tasks, if not the one who is logged in
 */
export function mailField({ options }, values, owner) {
  const other = owner && owner !== ownName();
  const now = 'notify' in values ? values.notify : options.notify;
  const select = choice({ name: 'notify', oninput: () => look() }, CHOICES, String(now || ''));
  const element = field(other ? t('Mail {owner}', { owner }) : t('Mail me'), select);
  const help = find('.help', element);
  const hint = other ? [] : mailHint();
  help.append(...hint);
  const look = () => { help.hidden = !hint.length || !select.value; };
  look();
  return element;
}

/** When the owner gets mail. @param {unknown} notify */
export const mailWords = (notify) => notify && (notify === 'end' ? t('mail when it has ended')
  : t('mail only if it fails'));

/** How the end of this task is told, for the one who is logged in. @param {Task} task */
export function tellingWords(task) {
  const { session } = store.state;
  const { email, name } = session?.user || {};
  const own = task.owner === name && task.notify;
  const hint = own ? mailHint() : [];
  return [...own && email && session?.mail ? [task.notify === 'end'
    ? t('Mail goes to {email} when it has ended.', { email })
    : t('Mail goes to {email} if it fails.', { email }), ' '] : [],
  ...hint, hint.length ? ' ' : '',
  isWatched(task) && t('This browser tells you while a page of this site is open.')];
}

/** Whether this tab shows the end of a task. @param {{id: number}} task */
export const isWatched = ({ id }) => watched.has(id);

/** Shows the end of a task in this tab, or no longer. @param {number} id @param {boolean} wanted */
export function watch(id, wanted) {
  if (wanted) watched.add(id);
  else watched.delete(id);
  keepWatched();
}

/** Notes which tasks are watched, also for when the page is loaded again, and looks after them. */
export function keepWatched() {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify([...watched]));
  } catch {
    // They are then watched as long as the page is open.
  }
  clearTimeout(timer);
  if (watched.size) timer = setTimeout(() => look().catch(() => null).then(keepWatched), SECONDS * 1000);
}

/** Shows the end of each watched task that has ended. A hidden tab is the one that has to tell. */
async function look() {
  const { tasks } = await get(`api/tasks?ids=${[...watched]}&limit=200`);
  const found = new Map(tasks.map((/** @type {Row} */ task) => [task.id, task]));
  for (const id of watched) {
    const task = found.get(id);
    if (task && !isFinished(task)) continue;
    watched.delete(id);
    notify(task ? `${task.function}: ${statusWord(task.status)}` : t('Task {id} has ended', { id }),
      task ? [`#${id} ${task.summary}`, errorLine(task)].filter(Boolean).join('\n') : '', `#/tasks/${id}`);
  }
}

/** Whether the browser shows notifications; it asks the person the first time. */
export const askBrowser = async () => 'Notification' in window
  && await Notification.requestPermission() === 'granted';

/**
 * A notification of the browser, which leads to a page. Where a browser has none for pages, as on
 * Android, the page says it.
 * @param {string} title @param {string} body @param {string} address
 */
export function notify(title, body, address) {
  try {
    const shown = new Notification(title, { body, tag: address });
    shown.onclick = () => {
      focus();
      location.hash = address;
      shown.close();
    };
  } catch {
    say([title, body].filter(Boolean).join(': '), true);
  }
}

store.on('session', () => {
  if (store.state.session) return;
  watched.clear();
  keepWatched();
});
