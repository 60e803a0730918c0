/**
 * Keeps an outage of Redis from ending the process, and warns of an outage that nothing else reports.
 *
 * A client of node-redis without a listener of `error` ends the process when Redis stops. So limits, pool stores and
 * channels of peers add a listener to their client. Users of the same client share it, and the last one that closes
 * removes it. It warns if the client has no other listener. It also keeps the last error: without a connection, a call
 * fails with an error that does not say why, such as a wrong password.
 */

import type { Millis } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';

type Listener = (error: unknown) => void;

/** What both clients have, of event emitters and of their own state. */
interface ObservableClient {
  listenerCount?(event: 'error'): number;
  on?(event: 'error', listener: Listener): unknown;
  off?(event: 'error', listener: Listener): unknown;
  /** node-redis: false before `connect` and after `close`. */
  readonly isOpen?: boolean;
  /** node-redis: false while it connects. */
  readonly isReady?: boolean;
  /** ioredis: `ready` while connected, `end` after `disconnect` or the last attempt. A client that waits for `connect` connects by itself. */
  readonly status?: string;
}

interface SharedListener {
  users: number;
  readonly listener: Listener;
  lastError: unknown;
}

const sharedListeners = new WeakMap<object, SharedListener>();

/** Redis has refused the client for good: attempts to connect again fail alike. */
const REFUSAL = /^(NOAUTH|WRONGPASS|NOPERM)\b/;

function warnOfError(error: unknown, hasOtherListeners: boolean, meanwhile: string): void {
  const message = errorMessageOf(error);
  if (REFUSAL.test(message))
    emitProcessWarning(
      'REDIS',
      `Redis refuses the connection: ${message}. Meanwhile ${meanwhile}. Check user name and password of the client`,
      'refused',
    );
  else if (!hasOtherListeners)
    emitProcessWarning(
      'REDIS',
      () =>
        `a Redis client without a listener of "error" failed: ${String(error)}. Meanwhile ${meanwhile}. Add client.on('error', …) to handle errors yourself`,
    );
}

/** Adds a listener of errors. Returns the function that removes it. A warning says what happens meanwhile. */
export function listenForErrors(
  client: unknown,
  meanwhile = '`onUnavailable` decides',
): () => void {
  const emitter = client as ObservableClient & object;
  if (typeof emitter.listenerCount?.('error') !== 'number') return () => {}; // a client over HTTP
  const known = sharedListeners.get(emitter);
  const shared = known ?? createListener(emitter, meanwhile);
  if (!known) {
    emitter.on?.('error', shared.listener);
    sharedListeners.set(emitter, shared);
  }
  shared.users++;
  let isReleased = false;
  return () => {
    if (isReleased) return;
    isReleased = true;
    if (--shared.users > 0) return;
    emitter.off?.('error', shared.listener);
    sharedListeners.delete(emitter);
  };
}

function createListener(emitter: ObservableClient, meanwhile: string): SharedListener {
  const shared: SharedListener = {
    users: 0,
    lastError: undefined,
    listener(error) {
      shared.lastError = error;
      warnOfError(error, hasOtherListeners(emitter), meanwhile);
    },
  };
  return shared;
}

/** Whether a listener of the application hears of errors. */
const hasOtherListeners = (client: ObservableClient): boolean =>
  (client.listenerCount?.('error') ?? 0) > 1;

const isConnected = ({ isReady, status }: ObservableClient): boolean =>
  isReady !== false && (status === undefined || status === 'ready');

/** Why calls fail: without a connection, the last error of the client. */
export function causeOfOutage(client: unknown, why: unknown): unknown {
  const { lastError } = sharedListeners.get(client as object) ?? {};
  if (lastError === undefined || isConnected(client as ObservableClient)) return why;
  const message = `${errorMessageOf(why)}: ${errorMessageOf(lastError)}`;
  return new Error(message, { cause: lastError });
}

const decidesEachCall = (onUnavailable: string): string =>
  `\`onUnavailable: '${onUnavailable}'\` decides each call in this process`;

const TO_HEAR = 'Add a listener with on(…) of the limiter, or logLimiting, to hear of each outage';

/**
 * Warns that `onUnavailable` decides, unless something else reports it: a listener of the limiter, or of a client without
 * a connection the listener above. A client that was never connected is a mistake, which is always reported.
 */
export function warnOfOutage(
  client: unknown,
  onUnavailable: string,
  why: unknown,
  hasListeners = false,
): void {
  const { isOpen, status } = client as ObservableClient;
  const decides = decidesEachCall(onUnavailable);
  if (isOpen === false || status === 'end')
    emitProcessWarning(
      'REDIS',
      `expected a connected Redis client, got one that is not connected: ${decides}. Call client.connect() before the first decision`,
      'not connected',
    );
  else if (hasListeners) return;
  else if (!isConnected(client as ObservableClient)) {
    if (!hasOtherListeners(client as ObservableClient)) return; // it warned of the error
    emitProcessWarning(
      'REDIS',
      () =>
        `a Redis client has no connection. Until it has one, ${decides}. Cause: ${errorMessageOf(why)}. ${TO_HEAR}`,
      'no connection',
    );
  } else
    emitProcessWarning(
      'REDIS',
      () =>
        `Redis is unavailable: ${errorMessageOf(why)}. Until a call succeeds, ${decides}. ${TO_HEAR}`,
      'unavailable',
    );
}

/** Redis is up, and too slow for the deadline: without a change, every call is decided by `onUnavailable`. */
export function warnOfLateReplies(onUnavailable: string, deadlineMs: Millis, rttMs: Millis): void {
  emitProcessWarning(
    'REDIS',
    () =>
      `Redis replies, but not within \`deadline\` (${deadlineMs} ms): the round trip is about ${Math.round(rttMs)} ms. ${decidesEachCall(onUnavailable)}, and Redis counts none of them. Raise \`deadline\` to a few round-trip times`,
    'late replies',
  );
}
