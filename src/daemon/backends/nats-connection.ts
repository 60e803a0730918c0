/** A connection to NATS that is tried for until there is one: a daemon may be there before its servers. */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';

/** How long a server may take to answer, and how soon it is tried again if it did not. */
const CONNECT_TIMEOUT_MS: Millis = 2000;
const RETRY_MS: Millis = 1000;
/** The same once there was a connection: those who meet there are back within a second of its return. */
const RECONNECT_OPTIONS = { reconnectTimeWait: 200, reconnectJitter: 100, reconnectJitterTLS: 100 };

type NatsPackage = typeof import('@nats-io/transport-node');
export type NatsConnection = Awaited<ReturnType<NatsPackage['connect']>>;

export interface NatsConnectorContext {
  readonly clock: Clock;
  /** Left out if whoever uses the connection tells of outages itself. */
  readonly log?: Log;
  /** What is out of reach without it, as the configuration calls it: `peers`, `pool`. */
  readonly section: string;
}

export class NatsConnector {
  readonly #context: NatsConnectorContext;
  readonly #connect: () => Promise<NatsConnection>;
  #connection: NatsConnection | undefined;
  #lastError: string | undefined;
  #isClosed = false;
  #cancelRetry = (): void => {};
  /** Resolves with the connection, as soon as there is one; with undefined if it was closed before. */
  readonly connected: Promise<NatsConnection | undefined>;

  /** @throws {ConfigError} if the package it needs is missing. */
  static async connect(
    servers: readonly string[],
    context: NatsConnectorContext,
  ): Promise<NatsConnector> {
    const { connect } = await loadNatsPackage(context.section);
    const options = { ...natsConnectOptions(servers), name: 'sluice', timeout: CONNECT_TIMEOUT_MS };
    const always = { ...RECONNECT_OPTIONS, maxReconnectAttempts: -1 };
    return new NatsConnector(() => connect({ ...options, ...always }), context);
  }

  private constructor(connect: () => Promise<NatsConnection>, context: NatsConnectorContext) {
    this.#connect = connect;
    this.#context = context;
    this.connected = this.#connectWithRetry();
  }

  /** The connection, if there is one by now. */
  get connection(): NatsConnection | undefined {
    return this.#connection;
  }

  /** Why there is none yet, once that is known. */
  get lastError(): string | undefined {
    return this.#lastError;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelRetry();
    await this.#connection?.close();
  }

  async #connectWithRetry(): Promise<NatsConnection | undefined> {
    const { log = () => {}, section } = this.#context;
    while (!this.#isClosed) {
      try {
        const connection = await this.#connect();
        if (this.#isClosed) return void (await connection.close());
        this.#connection = connection;
        if (this.#lastError !== undefined)
          log('info', `${section} available again`, { through: 'nats' });
        logStatusChanges(connection, section, log).catch(() => {}); // it ends with the connection
        return connection;
      } catch (error) {
        const reason = errorMessageOf(error);
        if (reason !== this.#lastError)
          log('warn', `${section} unavailable`, { through: 'nats', reason });
        this.#lastError = reason;
      }
      await this.#waitForRetry();
    }
    return undefined;
  }

  #waitForRetry(): Promise<void> {
    const { clock } = this.#context;
    return new Promise((resolve) => {
      const stop = schedule(clock, clock.now() + RETRY_MS, resolve, false);
      this.#cancelRetry = () => {
        stop();
        resolve();
      };
    });
  }
}

async function loadNatsPackage(what: string): Promise<NatsPackage> {
  try {
    return await import('@nats-io/transport-node');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/transport-node" installed (${errorMessageOf(error)})`;
    throw new ConfigError(`${what}.nats`, expected, 'nats');
  }
}

/** Tells when the server goes and comes back: that all peers are gone has another reason then. */
async function logStatusChanges(connection: NatsConnection, what: string, log: Log): Promise<void> {
  const through = 'nats';
  for await (const { type } of connection.status()) {
    if (type === 'disconnect') log('warn', `${what} unavailable`, { through, reason: type });
    else if (type === 'reconnect') log('info', `${what} available again`, { through });
  }
}

/** What NATS is told of its servers: who we are may stand in an address, and its package does not look there. */
export function natsConnectOptions(servers: readonly string[]): {
  readonly servers: string[];
  readonly user?: string;
  readonly pass?: string;
  readonly token?: string;
} {
  const named = servers.map((server) => /^(?:([a-z]+:\/\/)?(.*)@)?(.*)$/is.exec(server) ?? []);
  const [, , who] = named.find(([, , own]) => own) ?? [];
  const bare = named.map(([, scheme = '', , rest]) => scheme + rest);
  if (who === undefined) return { servers: bare };
  const [first, ...others] = who.split(':');
  if (others.length === 0) return { servers: bare, token: decodeUriPart(first) };
  return { servers: bare, user: decodeUriPart(first), pass: decodeUriPart(others.join(':')) };
}

/** As it was before it was written into an address. */
function decodeUriPart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // it was not written as one
  }
}
