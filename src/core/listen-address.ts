/**
 *     127.0.0.1:7610    [::1]:7610    localhost:7610    7610 (loopback only)
 *     /run/sluice/line.sock
 *     { at: 0.0.0.0:7610, tls: { cert: cert.pem, key: key.pem } }
 *     { at: /run/sluice/line.sock, mode: '660' }
 */

import { isNonEmptyString } from './config-helpers.ts';
import { ConfigError } from './errors.ts';
import {
  formatHostPort,
  isLoopbackHost,
  isPort,
  parseHostPort,
  parseSocketPath,
} from './host-port.ts';
import { isRecord, OptionReader, readEach } from './options.ts';

export interface TlsConfig {
  readonly cert: string;
  readonly key: string;
  /** Certificate authorities that client certificates must come from; undefined: clients need none. */
  readonly ca: string | undefined;
}

export type ListenAddress =
  | {
      readonly kind: 'tcp';
      readonly host: string;
      readonly port: number;
      readonly tls: TlsConfig | undefined;
    }
  | { readonly kind: 'unix'; readonly path: string; readonly mode: number | undefined };

const DEFAULT_HOST = '127.0.0.1';

/** The operating system's limit for a socket path. */
const MAX_SOCKET_PATH_BYTES = 107;

const MAX_ADDRESSES = 64;

const EXPECTED_ADDRESS =
  'an address such as 127.0.0.1:7610, a path such as /run/sluice.sock, or off';

/** Reads one address or a list of them; `false` and `off` are an empty list. */
export function readListenAddresses(value: unknown, path: string): readonly ListenAddress[] {
  if (value === false || value === 'off') return [];
  if (!Array.isArray(value)) return [readListenAddress(value, path)];
  if (value.length > MAX_ADDRESSES) {
    throw new ConfigError(path, `at most ${MAX_ADDRESSES} addresses`, `${value.length} of them`);
  }
  return readEach(value, (item, n) => readListenAddress(item, `${path}[${n}]`));
}

function readListenAddress(value: unknown, path: string): ListenAddress {
  if (!isRecord(value)) return parseListenAddress(value, path, undefined, undefined);
  const fields = OptionReader.collecting(path, value);
  const tls = fields.tryRead(() =>
    fields.has('tls') ? readTls(fields.get('tls'), fields.pathOf('tls')) : undefined,
  );
  const mode = fields.has('mode') ? readMode(fields) : undefined;
  const listen = fields.tryRead(() =>
    parseListenAddress(fields.get('at'), fields.pathOf('at'), tls, mode),
  );
  if (listen?.kind === 'unix' && tls) fields.report('tls', 'left out on a Unix socket');
  if (listen?.kind === 'tcp' && mode !== undefined)
    fields.report('mode', 'left out: only a Unix socket has a mode');
  fields.finish();
  return listen as ListenAddress;
}

function parseListenAddress(
  value: unknown,
  path: string,
  tls: TlsConfig | undefined,
  mode: number | undefined,
): ListenAddress {
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text !== 'string') throw new ConfigError(path, EXPECTED_ADDRESS, value);
  const socket = parseSocketPath(text);
  if (socket !== undefined) {
    if (new TextEncoder().encode(socket).length > MAX_SOCKET_PATH_BYTES) {
      throw new ConfigError(path, `a path of at most ${MAX_SOCKET_PATH_BYTES} bytes`, value);
    }
    return { kind: 'unix', path: socket, mode };
  }
  const { host = DEFAULT_HOST, port } = parseHostPort(text) ?? {};
  if (!isPort(port, 0)) throw new ConfigError(path, EXPECTED_ADDRESS, value);
  return { kind: 'tcp', host, port, tls };
}

function readTls(value: unknown, path: string): TlsConfig {
  const fields = OptionReader.collecting(path, value, 'an object with `cert` and `key`');
  const file = (name: string): string => fields.required(name, isNonEmptyString, 'a file name');
  const pair = { cert: file('cert'), key: file('key') };
  const ca = fields.has('ca') ? file('ca') : undefined;
  fields.finish();
  return { ...pair, ca };
}

/** Permissions of a Unix socket, as `chmod` spells them. */
function readMode(fields: OptionReader): number | undefined {
  const value = fields.get('mode');
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text === 'string' && /^0?o?[0-7]{3}$/.test(text))
    return Number.parseInt(text.slice(-3), 8);
  fields.report('mode', 'three octal digits in quotes, such as "660"');
  return undefined;
}

/** True if only this machine can connect. */
export const isLoopback = (listen: ListenAddress): boolean =>
  listen.kind === 'unix' || isLoopbackHost(listen.host);

export const formatListenAddress = (listen: ListenAddress): string =>
  listen.kind === 'unix' ? listen.path : formatHostPort(listen);
