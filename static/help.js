// @ts-check
/** The handbook, made from the Markdown files in docs/: its pages, their sections, a search. */
import { ApiError } from './api.js';
import { find, h, render, table } from './dom.js';
import { locale, t } from './language.js';

/** @import {Child} from './dom.js' */
/** @import {Page} from './types.js' */

const FENCE = '\x60\x60\x60';
const MARKS = /\x60([^\x60]+)\x60|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)]+)\)/;
const MOST_HITS = 30;
/** @type {Map<string, Promise<string>>} texts of pages by name */
const texts = new Map();

/** Pages of the handbook about a page, where its name is another. @type {Record<string, string>} */
const ABOUT = { overview: 'page', new: 'functions', account: 'page', users: 'tasks', settings: 'operation',
  'settings/': 'hosts', activity: 'operation', workers: 'machines', functions: 'metrics', help: '' };

/** @type {Page['show']} */
export async function show({ id: asked, params }, signal) {
  const page = asked.replace(/^for-/, '');
  const id = asked === page ? page : ABOUT[page] ?? page;
  const text = await read(id || 'README');
  if (signal.aborted) return;
  const article = h('article', { lang: 'en' }, ...blocks(text, id));
  const sections = [...article.querySelectorAll('h2')].map((heading) => h('li', {},
    h('a', { href: `#/help/${id}?section=${heading.id}` }, heading.textContent)));
  const hits = h('ul', { class: 'hits', lang: 'en', 'aria-live': 'polite' });
  const box = h('input', { type: 'search', placeholder: t('Search the handbook'),
    'aria-label': t('Search the handbook'), oninput: async () => {
      const query = box.value;
      const lines = await search(query);
      if (query !== box.value) return;
      hits.replaceChildren(...lines);
      article.hidden = contents.hidden = query.trim().length > 1;
    } });
  const contents = h('nav', { class: 'contents', 'aria-label': t('Sections') },
    sections.length > 2 && h('ul', { lang: 'en' }, ...sections));
  render(find('h1', article).textContent || '', h('div', { class: 'handbook' }, h('p', { class: 'seek' },
    id && h('a', { href: '#/help' }, t('Handbook')), box),
  locale !== 'en-GB' && h('p', { class: 'help' }, t('The handbook is written in English.')),
  hits, contents, article));
  document.getElementById(params.get('section') || '')?.scrollIntoView();
}

/** Reads a page once. @param {string} name @returns {Promise<string>} */
function read(name) {
  const known = texts.get(name);
  if (known) return known;
  const text = fetch(`static/docs/${encodeURIComponent(name)}.md`).then((answer) => {
    if (answer.ok) return answer.text();
    texts.delete(name);
    throw new ApiError(answer.status);
  });
  texts.set(name, text);
  return text;
}

/** Finds the sections of all pages that have all words of a query. @param {string} query */
async function search(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (query.trim().length < 2) return [];
  const index = await read('README');
  const names = [...index.matchAll(/\]\((\w+)\.md\)/g)].map(([, name]) => name);
  const pages = await Promise.all(names.map(async (name) => ({ name, text: await read(name) })));
  const hits = pages.flatMap(({ name, text }) => text.split(/^(?=#+ )/m)
    .filter((section) => words.every((word) => section.toLowerCase().includes(word)))
    .map((section) => hit(name, text, section, words)));
  return hits.length ? hits.slice(0, MOST_HITS) : [h('li', { lang: locale }, t('Nothing found.'))];
}

/**
 * A section that was found: a link, and the line with the first of the words.
 * @param {string} name @param {string} text @param {string} section @param {string[]} words
 */
function hit(name, text, section, words) {
  const [title, ...lines] = section.split('\n');
  const line = lines.find((each) => words.some((word) => each.toLowerCase().includes(word))) || '';
  const heading = plain(title.replace(/^#+ /, ''));
  const of = plain(text.slice(2, text.indexOf('\n')));
  return h('li', {}, h('a', { href: `#/help/${name}?section=${slug(heading)}` },
    heading === of ? of : `${of}: ${heading}`), h('span', { class: 'help' }, plain(line)));
}

/** A text without the marks of Markdown. @param {string} text */
const plain = (text) => text.replace(/[\x60*|]|\]\([^)]*\)|\[/g, ' ').replace(/\s+/g, ' ').trim();

/** The name of a section in addresses. @param {string} heading */
const slug = (heading) => heading.toLowerCase().replace(/[^\w\s-]/g, '').trim().replace(/\s/g, '-');

/** The elements of a page. @param {string} text @param {string} id name of the page */
function blocks(text, id) {
  const lines = text.split('\n');
  /** @type {HTMLElement[]} */
  const elements = [];
  /** The lines from here on that a test takes. @param {(line: string, place: number) => boolean} test */
  const taken = (test) => {
    const count = lines.findIndex((line, place) => !test(line, place));
    return lines.splice(0, count < 0 ? lines.length : count);
  };
  while (lines.length) {
    const [line] = lines;
    const [, marks, heading] = line.match(/^(#+) (.*)/) || [];
    if (heading) {
      lines.shift();
      elements.push(h(marks.length === 1 ? 'h1' : marks.length === 2 ? 'h2' : 'h3',
        { id: slug(plain(heading)), tabindex: marks.length === 1 && -1 }, ...inline(heading, id)));
    } else if (line.startsWith(FENCE)) {
      lines.shift();
      elements.push(h('pre', { tabindex: 0 }, taken((each) => !each.startsWith(FENCE)).join('\n')));
      lines.shift();
    } else if (line.startsWith('|')) {
      elements.push(tableElement(taken((each) => each.startsWith('|')), id));
    } else if (/^(-|\d+\.) /.test(line)) {
      // A blank line ends the list, unless its item or another one goes on below.
      const part = (/** @type {string} */ each, /** @type {number} */ place) => (
        /^(-|\d+\.|) +\S/.test(each || lines[place + 1] || ''));
      const items = taken(part).join('\n');
      elements.push(h(line[0] === '-' ? 'ul' : 'ol', {}, ...items.split(/^(?:-|\d+\.) /m).slice(1)
        .map((item) => h('li', {}, ...(item.includes('\n\n') ? blocks : inline)(
          item.replace(/^ {2,3}/gm, ''), id)))));
    } else if (line.trim()) {
      const more = (/** @type {string} */ each) => /^(?!#+ |\x60{3}|\||- )\S/.test(each);
      elements.push(h('p', {}, ...inline([lines.shift(), ...taken(more)].join('\n'), id)));
    } else lines.shift();
  }
  return elements;
}

/** A table. @param {string[]} lines @param {string} id */
function tableElement(lines, id) {
  const rows = lines.map((line) => line.slice(1, line.lastIndexOf('|')).split(/(?<!\\)\|/)
    .map((cell) => inline(cell.trim().replace(/\\\|/g, '|'), id)));
  const [titles, , ...body] = rows;
  const heads = titles.map((title) => h('span', {}, ...title));
  return h('div', { class: 'wide', tabindex: 0 }, table('plain', '', heads, h('tbody', {},
    ...body.map((cells) => h('tr', {}, ...cells.map((cell) => h('td', {}, ...cell)))))));
}

/** The parts of a line: code, bold words, links. @param {string} text @param {string} id @returns {Child[]} */
function inline(text, id) {
  const match = text.match(MARKS);
  if (!match) return [text.replace(/\n/g, ' ')];
  const [whole, code, bold, italic, words, target] = match;
  const start = match.index || 0;
  const part = code ? h('code', {}, code.replace(/\n/g, ' ')) : bold ? h('b', {}, ...inline(bold, id))
    : italic ? h('em', {}, italic) : link(inline(words, id), target, id);
  return [...inline(text.slice(0, start), id), part, ...inline(text.slice(start + whole.length), id)];
}

/**
 * A link to a page of the handbook. Other files of the program are not here: their link is text.
 * @param {Child[]} words @param {string} target @param {string} id
 */
function link(words, target, id) {
  const [, name, section] = target.match(/^(?:(\w+)\.md)?(?:#(.*))?$/) || [];
  if (!name && !section) return h('span', {}, ...words);
  return h('a', { href: `#/help/${name || id}${section ? `?section=${section}` : ''}` }, ...words);
}
