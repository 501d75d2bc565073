// @ts-check
/** The admin's page on this host, and whether a browser can fetch what is private. */
import { ApiError, get, request, store } from './api.js';
import { now } from './clock.js';
import { find, h, render, setText, setTitle, table, textWith } from './dom.js';
import { duration } from './format.js';
import { act, badge, button, copyBox, heading, pairItems, part, patchRows, timeElement } from './forms.js';
import { t } from './language.js';
import { said } from './said.js';

/** @import {Canary, Check, Host, HostFile, Page, Ticks} from './types.js' */

/** What only the file of such a name has; other pages may come with status 200. */
const SIGNS = /** @type {[RegExp, RegExp][]} */ ([
  [/\.py$/, /^(?:from|import) .*\bjobqueue\b/m], [/journal\.json$/, /"file_system"/],
]);
const VERDICTS = { bad: t('bad'), note: t('note'), ok: t('ok') };
const NO_ANSWER = [429, 502, 503, 504, 508];
/** Verdicts, the worst first: shape, heading. @type {[Check['verdict'], string, string][]} */
const GROUPS = [['bad', 'failed', t('Needs fixing')],
  ['note', 'alert', t('Worth knowing')], ['ok', 'succeeded', t('OK')]];
/** @type {Record<string, string>} */
const MODES = {
  detached: t('The program that adds a task'), cron: t('A cron job'), service: t('The host'),
  slice: t('This page while it is open, and the tick address'),
};
/** @type {Record<string, string>} */
const SOURCES = { server: t('the server'), request: t('a visit to the page'),
  worker: t('a worker'), cron: t('cron'), address: t('the tick address'),
  code: t('an add from a program') };

/**
 * Whether this is the private file itself.
 * @param {string} address @param {string} text @param {string|null} token
 */
function isPrivate(address, text, token) {
  if (token && text.includes(token)) return true;
  return !/^\s*</.test(text)
    && SIGNS.some(([name, sign]) => name.test(address) && sign.test(text));
}

/** The addresses that gave away what is private. @param {Canary} canary */
async function findExposed({ addresses, token }) {
  const found = [];
  for (const address of addresses) {
    const response = await fetch(address,
      { credentials: 'omit', cache: 'no-store', redirect: 'manual' }).catch(Response.error);
    if (response.type === 'error' || NO_ANSWER.includes(response.status)) {
      throw new ApiError(response.status, null, 0);
    }
    if (isPrivate(address, await response.text(), token)) found.push(address);
  }
  return found;
}

/** Tries to fetch what is private, as anybody could, and reports it. @param {Canary} [canary] */
export async function lookForExposed(canary) {
  const exposed = await findExposed(canary || (await get('api/host')).canary);
  await request('POST', 'api/host/exposure', { exposed });
  const { session } = store.state;
  if (session) session.looked_at = new Date(now()).toISOString();
  store.set('exposed', exposed);
}

/** What `check` says of this host, the problems first. @type {Page['show']} */
export async function show(_, signal) {
  const back = h('a', { class: 'back', href: '#/settings' }, t('← Settings'));
  render(t('This host'), back, heading(t('This host')),
    h('p', { class: 'lead' }, t('Checking…')));
  const view = new HostView(await get('api/host', signal), signal);
  if (signal.aborted) return;
  view.enter(back);
  find('h1').focus();
  act(view.outside, () => view.lookOutside());
}

/** The page's parts; each look at the server brings them up to date in place. */
class HostView {
  follows = false;
  title = heading();
  advice = h('p', { class: 'advice text' });
  groups = GROUPS.map(([, , title]) => groupPart(title));
  mode = h('p');
  ticks = h('dl', { class: 'pairs' });
  outside = h('p', { class: 'text' });
  methods = h('p', { class: 'text' });
  lines = h('div');
  files = part(t('Lines to copy'), this.lines);

  /** @param {Host} host @param {AbortSignal} signal */
  constructor(host, signal) {
    this.host = host;
    this.signal = signal;
  }

  /** Shows the page for the first time. @param {HTMLElement} back */
  enter(back) {
    const again = () => dispatchEvent(new Event('hashchange'));
    const [bad, notes, fine] = this.groups.map(({ root }) => root);
    render('', back, h('div', { class: 'head' }, this.title,
      button(t('Check again'), again)), this.advice, bad, notes,
    h('h2', {}, t('How workers are started')), this.mode,
    h('div', { class: 'actions' },
      button(t('Run a sample task'), () => this.startSample()),
      h('p', { class: 'help' },
        t('It takes 10 s; its page shows whether this host lets workers live.'))),
    h('h2', {}, t('Maintenance')), this.ticks,
    h('h2', {}, t('Backup')), h('p', {}, ...textWith(
      'A verified copy of everything; work continues meanwhile. {settings} can make one every day.',
      { settings: h('a', { href: '#/settings?q=backup' }, t('Settings')) })),
    h('div', { class: 'doing' }, h('a', { class: 'button', href: 'api/backup', download: '' },
      t('Download a backup'))),
    h('h2', {}, t('Seen from outside')), this.outside, this.methods, this.files, fine);
    this.patch();
  }

  /** Looks again. */
  async refresh() {
    const { signal } = this;
    const host = await get('api/host', signal).catch((error) => {
      if (!signal.aborted) throw error;
    });
    if (signal.aborted) return;
    this.host = host;
    this.patch();
  }

  /** Brings everything up to date. */
  patch() {
    const { advice, checks, files, mode, ticks } = this.host;
    const bad = checks.filter(({ verdict }) => verdict === 'bad').length;
    const words = bad ? t.n('This host: {count} problem | This host: {count} problems', bad)
      : t('This host: no problems');
    setTitle(words);
    setText(this.title, words);
    setText(this.advice, said(advice || ''));
    this.groups.forEach(({ root, body }, place) => {
      const [verdict, shape] = GROUPS[place];
      const some = checks.filter((one) => one.verdict === verdict);
      root.hidden = !some.length;
      patchRows(body, some, ({ name }) => name, (one) => checkRow(one, shape));
    });
    setText(this.mode, mode ? `${MODES[mode.mode]} (${mode.mode}). ${said(mode.why)}` : '');
    this.ticks.replaceChildren(...tickPairs(ticks));
    this.patchOutside();
    this.files.hidden = !files?.length;
    patchRows(this.lines, files || [], ({ title }) => title, fileElement);
  }

  /** Adds a task that shows whether workers live here, and goes to its page. */
  async startSample() {
    const { id } = await request('POST', 'api/host/test');
    location.hash = `#/tasks/${id}`;
  }

  /** Tries to fetch what is private; what the server says of it may then be another. */
  async lookOutside() {
    const before = JSON.stringify(this.host.exposed);
    await this.lookAtMethods();
    await lookForExposed(this.host.canary);
    const { exposed } = store.state;
    this.host = { ...this.host, exposed, looked_at: new Date(now()).toISOString() };
    if (JSON.stringify(exposed) === before) this.patchOutside();
    else await this.refresh();
  }

  /** Tries what many hosts refuse; this page then sends it in another way. */
  async lookAtMethods() {
    const refused = await import('./narrow.js').then(({ findRefused }) => findRefused());
    setText(this.methods, refused.length
      ? t('Something in front of this site refuses {what}. This page sends it as POST, in a form.',
        { what: refused.join(', ') })
      : t('All kinds of requests reach this site.'));
  }

  /** What a browser could fetch. */
  patchOutside() {
    const { exposed, looked_at: at } = this.host;
    const list = (exposed || []).map((address) => `\n${new URL(address, document.baseURI)}`);
    const words = !exposed ? t('No browser has checked yet.')
      : list.length ? t('Anybody can read these files:')
        : t('Your browser found no private file.');
    this.outside.replaceChildren(words, ' ',
      exposed && at && !list.length ? timeElement(at) : '', ...list);
  }
}

/** One group of what was looked at. @param {string} title */
function groupPart(title) {
  const body = h('tbody');
  const root = part(title,
    table('plain host', title, [t('Check'), t('Status'), t('Remark')], body));
  return { root, body };
}

/** One thing that was looked at. @param {Check} check @param {string} shape */
const checkRow = ({ name, verdict, text }, shape) => h('tr', {}, h('th', { scope: 'row' }, said(name)),
  h('td', {}, badge(shape, VERDICTS[verdict])), h('td', {}, h('bdi', {}, said(text))));

/** @param {number} period */
const every = (period) => t('about every {time}', { time: duration(period) });

/** When somebody last saw to what is due, and how often. @param {Ticks|null} ticks */
function tickPairs(ticks) {
  const { last_at: last, last_source: source, period, cron, resident } = ticks || {};
  const by = SOURCES[source || ''];
  return pairItems([
    [t('Last'), last ? h('span', {}, timeElement(last), by && `, ${t('by {name}', { name: by })}`)
      : t('never')],
    [t('While no page is open'), resident ? t('a server runs all the time')
      : period ? every(period) : t('not known yet')],
    [t('Cron'), cron?.last_at ? h('span', {}, ...textWith('last {time}', { time: timeElement(cron.last_at) }),
      cron.period ? `, ${every(cron.period)}` : '') : t('not seen')],
  ]);
}

/** Lines to copy, folded. @param {HostFile} file */
const fileElement = ({ title, name, text }) => h('details', {},
  h('summary', {}, said(title), name && ': ', name && h('code', {}, name)), copyBox(text, said(title)));
