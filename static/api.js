// @ts-check
/** Requests, waiting and polling; what the whole page knows. */
import { noteClock } from './clock.js';
import { t } from './language.js';

/** @import {State} from './types.js' */

/** What the whole page knows; each change is an event of its key's name. */
class Store extends EventTarget {
  /** @type {State} */
  state = {
    session: null, exposed: [], service: null, catalogue: null, trouble: null, setup: false,
  };

  /** @template {keyof State} K @param {K} key @param {State[K]} value */
  set(key, value) {
    if (JSON.stringify(value) === JSON.stringify(this.state[key])) return;
    this.state[key] = value;
    this.dispatchEvent(new Event(key));
  }

  /** @param {keyof State} key @param {() => void} listener @param {AbortSignal} [signal] */
  on(key, listener, signal) {
    this.addEventListener(key, listener, { signal });
  }
}

export const store = new Store();

/** Whether the one who is logged in is an admin. */
export const isAdmin = () => store.state.session?.user.role === 'admin';

/** Whether they may change something; viewers only look. */
export const mayChange = () => store.state.session?.user.role !== 'viewer';

/** What they are called, or "". */
export const ownName = () => store.state.session?.user.name || '';

const MOST_SECONDS = 20;

/** A request that did not succeed; status 0 is a lost connection. */
export class ApiError extends Error {
  /** @param {number} status @param {any} [body] problem+json @param {number} [wait] in seconds */
  constructor(status, body, wait = 0) {
    const what = status ? t('The server answered {status}', { status })
      : t('The server could not be reached');
    const advice = t('Please try again');
    /** @type {{field: string, message: string, index?: number|null}[]} */
    const errors = body?.errors || [];
    super(body?.detail || errors.map(({ message }) => message).join(' ')
      || t('{problem}. {advice}.', { problem: body?.title || what, advice }));
    this.status = status;
    this.code = body?.code;
    this.safe = false;
    this.wait = wait;
    this.setup = Boolean(body?.setup);
    this.count = body?.count;
    this.errors = errors;
  }
}

/**
 * Waits, at most until the page is seen again or somebody did something.
 * @param {number} seconds
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause(seconds, signal) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const done = () => {
      if (document.hidden && !signal?.aborted) return;
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    document.addEventListener('visibilitychange', done, over);
    store.addEventListener('wake', done, over);
    addEventListener('online', done, over);
    signal?.addEventListener('abort', done, over);
    if (signal?.aborted) done();
  });
}

/**
 * Repeats a step that resolves with the seconds until the next; never while hidden, and slower
 * where answers are slow.
 * @param {AbortSignal} signal
 * @param {() => Promise<number>} step
 * @param {number} [wait] seconds before the first step
 */
export async function poll(signal, step, wait = 0) {
  while (!signal.aborted) {
    if (wait || document.hidden) await pause(wait, signal);
    const began = Date.now();
    if (!signal.aborted) wait = await step().catch(later);
    wait = Math.max(wait, Math.min(15, (Date.now() - began) / 125));
  }
}

/** A poll goes on after a refusal, but not after a mistake of the page's own. @param {any} error */
function later(error) {
  if (error instanceof ApiError) return 15;
  throw error;
}

/**
 * One try. Resolves with the parsed body, or rejects with an ApiError.
 * @param {string} method
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} [signal]
 * @param {string} [key]
 */
async function send(method, path, body, signal, key) {
  const cut = new AbortController();
  const timer = setTimeout(() => cut.abort(), body instanceof Blob ? 600000 : 30000);
  signal?.addEventListener('abort', () => cut.abort(), { signal: cut.signal });
  try {
    return await read(method === 'GET'
      ? await fetch(place(path), { method, cache: 'no-cache', signal: cut.signal })
      : await import('./narrow.js').then(({ ask }) => ask(
        place(path), method, body, { key, signal: cut.signal })));
  } catch (error) {
    throw error instanceof ApiError ? error : new ApiError(0);
  } finally {
    clearTimeout(timer);
  }
}

/** JSON with all digits of whole numbers. @param {string} text */
const parse = (text) => (/[:[,]-?\d{16}/.test(text)
  ? import('./digits.js').then(({ parseJson }) => parseJson(text)) : JSON.parse(text));

/** The address of a path: fetch() refuses one with a name in it, as the page's may be. @param {string} path */
function place(path) {
  const base = new URL(document.baseURI);
  return base.username ? new URL(path, base.origin + base.pathname) : path;
}

/** The body of an answer; notes the server's clock. @param {Response} response */
async function read(response) {
  noteClock(Date.parse(response.headers.get('date') || ''));
  if (response.status === 204) return null;
  const body = await response.text().then(parse).catch(() => null);
  if (response.ok && body) return body;
  const wait = Number(response.headers.get('retry-after')) || 0;
  if (body) await import('./said.js').then(({ saidProblem }) => saidProblem(body)).catch(() => null);
  throw new ApiError(response.ok ? 0 : response.status, body, wait);
}

/** Whether it may pass; without a code our server did not answer. @param {ApiError} error */
const isPassing = ({ code, status }) => (
  code ? status === 503 : !status || status === 429 || status >= 500);

/** Requests that go on trying, each with what it met last. @type {Map<object, ApiError>} */
const troubles = new Map();

/** Says what a request met, or that it got its answer: then no connection is lost any more.
 * @param {object} asked @param {ApiError} [error] */
function noteTrouble(asked, error) {
  if (error) troubles.set(asked, error);
  else for (const [one, { status }] of troubles) if (one === asked || !status) troubles.delete(one);
  store.set('trouble', [...troubles.values()].pop() || null);
}

/**
 * Asks the server. Reading goes on trying while there is no answer; what changes something is
 * repeated for a minute, if that cannot do it twice.
 * @param {string} method
 * @param {string} path relative to the page
 * @param {unknown} [body] sent as JSON, or a Blob as it is
 * @param {AbortSignal} [signal]
 * @param {string} [key] of what must be done once
 * @returns {Promise<any>}
 */
export async function request(method, path, body, signal, key) {
  const asked = {};
  for (let wait = 2; ; wait = Math.min(wait * 1.5, MOST_SECONDS)) {
    try {
      const answer = await send(method, path, body, signal, key);
      noteTrouble(asked);
      if (answer?.service) store.set('service', answer.service);
      if (method !== 'GET') store.dispatchEvent(new Event('wake'));
      return answer;
    } catch (problem) {
      const error = /** @type {ApiError} */ (problem);
      if (error.code === 'unauthorized') {
        store.state.setup = error.setup;
        store.set('session', null);
      }
      const again = method === 'GET' || ((key || error.code === 'busy') && wait < MOST_SECONDS);
      if (signal?.aborted || !again || !isPassing(error)) {
        troubles.delete(asked);
        throw error;
      }
      noteTrouble(asked, error);
      await pause(Math.min(60, Math.max(error.wait, wait)) * (1 + Math.random() / 2), signal);
    }
  }
}

/** Reads. @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => request('GET', path, undefined, signal);
