// @ts-check
/** What is wrong and was lately: the bell in the header, for admins, and its page. */
import { get, isAdmin, pause, poll, request, store } from './api.js';
import { find, h, setAttribute, setText, showChosen, table, textWith } from './dom.js';
import { badge, button, cell, offer, page, part, patchRows, say, timeElement } from './forms.js';
import { t } from './language.js';
import { retryButton } from './list.js';
import { said } from './said.js';
import { askBrowser, keepWatched, notify, settingsLink } from './telling.js';

/** @import {Alert, Alerts, Channel, Page} from './types.js' */

const SECONDS = 30;
const FOR_EVER = 8640000000000000 / 100;        // a mute until it ends goes on beyond this moment
/** @type {[string, string][]} */
const MUTES = [['1h', t('1 hour')], ['8h', t('8 hours')], ['end', t('Until resolved')]];
/** Of alerts that a notification was shown for; null: none was looked at yet. @type {Set<number>|null} */
let known = null;
/** The number of alerts beside the menu, where the bell may be out of sight. */
const beside = find('#loud');

/** Keeps the number in the header, and tells the browser; also the end of tasks that are watched. */
export function watchAlerts() {
  keepWatched();
  poll(new AbortController().signal, async () => {
    if (isAdmin()) ring(await get('api/alerts'));
    return SECONDS;
  });
  store.on('session', () => {
    known = null;
    beside.hidden = true;
  });
}

/** Shows and tells how many are open; returns those. @param {Alerts} found */
function ring({ alerts }) {
  const open = alerts.filter(({ ended_at: ended }) => !ended);
  const loud = open.filter(({ muted_until: until }) => !isMuted(until));
  const bell = find('#bell');
  const words = t('Alerts') + (loud.length ? ` (${loud.length})` : '');
  beside.hidden = !loud.length;
  setText(find('span', beside), String(loud.length));
  setAttribute(beside, 'aria-label', `${loud.length} ${t('Alerts')}`);
  if (bell.textContent !== words) {
    setText(bell, words);
    showChosen();
  }
  const news = known && loud.filter(({ id }) => !known?.has(id));
  known = new Set(open.map(({ id }) => id));
  if (news?.length && wantsNotifications()) {
    for (const { link, title, text } of news.slice(0, 3)) notify(said(title), said(text), link);
  }
  return open;
}

/** @param {string|null} until */
const isMuted = (until) => Date.parse(until || '') > Date.now();

/** Whether this browser was asked, by a click, and said yes. */
const wantsNotifications = () => 'Notification' in window && Notification.permission === 'granted'
  && localStorage.getItem('jobqueue.notify') === 'yes';

/** @type {Page['show']} */
export async function show(_, signal) {
  const open = h('tbody');
  const ended = h('tbody');
  const none = h('p', { class: 'help' }, t('Nothing is wrong.'));
  const recipients = recipientsPart((found) => patch(found));
  const patch = (/** @type {Alerts} */ found) => {
    const now = ring(found);
    const over = found.alerts.filter((one) => one.ended_at);
    none.hidden = now.length > 0;
    openTable.hidden = !now.length;
    endedPart.hidden = !over.length;
    patchRows(open, now, ({ id }) => id, alertRow);
    patchRows(ended, over, ({ id }) => id, endedRow);
    recipients.patch(found);
    return 10;
  };
  const openTable = table('plain alerts', t('Open alerts'),
    [t('Alert'), t('Since'), t('Sent'), t('Actions')], open);
  const endedPart = part(t('Resolved'),
    table('plain', t('Resolved alerts'), [t('Alert'), t('Since'), t('Resolved')], ended));
  patch(await get('api/alerts', signal));
  if (signal.aborted) return;
  page(t('Alerts'), none, openTable, endedPart, h('h2', {}, t('Recipients')), ...recipients.parts);
  poll(signal, async () => patch(await get('api/alerts', signal)), 10);
}

/** What is wrong, with a link to where one sees more. @param {Alert} alert @param {string} [times] */
const headCell = ({ link, text, title }, times) => h('th', { scope: 'row' },
  h('a', { href: link }, said(title)), h('p', { class: 'help text' }, said(text), times));

/** One that is open. @param {Alert} alert */
function alertRow(alert) {
  const { count, error, function: name, muted_until: until, opened_at: opened, told } = alert;
  const muted = isMuted(until);
  const end = muted && Date.parse(until || '') < FOR_EVER;
  return h('tr', {}, headCell(alert, count > 1 ? ` · ${t.n('{count} time | {count} times', count)}` : ''),
    cell(t('Since'), timeElement(opened)),
    cell(t('Sent'), told ? t.n('{count} time | {count} times', told) : t('not yet')),
    h('td', {}, h('div', { class: 'actions' },
      name && error && retryButton(new URLSearchParams({ status: 'failed', function: name, error,
        ended_since: opened }), () => store.dispatchEvent(new Event('wake'))),
      ...muted ? [h('span', { class: 'help' }, ...end
        ? textWith('Muted, ends {time}', { time: timeElement(until) })
        : [t('Muted until it is resolved')]), muteButton(alert, 'no', t('Unmute'))]
        : [muteMenu(alert)])));
}

/** @param {Alert} alert @param {string} how @param {string} words @param {() => void} [done] */
const muteButton = ({ id, title }, how, words, done) => button(words, async () => {
  await request('POST', `api/alerts/${id}/mute`, { how });
  done?.();
  say(how === 'no' ? t('It is no longer muted.') : t('It is muted.'), true);
}, { class: 'small', 'aria-label': `${words}: ${said(title)}` });

/** Opens the choice of how long no message is sent. @param {Alert} alert */
function muteMenu(alert) {
  const words = t('Mute…');
  const open = button(words, () => {
    const choices = MUTES.map(([how, label]) => muteButton(alert, how, label, () => leave.click()));
    const leave = offer(open, t('Mute:'), t('Cancel'), choices);
    choices[0].focus();
  }, { class: 'small', 'aria-label': `${words}: ${said(alert.title)}` });
  return open;
}

/** One that is over. @param {Alert} alert */
const endedRow = (alert) => h('tr', {}, headCell(alert), cell(t('Since'), timeElement(alert.opened_at)),
  cell(t('Resolved'), timeElement(alert.ended_at)));

/**
 * Builds the list of the recipients of alerts: whether messages reach them, and a test.
 * @param {(found: Alerts) => void} seen
 */
function recipientsPart(seen) {
  const body = h('tbody');
  const none = h('p', {}, ...textWith('Nobody is told yet. {setup}.',
    { setup: settingsLink(t('Set up mail, Slack or ntfy')) }));
  const list = table('plain', t('Recipients'),
    [t('Recipient'), t('Channel'), t('Last sent'), t('Problem')], body);
  const links = h('p', { class: 'help' }, t('Messages do not link to this page yet.'), ' ',
    button(t('Let them link to {address}', { address: base() }), async () => {
      await request('PATCH', 'api/settings', { page_address: base() });
      say(t('Saved.'), true);
    }, { class: 'small' }));
  const test = testButton(seen);
  const change = h('p', {}, settingsLink(t('Change recipients')));
  const parts = [none, list, change, links, h('div', { class: 'actions' }, test,
    button(t('Notify me in this browser'), allow))];
  return { parts, patch: (/** @type {Alerts} */ { channels, page_address: address }) => {
    none.hidden = channels.length > 0;
    list.hidden = change.hidden = test.hidden = !channels.length;
    links.hidden = !channels.length || Boolean(address);
    patchRows(body, channels, ({ channel, recipient }) => `${channel} ${recipient}`, channelRow);
  } };
}

/** The address of this page. */
const base = () => new URL('.', document.baseURI).href.replace(/\/$/, '');

/** Lets this browser show alerts while the page is open. */
async function allow() {
  const allowed = await askBrowser();
  localStorage.setItem('jobqueue.notify', allowed ? 'yes' : 'no');
  say(allowed ? t('This browser shows alerts while this page is open.')
    : t('The browser does not allow that.'), true);
}

/** Sends a test, and follows it. @param {(found: Alerts) => void} [seen] the states of the recipients */
export const testButton = (seen) => button(t('Send a test'), async () => {
  const { deliveries } = await request('POST', 'api/alerts/test', {});
  say(t('The test is being sent…'), true);
  /** @type {Channel[]} */
  let tried;
  for (;; await pause(1)) {
    const found = /** @type {Alerts} */ (await get('api/alerts'));
    seen?.(found);
    tried = found.channels;
    if (!tried.some(({ sending }) => sending)) break;
  }
  const failed = tried.find(({ error }) => error);
  const ids = new Set(deliveries.map((/** @type {{id: number}} */ { id }) => id));
  say(failed ? t('The test failed. {recipient}: {error}',
    { recipient: failed.recipient, error: said(String(failed.error)) })
    : tried.some(({ last }) => last && ids.has(last)) ? t('The test was sent.')
      : t('The test waits: no process sends it. See the page This host.'), true);
});

/** @type {Record<string, string>} */
const CHANNELS = { mail: t('mail'), webhook: t('webhook'), function: t('function') };

/** One recipient. @param {Channel} channel */
function channelRow({ channel, error, recipient, sending, sent_at: sent }) {
  return h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, recipient)),
    cell(t('Channel'), CHANNELS[channel] || channel),
    cell(t('Last sent'), sending ? badge('running', t('sending…')) : sent ? timeElement(sent) : t('never')),
    cell(t('Problem'), error && !sending ? said(error) : t('none')));
}
