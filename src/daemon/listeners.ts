/**
 * The addresses a daemon listens on: opened all or none, changed while it runs, closed when it stops.
 */

import { chmodSync, lstatSync, readFileSync, unlinkSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer, type Server as TlsServer } from 'node:tls';
import { ConfigError, reasonOf } from '../errors.ts';
import { type Listen, showListen, type TlsConfig } from './config/listen.ts';

/** Takes over a connection that came in at this address. */
export type Accept = (socket: Socket, listen: Listen) => void;

/** Connections the system holds until they are taken; thousands may come at once. */
const BACKLOG = 4096;

/** How long a client may take to agree on a key. */
const HANDSHAKE_MS = 10_000;

export class Listeners<Surface extends string> {
  readonly #accept: Readonly<Record<Surface, Accept>>;
  #open = new Map<string, Opened<Surface>>();

  constructor(accept: Readonly<Record<Surface, Accept>>) {
    this.#accept = accept;
  }

  /** Where each surface can be reached, with the ports the system picked. */
  get addresses(): readonly { readonly surface: Surface; readonly listen: Listen }[] {
    return [...this.#open.values()].map(({ surface, listen }) => ({ surface, listen }));
  }

  /** From now on at these addresses: new ones are opened before old ones close, or nothing changes. */
  async change(wanted: Readonly<Record<Surface, readonly Listen[]>>): Promise<void> {
    const next = new Map<string, Opened<Surface>>();
    try {
      for (const [surface, listens] of Object.entries(wanted) as [Surface, readonly Listen[]][]) {
        for (const listen of listens) {
          const name = `${surface} ${JSON.stringify(listen)}`;
          const open = this.#open.get(name);
          if (open?.listen.kind === 'tcp') refreshTls(open.server, open.listen.tls);
          next.set(name, open ?? (await openAt(surface, listen, this.#accept[surface])));
        }
      }
    } catch (error) {
      const fresh = [...next].filter(([name]) => !this.#open.has(name));
      await Promise.all(fresh.map(([, opened]) => opened.close()));
      throw error;
    }
    const old = [...this.#open].filter(([name]) => !next.has(name));
    this.#open = next;
    await Promise.all(old.map(([, opened]) => opened.close()));
  }

  /** Takes no more connections; those there are stay. */
  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((opened) => opened.close()));
    this.#open.clear();
  }
}

interface Opened<Surface> {
  readonly surface: Surface;
  readonly listen: Listen;
  readonly server: Server;
  close(): Promise<void>;
}

async function openAt<Surface extends string>(
  surface: Surface,
  listen: Listen,
  accept: Accept,
): Promise<Opened<Surface>> {
  let here = listen;
  const server = serverFor(surface, listen, (socket) => accept(socket, here));
  if (listen.kind === 'unix') await removeLeftover(surface, listen.path);
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => reject(cannotListen(surface, listen, error)));
    const where =
      listen.kind === 'unix' ? { path: listen.path } : { host: listen.host, port: listen.port };
    server.listen({ ...where, backlog: BACKLOG }, resolve);
  });
  server.on('error', () => {}); // one connection that could not be taken, out of files most likely
  if (listen.kind === 'unix' && listen.mode !== undefined) chmodSync(listen.path, listen.mode);
  const address = server.address();
  if (listen.kind === 'tcp' && address !== null && typeof address === 'object') {
    here = { ...listen, port: address.port };
  }
  // Closing waits for connections, which are somebody else's: enough that no more come.
  const close = async (): Promise<void> => void server.close();
  return { surface, listen: here, server, close };
}

function serverFor(surface: string, listen: Listen, accept: (socket: Socket) => void): Server {
  const options = { allowHalfOpen: true, noDelay: true };
  if (listen.kind === 'unix' || !listen.tls) return createServer(options, accept);
  const secure = readTls(surface, listen, listen.tls);
  const server = createTlsServer({ ...options, ...secure, handshakeTimeout: HANDSHAKE_MS }, accept);
  server.on('tlsClientError', (_error, socket) => socket.destroy());
  return server;
}

function readTls(surface: string, listen: Listen, { cert, key, ca }: TlsConfig): object {
  try {
    return {
      cert: readFileSync(cert),
      key: readFileSync(key),
      ...(ca !== undefined && {
        ca: readFileSync(ca),
        requestCert: true,
        rejectUnauthorized: true,
      }),
    };
  } catch (error) {
    const at = `listen.${surface}.tls`;
    throw new ConfigError(at, `files that can be read (${reasonOf(error)})`, showListen(listen));
  }
}

/** Certificates are renewed while a daemon runs. */
function refreshTls(server: Server, tls: TlsConfig | undefined): void {
  if (!tls || !('setSecureContext' in server)) return;
  (server as TlsServer).setSecureContext({
    cert: readFileSync(tls.cert),
    key: readFileSync(tls.key),
    ...(tls.ca !== undefined && { ca: readFileSync(tls.ca) }),
  });
}

function cannotListen(surface: string, listen: Listen, error: NodeJS.ErrnoException): ConfigError {
  const free =
    error.code === 'EADDRINUSE' ? 'an address that nobody else uses' : 'an address to listen on';
  const why = error.code === 'EADDRINUSE' ? '' : ` (${error.message})`;
  return new ConfigError(`listen.${surface}`, `${free}${why}`, showListen(listen));
}

/** A socket that a killed daemon left behind is removed; one that somebody listens on is not. */
async function removeLeftover(surface: string, path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) throw new ConfigError(`listen.${surface}`, 'a free path', path);
  const isAlive = await new Promise<boolean>((resolve) => {
    const probe = connect(path, () => resolve(true)).on('error', () => resolve(false));
    probe.unref();
    probe.once('connect', () => probe.destroy());
  });
  if (!isAlive) unlinkSync(path);
}
