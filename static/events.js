// @ts-check
/** What can happen to tasks, workers, schedules and people, in words. */
import { durationText } from './durations.js';
import { statusWord } from './format.js';
import { t } from './language.js';
import { said, saidWhole } from './said.js';

/** @import {Activity} from './types.js' */

/** What events are called. @type {Record<string, string>} */
export const EVENTS = {
  added: t('added'),
  started: t('started'),
  succeeded: t('succeeded'),
  failed: t('failed'),
  cancelled: t('cancelled'),
  retry: t('failed, will retry'),
  crashed: t('crashed'),
  interrupted: t('interrupted'),
  cancel_requested: t('asked to stop'),
  timeout: t('reached its time limit'),
  retried: t('retried'),
  deleted: t('deleted'),
  put_back: t('put back'),
  promoted: t('became due'),
  released: t('no longer waits for others'),
  bulk_cancel: t('many cancelled'),
  bulk_retry: t('many retried'),
  bulk_delete: t('many deleted'),
  worker_started: t('worker started'),
  worker_ended: t('worker ended'),
  worker_lost: t('worker lost'),
  worker_start_failed: t('worker start failed'),
  queue_changed: t('queue changed'),
  queue_deleted: t('queue deleted'),
  schedule_added: t('schedule added'),
  schedule_changed: t('schedule changed'),
  schedule_paused: t('schedule paused'),
  schedule_resumed: t('schedule resumed'),
  schedule_deleted: t('schedule deleted'),
  logged_in: t('logged in'),
  log_in_refused: t('log-in refused'),
  logged_out: t('logged out'),
  user_added: t('user added'),
  user_changed: t('user changed'),
  user_deleted: t('user deleted'),
  token_added: t('token added'),
  token_revoked: t('token revoked'),
  settings_changed: t('settings changed'),
};

/** What an event is called. @param {string} event */
export const eventWords = (event) => EVENTS[event] || event.replaceAll('_', ' ');

/** What was told of it; of tasks it is what their functions say. @param {Activity} entry */
export function messageWords({ event, message }) {
  const [, before, json] = /^(?:queue_changed|bulk_)/.test(event)
    && /^(\d+ tasks of )?({.*})$/s.exec(message || '') || [];
  if (message && json) return changeWords(parseInt(before, 10), JSON.parse(json));
  return message && (/^(?:user|worker|logged)_/.test(event) ? said : saidWhole)(message);
}

/**
 * What was changed of a queue, or which tasks were changed together, in words.
 * @param {number} count of tasks
 * @param {{name?: string, paused?: boolean, paused_why?: string, max_running?: number|null,
 *   rate?: {count: number, seconds: number}|null, machines?: string[]|null, status?: string}} change
 */
function changeWords(count, { name, paused, paused_why: why, max_running: most, rate, machines, ...more }) {
  const none = [most, rate, machines].includes(null) && t('no limits');
  return [count && t.n('{count} task | {count} tasks', count),
    paused === undefined ? '' : paused ? t('paused') : t('resumed'), why,
    most && t('at most {count} at once', { count: most }),
    rate && t('{count} in {time}', { count: rate.count, time: durationText(rate.seconds) }),
    machines && t.n('machine {names} | machines {names}', machines.length,
      { names: machines.join(', ') }), none,
    ...Object.entries(more).map(([key, value]) => (
      key === 'status' ? String(value).split(',').map(statusWord).join(', ') : `${key} ${value}`))]
    .filter(Boolean).join(', ');
}
