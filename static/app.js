// @ts-check
/** The frame around every page: who is logged in, what is wrong, and which page is asked for. */
import { ApiError, get, isAdmin, mayChange, pause, store } from './api.js';
import { find, h, setAttribute, setText, showChosen } from './dom.js';
import { t } from './language.js';
import * as tasks from './tasks.js';

/** @import {Page, Route} from './types.js' */

/** With a stroke: of one. @type {Record<string, () => Promise<Page>>} */
const PAGES = {
  overview: () => import('./overview.js'),
  functions: () => import('./usage.js'),
  'functions/': () => import('./usage.js'),
  tasks: async () => tasks,
  'tasks/': () => import('./task.js'),
  new: () => import('./new.js'),
  schedules: () => import('./schedules.js'),
  queues: () => import('./queues.js'),
  workers: () => import('./pages.js'),
  settings: () => import('./settings.js'),
  'settings/': () => import('./host.js'),
  users: () => import('./pages.js'),
  activity: () => import('./activity.js'),
  alerts: () => import('./alerts.js'),
  account: () => import('./pages.js'),
  help: () => import('./help.js'),
  'help/': () => import('./help.js'),
  login: () => import('./pages.js'),
};
let leave = new AbortController();
let current = '';

/**
 * The page that the address asks for, as #/tasks?status=failed or #/tasks/7.
 * @returns {Route}
 */
function readAddress() {
  const [path, query] = location.hash.replace(/^#((?:setup|invite)=.*|\/?)/, '').split(/\?(.*)/s);
  const [name, id = ''] = path.split('/').map((part) => (
    new URLSearchParams(`part=${part}`).get('part') || ''));
  const params = new URLSearchParams(query);
  if (!store.state.session) return { page: 'login', id: '', params };
  const one = `${name}/`;
  return { page: id && Object.hasOwn(PAGES, one) ? one : name || 'overview', id, params };
}

/** Opens the page that is asked for; a dialog of the page before is closed. @param {any} [event] */
async function navigate(event) {
  if (event && !store.dispatchEvent(new Event('leave', { cancelable: true }))) {
    return history.replaceState(null, '', event.oldURL);
  }
  leave.abort();
  document.querySelector('dialog')?.close();
  leave = new AbortController();
  const { signal } = leave;
  const route = readAddress();
  document.body.classList.add('busy');
  try {
    await (await open(route.page)).show(route, signal);
  } catch (error) {
    if (!signal.aborted) (await import('./forms.js')).showProblem(error);
  }
  if (!signal.aborted) arrive(route);
}

/** Loads a page, with its style. @param {string} name */
async function open(name) {
  if (!Object.hasOwn(PAGES, name)) throw new ApiError(404);
  const [page] = await Promise.all([PAGES[name](), name === 'tasks' || addStyle()]).catch(reload);
  return page;
}

/** Browsers remember that a file did not come. @returns {Promise<any>} */
async function reload() {
  await pause(5);
  await get('healthz');
  location.reload();
  return new Promise(() => {});
}

/** @type {Promise<unknown>|undefined} */
let style;

/** Adds the style of all but the list, which waits for it. */
function addStyle() {
  style ||= new Promise((done, failed) => {
    document.head.append(h('link', {
      rel: 'stylesheet', href: 'static/pages.css', onload: done, onerror: failed,
    }));
  });
  return style;
}

/** Marks where one is; the heading gets the focus. What is below would have moved till now.
 * @param {Route} route */
function arrive({ page, id }) {
  document.body.classList.remove('busy');
  find('footer').hidden = !store.state.session;
  setAttribute(find('#help'), 'href', `#/help/for-${encodeURIComponent(page)}`);
  const here = `${page}/${id}`;
  const link = page === 'new' ? 'tasks' : page.replace('/', '').replace('functions', 'overview');
  for (const item of document.querySelectorAll('header a')) {
    setAttribute(item, 'aria-current', item.getAttribute('href') === `#/${link}` && 'page');
  }
  showChosen();
  if (current && current !== here) {
    if (page !== 'tasks') scrollTo(0, 0);
    document.querySelector('h1')?.focus({ preventScroll: true });
  }
  current = here;
}

/** Shows the header of who is logged in, or the log-in. */
function patchSession() {
  const { session } = store.state;
  find('header').hidden = !session;
  if (session) {
    setText(find('#me'), session.user.name);
    for (const item of document.querySelectorAll('.admin')) {
      setAttribute(item, 'hidden', !isAdmin());
    }
    document.body.classList.toggle('looks', !mayChange());
    const { version, data } = session;
    setText(find('footer'), `jobqueue ${version}${data ? ` · ${data}` : ''}`);
  }
  return navigate();
}

/** The texts of index.html, in the chosen language. */
function translateFrame() {
  for (const element of document.querySelectorAll('[data-t]')) {
    const label = element.getAttribute('aria-label');
    if (label) setAttribute(element, 'aria-label', t(label));
    else setText(element, t(element.textContent || ''));
  }
}

/** Asks who is here, then shows what the address says. */
async function start() {
  translateFrame();
  const live = Promise.all([import('./live.js'), import('./list.js'), addStyle()]).catch(reload);
  live.then(([{ initializeLines }]) => initializeLines());
  store.state.session = await get('api/session').catch(() => null);
  store.on('session', patchSession);
  addEventListener('hashchange', navigate);
  await patchSession();
  (await live)[0].initializeFrame();
  import('./alerts.js').then(({ watchAlerts }) => watchAlerts()).catch(reload);
}

start();
