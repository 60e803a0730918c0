/**
 * The address of a daemon: a host and a port, or a Unix socket.
 */

import { ConfigError } from '../core/errors.ts';
import { isRecord } from '../core/options.ts';

/** Where a daemon is. */
export type DaemonAddress =
  /** `127.0.0.1:7611`, `[::1]:7611`, `7611`, `sluice.internal`, `/run/sluice.sock` */
  string | { readonly host?: string; readonly port?: number } | { readonly path: string };

/** What `net.connect` takes. */
export type Endpoint = { readonly host: string; readonly port: number } | { readonly path: string };

const DEFAULT_PORT = 7611;
const DEFAULT_HOST = '127.0.0.1';

const expectedAddress = (port: number): string =>
  `an address such as "127.0.0.1:${port}" or "/run/sluice.sock"`;

/** A name or an address, in brackets if it has colons; and a port, or none. */
const HOST_AND_PORT = /^(?:\[([\da-f:.]+)\]|([^\s:/[\]]+))?(?::(\d{1,5}))?$/i;

/** @throws {ConfigError} if nobody could be there. */
export function endpointOf(at: unknown = {}): Endpoint {
  if (typeof at === 'string') return parseEndpoint(at);
  if (!isRecord(at)) throw new ConfigError('at', expectedAddress(DEFAULT_PORT), at);
  const { host = DEFAULT_HOST, port = DEFAULT_PORT, path, ...rest } = at;
  const [stray] = Object.keys(rest);
  if (stray !== undefined) throw new ConfigError(`at.${stray}`, 'one of host, port, path', stray);
  if (path !== undefined) {
    if (typeof path !== 'string' || path === '') throw new ConfigError('at.path', 'a path', path);
    return { path };
  }
  if (typeof host !== 'string' || host === '') throw new ConfigError('at.host', 'a name', host);
  return { host, port: requirePort(port, 'at.port') };
}

const isPath = (text: string): boolean => /^[./]*\//.test(text);

/** A place in one word, told under the name of `field`. @throws {ConfigError} if nobody could be there. */
export function parseEndpoint(text: string, field = 'at', portDefault = DEFAULT_PORT): Endpoint {
  if (isPath(text)) return { path: text };
  // A port alone is one on this host, as where a daemon listens; a resolver would make an address of it.
  const found = HOST_AND_PORT.exec(/^\d+$/.test(text) ? `:${text}` : text);
  if (!found || text === '') throw new ConfigError(field, expectedAddress(portDefault), text);
  const [, inBrackets, plain, port] = found;
  return {
    host: inBrackets ?? plain ?? DEFAULT_HOST,
    port: port === undefined ? portDefault : requirePort(Number(port), field),
  };
}

function requirePort(port: unknown, field: string): number {
  const isPort = typeof port === 'number' && Number.isInteger(port) && port > 0 && port < 65_536;
  if (!isPort) throw new ConfigError(field, 'a port from 1 to 65535', port);
  return port;
}

export const formatEndpoint = (place: Endpoint): string =>
  'path' in place ? place.path : `${place.host}:${place.port}`;
