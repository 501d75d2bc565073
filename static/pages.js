// @ts-check
/** The smaller pages: logging in, workers, users, one's own account. */
import { get, isAdmin, mayChange, ownName, poll, request, store } from './api.js';
import { now } from './clock.js';
import { find, h, render, setText, table, textWith } from './dom.js';
import { ZONE } from './durations.js';
import { clock } from './format.js';
import {
  act, askingButton, button, cell, check, choice, copyBox, deleteButton, field, heading, moreMenu,
  openingButton, page, say, secretField, sendingForm, timeElement,
} from './forms.js';
import { t } from './language.js';
import { keysAreOn, logOut, switchKeys } from './live.js';

/** @import {Child} from './dom.js' */
/** @import {Page, Place, Session, Token, User, Worker} from './types.js' */

/** @type {Record<string, string>} */
const ROLES = { user: t('user'), viewer: t('viewer'), admin: t('admin') };
const INVITATION = 864e5;               // how long one can be accepted
/** @type {Record<string, string>} */
const STATES = {
  starting: t('starting'), idle: t('idle'), busy: t('busy'), stopping: t('stopping'),
};
const UPLOAD = t('upload a text file with 16 or more characters of your own beside jobqueue.py, '
  + 'named setup-code-WORD.txt with a word that nobody can guess');

/** @type {Page['show']} */
export async function show({ page }, signal) {
  if (page === 'login') return showLogin();
  if (page === 'workers') return showWorkers(signal);
  if (page === 'users') {
    const [{ users }, { tokens }] = await Promise.all([
      get('api/users', signal), get('api/tokens', signal)]);
    if (!signal.aborted) showUsers(users, tokens.filter(isOpenInvitation));
    return;
  }
  const [{ tokens }, { sessions }] = await Promise.all([
    get('api/tokens', signal), get('api/sessions', signal)]);
  if (!signal.aborted) showAccount(tokens.filter(isForProgram), sessions);
}

/** @param {Token} token */
const isForProgram = ({ scope }) => scope !== 'invitation';
/** @param {Token} token */
const isOpenInvitation = (token) => (
  !isForProgram(token) && now() - Date.parse(token.created_at) < INVITATION);

/** Logging in, or setting up an admin: with the code's link, or while there is none. */
function showLogin() {
  const code = location.hash.match(/^#setup=(.*)/)?.[1];
  const invitation = location.hash.match(/^#invite=(.+)/)?.[1];
  if (invitation && !store.state.setup) showInvitation(invitation);
  else if (code !== undefined || store.state.setup) showSetup(code || '');
  else showLogIn();
}

/** Two fields; after them one is where one wanted to go. */
function showLogIn() {
  const form = sendingForm(t('Log in'), async (sent) => {
    store.set('session', await request('POST', 'api/session', sent));
  }, field(t('Name'), nameInput('username')),
  secretField(t('Password'), 'password', 'current-password'));
  showCard(t('Log in to jobqueue'), form, h('details', {},
    h('summary', {}, t('Lost your password?')), h('p', { class: 'help' },
      ...textWith('An admin can give you a new one. For an admin: {link}.',
        { link: h('a', { href: '#setup=' }, t('set a new one')) }))));
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
  const place = first ? t('It is in the data folder, in the file whose name begins with '
    + 'setup-code. Open it in your file manager. If you may not, {upload}.', { upload: UPLOAD })
    : t('The characters in the file that you uploaded.');
  const codeInput = h('input', {
    name: 'code', value: code, required: true, autocomplete: 'one-time-code', spellcheck: 'false',
  });
  const form = sendingForm(first ? t('Start') : t('Set password'), async (sent) => {
    const session = await request('POST', 'api/setup', sent);
    store.state.setup = false;
    history.replaceState(null, '', '#/overview');
    store.set('session', session);
  }, field(t('Code'), codeInput, { help: code ? t('Filled in from your link.') : place }),
  field(first ? t('Your name') : t('Name of an admin'), nameInput('username')),
  secretField(first ? t('Password') : t('New password'), 'password', 'new-password'));
  showCard(first ? t('Welcome to jobqueue') : t('A new admin password'), h('p', { class: 'help' },
    first ? t('You become its first admin; you can add more people later.')
      : t('Please {upload}, and enter the characters here within an hour.', { upload: UPLOAD })),
  form, (code || !first) && h('a', { href: '#/tasks' }, t('Log in instead')));
  find(code ? '[name=name]' : '[name=code]', form).focus();
}

/** Who was invited chooses a name and a password. @param {string} code of the link */
function showInvitation(code) {
  const form = sendingForm(t('Make my account'), async (sent) => {
    const session = await request('POST', 'api/invitations/accept', { ...sent, code });
    history.replaceState(null, '', '#/overview');
    store.set('session', session);
  }, field(t('Your name'), nameInput('username'), { help: t('To log in: letters and digits, no spaces.') }),
  secretField(t('Password'), 'password', 'new-password'));
  showCard(t('Welcome to jobqueue'), h('p', { class: 'help' },
    t('You are invited. Choose your name and a password of 8 or more characters.')), form,
  h('a', { href: '#/tasks' }, t('Log in instead')));
  find('[name=name]', form).focus();
}

/** A small page of its own. @param {string} title @param {...Child} children */
function showCard(title, ...children) {
  render(title, h('div', { class: 'card' }, heading(title), ...children));
}

/** Everyone, and forms for one more. @param {User[]} users @param {Token[]} invitations */
function showUsers(users, invitations) {
  const body = h('tbody', {}, ...users.map(userRow));
  page(t('Users'), table('plain', t('Users'),
    [t('Name'), t('Role'), t('Last seen'), t('Actions')], body),
  h('h2', {}, t('Invite a colleague')), ...invitationParts(invitations),
  h('h2', {}, t('Add a user')), addForm(body));
}

/** A form that makes a link, and the links that nobody opened yet. @param {Token[]} invitations */
function invitationParts(invitations) {
  const body = h('tbody', {}, ...invitations.map(invitationRow));
  const list = table('plain', t('Open invitations'),
    [t('Role'), t('Invited by'), t('Created'), t('Actions')], body);
  const open = h('div', { hidden: !invitations.length },
    h('h3', {}, t('Open invitations')), list);
  const made = h('div');
  const form = sendingForm(t('Make a link'), async (sent) => {
    const { id, role: name, code, link } = await request('POST', 'api/invitations', sent);
    const address = link || new URL(`#invite=${code}`, document.baseURI).href;
    made.replaceChildren(h('p', { class: 'lead' }, t('Send this link to your colleague. It works once, within a day. '
      + 'Copy it now; it is not shown again.')), copyBox(address, t('Link of the invitation')));
    body.append(invitationRow({ id, name, owner: ownName(),
      created_at: new Date(now()).toISOString(), scope: 'invitation', last_used_at: null }));
    open.hidden = false;
    form.reset();
    find('pre', made).focus();
  }, ...roleFields('user'));
  return [h('p', { class: 'help' }, t('Your colleague opens the link and chooses a name and a password.')),
    form, made, open];
}

/** An open invitation, which can be revoked. @param {Token} token its name is the role */
function invitationRow({ id, name, owner, created_at: made }) {
  const revoke = askingButton(t('Revoke'), t('Revoke this invitation?'), async () => {
    await request('DELETE', `api/tokens/${id}`);
    row.remove();
    say(t('The invitation does not work any more.'), true);
    find('h1').focus({ preventScroll: true });
  });
  const row = h('tr', {}, h('th', { scope: 'row' }, ROLES[name] || name),
    cell(t('Invited by'), h('bdi', {}, owner)), cell(t('Created'), timeElement(made)),
    h('td', {}, revoke));
  return row;
}

/** A form for one more user. @param {HTMLElement} body */
function addForm(body) {
  const form = sendingForm(t('Add user'), async (sent) => {
    const user = await request('POST', 'api/users', sent);
    body.append(userRow({ last_seen_at: null, ...user }));
    say(t('{name} was added.', user), true);
    form.reset();
  }, field(t('Name'), nameInput('off')),
  secretField(t('Password'), 'password', 'new-password'),
  ...roleFields('user'));
  return form;
}

/** What somebody may; whoever makes an admin proves who they are. @param {string} role chosen at first */
function roleFields(role) {
  const own = ownPasswordField();
  const input = /** @type {HTMLInputElement} */ (find('input', own));
  const select = choice({ name: 'role', oninput: () => update() }, Object.entries(ROLES), role);
  const update = () => {
    own.hidden = input.disabled = role === 'admin' || select.value !== 'admin';
  };
  update();
  return [field(t('Role'), select, { help: t(
    'Users see and change their own tasks. Viewers see all tasks and cannot change them. '
    + 'Admins see and change everything.') }), own];
}

/** One's own password, where a log-in alone is not enough. */
const ownPasswordField = () => secretField(
  t('Your own password'), 'current_password', 'current-password');

/** One user, and what can be done. @param {User} user */
function userRow(user) {
  const { name, role, disabled, last_seen_at: seen, max_pending: most, max_running: limit } = user;
  const limits = [limit != null && t('at most {count} running', { count: limit }),
    most != null && t('at most {count} pending', { count: most })].filter(Boolean);
  const row = h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, name)),
    cell(t('Role'), ROLES[role], disabled && `, ${t('disabled')}`,
      limits.length > 0 && h('span', { class: 'help' }, ` ${limits.join(', ')}`)),
    cell(t('Last seen'), seen ? timeElement(seen) : t('never')), h('td'));
  row.lastElementChild?.append(name === ownName()
    ? h('span', { class: 'help' }, t('you')) : userActions(row, user));
  return row;
}

/** What can be done with a user. @param {HTMLElement} row @param {User} user */
function userActions(row, user) {
  const { name, disabled } = user;
  const actions = h('div', { class: 'actions' });
  const label = disabled ? t('Enable') : t('Disable');
  actions.append(changeButton(actions, row, user), moreMenu(name,
    button(label, () => changeUser(row, user, { disabled: !disabled }),
      { 'aria-label': `${label}: ${name}` }),
    passwordButton(actions, user),
    askingButton(t('Log out'), t('Log {name} out everywhere?', { name }), async () => {
      await request('DELETE', `${path(user)}/sessions`);
      find('.question', row).replaceWith(actions);
      find('summary', row).focus();
      say(t('{name} is logged out.', { name }), true);
    }),
    deleteButton(name, path(user), () => row.remove())));
  return actions;
}

/** The address of a user. @param {{name: string}} user */
const path = ({ name }) => `api/users/${encodeURIComponent(name)}`;

/** @param {HTMLElement} row @param {User} user @param {Partial<User>} change */
async function changeUser(row, user, change) {
  const changed = await request('PATCH', path(user), change);
  const fresh = userRow({ ...user, ...changed });
  row.replaceWith(fresh);
  fresh.querySelector('button')?.focus();
  say(t('{name} was changed.', user), true);
}

/**
 * Opens a small form for what the user may.
 * @param {HTMLElement} actions @param {HTMLElement} row @param {User} user
 */
function changeButton(actions, row, user) {
  const limit = (/** @type {string} */ text) => (text ? Number(text) : null);
  const number = (/** @type {string} */ label, /** @type {'max_running'|'max_pending'} */ name,
    /** @type {number} */ min, /** @type {string} */ help) => (
    field(label, h('input', { type: 'number', name, min, value: user[name] }), { help }));
  return openingButton(actions, t('Change'), user.name, () => sendingForm(t('Save'),
    (/** @type {any} */ { max_running: running, max_pending: pending, email, ...sent }) => changeUser(
      row, user, { ...sent, max_running: limit(running), max_pending: limit(pending),
        email: email || null }),
    number(t('Maximum running tasks for {name}', user), 'max_running', 1, t('Empty: no limit.')),
    number(t('Maximum pending tasks for {name}', user), 'max_pending', 0,
      t('Empty: as in the settings. 0: no limit.')),
    field(t('Mail address of {name}', user), h('input', { type: 'email', name: 'email',
      value: user.email || '', autocomplete: 'off' }), { help: t('It gets mail when a task asks for it.') }),
    ...roleFields(user.role)));
}

/** Opens a small form for a new password. @param {HTMLElement} actions @param {User} user */
function passwordButton(actions, user) {
  return openingButton(actions, t('New password'), user.name, (back) => (
    sendingForm(t('Set password'), async (sent) => {
      await request('PATCH', path(user), sent);
      say(t('{name} has a new password.', user), true);
      back();
    }, secretField(t('New password for {name}', user), 'password', 'new-password'),
    ...(user.role === 'admin' ? [ownPasswordField()] : []),
    h('p', { class: 'help' }, t('It ends their sessions and tokens.')))));
}

/** The workers, kept live. @param {AbortSignal} signal */
async function showWorkers(signal) {
  const lead = h('p', { class: 'lead' });
  const body = h('tbody');
  const titles = [t('Worker'), t('Status'), t('Started'), t('Last seen'), t('Tasks done')];
  const rows = table('plain', t('Workers'), titles, body);
  const help = h('p', { class: 'help' },
    t('Workers start when there is work, and exit when nothing is left to do.'), ' ',
    isAdmin() && h('a', { href: '#/settings/host' }, t('How they are started')));
  const refresh = async () => {
    const { workers, maximum } = await get('api/workers', signal);
    const here = workers.filter(({ mode }) => mode !== 'remote').length;
    const places = { count: here, maximum, elsewhere: workers.length - here };
    setText(lead, places.elsewhere
      ? t('{count} of {maximum} workers running here, {elsewhere} on other machines.', places)
      : here ? t('{count} of {maximum} workers running.', places)
        : t('No worker is running (at most {maximum}).', places));
    rows.hidden = !workers.length;
    body.replaceChildren(...workers.map(workerRow));
    return workers.length ? 3 : 10;
  };
  const wait = await refresh();
  if (signal.aborted) return;
  page(t('Workers'), lead, rows, help);
  poll(signal, refresh, wait);
}

/** What started it, or keeps it. @type {Record<string, string>} */
const MODES = { detached: t('started when there was work'), cron: t('started by cron'),
  service: t('kept alive by the host'), slice: t('working for an open page or the tick address'),
  remote: t('of another machine') };

/** One worker and its task. @param {Worker} worker */
function workerRow(worker) {
  const { machine, pid, state, task, started_at: started, seen_at: seen } = worker;
  const mode = [MODES[worker.mode] || worker.mode, worker.functions.join(', ')].filter(Boolean).join(': ');
  const name = pid ? t('{machine}, process {pid}', { machine, pid }) : machine;
  const label = worker.function ? `${worker.function} ${task}` : t('Task {id}', { id: task });
  const doing = task !== null && h('a', { href: `#/tasks/${task}` }, label);
  return h('tr', {}, h('th', { scope: 'row' }, name, h('span', { class: 'help' }, ` ${mode}`)),
    cell(t('Status'), STATES[state] || state, doing && ': ', doing),
    cell(t('Started'), timeElement(started)),
    cell(t('Last seen'), timeElement(seen)),
    cell(t('Tasks done'), String(worker.tasks)));
}

/** One's own password, log-ins, tokens, keys. @param {Token[]} tokens @param {Place[]} places */
function showAccount(tokens, places) {
  const name = ownName();
  page(t('Account'), h('p', { class: 'help' },
      ...textWith('You are logged in as {name}.', { name: h('bdi', {}, name) })),
    h('h2', {}, t('Password')), passwordForm(name),
    h('h2', {}, t('E-mail')), ...mailParts(name),
    h('h2', {}, t('Where you are logged in')), ...placeParts(places),
    h('h2', {}, t('Tokens for programs')), ...tokenParts(tokens),
    h('h2', {}, t('Keyboard')), keysField());
}

/** The name helps password managers. @param {string} name */
function passwordForm(name) {
  const form = sendingForm(t('Change password'), async ({ username, ...body }) => {
    await request('PATCH', path({ name: username }), body);
    form.reset();
    say(t('Your password was changed.'), true);
  }, h('input', { name: 'username', autocomplete: 'username', value: name, hidden: true }),
  secretField(t('Current password'), 'current_password', 'current-password'),
  secretField(t('New password'), 'password', 'new-password'));
  return form;
}

/** Where one is logged in, and logging out there. @param {Place[]} places */
function placeParts(places) {
  const body = h('tbody', {}, ...places.map((place) => h('tr', {},
    h('th', { scope: 'row' }, place.address || t('unknown'),
      place.current && h('span', { class: 'help' }, ' ', t('this browser'))),
    cell(t('Logged in'), timeElement(place.created_at)),
    cell(t('Last used'), timeElement(place.seen_at)))));
  const elsewhere = places.length > 1 && button(t('Log out everywhere else'), async () => {
    await request('DELETE', 'api/sessions');
    body.replaceChildren(...[...body.rows].filter((_, place) => places[place].current));
    say(t('Only this browser is logged in now.'), true);
  });
  const everywhere = askingButton(t('Log out everywhere'), t('Log out here, too?'), async () => {
    await request('DELETE', 'api/sessions');
    await logOut();
  });
  return [table('plain', t('Where you are logged in'), [t('From'), t('Logged in'), t('Last used')],
    body), h('div', { class: 'actions' }, elsewhere, everywhere)];
}

/** Where mail about one's own tasks goes: admins enter addresses. @param {string} name */
function mailParts(name) {
  const { session } = store.state;
  const current = session?.user.email || '';
  const save = async (/** @type {string|null} */ email) => {
    const user = await request('PATCH', path({ name }), { email });
    if (session) session.user.email = user.email;
    /** @type {HTMLSelectElement} */ (find('select', summary)).disabled = !user.email;
    say(user.email ? t('Mail about your tasks goes there.') : t('You have no address now.'), true);
  };
  const summary = h('div', { class: 'form' }, summaryField(name));
  if (session?.user.role === 'admin') {
    return [sendingForm(t('Save address'), ({ email }) => save(email || null),
      field(t('Address'), h('input', { name: 'email', type: 'email', value: current,
        autocomplete: 'email' }), { help: t('We mail you here when a task asks for it.') })), summary];
  }
  if (!current) return [h('p', {}, t('None. An admin can enter one for you.')), summary];
  const parts = [h('p', {}, t('When a task asks for it, mail goes to {email}.', { email: current })),
    h('div', { class: 'actions' }, askingButton(t('Remove address'), t('Remove it?'), async () => {
      await save(null);
      parts.forEach((part) => part.remove());
    })), summary];
  return parts;
}

/** When one gets a summary by mail: stored as soon as it is chosen. @param {string} name */
function summaryField(name) {
  const { user } = /** @type {Session} */ (store.state.session);
  const hours = [...Array(24).keys()].map((hour) => /** @type {[string, string]} */ (
    [String(hour), clock.format(new Date(2000, 0, 1, hour))]));
  const chosen = choice({ name: 'summary', disabled: !user.email, onchange: () => act(chosen, async () => {
    const hour = chosen.value;
    const summary = hour && { hour: Number(hour), zone: ZONE || 'UTC' } || null;
    await request('PATCH', path({ name }), { summary });
    user.summary = summary;
    say(t('Saved.'), true);
  }) }, [['', t('never')], ...hours], String(user.summary?.hour ?? ''));
  return field(t('Summary of yesterday by mail'), chosen, {
    help: t('It needs your address. On Mondays it has the last week, too.')
      + (user.summary && user.summary.zone !== ZONE ? ` (${user.summary.zone})` : '') });
}

/** The tokens there are, and a form for one more. @param {Token[]} tokens */
function tokenParts(tokens) {
  const body = h('tbody', {}, ...tokens.map(tokenRow));
  const made = h('div');
  const list = table('plain', t('Tokens'),
    [t('Name'), t('Owner'), t('Created'), t('Last used'), t('Actions')], body);
  list.hidden = !tokens.length;
  /** @type {[string, string, boolean][]} and whether one may choose it */
  const scopes = [['user', t('everything you can do'), true],
    ['read', t('read only: everything that you can see'), true],
    ['tick', t('only the tick address, for cron that calls addresses'), mayChange()],
    ['worker', t('only the tasks of a remote worker'), isAdmin()],
    ['metrics', t('only metrics, for Prometheus'), isAdmin()]];
  const scope = choice({ name: 'scope', oninput: () => showLimits() },
    scopes.flatMap(([value, words, may]) => (may ? [[value, words]] : [])));
  const limits = h('div', {}, wordsField(t('Queues'), 'queues'),
    wordsField(t('Functions'), 'functions'));
  const showLimits = () => {
    limits.hidden = scope.value !== 'worker';
  };
  const form = sendingForm(t('Create token'), async ({ queues, functions, ...sent }) => {
    const bound = limits.hidden ? {} : { queues: words(queues), functions: words(functions) };
    const token = await request('POST', 'api/tokens', { ...sent, ...bound });
    made.replaceChildren(...madeParts(token));
    body.append(tokenRow(token));
    list.hidden = false;
    form.reset();
    showLimits();
    find('pre', made).focus();
  }, field(t('Name'), h('input', { name: 'name', required: true, autocomplete: 'off' }),
    { help: t('Its purpose, so that you recognise it.') }),
  field(t('Permission'), scope), limits,
  secretField(t('Your password'), 'password', 'current-password'));
  const help = h('p', { class: 'help' }, ...textWith('A program that sends {header} (or {other}, '
    + 'where the web server drops the first) can do what its token permits.', {
    header: h('code', {}, 'Authorization: Bearer jq_…'),
    other: h('code', {}, 'X-Api-Key: jq_…'),
  }));
  showLimits();
  return [help, list, made, form];
}

/** What a worker's token may be bound to. @param {string} label @param {string} name */
const wordsField = (label, name) => field(label, h('input', { name, autocomplete: 'off' }),
  { help: t('Names, with commas between. Empty: all.') });

/** What is written with commas between. @param {unknown} text */
const words = (text) => String(text || '').split(',').map((one) => one.trim()).filter(Boolean);

/** A token, the only time it is shown. @param {Token} token */
function madeParts({ name, scope, token = '' }) {
  const once = { name: h('b', {}, name) };
  if (scope !== 'tick') {
    const site = document.baseURI.replace(/\/$/, '');
    const there = scope !== 'worker' ? [] : [h('p', {}, t('Put it into the file token.txt there, then run:')),
      copyBox(`python3 worker.py --server ${site} --token-file token.txt`,
        t('Command of the worker'))];
    return [h('p', {}, ...textWith('This is the token {name}. Copy it now; it is not shown again.',
      once)), copyBox(token, t('Token {name}', { name })), ...there];
  }
  const tick = new URL(`tick?token=${token}`, document.baseURI).href;
  const called = `'${tick.replaceAll('%', '\\%')}'`;        // a crontab ends a line at %
  return [h('p', {},
    ...textWith('This is the tick address {name}. Copy it now; it is not shown again.', once)),
  copyBox(tick, t('Tick address')),
  h('p', {}, t('For a crontab, every 5 minutes:')),
  copyBox(`*/5 * * * * curl -fsS -m 60 -o /dev/null ${called}`, t('crontab with curl')),
  h('p', {}, t('or, where there is no curl:')),
  copyBox(`*/5 * * * * wget -q -T 60 -O /dev/null ${called}`, t('crontab with wget'))];
}

/** One token. @param {Token} token */
function tokenRow({ id, owner, name, scope, created_at: made, last_used_at: used }) {
  const remove = deleteButton(name, `api/tokens/${id}`, () => row.remove());
  const row = h('tr', {}, h('th', { scope: 'row' }, h('bdi', {}, name),
    scope === 'tick' && h('span', { class: 'help' }, ' tick')),
  cell(t('Owner'), h('bdi', {}, owner)), cell(t('Created'), timeElement(made)),
    cell(t('Last used'), used ? timeElement(used) : t('never')), h('td', {}, remove));
  return row;
}

/** For those whose other tools use the same keys. */
function keysField() {
  const box = h('input', { type: 'checkbox', checked: keysAreOn(),
    onchange: () => switchKeys(box.checked) });
  return check(t('Use keyboard shortcuts'), box, t('Press ? to see them.'));
}
