// @ts-check
/** @import {ApiError} from './api.js' */
/**
 * What the server answers and what forms hold, for the type checker only: no page loads this file.
 *
 * @typedef {{type: string, message: string, traceback?: string|null}} TaskError
 * @typedef {{
 *   id: number, owner: string, function: string, summary: string, queue: string,
 *   status: typeof import('./format.js').STATUSES[number], reason: string|null, after?: number[],
 *   unique_key?: string|null, after_failure?: string|null, schedule?: number|null,
 *   priority: number, run_at: string|null, attempts: number, crashes: number,
 *   max_retries: number, timeout: number, notify: 'end'|'failure'|null,
 *   cancel_requested: boolean, progress: number|null, message: string|null,
 *   error: TaskError|null, created_at: string, started_at: string|null,
 *   finished_at: string|null, expected_start?: [string, string]|null,
 *   result?: unknown}} Row a task as lists carry it
 * @typedef {Row & {arguments: Record<string, unknown>, result: unknown,
 *   blocked_text?: string|null, forecast?: Forecast|null,
 *   previous?: number|null, next?: number|null, samples?: Sample[]|null,
 *   predecessors?: Related[], followers?: Related[]}} Task
 * @typedef {{seconds: number, cpu_seconds: number, memory: number}} Sample of a running task
 * @typedef {{before: number|null, expected_start: [string, string]|null,
 *   expected_end: [string, string]|null, reason: string|null, slow: boolean}} Forecast
 * @typedef {{id: number, finished_at: string, seconds: number|null, peak_memory: number|null}} Success
 * @typedef {TaskLink & {function: string}} Related
 * @typedef {{tasks: Row[], next: string|null, counts: Record<string, number>,
 *   running?: Row[], failed?: Failures, held?: Held[]}} TaskPage
 * @typedef {{groups: Group[], count: number, other_kinds: number, other_count: number,
 *   more: boolean}} Failures
 * @typedef {{queue: string, code: string, text: string}} Held
 * @typedef {{code: string, text: string}} Service
 * @typedef {{name: string, role: 'admin'|'user'|'viewer', disabled: boolean,
 *   last_seen_at: string|null, email: string|null, max_pending?: number|null,
 *   max_running?: number|null}} User
 * @typedef {{address: string|null, current: boolean, created_at: string, seen_at: string}} Place
 *   where one is logged in
 * @typedef {{user: {name: string, role: 'admin'|'user'|'viewer', email: string|null,
 *   summary: {hour: number, zone: string}|null}, mail: boolean,
 *   version: string, data: string|null, exposed: string[], looked_at: string|null, max_file_mb: number}} Session
 *
 * @typedef {{type?: string|string[], format?: string, enum?: unknown[], items?: Schema,
 *   properties?: Record<string, Schema>, additionalProperties?: boolean|Schema, required?: string[],
 *   prefixItems?: Schema[], enumNames?: string[], default?: unknown, description?: string,
 *   minimum?: number, maximum?: number, maxLength?: number}} Schema
 * @typedef {{name: string, title: string, description: string, schema: Schema,
 *   options: {queue: string, priority: number, max_retries: number, timeout: number,
 *   notify: 'end'|'failure'|null},
 *   who: 'user'|'admin'|'nobody', remote?: string[]}} TaskFunction
 * @typedef {{message: string, file: string|null, line: number|null}} CodeError
 * @typedef {{functions: TaskFunction[], error: CodeError|null, samples: boolean,
 *   file: string|null}} Catalogue
 *
 * @typedef {{id: number, at: string, event: string, task: number|null, function: string|null,
 *   queue: string|null, worker: number|null, owner: string|null,
 *   attempt: number|null, waited: number|null,
 *   seconds: number|null, cpu_seconds: number|null, peak_memory: number|null,
 *   actor: string|null, message: string|null}} Activity
 * @typedef {{next: number, text: string, cut: boolean, complete: boolean,
 *   times: [number, string|null][]}} LogPart
 * @typedef {{id: number, page: string, name: string, value: any}} Saved
 * @typedef {{name: string, size: number, type: string, id: string|null}} TaskFile
 * @typedef {{id: number, name: string|null, function: string, summary: string,
 *   times: string[]}} Planned a schedule, and when it is due
 * @typedef {{function: string, error: string|null, message: string|null, count: number,
 *   newest: number}} Group of failures
 * @typedef {{running: Row[], counts: Record<string, number>, next_at: string|null,
 *   oldest: {id: number, function: string, queue: string, since: string}|null,
 *   held: Held[],
 *   failed: Failures & {since: string}, schedules: Planned[],
 *   workers: {alive: number, busy: number, maximum: number}}} Overview
 * @typedef {{count: number, sum: number, min: number, max: number, mean: number, p50: number,
 *   p95: number|null}} Times in seconds
 * @typedef {{at?: string, name?: string, complete: boolean, added: number, started: number,
 *   succeeded: number, failed: number, cancelled: number, retried: number, crashed: number,
 *   waited: Times|null, ran: Times|null, service: Times|null, busy_seconds?: number,
 *   recent?: {id: number|null, status: string, seconds: number|null}[],
 *   peak_memory?: number|null}} Figures of a step or a function
 * @typedef {{step: string, counted_from: string|null, points: Figures[], totals: Figures, functions: Figures[],
 *   workers: {machine: string, alive_seconds: number, busy_seconds: number,
 *   tasks: number}[]}} Metrics
 * @typedef {{machine: string, pid: number|null, state: string, mode: string, tasks: number,
 *   functions: string[],
 *   started_at: string, seen_at: string|null, task: number|null,
 *   function: string|null}} Worker
 * @typedef {{name: string, verdict: 'ok'|'note'|'bad', text: string}} Check
 * @typedef {{title: string, name: string, text: string}} HostFile
 * @typedef {{token: string|null, addresses: string[]}} Canary
 * @typedef {{id: number, code: string, title: string, subject: string, text: string, count: number,
 *   told: number, opened_at: string, seen_at: string, told_at: string|null,
 *   muted_until: string|null, ended_at: string|null, function: string|null, error: string|null,
 *   task: number|null, link: string}} Alert
 * @typedef {{channel: string, recipient: string, last: number|null, sending: boolean,
 *   sent_at: string|null, error: string|null, next_at: string|null}} Channel
 * @typedef {{alerts: Alert[], channels: Channel[], page_address: string|null}} Alerts
 * @typedef {{last_at: string|null, last_source: string|null, period: number|null,
 *   cron: {last_at: string|null, period: number|null}|null, resident: boolean}} Ticks
 * @typedef {{checks: Check[], advice: string, files: HostFile[],
 *   mode: {mode: string, why: string}, ticks: Ticks|null, canary: Canary,
 *   exposed: string[]|null, looked_at: string|null}} Host
 * @typedef {{name: string, group: string, label: string, unit: string,
 *   value: unknown, default: unknown, help: string,
 *   from: 'default'|'table'|'environment',
 *   type: 'integer'|'number'|'text'|'boolean'|'choice',
 *   minimum: number|null, maximum: number|null, choices: string[]|null, fixed: boolean}} Setting
 * @typedef {{id: number, owner: string, name: string, scope: 'user'|'read'|'tick'|'worker'|'metrics'|'invitation',
 *   created_at: string,
 *   last_used_at: string|null, token?: string}} Token
 *
 * @typedef {{id: number, status: Row['status']}} TaskLink
 * @typedef {{at: string, local: string, note: string|null}} Slot
 * @typedef {{rule: string, zone: string, words: string, times: Slot[]}} Preview
 * @typedef {{
 *   id: number, owner: string, name: string|null, source: 'person'|'code'|'folder', function: string,
 *   arguments: Record<string, unknown>, summary: string, options: Record<string, unknown>,
 *   rule: string, zone: string, words: string, catch_up: string, overlap: string,
 *   paused: boolean, paused_by: string|null, paused_at: string|null, paused_why: string|null,
 *   problem: string|null, warning: string|null, next_at: string|null, last_at: string|null,
 *   last_task: TaskLink|null, created_at: string, history?: Fired[], recent?: Fired[],
 *   upcoming?: Slot[]}} Schedule
 * @typedef {{at: string, task: TaskLink|null, message: string|null}} Fired
 * @typedef {{
 *   name: string, paused: boolean, paused_by: string|null, paused_at: string|null,
 *   paused_why: string|null, max_running: number|null,
 *   rate: {count: number, seconds: number}|null, machines: string[]|null, external: boolean,
 *   pending: number, running: number, scheduled: number, waiting: number,
 *   blocked: 'paused'|'max_running'|'rate'|'machines'|'external'|null,
 *   next_at: string|null, empty_at: [string, string]|null, oldest_at?: string|null}} Queue
 *
 * @typedef {{session: Session|null, exposed: string[], service: Service|null,
 *   catalogue: Catalogue|null, trouble: ApiError|null, setup: boolean}} State what the store knows
 * @typedef {{queues: Queue[], machines: string[]}} Queues
 *
 * @typedef {Record<string, string>} Values of a form, by name
 * @typedef {{name: string, schema: Schema, required: boolean, value: any}} Property
 * @typedef {(Property|undefined)[]} Columns of a table of tasks
 * @typedef {{row: number, cells: string[], arguments: {}, wrong: boolean}} Line a row: a task
 *
 * @typedef {{page: string, id: string, params: URLSearchParams}} Route
 * @typedef {{show: (route: Route, signal: AbortSignal) => Promise<void>}} Page
 */
export {};
