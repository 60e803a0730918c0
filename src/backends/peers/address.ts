import { isIP, isIPv6 } from 'node:net';
import { type HostPort, isPort, parseHostPort as parseParts } from '../../core/host-port.ts';

export { formatHostPort, isLoopbackHost } from '../../core/host-port.ts';

export type Address = HostPort;

export const familyOf = (host: string): 4 | 6 => (isIPv6(host.split('%')[0]) ? 6 : 4);

export const wildcardHostOf = (host: string): string => (familyOf(host) === 6 ? '::' : '0.0.0.0');

export const loopbackHostOf = (host: string): string =>
  familyOf(host) === 6 ? '::1' : '127.0.0.1';

/** The zone (interface name) of an IPv6 address, if it has one. */
export const zoneOf = (host: string): string | undefined => host.split('%')[1];

/** An IPv6 multicast group with link-local scope (`ff02::`) or interface-local scope (`ff01::`). */
export const isLinkScoped = (host: string): boolean => /^ff.[12]:/i.test(host);

export function isMulticast(host: string): boolean {
  if (isIP(host) === 6) return /^ff/i.test(host);
  const first = Number(host.split('.')[0]);
  return isIP(host) === 4 && first >= 224 && first < 240;
}

/** Parses `host:port` or `[address]:port`; both parts are required. */
export function parseHostPort(text: string): Address | undefined {
  const { host, port } = parseParts(text) ?? {};
  return host !== undefined && isPort(port) ? { host, port } : undefined;
}
