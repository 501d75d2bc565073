// @ts-check
/** A task's files: pictures, the beginning of texts and tables; each can be downloaded. */
import { ApiError, get } from './api.js';
import { h, table } from './dom.js';
import { sizeWords } from './forms.js';
import { t } from './language.js';
import { act } from './messages.js';

/** @import {TaskFile} from './types.js' */

const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];
const SHOWN = 5;
const FIRST_ROWS = 10;
const MOST_LINES = 40;
const MOST_TEXT = 20000;

/** The list; it is read anew whenever the task's state has changed. */
export class FilesView {
  root = h('section', { hidden: true });
  last = '';
  /** Those that it was given, by their ids. @type {Map<unknown, TaskFile>} */
  given = new Map();

  /** @param {number} id of the task */
  constructor(id) {
    this.path = `api/tasks/${id}/files`;
  }

  /** @param {AbortSignal} signal */
  async refresh(signal) {
    const { files } = await get(this.path, signal);
    const text = JSON.stringify(files);
    if (signal.aborted || text === this.last) return;
    this.last = text;
    this.given = new Map(files.map((/** @type {TaskFile} */ file) => [file.id, file]));
    this.root.hidden = !files.length;
    this.root.replaceChildren(h('h2', {}, t('Files')), h('ul', { class: 'files' },
      .../** @type {TaskFile[]} */ (files).map((file, place) => (
        this.item(file, place < SHOWN && !file.id)))));
  }

  /** A link to save a file. @param {TaskFile} file @param {string} words */
  link({ id, name }, words) {
    return h('a', { href: `${this.path}/${encodeURIComponent(id || name)}`, download: name }, words);
  }

  /** Name and size, and what can be seen of it. @param {TaskFile} file @param {boolean} open */
  item(file, open) {
    const { id, name, size, type } = file;
    const path = `${this.path}/${encodeURIComponent(id || name)}`;
    const seen = PICTURES.includes(type) ? () => h('img', { src: path, alt: name })
      : /^text\//.test(type) && size > 0 && (() => beginningOf(path, name));
    return h('li', {}, h('p', {}, h('b', {}, h('bdi', {}, name)), h('span', { class: 'help' },
      sizeWords(size), id && ` · ${t('uploaded')}`), this.link(file, t('Download'))),
    seen && preview(seen, open));
  }
}

/**
 * What is made once it is unfolded.
 * @param {() => Node|Promise<Node>} make @param {boolean} open
 */
function preview(make, open) {
  const place = h('div');
  const fold = h('details', { open, ontoggle: () => (
    fold.open && !place.firstChild && act(place, async () => place.replaceChildren(await make()))) },
  h('summary', {}, t('Show')), place);
  return fold;
}

/** The first rows of a table, or the first lines of a text. @param {string} path @param {string} name */
async function beginningOf(path, name) {
  const [text, whole] = await readBeginning(path);
  const isTable = /\.(csv|tsv)$/i.test(name);
  const [shown, cut] = isTable ? await rowsOf(text, name) : linesOf(text);
  return h('div', {}, shown, (cut || !whole) && h('p', { class: 'help' },
    t('Only its beginning is shown.')));
}

/** @param {string} text @returns {[HTMLElement, boolean]} */
function linesOf(text) {
  const lines = text.split('\n');
  return [h('pre', { class: 'code', tabindex: 0, role: 'group', 'aria-label': t('Text') },
    lines.slice(0, MOST_LINES).join('\n')), lines.length > MOST_LINES + 1];
}

/** @param {string} text @param {string} name @returns {Promise<[HTMLElement, boolean]>} */
async function rowsOf(text, name) {
  const { readTable } = await import('./new.js');
  const { rows } = readTable(text.replace(/\r\n?/g, '\n').trimEnd(), false);
  const [titles, ...body] = rows.slice(0, FIRST_ROWS + 1);
  return [h('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': name },
    table('', name, titles, h('tbody', {}, ...body.map((row) => h('tr', {},
      ...row.map((cell) => h('td', {}, cell))))))), rows.length > FIRST_ROWS + 1];
}

/** The first characters, and whether that is all. @param {string} path @returns {Promise<[string, boolean]>} */
async function readBeginning(path) {
  const { body, ok, status } = await fetch(path).catch(() => new Response(null, { status: 502 }));
  if (!ok || !body) throw new ApiError(status);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ''; ;) {
    const { done, value } = await reader.read();
    if (done) return [text, true];
    text += value;
    if (text.length > MOST_TEXT) {
      reader.cancel();
      return [text.slice(0, MOST_TEXT), false];
    }
  }
}
