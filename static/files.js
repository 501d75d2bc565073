// @ts-check
/** A task's files: pictures, the beginning of texts and tables; each can be downloaded. */
import { ApiError, get } from './api.js';
import { h, table } from './dom.js';
import { sizeWords } from './forms.js';
import { t } from './language.js';
import { act } from './messages.js';
import { valueCell } from './values.js';

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
  /** Those that the result names, by their names. @type {Map<unknown, TaskFile>} */
  returned = new Map();
  /** The returned pictures by their names. @type {Map<string, HTMLImageElement>} */
  pictures = new Map();

  /** @param {number} id of the task */
  constructor(id) {
    this.path = `api/tasks/${id}/files`;
  }

  /** @param {unknown} result of the task @param {AbortSignal} signal */
  async refresh(result, signal) {
    const { files } = /** @type {{files: TaskFile[]}} */ (await get(this.path, signal));
    const text = JSON.stringify([files, result]);
    if (signal.aborted || text === this.last) return;
    this.last = text;
    this.given = new Map(files.map((file) => [file.id, file]));
    const names = new Set(result && typeof result === 'object' ? Object.values(result) : [result]);
    this.returned = new Map(files.filter(({ id, name }) => !id && names.has(name))
      .map((file) => [file.name, file]));
    await this.readPictures();
    this.root.hidden = !files.length;
    this.root.replaceChildren(h('h2', {}, t('Files')), h('ul', { class: 'files' },
      .../** @type {TaskFile[]} */ (files).map((file, place) => (
        this.item(file, place < SHOWN && !file.id && !this.pictures.has(file.name))))));
  }

  /** Loads the first returned pictures: their height must be known before they are shown. */
  async readPictures() {
    const pictures = [...this.returned.values()].filter(({ type }) => PICTURES.includes(type))
      .slice(0, SHOWN).map((file) => h('img', { src: this.pathOf(file), alt: file.name }));
    await Promise.all(pictures.map((picture) => picture.decode().catch(() => null)));
    this.pictures = new Map(pictures.map((picture) => [picture.alt, picture]));
  }

  /** A file that the result names: the picture, which opens in full, or a link. @param {unknown} value */
  elementOf(value) {
    const file = this.returned.get(value);
    const picture = file && this.pictures.get(file.name);
    return picture ? h('a', { class: 'picture', href: picture.src, target: '_blank', rel: 'noopener' }, picture)
      : file && this.link(file, file.name);
  }

  /** @param {TaskFile} file */
  pathOf({ id, name }) {
    return `${this.path}/${encodeURIComponent(id || name)}`;
  }

  /** A link to save a file. @param {TaskFile} file @param {string} words */
  link(file, words) {
    return h('a', { href: this.pathOf(file), download: file.name }, words);
  }

  /** Name and size, and what can be seen of it. @param {TaskFile} file @param {boolean} open */
  item(file, open) {
    const { id, name, size, type } = file;
    const path = this.pathOf(file);
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
  return [h('div', { class: 'wide cells', tabindex: 0, role: 'group', 'aria-label': name },
    table('', name, titles, h('tbody', {}, ...body.map((row) => h('tr', {},
      ...row.map((cell) => valueCell(cell))))))), rows.length > FIRST_ROWS + 1];
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
