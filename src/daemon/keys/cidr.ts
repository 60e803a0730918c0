/**
 * Patterns for networks in CIDR notation: `10.0.0.0/8`, `ip:2001:db8::/32`.
 *
 * A key matches if it ends with an address of the network, after the same prefix. An IPv4-mapped IPv6 address is an IPv4
 * address. A network of IPv6 addresses holds no IPv4 address.
 */

import {
  addressText,
  type IpAddress,
  isInNetwork,
  isIpv4,
  type Network,
  networkAddress,
  networkText,
} from '../../adapters/http/address.ts';
import { ConfigError } from '../../core/errors.ts';
import { toBinaryKey, toKeyText } from './binary-key.ts';
import { parseIpKey } from './ip-key.ts';

/** The network of a pattern, as the index finds it. */
export interface KeyNetwork extends Network {
  /** The text before the address, as a binary key. */
  readonly prefix: string;
}

const CIDR = /^(.*)\/(\d{1,3})$/s;

/** Text that was meant as a network, whether it is a valid one or not. */
const DOTTED_CIDR = /(?:^|[^0-9A-Za-z.])\d+(?:\.\d+){2,3}\/\d+$/;

const IPV4 = String.raw`\d{1,3}(?:\.\d{1,3}){3}`;
const IPV6 =
  '(?:[23][0-9a-f]{3}|f[c-f][0-9a-f]{2}):(?:[0-9a-f:]{0,40}::|(?:[0-9a-f]{1,4}:){6})[0-9a-f:]{0,40}';

/** A misspelt network: behind a letter or a digit, in brackets, with a netmask, or with spaces. */
const MISSPELT = new RegExp(
  String.raw`^(.*?)(?:\[([0-9a-f:.]{2,45})\]|(${IPV4}|${IPV6}))\s*/\s*(${IPV4}|\d{1,3})\s*$`,
  'is',
);

/** True for a string that is a network and not a key. */
export const isCidr = (text: string): boolean =>
  text.includes('/') &&
  (DOTTED_CIDR.test(text) ||
    MISSPELT.test(text) ||
    parseIpKey(CIDR.exec(text)?.[1] ?? '') !== undefined);

/** @throws {ConfigError} if the text is not a network, or has bits set behind its prefix */
export function parseCidr(text: string, path: string): KeyNetwork {
  const found = parsePrefixed(text);
  if (!found || text.trim() !== text) {
    const meant = correctionOf(text);
    const expected = 'a network such as "10.0.0.0/8" or "ip:2001:db8::/32"';
    const correction = meant === undefined ? '' : `write ${JSON.stringify(meant)}, or `;
    throw new ConfigError(path, expected, text, [], `${correction}write { exact: … } for a key`);
  }
  const { prefix, address, prefixBits } = found;
  const network = networkAddress(address, prefixBits);
  if (network.some((group, n) => group !== address[n]))
    throw new ConfigError(path, `a network without host bits: "${textOf(found)}"`, text);
  return { prefix: toBinaryKey(prefix), address: network, prefixBits };
}

/** Undefined for a text that is not a network. The prefix is text. */
function parsePrefixed(text: string): KeyNetwork | undefined {
  const [, base = '', length] = CIDR.exec(text) ?? [];
  const found = parseIpKey(base);
  if (!found) return undefined;
  const { prefix, address } = found;
  const skipped = isIpv4(address) && !base.slice(prefix.length).includes(':') ? 96 : 0;
  const prefixBits = Number(length) + skipped;
  return prefixBits > 128 ? undefined : { prefix, address, prefixBits };
}

const textOf = ({ prefix, address, prefixBits }: KeyNetwork): string =>
  `${prefix}${networkText(networkAddress(address, prefixBits), prefixBits)}`;

/** The network that a text was meant as, in the right form. */
function correctionOf(text: string): string | undefined {
  const [, before = '', bracketed, plain = bracketed, length] = MISSPELT.exec(text.trim()) ?? [];
  if (plain === undefined) return undefined;
  const bits = length.includes('.') ? bitsOfNetmask(length) : Number(length);
  const separator = /[0-9A-Za-z]$/.test(before) ? ':' : '';
  const network = parsePrefixed(`${before}${separator}${plain}/${bits}`);
  return network && textOf(network);
}

/** 255.255.0.0 is 16; NaN for a netmask with gaps. */
function bitsOfNetmask(mask: string): number {
  const bits = mask
    .split('.')
    .map((byte) => Number(byte).toString(2).padStart(8, '0'))
    .join('');
  return /^1*0*$/.test(bits) ? bits.lastIndexOf('1') + 1 : Number.NaN;
}

/** A network as the usual text: one address without a prefix length. */
export function networkKeyOf({ prefix, address, prefixBits }: KeyNetwork): string {
  const network = { prefix: toKeyText(prefix), address, prefixBits };
  return prefixBits === 128 ? `${network.prefix}${addressText(address)}` : textOf(network);
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
