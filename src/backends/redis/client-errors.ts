/**
 * Prevents an outage of Redis from ending the process, and warns of an outage that nothing else reports.
 *
 * A node-redis client without an `error` listener ends the process when Redis stops. Limits, pool stores and peer
 * channels therefore add a listener to their client. Users of one client share it, and the last one to close removes
 * it. It warns if the client has no other listener. It also stores the last error: without a connection, a call fails
 * with an error that does not contain the cause, such as a wrong password.
 */

import type { Millis } from '../../core/clock.ts';
import { errorMessageOf } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';

type Listener = (error: unknown) => void;

/** Members that both clients have, as event emitters and for their own state. */
interface ObservableClient {
  listenerCount?(event: 'error'): number;
  on?(event: 'error', listener: Listener): unknown;
  off?(event: 'error', listener: Listener): unknown;
  /** node-redis: false before `connect` and after `close`. */
  readonly isOpen?: boolean;
  /** node-redis: false while it connects. */
  readonly isReady?: boolean;
  /** ioredis: `ready` if connected, `end` after `disconnect` or the last attempt. `wait` connects by itself. */
  readonly status?: string;
}

interface SharedListener {
  users: number;
  readonly listener: Listener;
  lastError: unknown;
}

const sharedListeners = new WeakMap<object, SharedListener>();

/** Redis has rejected the client permanently: further attempts to connect fail, too. */
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

/** Adds an error listener and returns the function that removes it. Its warning contains `meanwhile`. */
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

/** Whether the application has its own error listener. */
const hasOtherListeners = (client: ObservableClient): boolean =>
  (client.listenerCount?.('error') ?? 0) > 1;

const isConnected = ({ isReady, status }: ObservableClient): boolean =>
  isReady !== false && (status === undefined || status === 'ready');

/** The cause of failed calls: without a connection, the last error of the client. */
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
 * Warns that `onUnavailable` decides, unless something else reports it: a listener of the limiter, or the listener
 * above for a client without a connection. A client that was never connected is a mistake and is always reported.
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
    if (!hasOtherListeners(client as ObservableClient)) return; // the listener above has warned already
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

/** Warns that Redis is available but too slow for the deadline, so `onUnavailable` decides every call. */
export function warnOfLateReplies(onUnavailable: string, deadlineMs: Millis, rttMs: Millis): void {
  emitProcessWarning(
    'REDIS',
    () =>
      `Redis replies, but not within \`deadline\` (${deadlineMs} ms): the round trip is about ${Math.round(rttMs)} ms. ${decidesEachCall(onUnavailable)}, and Redis counts none of them. Raise \`deadline\` to a few round-trip times`,
    'late replies',
  );
}
