/**
 * The addresses a daemon listens on: opened all or none, changed while it runs, closed when it stops.
 */

import { chmodSync, existsSync, lstatSync, readFileSync, unlinkSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { dirname, resolve } from 'node:path';
import {
  createSecureContext,
  createServer as createTlsServer,
  type TlsOptions,
  type Server as TlsServer,
} from 'node:tls';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import {
  formatListenAddress,
  type ListenAddress,
  type TlsConfig,
} from '../../core/listen-address.ts';
import { DEFAULT_ADDRESS } from '../config/read.ts';

/** Takes over a connection that came in at this address. */
export type Accept = (socket: Socket, listen: ListenAddress) => void;

/** Connections the system holds until they are taken; thousands may come at once. */
const BACKLOG = 4096;

/** How long a client may take to agree on a key. */
const HANDSHAKE_MS = 10_000;

export class Listeners<Surface extends string> {
  readonly #accept: Readonly<Record<Surface, Accept>>;
  #open = new Map<string, OpenListener<Surface>>();

  constructor(accept: Readonly<Record<Surface, Accept>>) {
    this.#accept = accept;
  }

  /** Where each surface can be reached, with the ports the system picked. */
  get addresses(): readonly { readonly surface: Surface; readonly listen: ListenAddress }[] {
    return [...this.#open.values()].map(({ surface, listen }) => ({ surface, listen }));
  }

  /**
   * From now on at these addresses, or nothing changes. New ones are opened before old ones close, but
   * for one that an old one stands in the way of: that one closes first, and opens again if need be.
   */
  async change(
    wanted: Readonly<Record<Surface, readonly ListenAddress[]>>,
  ): Promise<ListenerChange<Surface>> {
    const plan = planListeners(wanted);
    const kept = new Map(
      [...this.#open].filter(([name, own]) => plan.has(name) && hasSocketFile(own)),
    );
    const old = new Map([...this.#open].filter(([name]) => !kept.has(name)));
    const renewed = [...plan].flatMap(([name, own]) => certificateReloads(kept.get(name), own));
    const fresh = new Map<string, OpenListener<Surface>>();
    const closed = new Map<string, OpenListener<Surface>>();
    const closeFirst = async (listen: ListenAddress): Promise<boolean> => {
      const inTheWay = [...old].filter(
        ([name, own]) => !closed.has(name) && isConflicting(own.listen, listen),
      );
      for (const [name, own] of inTheWay) {
        closed.set(name, own);
        await own.close();
      }
      return inTheWay.length > 0;
    };
    try {
      for (const [name, { surface, listen }] of plan) {
        if (kept.has(name)) continue;
        if (old.has(name)) await closeFirst(listen); // closing removes its path, whoever has it by then
        const accept = this.#accept[surface];
        fresh.set(name, await openListener(surface, listen, accept, () => closeFirst(listen)));
      }
    } catch (error) {
      await Promise.all([...fresh.values()].map((own) => own.close()));
      await this.#reopen(closed);
      throw error;
    }
    for (const renew of renewed) renew();
    await Promise.all([...old].flatMap(([name, own]) => (closed.has(name) ? [] : [own.close()])));
    this.#open = new Map(
      [...plan.keys()].map((name) => [
        name,
        (fresh.get(name) ?? kept.get(name)) as OpenListener<Surface>,
      ]),
    );
    return { opened: [...fresh.values()], closed: [...old.values()] };
  }

  /** One that cannot be had back is forgotten, and tried again with the next change. */
  async #reopen(closed: ReadonlyMap<string, OpenListener<Surface>>): Promise<void> {
    const lost: unknown[] = [];
    for (const [name, { surface, listen }] of closed) {
      this.#open.delete(name);
      await openListener(surface, listen, this.#accept[surface], CANNOT_FREE).then(
        (own) => this.#open.set(name, own),
        (error: unknown) => lost.push(error),
      );
    }
    if (lost.length > 0) throw lost[0]; // worse than what went wrong before
  }

  /** Takes no more connections; those there are stay. */
  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((opened) => opened.close()));
    this.#open.clear();
  }
}

interface SurfaceAddress<Surface> {
  readonly surface: Surface;
  readonly listen: ListenAddress;
}

interface OpenListener<Surface> extends SurfaceAddress<Surface> {
  readonly server: Server;
  close(): Promise<void>;
}

/** Where it is listened now, and where no longer. */
export interface ListenerChange<Surface> {
  readonly opened: readonly SurfaceAddress<Surface>[];
  readonly closed: readonly SurfaceAddress<Surface>[];
}

/** What is wanted, by a name that changes whenever anything about it does. */
function planListeners<Surface extends string>(
  wanted: Readonly<Record<Surface, readonly ListenAddress[]>>,
): ReadonlyMap<string, SurfaceAddress<Surface>> {
  const surfaces = Object.entries(wanted) as [Surface, readonly ListenAddress[]][];
  return new Map(
    surfaces.flatMap(([surface, listens]) =>
      listens.map((listen) => [`${surface} ${JSON.stringify(listen)}`, { surface, listen }]),
    ),
  );
}

/** Makes room where an address is taken, if that is possible: true if it is worth another try. */
type FreeAddress = () => Promise<boolean>;

const CANNOT_FREE: FreeAddress = async () => false;

async function openListener<Surface extends string>(
  surface: Surface,
  listen: ListenAddress,
  accept: Accept,
  makeRoom: FreeAddress,
): Promise<OpenListener<Surface>> {
  let here = listen;
  const server = createListenServer(surface, listen, (socket) => accept(socket, here));
  // Closing waits for connections, which are somebody else's: enough that no more come.
  const close = async (): Promise<void> => void server.close();
  try {
    if (listen.kind === 'unix') await removeStaleSocket(surface, listen.path);
    await bind(server, listen).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EADDRINUSE' || !(await makeRoom())) throw error;
      await bind(server, listen);
    });
    if (listen.kind === 'unix' && listen.mode !== undefined) chmodSync(listen.path, listen.mode);
  } catch (error) {
    if (server.listening) await close();
    if (error instanceof ConfigError) throw error;
    throw listenError(surface, listen, error as NodeJS.ErrnoException);
  }
  server.on('error', () => {}); // one connection that could not be taken, out of files most likely
  const address = server.address();
  if (listen.kind === 'tcp' && address !== null && typeof address === 'object') {
    here = { ...listen, port: address.port };
  }
  return { surface, listen: here, server, close };
}

function bind(server: Server, listen: ListenAddress): Promise<void> {
  const where =
    listen.kind === 'unix' ? { path: listen.path } : { host: listen.host, port: listen.port };
  return new Promise((done, reject) => {
    server.once('error', reject);
    server.listen({ ...where, backlog: BACKLOG }, () => {
      server.off('error', reject);
      done();
    });
  });
}

/** False if somebody has removed its socket: nobody can find it any more. */
const hasSocketFile = ({ listen }: OpenListener<string>): boolean =>
  listen.kind === 'tcp' || existsSync(listen.path);

/** True if not both can be had at once, as far as can be told. */
const isConflicting = (one: ListenAddress, other: ListenAddress): boolean =>
  one.kind === 'unix'
    ? other.kind === 'unix' && resolve(one.path) === resolve(other.path)
    : other.kind === 'tcp' && one.port === other.port;

function createListenServer(
  surface: string,
  listen: ListenAddress,
  accept: (socket: Socket) => void,
): Server {
  const options = { allowHalfOpen: true, noDelay: true };
  if (listen.kind === 'unix' || !listen.tls) return createServer(options, accept);
  const secure = loadTls(surface, listen, listen.tls);
  const server = createTlsServer({ ...options, ...secure, handshakeTimeout: HANDSHAKE_MS }, accept);
  server.on('tlsClientError', (_error, socket) => socket.destroy());
  return server;
}

function loadTls(surface: string, listen: ListenAddress, { cert, key, ca }: TlsConfig): TlsOptions {
  const attempt = <T>(expected: string, act: () => T): T => {
    try {
      return act();
    } catch (error) {
      const why = `${expected} (${errorMessageOf(error)})`;
      throw new ConfigError(`${configPathOf(surface)}.tls`, why, formatListenAddress(listen));
    }
  };
  const secure = attempt('files that can be read', () => ({
    cert: readFileSync(cert),
    key: readFileSync(key),
    ...(ca !== undefined && {
      ca: readFileSync(ca),
      requestCert: true,
      rejectUnauthorized: true,
    }),
  }));
  attempt('a certificate and its key in PEM', () => createSecureContext(secure));
  return secure;
}

/** Certificates are renewed while a daemon runs: read now, used once all else is known to be well. */
function certificateReloads<Surface extends string>(
  open: OpenListener<Surface> | undefined,
  { surface, listen }: SurfaceAddress<Surface>,
): (() => void)[] {
  if (!open || listen.kind !== 'tcp' || !listen.tls) return [];
  const secure = loadTls(surface, listen, listen.tls);
  return [() => (open.server as TlsServer).setSecureContext(secure)];
}

function listenError(
  surface: string,
  listen: ListenAddress,
  error: NodeJS.ErrnoException,
): ConfigError {
  return new ConfigError(
    configPathOf(surface),
    expectedAddress(listen, error),
    formatListenAddress(listen),
  );
}

/** Where a surface's addresses stand in a configuration. */
const configPathOf = (surface: string): string =>
  surface in DEFAULT_ADDRESS ? `listen.${surface}` : `${surface}.listen`;

function expectedAddress(listen: ListenAddress, error: NodeJS.ErrnoException): string {
  if (error.code === 'EADDRINUSE') return 'an address that nobody else uses';
  // The system calls a folder that is not there one that may not be used.
  if (listen.kind === 'unix' && !existsSync(dirname(listen.path)))
    return 'a path in a folder that is there';
  return `an address to listen on (${error.message})`;
}

/** A socket that a killed daemon left behind is removed; one that somebody listens on is not. */
async function removeStaleSocket(surface: string, path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) throw new ConfigError(configPathOf(surface), 'a free path', path);
  const isAlive = await new Promise<boolean>((tell) => {
    const probe = connect(path, () => tell(true)).on('error', () => tell(false));
    probe.unref();
    probe.once('connect', () => probe.destroy());
  });
  if (!isAlive) unlinkSync(path);
}
