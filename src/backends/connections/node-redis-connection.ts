/**
 * `destroy` does not reach a socket that is still connecting: it would open later and keep the process alive. A
 * connecting client is therefore destroyed as soon as the attempt has ended.
 */

export interface ConnectableClient {
  readonly isOpen?: boolean;
  connect(): Promise<unknown>;
  on(event: string, listener: () => void): unknown;
  /** Exists from version 5 on. */
  destroy?(): void;
  /** `destroy` of version 4. */
  disconnect?(): unknown;
}

export interface NodeRedisConnection {
  /** Settles as `connect` does. */
  readonly opened: Promise<unknown>;
  destroy(): void;
}

export function connectClient(client: ConnectableClient): NodeRedisConnection {
  let isConnecting = true;
  let isStopped = false;
  // Version 4, if destroyed in the event "connect", rejects its first commands before it awaits them: wait a tick.
  const destroy = (): void =>
    queueMicrotask(() => {
      if (client.isOpen === false) return; // would throw
      if (client.destroy) client.destroy();
      else client.disconnect?.();
    });
  const onAttemptEnded = (): void => {
    isConnecting = false;
    if (isStopped) destroy();
  };
  client.on('reconnecting', () => {
    isConnecting = true;
  });
  for (const event of ['connect', 'error']) client.on(event, onAttemptEnded);
  return {
    opened: client.connect().finally(onAttemptEnded),
    destroy() {
      isStopped = true;
      if (!isConnecting) destroy();
    },
  };
}
