/**
 * The one grammar for network addresses as text. Each part may be missing; callers fill in their defaults.
 *
 *     127.0.0.1:7611   sluice.internal:7611   [::1]:7611   [fe80::1%eth0]:7611
 *     sluice.internal  [::1]                  a host without a port
 *     :7611            7611                   a port without a host
 *     /run/sluice.sock ./sluice.sock  unix:x  a Unix socket (`parseSocketPath`)
 */

export interface HostPort {
  readonly host: string;
  readonly port: number;
}

const MAX_PORT = 65_535;

const IPV4 = /^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}$/;

const HOST_AND_PORT = /^(?:\[([^\]]+)\]|([^\s:/[\]]+))?(?::(\d{1,5}))?$/;

export const isIpv4 = (text: string): boolean => IPV4.test(text);

/** Without zone and brackets. The URL parser holds the grammar of IPv6. */
export const isIpv6 = (text: string): boolean =>
  /^[\da-f:.]+$/i.test(text) && URL.canParse(`http://[${text}]`);

/** True for a port that a client can connect to; with `min` 0 also for the one that lets the system choose. */
export const isPort = (port: unknown, min = 1): port is number =>
  Number.isInteger(port) && (port as number) >= min && (port as number) <= MAX_PORT;

/** The parts of an address; undefined if the text is not one. The port has up to 5 digits: see `isPort`. */
export function parseHostPort(text: string): Partial<HostPort> | undefined {
  // Digits alone are a port: a resolver would read them as an IPv4 address.
  const found = HOST_AND_PORT.exec(/^\d+$/.test(text) ? `:${text}` : text);
  if (!found || text === '') return undefined;
  const [, bracketed, plain, digits] = found;
  if (bracketed !== undefined && !isIpv6(bracketed.replace(/%[\w.-]+$/, ''))) return undefined;
  if (plain !== undefined && /^[\d.]+$/.test(plain) && !isIpv4(plain)) return undefined;
  const host = bracketed ?? plain;
  const port = digits === undefined ? undefined : Number(digits);
  return { ...(host !== undefined && { host }), ...(port !== undefined && { port }) };
}

export const formatHostPort = ({ host, port }: HostPort): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;

export const isLoopbackHost = (host: string): boolean =>
  host === '::1' || host === 'localhost' || (isIpv4(host) && host.startsWith('127.'));

/** The path of a Unix socket: `unix:` before it, or a path that begins with `/`, `./` or `../`. */
export const parseSocketPath = (text: string): string | undefined =>
  /^(?:unix:|\.{0,2}\/)/.test(text) ? text.replace(/^unix:/, '') : undefined;
