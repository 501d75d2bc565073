// @ts-check
/** Requests through servers that pass only GET, HEAD and POST, with few types of bodies. */
import { keep, recall } from './language.js';

/** 1: PATCH and DELETE are sent as POST; 2: and each body as a file of a form. */
export const LEVELS = 2;

/** What was needed here the last time. */
export const level = () => Number(recall('narrow'));

/** A form with one file, which every host lets pass. @param {BodyInit|null} body @param {string} kind */
export function wrap(body, kind) {
  const form = new FormData();
  const parts = /** @type {BlobPart[]} */ (body === null ? [] : [body]);
  form.append('body', new Blob(parts, { type: kind }), 'body');
  return form;
}

/**
 * Asks as the server in front wants it, and remembers that.
 * @param {string} address
 * @param {RequestInit & {method: string, headers: Record<string, string>}} options as without such a server
 * @param {Response|null} refusal of that
 * @returns {Promise<Response>}
 */
export async function ask(address, options, refusal) {
  const { method, headers, body = null } = options;
  const { 'Content-Type': kind, ...others } = headers;
  let answer = refusal;
  for (let step = Math.max(1, level()); step <= LEVELS; step += 1) {
    const wrapped = step === LEVELS && body !== null;
    if (refusal && !wrapped && method === 'POST') continue;     // it was sent so
    const url = method === 'POST' ? address
      : `${address}${address.includes('?') ? '&' : '?'}as=${method}`;
    answer = await fetch(url, { ...options, method: 'POST', body: wrapped ? wrap(body, kind) : body,
      headers: wrapped ? others : headers });
    if (answer.ok || /json/.test(answer.headers.get('content-type') || '')) {
      if (step > level()) keep('narrow', String(step));
      break;
    }
  }
  return /** @type {Response} */ (answer);
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
