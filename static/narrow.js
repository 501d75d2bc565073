// @ts-check
/** Requests through servers that pass only GET, HEAD and POST, with few types of bodies. */
import { keep, recall, t } from './language.js';

/** 1: PATCH and DELETE are sent as POST; 2: and each body as a file of a form. */
export const LEVELS = 2;

/** What was needed here the last time. */
export const level = () => Number(recall('narrow'));

/** Notes what was needed. @param {number} step */
export const remember = (step) => keep('narrow', String(step));

/** A form with one file, which every host lets pass. @param {BodyInit|null} body @param {string} kind */
export function wrap(body, kind) {
  const form = new FormData();
  const parts = /** @type {BlobPart[]} */ (body === null ? [] : [body]);
  form.append('body', new Blob(parts, { type: kind }), 'body');
  return form;
}

/** Whether a jobqueue answered, or nobody that knows better. @param {Response} answer */
const isOurs = ({ ok, status, headers }) => (
  ok || (status > 501) || /json/.test(headers.get('content-type') || ''));

/**
 * Changes something, as the server in front wants to be asked, and remembers that.
 * @param {string|URL} address @param {string} method
 * @param {unknown} value sent as JSON, or a Blob as it is
 * @param {{key?: string, signal: AbortSignal}} more
 * @returns {Promise<Response>}
 */
export async function ask(address, method, value, { key, signal }) {
  const kind = value instanceof Blob ? value.type : 'application/json';
  const body = value instanceof Blob ? value : value === undefined ? null : JSON.stringify(value);
  const meant = method === 'POST' ? address
    : `${address}${/[?]/.test(String(address)) ? '&' : '?'}as=${method}`;
  /** @type {Response|undefined} */
  let answer;
  for (let step = level(); step <= LEVELS; step += 1) {
    if (answer && (method === 'POST' ? step === 1 : step === LEVELS && body === null)) continue;
    const wrapped = step === LEVELS && body !== null;
    answer = await fetch(step ? meant : address, {
      method: step ? 'POST' : method, body: wrapped ? wrap(body, kind) : body, signal,
      headers: { ...!wrapped && { 'Content-Type': kind }, ...key && { 'Idempotency-Key': key } },
    });
    if (isOurs(answer)) {
      if (step > level()) remember(step);
      return answer;
    }
  }
  const status = answer?.status || 0;
  const detail = t('Something in front of this site refused: {status}.', { status });
  return new Response(JSON.stringify({ detail }), { status });
}

/** What something in front of this site does not let pass, with what it answers. */
export async function findRefused() {
  const tries = [['PATCH'], ['DELETE'], ['POST', 'application/octet-stream']];
  const found = [];
  for (const [method, kind] of tries) {
    const headers = /** @type {HeadersInit} */ (kind ? { 'Content-Type': kind } : {});
    const { status, headers: told } = await fetch('healthz', { method, headers, body: kind && 'x' })
      .catch(Response.error);             // our own server answers 405, in JSON
    if (status && !/json/.test(told.get('content-type') || '')) found.push(`${kind || method} (${status})`);
  }
  return found;
}
