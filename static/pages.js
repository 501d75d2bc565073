// @ts-check
/** The smaller pages: logging in, workers, users, settings, this host, one's own account. */
import { get, poll, request } from './api.js';
import { find, h, render, setText, table } from './dom.js';
import {
  askingButton, button, cell, check, copyBox, field, openingButton, secretField, sendingForm,
  timeElement,
} from './forms.js';
import { keysAreOn, say, switchKeys } from './live.js';
import { isAdmin, store } from './store.js';

/** @import {Child} from './dom.js' */
/** @import {Page, Setting, Token, User, Values, Worker} from './types.js' */

const FROM = { environment: 'Set by the environment; change it there.', default: '', table: '' };
const UPLOAD = 'upload a text file with 16 or more characters of your own beside jobqueue.py, named '
  + 'setup-code-WORD.txt with a word that nobody can guess';

/** @type {Page['show']} */
export async function show({ page }, signal) {
  if (page === 'login') return showLogin();
  if (page === 'workers') return showWorkers(signal);
  const answer = await get(`api/${page === 'account' ? 'tokens' : page}`, signal);
  if (signal.aborted) return;
  if (page === 'users') showUsers(answer.users);
  else if (page === 'account') showAccount(answer.tokens);
  else showSettings(answer.settings);
}

/** Logging in, or setting up an admin: with the code's link, or while there is none. */
function showLogin() {
  const code = location.hash.match(/^#setup=(.*)/)?.[1];
  if (code !== undefined || store.state.setup) showSetup(code || '');
  else showLogIn();
}

/** Two fields; after them one is where one wanted to go. */
function showLogIn() {
  const form = sendingForm('Log in', async (sent) => {
    store.set('session', await request('POST', 'api/session', sent));
  }, field('Name', nameInput('username')), secretField('Password', 'password', 'current-password'));
  showCard('Log in to jobqueue', form, h('details', {}, h('summary', {}, 'Lost your password?'),
    h('p', { class: 'help' }, 'An admin can give you a new one. For an admin: ',
      h('a', { href: '#setup=' }, 'set a new one'), '.')));
  find('input', form).focus();
}

/** Names are typed as they are. @param {string} autocomplete */
const nameInput = (autocomplete) => h('input', {
  name: 'name', autocomplete, required: true, autocapitalize: 'none', spellcheck: 'false',
});

/**
 * Who holds the one-time code becomes the first admin, or sets an admin's password.
 * @param {string} code
 */
function showSetup(code) {
  const first = store.state.setup;
  const place = first ? 'It is in the data folder, in the file whose name begins with setup-code. Open it '
    + `in your file manager. If you may not, ${UPLOAD}.` : 'What the file says that you have uploaded.';
  const codeInput = h('input', {
    name: 'code', value: code, required: true, autocomplete: 'one-time-code', spellcheck: 'false',
  });
  const form = sendingForm(first ? 'Start' : 'Set password', async (sent) => {
    const session = await request('POST', 'api/setup', sent);
    store.state.setup = false;
    history.replaceState(null, '', '#/overview');
    store.set('session', session);
  }, field('Code', codeInput, { help: code ? 'Filled in from your link.' : place }),
  field(first ? 'Your name' : 'Name of an admin', nameInput('username')),
  secretField(first ? 'Password' : 'New password', 'password', 'new-password'));
  showCard(first ? 'Welcome to jobqueue' : 'A new admin password', h('p', { class: 'help' }, first
    ? 'You become its first admin; you can add more people later.'
    : `Please ${UPLOAD}, and enter the characters here within an hour.`),
  form, (code || !first) && h('a', { href: '#/tasks' }, 'Log in instead'));
  find(code ? '[name=name]' : '[name=code]', form).focus();
}

/** A small page of its own. @param {string} title @param {...Child} children */
function showCard(title, ...children) {
  render(title, h('div', { class: 'card' }, h('h1', { tabindex: -1 }, title), ...children));
}

/** All settings in one form; only what was changed is sent. @param {Setting[]} settings */
function showSettings(settings) {
  const form = sendingForm('Save', async (now, before) => {
    const changed = settings.filter(({ name }) => now[name] !== before[name]);
    if (changed.length) await change(Object.fromEntries(changed.map(({ name, type }) => (
      [name, valueOf(now[name], type)]))));
    else say('Nothing was changed.', true);
  }, ...settings.map(settingField));
  render('Settings', h('h1', { tabindex: -1 }, 'Settings'), h('p', { class: 'lead' },
    h('a', { href: '#/settings/host' }, 'This host'),
    ': what works here, what to do, lines to copy.'), form);
  form.classList.add('long');
}

/** Saves, and shows what holds now. @param {Record<string, unknown>} changes */
async function change(changes) {
  const { settings } = await request('PATCH', 'api/settings', changes);
  showSettings(settings);
  say('Saved.', true);
}

/** One setting; what was set elsewhere is only shown. @param {Setting} setting */
function settingField(setting) {
  const { name, type, from, minimum, maximum, choices } = setting;
  const fixed = from === 'environment';
  const text = setting.value === null ? '' : String(setting.value);
  const number = type === 'integer' || type === 'number';
  const help = [setting.help, FROM[from]].filter(Boolean).join(' ');
  if (type === 'boolean') {
    const box = h('input', { name, type: 'checkbox', checked: setting.value, disabled: fixed });
    return check(name, box, help);
  }
  const after = from === 'table' && defaultButton(setting);
  if (choices) {
    return field(name, h('select', { name, disabled: fixed }, ...choices.map((one) => (
      h('option', { selected: one === text }, one)))), { help, after });
  }
  const input = h('input', { name, value: text, disabled: fixed, spellcheck: 'false',
    type: number ? 'number' : 'text', step: type === 'number' ? 'any' : number && 1,
    min: minimum, max: maximum, autocomplete: 'off' });
  return field(name, input, { help, after });
}

/** Takes a change back. @param {Setting} setting */
function defaultButton({ name, default: usual }) {
  const words = usual === null || usual === '' ? 'Clear' : `Reset to ${usual}`;
  return button(words, () => change({ [name]: null }), { 'aria-label': `${words}: ${name}` });
}

/** What a field says, in the setting's type. @param {string|undefined} text @param {string} type */
function valueOf(text, type) {
  if (type === 'boolean') return Boolean(text);
  const number = type === 'integer' || type === 'number';
  return number && text ? Number(text) : text || null;
}

/** Everyone, and a form for one more. @param {User[]} users */
function showUsers(users) {
  const body = h('tbody', {}, ...users.map(userRow));
  render('Users', h('h1', { tabindex: -1 }, 'Users'),
    table('plain', 'Users', ['Name', 'Role', 'Last seen', 'Actions'], body),
    h('h2', {}, 'Add a user'), addForm(body));
}

/** A form for one more user. @param {HTMLElement} body */
function addForm(body) {
  const form = sendingForm('Add user', async (sent) => {
    const user = await request('POST', 'api/users', sent);
    body.append(userRow({ last_seen_at: null, ...user }));
    say(`${user.name} was added.`, true);
    form.reset();
  }, field('Name', nameInput('off')),
  secretField('Password', 'password', 'new-password'),
  field('Role', h('select', { name: 'role' }, h('option', { value: 'user' }, 'user'),
    h('option', { value: 'admin' }, 'admin')), { help: 'Admins see and change everything.' }));
  return form;
}

/** One user, and what can be done. @param {User} user */
function userRow(user) {
  const { name, role, disabled, last_seen_at: seen, max_pending: most } = user;
  const row = h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, name)),
    cell('Role', disabled ? `${role}, disabled` : role,
      most != null && h('span', { class: 'help' }, ` at most ${most} pending`)),
    cell('Last seen', seen ? timeElement(seen) : 'never'), h('td'));
  const actions = h('div', { class: 'actions' });
  row.lastElementChild?.append(name === store.state.session?.user.name
    ? h('span', { class: 'help' }, 'you') : actions);
  const other = role === 'admin' ? 'user' : 'admin';
  const changing = (/** @type {string} */ label, /** @type {Partial<User>} */ change) => button(label,
    () => changeUser(row, user, change), { 'aria-label': `${label}: ${name}` });
  actions.append(changing(`Make ${other}`, { role: other }),
    changing(disabled ? 'Enable' : 'Disable', { disabled: !disabled }),
    limitButton(actions, row, user), passwordButton(actions, user),
    askingButton('Delete', `Delete ${name}?`, async () => {
      await request('DELETE', path(user));
      row.remove();
      say(`${name} was deleted.`, true);
      find('h1').focus();
    }));
  return row;
}

/** The address of a user. @param {{name: string}} user */
const path = ({ name }) => `api/users/${encodeURIComponent(name)}`;

/** @param {HTMLElement} row @param {User} user @param {Partial<User>} change */
async function changeUser(row, user, change) {
  const changed = await request('PATCH', path(user), change);
  const fresh = userRow({ ...user, ...changed });
  row.replaceWith(fresh);
  fresh.querySelector('button')?.focus();
  say(`${user.name} was changed.`, true);
}

/**
 * Opens a small form for how many pending tasks the user may have.
 * @param {HTMLElement} actions @param {HTMLElement} row @param {User} user
 */
function limitButton(actions, row, user) {
  const send = (/** @type {Values} */ { max_pending: most }) => (
    changeUser(row, user, { max_pending: most ? Number(most) : null }));
  return openingButton(actions, 'Limit', user.name, () => sendingForm('Set limit', send,
    field(`Maximum pending tasks for ${user.name}`, h('input', { type: 'number',
      name: 'max_pending', min: 0, value: user.max_pending }), { help: 'Empty: as in the settings. 0: no limit.' })));
}

/** Opens a small form for a new password. @param {HTMLElement} actions @param {User} user */
function passwordButton(actions, user) {
  return openingButton(actions, 'New password', user.name, (back) => (
    sendingForm('Set password', async (sent) => {
      await request('PATCH', path(user), sent);
      say(`${user.name} has a new password.`, true);
      back();
    }, secretField(`New password for ${user.name}`, 'password', 'new-password'),
    h('p', { class: 'help' }, 'It ends their sessions and tokens.'))));
}

/** The workers, kept live. @param {AbortSignal} signal */
async function showWorkers(signal) {
  const lead = h('p', { class: 'lead' });
  const body = h('tbody');
  const titles = ['Worker', 'Status', 'Started', 'Last seen', 'Tasks done'];
  const rows = table('plain', 'Workers', titles, body);
  const help = h('p', { class: 'help' }, 'Workers start when there is work, and exit when '
    + 'nothing is left to do. ', isAdmin() && h('a', { href: '#/settings/host' }, 'Who starts them'));
  const refresh = async () => {
    const { workers, maximum } = await get('api/workers', signal);
    const here = workers.filter(({ mode }) => mode !== 'remote').length;
    const elsewhere = workers.length > here ? `, and ${workers.length - here} elsewhere` : '';
    setText(lead, `${here || 'None'} of at most ${maximum} running${elsewhere}.`);
    rows.hidden = !workers.length;
    body.replaceChildren(...workers.map(workerRow));
    return workers.length ? 3 : 10;
  };
  const wait = await refresh();
  if (signal.aborted) return;
  render('Workers', h('h1', { tabindex: -1 }, 'Workers'), lead, rows, help);
  poll(signal, refresh, wait);
}

/** One worker and its task. @param {Worker} worker */
function workerRow(worker) {
  const { machine, pid, state, task, started_at: started, seen_at: seen } = worker;
  const mode = [worker.mode, worker.functions.join(', ')].filter(Boolean).join(': ');
  const name = `${machine}${pid ? `, process ${pid}` : ''}`;
  const label = `${worker.function || 'task'} ${task}`;
  const doing = task !== null && h('a', { href: `#/tasks/${task}` }, label);
  return h('tr', {}, h('th', { scope: 'row' }, name, h('span', { class: 'help' }, ` ${mode}`)),
    cell('Status', state, doing && ': ', doing),
    cell('Started', timeElement(started)),
    cell('Last seen', timeElement(seen)),
    cell('Tasks done', String(worker.tasks)));
}

/** One's own password, tokens and keys. @param {Token[]} tokens */
function showAccount(tokens) {
  const name = store.state.session?.user.name || '';
  render('Account', h('h1', { tabindex: -1 }, 'Account'),
    h('p', { class: 'help' }, 'You are logged in as ', h('bdi', {}, name), '.'),
    h('h2', {}, 'Password'), passwordForm(name),
    h('h2', {}, 'E-mail'), ...mailParts(name),
    h('h2', {}, 'Tokens for programs'), ...tokenParts(tokens),
    h('h2', {}, 'Keyboard'), keysField());
}

/** The name helps password managers. @param {string} name */
function passwordForm(name) {
  const form = sendingForm('Change password', async ({ username, ...body }) => {
    await request('PATCH', path({ name: username }), body);
    form.reset();
    say('Your password was changed.', true);
  }, h('input', { name: 'username', autocomplete: 'username', value: name, hidden: true }),
  secretField('Current password', 'current_password', 'current-password'),
  secretField('New password', 'password', 'new-password'));
  return form;
}

/** Where one is told of tasks: users type a code that is mailed there. @param {string} name */
function mailParts(name) {
  const { session } = store.state;
  const current = session?.user.email || '';
  const address = h('input', { name: 'email', type: 'email', value: current, autocomplete: 'email' });
  const code = sendingForm('Confirm', async (sent) => {
    take((await request('PATCH', path({ name }), sent)).email);
  }, field('Code', h('input', { name: 'email_code', inputmode: 'numeric', required: true,
    autocomplete: 'one-time-code' }), { help: 'The 6 digits that were mailed to that address.' }));
  const form = sendingForm('Save address', async ({ email }) => {
    const user = await request('PATCH', path({ name }), { email: email || null });
    if ((user.email || '') === (email || '')) return take(user.email);
    code.hidden = false;
    return find('input', code).focus();
  }, field('Address', address, { help: 'Tasks that were added with notify tell you there.' }));
  const take = (/** @type {string|null} */ email) => {
    if (session) session.user.email = email;
    code.hidden = true;
    say(email ? 'You are told there.' : 'You have no address now.', true);
  };
  code.hidden = true;
  return [form, code];
}

/** The tokens there are, and a form for one more. @param {Token[]} tokens */
function tokenParts(tokens) {
  const body = h('tbody', {}, ...tokens.map(tokenRow));
  const made = h('div');
  const list = table('plain', 'Tokens', ['Name', 'Owner', 'Created', 'Last used', 'Actions'], body);
  list.hidden = !tokens.length;
  const scope = h('select', { name: 'scope', oninput: () => showLimits() },
    h('option', { value: 'user' }, 'everything you can do'),
    h('option', { value: 'tick' }, 'only the tick address, for cron that calls addresses'),
    isAdmin() && h('option', { value: 'worker' }, 'only the tasks of a worker elsewhere'),
    isAdmin() && h('option', { value: 'metrics' }, 'only the figures, for Prometheus'));
  const limits = h('div', {}, wordsField('Queues', 'queues'), wordsField('Functions', 'functions'));
  const showLimits = () => {
    limits.hidden = scope.value !== 'worker';
  };
  const form = sendingForm('Create token', async ({ queues, functions, ...sent }) => {
    const bound = limits.hidden ? {} : { queues: words(queues), functions: words(functions) };
    const token = await request('POST', 'api/tokens', { ...sent, ...bound });
    made.replaceChildren(...madeParts(token));
    body.append(tokenRow(token));
    list.hidden = false;
    form.reset();
    showLimits();
    find('pre', made).focus();
  }, field('Name', h('input', { name: 'name', required: true, autocomplete: 'off' }),
    { help: 'What it is for, so that you recognise it.' }), field('Permission', scope), limits,
  secretField('Your password', 'password', 'current-password'));
  const help = h('p', { class: 'help' }, 'A program that sends ',
    h('code', {}, 'Authorization: Bearer jq_…'), ' (or ', h('code', {}, 'X-Api-Key: jq_…'),
    ', where the web server drops the first) can do what its token permits.');
  showLimits();
  return [help, list, made, form];
}

/** What a worker's token may be bound to. @param {string} label @param {string} name */
const wordsField = (label, name) => field(label, h('input', { name, autocomplete: 'off' }),
  { optional: true, help: 'Of these only, with commas between; empty: of all.' });

/** What is written with commas between. @param {unknown} text */
const words = (text) => String(text || '').split(',').map((one) => one.trim()).filter(Boolean);

/** A token, the only time it is shown. @param {Token} token */
function madeParts({ name, scope, token = '' }) {
  const once = [h('b', {}, name), '. Copy it now; it is not shown again.'];
  if (scope !== 'tick') {
    const site = document.baseURI.replace(/\/$/, '');
    const there = scope !== 'worker' ? [] : [h('p', {}, 'With it in the file token.txt, there:'),
      copyBox(`python3 worker.py --server ${site} --token-file token.txt`, 'Command of the worker')];
    return [h('p', {}, 'This is the token ', ...once), copyBox(token, `Token ${name}`), ...there];
  }
  const tick = new URL(`tick?token=${token}`, document.baseURI).href;
  const called = `'${tick.replaceAll('%', '\\%')}'`;        // a crontab ends a line at %
  return [h('p', {}, 'This is the tick address ', ...once), copyBox(tick, 'Tick address'),
    h('p', {}, 'For a crontab, every 5 minutes:'),
    copyBox(`*/5 * * * * curl -fsS -m 60 -o /dev/null ${called}`, 'crontab with curl'),
    h('p', {}, 'or, where there is no curl:'),
    copyBox(`*/5 * * * * wget -q -T 60 -O /dev/null ${called}`, 'crontab with wget')];
}

/** One token. @param {Token} token */
function tokenRow({ id, owner, name, scope, created_at: made, last_used_at: used }) {
  const remove = askingButton('Delete', `Delete ${name}?`, async () => {
    await request('DELETE', `api/tokens/${id}`);
    row.remove();
    say(`The token ${name} was deleted.`, true);
    find('h1').focus();
  });
  const row = h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, name),
    scope === 'tick' && h('span', { class: 'help' }, ' tick')),
  cell('Owner', h('bdi', {}, owner)), cell('Created', timeElement(made)),
    cell('Last used', used ? timeElement(used) : 'never'), h('td', {}, remove));
  return row;
}

/** For those whose other tools use the same keys. */
function keysField() {
  const box = h('input', { type: 'checkbox', checked: keysAreOn(),
    onchange: () => switchKeys(box.checked) });
  return check('Use keyboard shortcuts', box, 'Press ? to see them.');
}
