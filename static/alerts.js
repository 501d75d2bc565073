// @ts-check
/** What is wrong and was lately: the bell in the header, for admins, and its page. */
import { get, isAdmin, poll, request, store } from './api.js';
import { find, h, setText, showChosen, table, textWith } from './dom.js';
import { button, cell, page, patchRows, timeElement } from './forms.js';
import { t } from './language.js';
import { say } from './messages.js';
import { said } from './said.js';

/** @import {Alert, Alerts, Channel, Page} from './types.js' */

const SECONDS = 30;
const FOR_EVER = 8640000000000000 / 100;        // a mute until it ends goes on beyond this moment
/** @type {[string, string][]} */
const MUTES = [['1h', t('Mute 1 h')], ['8h', t('Mute 8 h')],
  ['end', t('Mute until it ends')]];
/** Of alerts that a notification was shown for; null: none was looked at yet. @type {Set<number>|null} */
let known = null;

/** Keeps the number in the header, and tells the browser. */
export function watchAlerts() {
  poll(new AbortController().signal, async () => {
    if (isAdmin()) ring(await get('api/alerts'));
    return SECONDS;
  });
  store.on('session', () => { known = null; });
}

/** @param {Alerts} found */
function ring({ alerts }) {
  const open = alerts.filter(({ ended_at: ended }) => !ended);
  const loud = open.filter(({ muted_until: until }) => !isMuted(until));
  const bell = find('#bell');
  const words = t('Alerts') + (loud.length ? ` (${loud.length})` : '');
  if (bell.textContent !== words) {
    setText(bell, words);
    showChosen();
  }
  const news = known && loud.filter(({ id }) => !known?.has(id));
  known = new Set(open.map(({ id }) => id));
  if (news?.length && wantsNotifications()) {
    for (const { title, text } of news.slice(0, 3)) new Notification(said(title), { body: said(text) });
  }
}

/** @param {string|null} until */
const isMuted = (until) => Boolean(until) && Date.parse(String(until)) > Date.now();

/** Whether this browser was asked, by a click, and said yes. */
const wantsNotifications = () => 'Notification' in window && Notification.permission === 'granted'
  && localStorage.getItem('jobqueue.notify') === 'yes';

/** @type {Page['show']} */
export async function show(_, signal) {
  const open = h('tbody');
  const ended = h('tbody');
  const none = h('p', { class: 'help' }, t('Nothing is wrong.'));
  const channels = h('tbody');
  const told = channelParts(channels);
  const patch = (/** @type {Alerts} */ found) => {
    ring(found);
    const now = found.alerts.filter((one) => !one.ended_at);
    const over = found.alerts.filter((one) => one.ended_at);
    none.hidden = now.length > 0;
    openTable.hidden = !now.length;
    endedPart.hidden = !over.length;
    told[0].hidden = !found.channels.length;
    patchRows(open, now, ({ id }) => id, alertRow);
    patchRows(ended, over, ({ id }) => id, endedRow);
    patchRows(channels, found.channels, ({ channel, recipient }) => `${channel} ${recipient}`, channelRow);
    return 10;
  };
  const openTable = table('plain alerts', t('Open alerts'),
    [t('What'), t('Since'), t('Told'), t('Actions')], open);
  const endedPart = h('section', {}, h('h2', {}, t('Ended')),
    table('plain', t('Ended alerts'), [t('What'), t('Since'), t('Ended')], ended));
  patch(await get('api/alerts', signal));
  if (signal.aborted) return;
  page(t('Alerts'), none, openTable, endedPart,
    h('h2', {}, t('Recipients')), ...told);
  poll(signal, async () => patch(await get('api/alerts', signal)), 10);
}

/** One that is open. @param {Alert} alert */
function alertRow(alert) {
  const { count, muted_until: until, opened_at: opened, told } = alert;
  const [title, text] = [alert.title, alert.text].map(said);
  const muted = isMuted(until);
  const mute = (/** @type {string} */ how, /** @type {string} */ words) => button(words, async () => {
    await request('POST', `api/alerts/${alert.id}/mute`, { how });
    store.dispatchEvent(new Event('wake'));
    say(how === 'no' ? t('It is no longer muted.') : t('It is muted.'), true);
  }, { 'aria-label': `${words}: ${title}` });
  const end = muted && Date.parse(String(until)) < FOR_EVER;
  return h('tr', {}, h('th', { scope: 'row' }, title, h('p', { class: 'help text' }, text,
    count > 1 && ` ${t('{count} times.', { count })}`)),
  cell(t('Since'), timeElement(opened)),
  cell(t('Told'), told ? t.n('{count} time | {count} times', told) : t('not yet')),
  h('td', {}, h('div', { class: 'actions' }, ...(muted
    ? [h('span', { class: 'help' }, ...end
      ? textWith('Muted, ends {time}', { time: timeElement(String(until)) })
      : [t('Muted until it ends')]), mute('no', t('Unmute'))]
    : MUTES.map(([how, words]) => mute(how, words))))));
}

/** One that is over. @param {Alert} alert */
function endedRow({ ended_at: ended, opened_at: opened, text, title }) {
  return h('tr', {}, h('th', { scope: 'row' }, said(title),
    h('p', { class: 'help text' }, said(text))),
  cell(t('Since'), timeElement(opened)), cell(t('Ended'), timeElement(String(ended))));
}

/** Who is told, how that goes, and a test. @param {HTMLElement} body */
function channelParts(body) {
  const test = button(t('Send a test'), async () => {
    await request('POST', 'api/alerts/test', {});
    store.dispatchEvent(new Event('wake'));
    say(t('A test was sent. The table shows the servers\' answers.'), true);
  });
  const here = button(t('Notify me in this browser'), async () => {
    const answer = 'Notification' in window ? await Notification.requestPermission() : 'denied';
    localStorage.setItem('jobqueue.notify', answer === 'granted' ? 'yes' : 'no');
    say(answer === 'granted' ? t('This browser shows alerts while this page is open.')
      : t('The browser does not allow that.'), true);
  });
  return [table('plain', t('Recipients'),
    [t('Recipient'), t('How'), t('Last sent'), t('Problem')], body),
  h('p', { class: 'help' }, ...textWith('Recipients are set in the {settings}: {names}.', {
    settings: h('a', { href: '#/settings?q=alert_' }, t('settings')),
    names: 'alert_mail, alert_webhook, alert_function' })),
    h('div', { class: 'actions' }, test, here)];
}

/** One recipient. @param {Channel} channel */
function channelRow({ channel, error, recipient, sent_at: sent }) {
  return h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, recipient)), cell(t('How'), channel),
    cell(t('Last sent'), sent ? timeElement(sent) : t('never')),
    cell(t('Problem'), error ? said(error) : t('none')));
}
