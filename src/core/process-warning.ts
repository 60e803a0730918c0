/**
 * Warnings for the operator of the process, by `process.emitWarning` or the console. A warning points at a mistake and not
 * at traffic, so each is emitted once per process, or once per subject.
 */

import { toPrintable } from './printable.ts';

type WarningCode =
  | 'LISTENER' // an event listener threw
  | 'EXPIRED_PERMIT' // a permit was not settled in time
  | 'UNCOUNTED_REPORT' // an attempt was reported for a key that no check has counted
  | 'LOGGER' // a logger threw
  | 'UNCHECKED' // a limiter failed: requests are not checked, or permits not settled
  | 'INVALID_RESULT' // a function option failed for a request, or returned an invalid value
  | 'TOO_LATE' // a limit refused a request whose response had already begun
  | 'NO_ADDRESS' // the runtime gives no client address
  | 'REJECTED' // a daemon rejected a request, and the caller does not see why
  | 'FAIL_OPEN' // a daemon is unavailable, and calls are allowed without a check
  | 'BARE_DURATION' // a duration without a unit is probably meant in seconds
  | 'REDIS' // Redis is unavailable or too slow, or a client failed, without a listener
  | 'PEERS' // peers are unavailable, or their datagrams are not authenticated
  | 'POOL' // the store of a pool is unavailable, and no listener is set
  | 'GROUPS'; // a group cannot listen, so other groups cannot borrow from it

interface RuntimeGlobals {
  readonly process?: { emitWarning?(message: string, options: object): void };
  readonly console?: { warn?(message: string): void };
}

/** Bounds the warnings of one code: subjects can be unbounded. */
const MAX_WARNINGS = 100;

const emittedSubjects = new Map<WarningCode, Set<string>>();

/** `message` may be a function, for callers that warn often: it is called for the warnings that are emitted. */
export function emitProcessWarning(
  code: WarningCode,
  message: string | (() => string),
  subject = '',
): void {
  const subjects = emittedSubjects.get(code) ?? new Set();
  if (subjects.has(subject) || subjects.size >= MAX_WARNINGS) return;
  emittedSubjects.set(code, subjects.add(subject));
  const host = globalThis as RuntimeGlobals;
  const options = { type: 'SluiceWarning', code: `SLUICE_${code}` };
  const text = toPrintable(typeof message === 'string' ? message : message()); // it may quote a reply of another host, or a key
  if (host.process?.emitWarning) host.process.emitWarning(text, options);
  else host.console?.warn?.(`SluiceWarning: ${text}`);
}

/** A warning that was emitted, as it is logged. */
export interface ProcessWarning {
  readonly code: string;
  readonly reason: string;
}

/** The members of `process` that are used. */
export interface WarningSource {
  removeAllListeners(event: 'warning'): unknown;
  on(event: 'warning', listener: (warning: Error & { readonly code?: string }) => void): unknown;
}

/** Node prints a warning as plain text by a listener: `act` takes its place. */
export function redirectWarnings(
  source: WarningSource,
  act: (warning: ProcessWarning) => unknown,
): void {
  source.removeAllListeners('warning');
  source.on('warning', ({ name, message, code }) => act({ code: code ?? name, reason: message }));
}
