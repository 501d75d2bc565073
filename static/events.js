// @ts-check
/** What can happen to tasks, workers, schedules and people, in words. */
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
export const messageWords = ({ event, message }) => (
  message && (/^(?:user|worker|logged)_/.test(event) ? said : saidWhole)(message));
