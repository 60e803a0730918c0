import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Log } from '../../core/log.ts';

/** Timeout of one attempt, and the pause before the next. */
const CONNECT_TIMEOUT_MS: Millis = 2000;
const RETRY_MS: Millis = 1000;
/** After a lost connection, backends reconnect within 1 s of the server's return. */
const RECONNECT_OPTIONS = { reconnectTimeWait: 200, reconnectJitter: 100, reconnectJitterTLS: 100 };

type NatsPackage = typeof import('@nats-io/transport-node');
export type NatsConnection = Awaited<ReturnType<NatsPackage['connect']>>;

export interface NatsConnectorContext {
  readonly clock: Clock;
  /** Left out if the connection's user logs outages itself. */
  readonly log?: Log;
  /** The configuration section that needs the connection, such as `pool`. */
  readonly section: string;
}

export class NatsConnector {
  readonly #context: NatsConnectorContext;
  readonly #connect: () => Promise<NatsConnection>;
  #connection: NatsConnection | undefined;
  #lastError: string | undefined;
  #isClosed = false;
  #cancelRetry = (): void => {};
  /** Resolves with the connection; with undefined if the connector was closed first. */
  readonly connected: Promise<NatsConnection | undefined>;

  /** @throws {ConfigError} if the required package is missing. */
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

  get connection(): NatsConnection | undefined {
    return this.#connection;
  }

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
        logStatusChanges(connection, section, log).catch(() => {}); // ends with the connection
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

async function loadNatsPackage(section: string): Promise<NatsPackage> {
  try {
    return await import('@nats-io/transport-node');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/transport-node" installed (${errorMessageOf(error)})`;
    throw new ConfigError(`${section}.nats`, expected, 'nats');
  }
}

/** Logs outages of the server, which explain why all peers are missing. */
async function logStatusChanges(
  connection: NatsConnection,
  section: string,
  log: Log,
): Promise<void> {
  const through = 'nats';
  for await (const { type } of connection.status()) {
    if (type === 'disconnect') log('warn', `${section} unavailable`, { through, reason: type });
    else if (type === 'reconnect') log('info', `${section} available again`, { through });
  }
}

/** Moves credentials from an address to options: the NATS package does not read them in an address. */
export function natsConnectOptions(servers: readonly string[]): {
  readonly servers: string[];
  readonly user?: string;
  readonly pass?: string;
  readonly token?: string;
} {
  const named = servers.map((server) => /^(?:([a-z]+:\/\/)?(.*)@)?(.*)$/is.exec(server) ?? []);
  const [, , credentials] = named.find(([, , user]) => user) ?? [];
  const bare = named.map(([, scheme = '', , rest]) => scheme + rest);
  if (credentials === undefined) return { servers: bare };
  const [user, ...password] = credentials.split(':');
  if (password.length === 0) return { servers: bare, token: decodeUriPart(user) };
  return { servers: bare, user: decodeUriPart(user), pass: decodeUriPart(password.join(':')) };
}

function decodeUriPart(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // not percent-encoded
  }
}
