/** A connection to NATS that is tried for until there is one: a daemon may be there before its servers. */

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { ConfigError, reasonOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';

/** How long a server may take to answer, and how soon it is tried again if it did not. */
const CONNECT_WITHIN_MS: Millis = 2000;
const CONNECT_AGAIN_MS: Millis = 1000;
/** The same once there was a connection: those who meet there are back within a second of its return. */
const RECONNECT = { reconnectTimeWait: 200, reconnectJitter: 100, reconnectJitterTLS: 100 };

type NatsPackage = typeof import('@nats-io/transport-node');
export type NatsConnection = Awaited<ReturnType<NatsPackage['connect']>>;

export interface NatsLinkSetting {
  readonly clock: Clock;
  /** Left out if whoever uses the connection tells of outages itself. */
  readonly log?: Log;
  /** What is out of reach without it, as the configuration calls it: `peers`, `pool`. */
  readonly what: string;
}

export class NatsLink {
  readonly #setting: NatsLinkSetting;
  readonly #connect: () => Promise<NatsConnection>;
  #connection: NatsConnection | undefined;
  #reason: string | undefined;
  #isClosed = false;
  #cancel = (): void => {};
  /** Resolves with the connection, as soon as there is one; with undefined if it was closed before. */
  readonly connected: Promise<NatsConnection | undefined>;

  /** @throws {ConfigError} if the package it needs is missing. */
  static async to(servers: readonly string[], setting: NatsLinkSetting): Promise<NatsLink> {
    const { connect } = await natsPackage(setting.what);
    const options = { ...whereAndWho(servers), name: 'sluice', timeout: CONNECT_WITHIN_MS };
    const always = { ...RECONNECT, maxReconnectAttempts: -1 };
    return new NatsLink(() => connect({ ...options, ...always }), setting);
  }

  private constructor(connect: () => Promise<NatsConnection>, setting: NatsLinkSetting) {
    this.#connect = connect;
    this.#setting = setting;
    this.connected = this.#try();
  }

  /** The connection, if there is one by now. */
  get connection(): NatsConnection | undefined {
    return this.#connection;
  }

  /** Why there is none yet, once that is known. */
  get reason(): string | undefined {
    return this.#reason;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancel();
    await this.#connection?.close();
  }

  async #try(): Promise<NatsConnection | undefined> {
    const { log = () => {}, what } = this.#setting;
    while (!this.#isClosed) {
      try {
        const connection = await this.#connect();
        if (this.#isClosed) return void (await connection.close());
        this.#connection = connection;
        if (this.#reason !== undefined) log('info', `${what} in reach again`, { through: 'nats' });
        tellOf(connection, what, log).catch(() => {}); // it ends with the connection
        return connection;
      } catch (error) {
        const reason = reasonOf(error);
        if (reason !== this.#reason)
          log('warn', `${what} out of reach`, { through: 'nats', reason });
        this.#reason = reason;
      }
      await this.#later();
    }
    return undefined;
  }

  #later(): Promise<void> {
    const { clock } = this.#setting;
    return new Promise((resolve) => {
      const stop = alarm(clock, clock.now() + CONNECT_AGAIN_MS, resolve, false);
      this.#cancel = () => {
        stop();
        resolve();
      };
    });
  }
}

async function natsPackage(what: string): Promise<NatsPackage> {
  try {
    return await import('@nats-io/transport-node');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/transport-node" installed (${reasonOf(error)})`;
    throw new ConfigError(`${what}.nats`, expected, 'nats');
  }
}

/** Tells when the server goes and comes back: that all peers are gone has another reason then. */
async function tellOf(connection: NatsConnection, what: string, log: Log): Promise<void> {
  const through = 'nats';
  for await (const { type } of connection.status()) {
    if (type === 'disconnect') log('warn', `${what} out of reach`, { through, reason: type });
    else if (type === 'reconnect') log('info', `${what} in reach again`, { through });
  }
}

/** What NATS is told of its servers: who we are may stand in an address, and its package does not look there. */
export function whereAndWho(servers: readonly string[]): {
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
  if (others.length === 0) return { servers: bare, token: plain(first) };
  return { servers: bare, user: plain(first), pass: plain(others.join(':')) };
}

/** As it was before it was written into an address. */
function plain(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // it was not written as one
  }
}
