/**
 * Where a surface listens: an address of the network, or a Unix socket.
 *
 *     127.0.0.1:7610    [::1]:7610    localhost:7610    7610 (this machine only)
 *     /run/sluice/line.sock
 *     { at: 0.0.0.0:7610, tls: { cert: cert.pem, key: key.pem } }
 *     { at: /run/sluice/line.sock, mode: '660' }
 */

import { isIP } from 'node:net';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';

export interface TlsConfig {
  readonly cert: string;
  readonly key: string;
  /** Whose certificates clients must show; none: clients need none. */
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

const MAX_PORT = 65_535;

/** The system does not take a longer path for a socket. */
const MAX_SOCKET_PATH_BYTES = 107;

const MAX_ADDRESSES = 64;

const EXPECTED_ADDRESS =
  'an address such as 127.0.0.1:7610, a path such as /run/sluice.sock, or off';

/** Reads one address or several; `false` and `off` are none. */
export function readListenAddresses(value: unknown, path: string): readonly ListenAddress[] {
  if (value === false || value === 'off') return [];
  if (!Array.isArray(value)) return [readListenAddress(value, path)];
  if (value.length > MAX_ADDRESSES) {
    throw new ConfigError(path, `at most ${MAX_ADDRESSES} addresses`, `${value.length} of them`);
  }
  return readEach(value, (own, n) => readListenAddress(own, `${path}[${n}]`));
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
    fields.report('mode', 'left out but on a Unix socket');
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
  if (/^(unix:|\.{0,2}\/)/.test(text)) {
    const socket = text.replace(/^unix:/, '');
    if (Buffer.byteLength(socket) > MAX_SOCKET_PATH_BYTES) {
      throw new ConfigError(path, `a path of at most ${MAX_SOCKET_PATH_BYTES} bytes`, value);
    }
    return { kind: 'unix', path: socket, mode };
  }
  const [, ip6, host = '127.0.0.1', digits] =
    /^(?:(?:\[([\da-fA-F:.]+)\]|([^:[\]/\s]+)):)?(\d{1,5})$/.exec(text) ?? [];
  const port = Number(digits);
  if (digits === undefined || port > MAX_PORT || (ip6 !== undefined && isIP(ip6) !== 6)) {
    throw new ConfigError(path, EXPECTED_ADDRESS, value);
  }
  return { kind: 'tcp', host: ip6 ?? host, port, tls };
}

function readTls(value: unknown, path: string): TlsConfig {
  const fields = OptionReader.collecting(path, value, 'an object with `cert` and `key`');
  const isFile = (own: unknown): own is string => typeof own === 'string' && own !== '';
  const file = (name: string): string => fields.required(name, isFile, "a file's name");
  const tls = {
    cert: file('cert'),
    key: file('key'),
    ca: fields.has('ca') ? file('ca') : undefined,
  };
  fields.finish();
  return tls;
}

/** Who may connect, as `chmod` spells it. */
function readMode(fields: OptionReader): number | undefined {
  const value = fields.get('mode');
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text === 'string' && /^0?o?[0-7]{3}$/.test(text))
    return Number.parseInt(text.slice(-3), 8);
  fields.report('mode', 'three octal digits in quotes, such as "660"');
  return undefined;
}

/** True if only this machine can reach it. */
export const isLoopback = (listen: ListenAddress): boolean =>
  listen.kind === 'unix' ||
  listen.host === 'localhost' ||
  listen.host === '::1' ||
  (isIP(listen.host) === 4 && listen.host.startsWith('127.'));

/** As people write it. */
export function formatListenAddress(listen: ListenAddress): string {
  if (listen.kind === 'unix') return listen.path;
  const host = listen.host.includes(':') ? `[${listen.host}]` : listen.host;
  return `${host}:${listen.port}`;
}
