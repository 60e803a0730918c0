/**
 * Patterns for networks in CIDR notation: `10.0.0.0/8`, `ip:2001:db8::/32`.
 *
 * A key matches if it ends with an address of the network, after the same prefix. An IPv4-mapped IPv6 address is an IPv4
 * address. A network of IPv6 addresses holds no IPv4 address.
 */

import {
  type IpAddress,
  isInNetwork,
  isIpv4,
  type Network,
  networkAddress,
  networkText,
} from '../../adapters/http/address.ts';
import { ConfigError } from '../../core/errors.ts';
import { toBinaryKey } from './binary-key.ts';
import { parseIpKey } from './ip-key.ts';

/** The network of a pattern, as the index finds it. */
export interface KeyNetwork extends Network {
  /** The text before the address, as a binary key. */
  readonly prefix: string;
}

const CIDR = /^(.*)\/(\d{1,3})$/s;

/** Text that was meant as a network, whether it is a valid one or not. */
const DOTTED_CIDR = /(?:^|[^0-9A-Za-z.])\d+(?:\.\d+){2,3}\/\d+$/;

/** True for a string that is a network and not a key. */
export const isCidr = (text: string): boolean =>
  text.includes('/') &&
  (DOTTED_CIDR.test(text) || parseIpKey(CIDR.exec(text)?.[1] ?? '') !== undefined);

/** @throws {ConfigError} if the text is not a network, or has bits set behind its prefix */
export function parseCidr(text: string, path: string): KeyNetwork {
  const [, base = '', length] = CIDR.exec(text) ?? [];
  const found = parseIpKey(base);
  const expected = 'a network such as "10.0.0.0/8" or "ip:2001:db8::/32"';
  const hint = 'write { exact: … } for a key';
  if (!found) throw new ConfigError(path, expected, text, [], hint);
  const { prefix, address } = found;
  const skipped = isIpv4(address) && !base.slice(prefix.length).includes(':') ? 96 : 0;
  const prefixBits = Number(length) + skipped;
  if (prefixBits > 128) throw new ConfigError(path, expected, text, [], hint);
  const network = networkAddress(address, prefixBits);
  if (network.some((group, n) => group !== address[n])) {
    const meant = `${prefix}${networkText(network, prefixBits)}`;
    throw new ConfigError(path, `a network without host bits: "${meant}"`, text);
  }
  return { prefix: toBinaryKey(prefix), address: network, prefixBits };
}

/** The fewest bits of a network that can hold the address. */
export const minBitsOf = (address: IpAddress): number => (isIpv4(address) ? 96 : 0);

export function isInKeyNetwork(key: string, network: KeyNetwork): boolean {
  const found = parseIpKey(key);
  if (found?.prefix !== network.prefix) return false;
  return network.prefixBits >= minBitsOf(found.address) && isInNetwork(found.address, network);
}

/** Identifies a network among those with the same number of bits: a binary key of two characters for each group. */
export const networkId = (prefix: string, address: IpAddress, bits: number): string => {
  const bytes = networkAddress(address, bits).flatMap((group) => [group >> 8, group & 255]);
  return `${prefix}\0${String.fromCharCode(...bytes)}`;
};
