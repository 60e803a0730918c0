/** Parses and classifies node addresses: IP family, multicast or unicast, loopback or remote. */

import { isIP, isIPv6 } from 'node:net';

export interface Address {
  readonly host: string;
  readonly port: number;
}

export const familyOf = (host: string): 4 | 6 => (isIPv6(host.split('%')[0]) ? 6 : 4);

export const wildcardHostOf = (host: string): string => (familyOf(host) === 6 ? '::' : '0.0.0.0');

export const loopbackHostOf = (host: string): string =>
  familyOf(host) === 6 ? '::1' : '127.0.0.1';

/** The zone (interface name) of an IPv6 address, if it has one. */
export const zoneOf = (host: string): string | undefined => host.split('%')[1];

/** An IPv6 multicast group with link scope (`ff02::`) or interface scope (`ff01::`). */
export const isLinkScoped = (host: string): boolean => /^ff.[12]:/i.test(host);

export const isLoopbackHost = (host: string): boolean =>
  host === '::1' || host === 'localhost' || (isIP(host) === 4 && host.startsWith('127.'));

export function isMulticast(host: string): boolean {
  if (isIP(host) === 6) return /^ff/i.test(host);
  const first = Number(host.split('.')[0]);
  return isIP(host) === 4 && first >= 224 && first < 240;
}

export const formatHostPort = ({ host, port }: Address): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;

/** `host:port`, `[address]:port`. */
export function parseHostPort(text: string): Address | undefined {
  const [, bracketed, plain, digits] = /^(?:\[([^\]]+)\]|([^:[\]\s]+)):(\d{1,5})$/.exec(text) ?? [];
  const host = bracketed ?? plain;
  const port = Number(digits);
  if (host === undefined || port < 1 || port > 65_535) return undefined;
  if (bracketed !== undefined && !isIPv6(bracketed.split('%')[0])) return undefined;
  if (bracketed === undefined && /^[\d.]+$/.test(host) && isIP(host) === 0) return undefined;
  return { host, port };
}
