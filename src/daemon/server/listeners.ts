import { chmodSync, existsSync, lstatSync, readFileSync, unlinkSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { dirname, resolve } from 'node:path';
import {
  createSecureContext,
  createServer as createTlsServer,
  type TlsOptions,
  type Server as TlsServer,
} from 'node:tls';
import { type Millis, systemClock } from '../../core/clock.ts';
import { ConfigError, errorMessageOf, InUseError } from '../../core/errors.ts';
import {
  formatListenAddress,
  type ListenAddress,
  type TlsConfig,
} from '../../core/listen-address.ts';
import { DEFAULT_ADDRESS } from '../config/read.ts';

/** Takes over a connection accepted at this address. */
export type Accept = (socket: Socket, listen: ListenAddress) => void;

/** Connections that the system queues before they are accepted. */
const BACKLOG = 4096;

const HANDSHAKE_MS: Millis = 10_000;

/** TLS handshakes at once: connections count against `bounds.connections` once theirs is complete. */
const MAX_HANDSHAKES = 1000;

/** At the maximum, a handshake that takes longer is closed for a new one. */
const FAIR_HANDSHAKE_MS: Millis = 1000;

export class Listeners {
  readonly #accept: Readonly<Record<string, Accept>>;
  readonly #pausedProtocols: readonly string[];
  #open = new Map<string, OpenListener>();

  /** Connections of `pausedProtocols`, but for TLS, come paused, so that they can be passed to another process. */
  constructor(accept: Readonly<Record<string, Accept>>, pausedProtocols: readonly string[] = []) {
    this.#accept = accept;
    this.#pausedProtocols = pausedProtocols;
  }

  /** The open addresses, with the ports that the system chose. */
  get addresses(): readonly ProtocolAddress[] {
    return [...this.#open.values()].map(({ protocol, listen }) => ({ protocol, listen }));
  }

  /**
   * Listens on these addresses, or changes nothing and throws. New addresses are opened before old ones
   * are closed. An old address that conflicts with a new one is closed first, and reopened on failure.
   */
  async change(wanted: WantedAddresses): Promise<ListenerChange> {
    const plan = planListeners(wanted);
    const kept = new Map(
      [...this.#open].filter(([name, listener]) => plan.has(name) && hasSocketFile(listener)),
    );
    const old = new Map([...this.#open].filter(([name]) => !kept.has(name)));
    const reloads = [...plan].flatMap(([name, planned]) =>
      certificateReloads(kept.get(name), planned),
    );
    const fresh = new Map<string, OpenListener>();
    const closed = new Map<string, OpenListener>();
    const closeFirst = async (listen: ListenAddress): Promise<boolean> => {
      const conflicting = [...old].filter(
        ([name, listener]) => !closed.has(name) && isConflicting(listener.listen, listen),
      );
      for (const [name, listener] of conflicting) {
        closed.set(name, listener);
        await listener.close();
      }
      return conflicting.length > 0;
    };
    try {
      for (const [name, { protocol, listen }] of plan) {
        if (kept.has(name)) continue;
        if (old.has(name)) await closeFirst(listen); // closing it later would remove the new socket file
        fresh.set(name, await this.#openOne(protocol, listen, () => closeFirst(listen)));
      }
    } catch (error) {
      await Promise.all([...fresh.values()].map((listener) => listener.close()));
      await this.#reopen(closed);
      throw error;
    }
    for (const reload of reloads) reload();
    await Promise.all([...old].flatMap(([name, { close }]) => (closed.has(name) ? [] : [close()])));
    const listenerOf = (name: string) => (fresh.get(name) ?? kept.get(name)) as OpenListener;
    this.#open = new Map([...plan.keys()].map((name) => [name, listenerOf(name)]));
    return { opened: [...fresh.values()], closed: [...old.values()] };
  }

  /** An address that cannot be reopened is dropped; the next change tries it again. */
  async #reopen(closed: ReadonlyMap<string, OpenListener>): Promise<void> {
    const errors: unknown[] = [];
    for (const [name, { protocol, listen }] of closed) {
      this.#open.delete(name);
      await this.#openOne(protocol, listen, CANNOT_FREE).then(
        (listener) => this.#open.set(name, listener),
        (error: unknown) => errors.push(error),
      );
    }
    if (errors.length > 0) throw errors[0]; // worse than the error that led here
  }

  #openOne(
    protocol: string,
    listen: ListenAddress,
    freeAddress: FreeAddress,
  ): Promise<OpenListener> {
    const pauseOnConnect = this.#pausedProtocols.includes(protocol);
    return openListener(protocol, listen, this.#accept[protocol], freeAddress, pauseOnConnect);
  }

  /** Accepts no more connections; open ones stay. */
  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((opened) => opened.close()));
    this.#open.clear();
  }
}

type WantedAddresses = Readonly<Record<string, readonly ListenAddress[]>>;

/** A protocol is `line`, `resp`, `http`, or the name of a backend that has a listener of its own. */
export interface ProtocolAddress {
  readonly protocol: string;
  readonly listen: ListenAddress;
}

interface OpenListener extends ProtocolAddress {
  readonly server: Server;
  close(): Promise<void>;
}

export interface ListenerChange {
  readonly opened: readonly ProtocolAddress[];
  readonly closed: readonly ProtocolAddress[];
}

/** The wanted addresses, by a name that covers every option of the address. */
function planListeners(wanted: WantedAddresses): ReadonlyMap<string, ProtocolAddress> {
  return new Map(
    Object.entries(wanted).flatMap(([protocol, listens]) =>
      listens.map((listen, n) => [
        `${protocol} ${JSON.stringify(listen)} ${ephemeralIndex(listens, n)}`,
        { protocol, listen },
      ]),
    ),
  );
}

/** With port 0 the system chooses, so equal addresses are different ones: numbered from 0. */
function ephemeralIndex(listens: readonly ListenAddress[], n: number): number {
  const isEqual = (other: ListenAddress): boolean =>
    other.kind === 'tcp' &&
    other.port === 0 &&
    JSON.stringify(other) === JSON.stringify(listens[n]);
  return listens.slice(0, n).filter(isEqual).length;
}

/** Tries to free an address that is in use; true if another attempt may succeed. */
type FreeAddress = () => Promise<boolean>;

const CANNOT_FREE: FreeAddress = async () => false;

async function openListener(
  protocol: string,
  listen: ListenAddress,
  accept: Accept,
  freeAddress: FreeAddress,
  pauseOnConnect: boolean,
): Promise<OpenListener> {
  let bound = listen;
  const connected = (socket: Socket): void => accept(socket, bound);
  const server = createListenServer(protocol, listen, connected, pauseOnConnect);
  // Not awaited: `close` calls back only when all connections have ended, and those have other owners.
  const close = async (): Promise<void> => void server.close();
  try {
    if (listen.kind === 'unix') await removeStaleSocket(protocol, listen.path);
    await bind(server, listen).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EADDRINUSE' || !(await freeAddress())) throw error;
      await bind(server, listen);
    });
    if (listen.kind === 'unix' && listen.mode !== undefined) chmodSync(listen.path, listen.mode);
  } catch (error) {
    if (server.listening) await close();
    if (error instanceof ConfigError) throw error;
    const expected = expectedAddress(listen, error as NodeJS.ErrnoException);
    const isInUse = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
    const Failure = isInUse ? InUseError : ConfigError;
    throw new Failure(configPathOf(protocol), expected, formatListenAddress(listen));
  }
  server.on('error', () => {}); // accepting one connection failed, most likely for lack of file descriptors
  const address = server.address();
  if (listen.kind === 'tcp' && address !== null && typeof address === 'object') {
    bound = { ...listen, port: address.port };
  }
  return { protocol, listen: bound, server, close };
}

function bind(server: Server, listen: ListenAddress): Promise<void> {
  const target =
    listen.kind === 'unix' ? { path: listen.path } : { host: listen.host, port: listen.port };
  return new Promise((done, reject) => {
    server.once('error', reject);
    server.listen({ ...target, backlog: BACKLOG }, () => {
      server.off('error', reject);
      done();
    });
  });
}

/** False if the socket file was removed: clients cannot connect. */
const hasSocketFile = ({ listen }: OpenListener): boolean =>
  listen.kind === 'tcp' || existsSync(listen.path);

/** True if the two addresses cannot be open at once, as far as is known. */
const isConflicting = (one: ListenAddress, other: ListenAddress): boolean =>
  one.kind === 'unix'
    ? other.kind === 'unix' && resolve(one.path) === resolve(other.path)
    : other.kind === 'tcp' && one.port === other.port;

function createListenServer(
  protocol: string,
  listen: ListenAddress,
  accept: (socket: Socket) => void,
  pauseOnConnect: boolean,
): Server {
  const options = { allowHalfOpen: true, noDelay: true };
  if (listen.kind === 'unix' || !listen.tls)
    return createServer({ ...options, pauseOnConnect }, accept);
  const secure = loadTls(protocol, listen, listen.tls);
  const server = createTlsServer({ ...options, ...secure, handshakeTimeout: HANDSHAKE_MS }, accept);
  server.on('tlsClientError', (_error, socket) => socket.destroy());
  boundHandshakes(server);
  return server;
}

/** Otherwise connections that never begin their handshake could use up the file descriptors of the process. */
function boundHandshakes(server: TlsServer): void {
  /** Since when, by both ends of the connection; the oldest first. */
  const open = new Map<string, { readonly socket: Socket; readonly since: Millis }>();
  const idOf = ({ remoteAddress, remotePort, localAddress }: Socket): string =>
    `${remoteAddress} ${remotePort} ${localAddress}`;
  server.on('connection', (socket) => {
    const id = idOf(socket);
    const since = systemClock.now();
    open.set(id, { socket, since });
    socket.once('close', () => open.delete(id));
    if (open.size <= MAX_HANDSHAKES) return;
    const [oldest] = open.values();
    const chosen = oldest.since <= since - FAIR_HANDSHAKE_MS ? oldest.socket : socket;
    chosen.destroy();
  });
  server.on('secureConnection', (socket) => open.delete(idOf(socket)));
}

function loadTls(
  protocol: string,
  listen: ListenAddress,
  { cert, key, ca }: TlsConfig,
): TlsOptions {
  const attempt = <T>(expected: string, run: () => T): T => {
    try {
      return run();
    } catch (error) {
      const detail = `${expected} (${errorMessageOf(error)})`;
      throw new ConfigError(`${configPathOf(protocol)}.tls`, detail, formatListenAddress(listen));
    }
  };
  const secure = attempt('files that can be read', () => ({
    cert: readFileSync(cert),
    key: readFileSync(key),
    ...(ca !== undefined && { ca: readFileSync(ca), requestCert: true, rejectUnauthorized: true }),
  }));
  attempt('a certificate and its key in PEM', () => createSecureContext(secure));
  return secure;
}

/** Certificates are read again at each change, and used once nothing else can fail. */
function certificateReloads(
  open: OpenListener | undefined,
  { protocol, listen }: ProtocolAddress,
): (() => void)[] {
  if (!open || listen.kind !== 'tcp' || !listen.tls) return [];
  const secure = loadTls(protocol, listen, listen.tls);
  return [() => (open.server as TlsServer).setSecureContext(secure)];
}

const configPathOf = (protocol: string): string =>
  protocol in DEFAULT_ADDRESS ? `listen.${protocol}` : `${protocol}.listen`;

function expectedAddress(listen: ListenAddress, error: NodeJS.ErrnoException): string {
  if (error.code === 'EADDRINUSE') return 'an address that is not in use';
  // The system reports a missing folder as EACCES.
  if (listen.kind === 'unix' && !existsSync(dirname(listen.path)))
    return 'a path in an existing folder';
  return `an address to listen on (${error.message})`;
}

/** Removes the socket file of a killed daemon; one that a process listens on stays. */
async function removeStaleSocket(protocol: string, path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) throw new ConfigError(configPathOf(protocol), 'a free path', path);
  const isAlive = await new Promise<boolean>((done) => {
    const probe = connect(path, () => done(true)).on('error', () => done(false));
    probe.unref();
    probe.once('connect', () => probe.destroy());
  });
  if (!isAlive) unlinkSync(path);
}
