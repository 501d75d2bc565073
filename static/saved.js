// @ts-check
/** Filters and values of forms that people save by name: what a menu shows once it is opened. */
import { get, request } from './api.js';
import { find, h } from './dom.js';
import { act, deleteButton, forgetTyped, say } from './forms.js';
import { t } from './language.js';

/** @import {Saved} from './types.js' */

/**
 * Fills a menu: what was saved on this page, and a field to save what is there now.
 * @param {HTMLElement} body @param {string} page @param {() => {}} read what would be saved
 * @param {(saved: Saved) => string} address where it is used
 */
export async function fillSaved(body, page, read, address) {
  const menu = /** @type {HTMLElement} */ (body.closest('span'));
  const { saved } = await get('api/saved');
  const name = h('input', { required: true, maxlength: 60, autocomplete: 'off' });
  const save = h('button', { class: 'small' }, t('Save'));
  const form = h('form', { onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    act(save, async () => {
      await request('POST', 'api/saved', { page, name: name.value, value: read() });
      forgetTyped();
      say(t('Saved as {name}.', { name: name.value }), true);
    });
    find('summary', menu).click();
  } }, h('label', {}, t('Save as'), ' ', name), save);
  const rows = saved.filter((/** @type {Saved} */ one) => one.page === page)
    .map((/** @type {Saved} */ one) => h('p', { class: 'with' }, h('a', { href: address(one) }, one.name),
      deleteButton(one.name, `api/saved/${one.id}`, () => find('.head .question').replaceWith(menu),
        { class: 'small', 'aria-label': `${t('Delete')} ${one.name}` })));
  body.replaceChildren(...rows, form);
  (find('a', body) || name).focus();
}
