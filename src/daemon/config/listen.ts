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
import { Fields, isRecord, readEach } from '../../core/options.ts';

export interface TlsConfig {
  readonly cert: string;
  readonly key: string;
  /** Whose certificates clients must show; none: clients need none. */
  readonly ca: string | undefined;
}

export type Listen =
  | {
      readonly kind: 'tcp';
      readonly host: string;
      readonly port: number;
      readonly tls: TlsConfig | undefined;
    }
  | { readonly kind: 'unix'; readonly path: string; readonly mode: number | undefined };

const PORT_MAX = 65_535;

/** The system does not take a longer path for a socket. */
const SOCKET_PATH_BYTES_MAX = 107;

const ADDRESSES_MAX = 64;

const EXPECTED = 'an address such as 127.0.0.1:7610, a path such as /run/sluice.sock, or off';

/** Reads one address or several; `false` and `off` are none. */
export function readListens(value: unknown, path: string): readonly Listen[] {
  if (value === false || value === 'off') return [];
  if (!Array.isArray(value)) return [readListen(value, path)];
  if (value.length > ADDRESSES_MAX) {
    throw new ConfigError(path, `at most ${ADDRESSES_MAX} addresses`, `${value.length} of them`);
  }
  return readEach(value, (own, n) => readListen(own, `${path}[${n}]`));
}

function readListen(value: unknown, path: string): Listen {
  if (!isRecord(value)) return addressOf(value, path, undefined, undefined);
  const fields = Fields.patient(path, value);
  const tls = fields.attempt(() =>
    fields.has('tls') ? readTls(fields.raw('tls'), fields.at('tls')) : undefined,
  );
  const mode = fields.has('mode') ? readMode(fields) : undefined;
  const listen = fields.attempt(() => addressOf(fields.raw('at'), fields.at('at'), tls, mode));
  if (listen?.kind === 'unix' && tls) fields.complain('tls', 'left out on a Unix socket');
  if (listen?.kind === 'tcp' && mode !== undefined)
    fields.complain('mode', 'left out but on a Unix socket');
  fields.done();
  return listen as Listen;
}

function addressOf(
  value: unknown,
  path: string,
  tls: TlsConfig | undefined,
  mode: number | undefined,
): Listen {
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text !== 'string') throw new ConfigError(path, EXPECTED, value);
  if (/^(unix:|\.{0,2}\/)/.test(text)) {
    const socket = text.replace(/^unix:/, '');
    if (Buffer.byteLength(socket) > SOCKET_PATH_BYTES_MAX) {
      throw new ConfigError(path, `a path of at most ${SOCKET_PATH_BYTES_MAX} bytes`, value);
    }
    return { kind: 'unix', path: socket, mode };
  }
  const [, ip6, host = '127.0.0.1', digits] =
    /^(?:(?:\[([\da-fA-F:.]+)\]|([^:[\]/\s]+)):)?(\d{1,5})$/.exec(text) ?? [];
  const port = Number(digits);
  if (digits === undefined || port > PORT_MAX || (ip6 !== undefined && isIP(ip6) !== 6)) {
    throw new ConfigError(path, EXPECTED, value);
  }
  return { kind: 'tcp', host: ip6 ?? host, port, tls };
}

function readTls(value: unknown, path: string): TlsConfig {
  const fields = Fields.patient(path, value, 'an object with `cert` and `key`');
  const isFile = (own: unknown): own is string => typeof own === 'string' && own !== '';
  const file = (name: string): string => fields.required(name, isFile, "a file's name");
  const tls = {
    cert: file('cert'),
    key: file('key'),
    ca: fields.has('ca') ? file('ca') : undefined,
  };
  fields.done();
  return tls;
}

/** Who may connect, as `chmod` spells it. */
function readMode(fields: Fields): number | undefined {
  const value = fields.raw('mode');
  const text = typeof value === 'number' ? String(value) : value;
  if (typeof text === 'string' && /^0?o?[0-7]{3}$/.test(text))
    return Number.parseInt(text.slice(-3), 8);
  fields.complain('mode', 'three octal digits in quotes, such as "660"');
  return undefined;
}

/** True if only this machine can reach it. */
export const isLoopback = (listen: Listen): boolean =>
  listen.kind === 'unix' ||
  listen.host === 'localhost' ||
  listen.host === '::1' ||
  (isIP(listen.host) === 4 && listen.host.startsWith('127.'));

/** As people write it. */
export function showListen(listen: Listen): string {
  if (listen.kind === 'unix') return listen.path;
  const host = listen.host.includes(':') ? `[${listen.host}]` : listen.host;
  return `${host}:${listen.port}`;
}
