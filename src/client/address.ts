import { ConfigError } from '../core/errors.ts';
import { formatHostPort, isPort, parseHostPort, parseSocketPath } from '../core/host-port.ts';
import { isRecord, presentNames } from '../core/options.ts';

/** Where a daemon is. */
export type DaemonAddress =
  /** `127.0.0.1:7611`, `[::1]:7611`, `7611`, `sluice.internal`, `/run/sluice.sock` */
  string | { readonly host?: string; readonly port?: number } | { readonly path: string };

/** The address as `net.connect` takes it. */
export type Endpoint = { readonly host: string; readonly port: number } | { readonly path: string };

const DEFAULT_PORT = 7611;
const DEFAULT_HOST = '127.0.0.1';

const expectedAddress = (port: number): string =>
  `an address such as "127.0.0.1:${port}" or "/run/sluice.sock"`;

/** @throws {ConfigError} if the address is invalid. */
export function endpointOf(at: unknown = {}): Endpoint {
  if (typeof at === 'string') return parseEndpoint(at);
  if (!isRecord(at)) throw new ConfigError('at', expectedAddress(DEFAULT_PORT), at);
  const { host = DEFAULT_HOST, port = DEFAULT_PORT, path, ...rest } = at;
  const [unknown] = presentNames(rest);
  if (unknown !== undefined)
    throw new ConfigError(`at.${unknown}`, 'one of host, port, path', unknown);
  if (path !== undefined) {
    if (typeof path !== 'string' || path === '') throw new ConfigError('at.path', 'a path', path);
    return { path };
  }
  if (typeof host !== 'string' || host === '') throw new ConfigError('at.host', 'a name', host);
  return { host, port: requirePort(port, 'at.port') };
}

/** Parses an address in one string; errors name `field`. @throws {ConfigError} if it is invalid. */
export function parseEndpoint(text: string, field = 'at', portDefault = DEFAULT_PORT): Endpoint {
  const path = parseSocketPath(text);
  if (path !== undefined) return { path };
  const found = parseHostPort(text);
  if (!found) throw new ConfigError(field, expectedAddress(portDefault), text);
  const { host = DEFAULT_HOST, port = portDefault } = found;
  return { host, port: requirePort(port, field) };
}

function requirePort(port: unknown, field: string): number {
  if (!isPort(port)) throw new ConfigError(field, 'a port from 1 to 65535', port);
  return port;
}

export const formatEndpoint = (endpoint: Endpoint): string =>
  'path' in endpoint ? endpoint.path : formatHostPort(endpoint);
