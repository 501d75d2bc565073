// @ts-check
/** A field for a file: it is sent as soon as it is chosen or dropped; its form waits for that. */
import { ApiError, store } from './api.js';
import { h, setText } from './dom.js';
import { awaited, button, refusal, sizeWords } from './forms.js';
import { t } from './language.js';
import { problemWords } from './live.js';

/** @typedef {{id: string, name: string, size: number}} Stored */

/** What was stored, for who logs in again or comes back. @type {Map<string, Stored>} */
const known = new Map();

/** What a file may have. */
export const mostBytes = () => (store.state.session?.max_file_mb || 0) * 2 ** 20;

/**
 * The control of such a field, and what stands behind it: the ids of the files are its value.
 * @param {{name?: string, required?: boolean, multiple?: boolean}} options
 * @param {string|string[]|null} value of an earlier task
 * @returns {[HTMLInputElement, HTMLElement]}
 */
export function fileControl({ name, required, multiple }, value) {
  const field = new FileField({ name, multiple }, h('input', {
    type: 'hidden', name, required, value: [value ?? []].flat().join('\n') }));
  return [field.input, field.root];
}

/** Files on their way. */
class FileField {
  problem = '';
  /** @type {Promise<void>|undefined} */
  sending;
  stop = new AbortController();

  /** @param {{name?: string, multiple?: boolean}} options @param {HTMLInputElement} ids */
  constructor(options, ids) {
    this.ids = ids;
    const over = (/** @type {boolean} */ is) => () => this.input.classList.toggle('over', is);
    this.input = h('input', { ...options, type: 'file', onchange: () => this.choose(),
      ondragenter: over(true), ondragleave: over(false), ondrop: over(false) });
    this.bar = h('progress', { 'aria-label': t('Progress') });
    this.words = h('span', { role: 'status' });
    this.cancel = button('', () => this.leave(), { class: 'small' });
    this.again = button(t('Try again'), () => this.choose(), { class: 'small' });
    this.root = h('div', { class: 'sent' }, ids, this.bar, this.words, this.cancel, this.again);
    ids.addEventListener('input', () => this.patch());
    awaited.set(ids, () => this.wait());
    this.patch();
  }

  /** Resolves once all is stored, or nothing was chosen. */
  async wait() {
    await this.sending;
    if (!this.problem) return;
    throw refusal([{ field: this.input.name, message: t('Nothing is stored yet.') }]);
  }

  /** Sends what was chosen, unless it is too large. */
  choose() {
    const files = [...this.input.files || []];
    const most = mostBytes();
    const large = files.find(({ size }) => size > most);
    this.stop.abort();
    this.problem = large ? t('{name} has {size}; a file may have {most}.', { name: large.name,
      size: sizeWords(large.size), most: sizeWords(most) }) : '';
    this.keep([]);
    if (files.length && !large) this.sending = this.send(files);
  }

  /** @param {File[]} files */
  async send(files) {
    const { signal } = this.stop = new AbortController();
    const all = files.reduce((sum, { size }) => sum + size, 0) || 1;
    const ids = [];
    let before = 0;
    try {
      for (const file of files) {
        const stored = await upload(file, (sent) => this.show((before + sent) / all), signal);
        before += file.size;
        known.set(stored.id, stored);
        ids.push(stored.id);
      }
      this.keep(ids);
    } catch (error) {
      if (signal.aborted) return;
      this.problem = problemWords(error);
      this.patch();
    }
  }

  /** Sends it no more, or leaves out what there is. */
  leave() {
    this.input.value = '';
    this.choose();
    this.input.focus();
  }

  /** @param {string[]} ids */
  keep(ids) {
    this.ids.value = ids.join('\n');
    this.ids.dispatchEvent(new Event('input', { bubbles: true }));
  }

  /** How far it is. @param {number} part */
  show(part) {
    if (!this.input.isConnected) this.stop.abort();
    this.bar.hidden = this.cancel.hidden = false;
    setText(this.cancel, t('Cancel'));
    this.again.hidden = true;
    this.bar.value = part;
    setText(this.words, part < 1 ? `${Math.floor(part * 100)} %` : t('storing…'));
  }

  /** What came of it. */
  patch() {
    const { problem, ids: { value } } = this;
    this.bar.hidden = true;
    this.cancel.hidden = !value;
    setText(this.cancel, t('Remove'));
    this.again.hidden = !problem;
    setText(this.words, problem || (value && value.split('\n').map(storedWords).join(', ')));
    this.root.classList.toggle('bad', Boolean(problem));
  }
}

/** @param {string} id */
function storedWords(id) {
  const { name, size } = known.get(id) || {};
  return name ? t('{name}, {size}: stored', { name, size: sizeWords(size || 0) })
    : t('the file of the earlier task');
}

/**
 * Sends a file; fetch() does not tell how far it is.
 * @param {File} file @param {(part: number) => void} show @param {AbortSignal} signal
 * @returns {Promise<Stored>}
 */
function upload(file, show, signal) {
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    sent.open('POST', `api/files?name=${encodeURIComponent(file.name)}`);
    sent.setRequestHeader('Content-Type', 'application/octet-stream');
    sent.responseType = 'json';
    sent.upload.onprogress = ({ loaded }) => show(loaded);
    sent.onload = () => (sent.status === 201 && sent.response?.id ? resolve(sent.response)
      : reject(problemOf(sent)));
    sent.onerror = sent.onabort = () => reject(problemOf(sent));
    signal.addEventListener('abort', () => sent.abort());
    sent.send(file);
  });
}

/** Why it was not stored; a web server in front of ours may allow less. @param {XMLHttpRequest} sent */
function problemOf({ response, status }) {
  if (response?.code === 'unauthorized') store.set('session', null);
  if (response?.code) return new ApiError(status, response);
  const detail = status === 413
    ? t('The web server of this host takes no file as large as this; its limit is set there.')
    : !status && t('The connection broke off. If it does so every time, the web server of this host '
      + 'may take no file as large as this.');
  return new ApiError(status, detail && { detail, code: 'upload' });
}
