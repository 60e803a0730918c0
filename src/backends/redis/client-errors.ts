/**
 * Keeps an outage of Redis from ending the process, and reports a client without a connection.
 *
 * A client of node-redis without a listener of `error` ends the process when Redis stops. So limits, pool stores and
 * channels of peers add a listener to a client that has none. Users of the same client share it, and the last one that
 * closes removes it.
 */

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
}

const sharedListeners = new WeakMap<object, SharedListener>();

const warnOfError = (error: unknown, meanwhile: string): void =>
  emitProcessWarning(
    'REDIS',
    () =>
      `a Redis client without a listener of "error" failed: ${String(error)}. Meanwhile ${meanwhile}. Add client.on('error', …) to handle errors yourself`,
  );

/**
 * Adds a listener of errors if the client has none. Returns the function that removes it. The warning says what
 * happens meanwhile.
 */
export function listenForErrors(
  client: unknown,
  meanwhile = '`onUnavailable` decides',
): () => void {
  const emitter = client as ObservableClient & object;
  const known = sharedListeners.get(emitter);
  if (!known && emitter.listenerCount?.('error') !== 0) return () => {};
  const shared = known ?? { users: 0, listener: (error: unknown) => warnOfError(error, meanwhile) };
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

/**
 * Warns if the client has no connection: every call is then decided by `onUnavailable`. A client that connects by itself
 * is reported only if nothing else reports it: neither a listener of the limiter nor the listener above.
 */
export function warnIfNotConnected(
  client: unknown,
  onUnavailable: string,
  hasListeners = false,
): void {
  const { isOpen, isReady, status } = client as ObservableClient;
  const decides = `\`onUnavailable: '${onUnavailable}'\` decides each call in this process`;
  if (isOpen === false || status === 'end')
    emitProcessWarning(
      'REDIS',
      `expected a connected Redis client, got one that is not connected: ${decides}. Call client.connect() before the first decision`,
      'not connected',
    );
  else if (isReady === false || (status !== undefined && status !== 'ready')) {
    if (hasListeners || sharedListeners.has(client as object)) return;
    emitProcessWarning(
      'REDIS',
      `a Redis client has no connection. Until it has one, ${decides}. Add a listener with on(…) of the limiter, or logLimiting, to hear of each outage`,
      'no connection',
    );
  }
}
