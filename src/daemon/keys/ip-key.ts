/**
 * Finds the IP address at the end of a key: `10.0.0.1`, `ip:10.0.0.1`, `tenant7|2001:db8::1`.
 *
 * The prefix may be any text that does not end with a letter or a digit. If it could be read as a part of the address,
 * it is: the longest end of the key that is an address counts. Addresses that IPv6 does not assign, such as 7::9, do not
 * count: `c:2001:db8::1` has the prefix `c:`, and `7::9` is a key like any other. Brackets and a zone are dropped:
 * `ip:[2001:db8::1]` and `ip:fe80::1%eth0` are other spellings of `ip:2001:db8::1` and `ip:fe80::1`.
 */

import { type IpAddress, parseNetwork } from '../../adapters/http/address.ts';

export interface IpKey {
  /** The text before the address. */
  readonly prefix: string;
  readonly address: IpAddress;
}

/** The longest spelling: `0000:0000:0000:0000:0000:ffff:255.255.255.255`. */
const MAX_ADDRESS_CHARS = 45;

const ADDRESS_CHARACTER = /[0-9A-Fa-f:.]/;
const LETTER_OR_DIGIT = /[0-9A-Za-z]/;

/** A zone after an IPv6 address: the name of an interface. */
const ZONE = /%[\w.-]{1,15}$/;

/** Undefined for a key without an address. Ends after a few comparisons for keys that do not end like one. */
export function parseIpKey(key: string): IpKey | undefined {
  if (key.endsWith(']')) return parseBracketed(key);
  const zoned = key.includes('%') && ZONE.test(key) ? parseIpv6(key.replace(ZONE, '')) : undefined;
  if (zoned) return zoned;
  const earliest = Math.max(0, key.length - MAX_ADDRESS_CHARS);
  let start = key.length;
  while (start > earliest && ADDRESS_CHARACTER.test(key[start - 1])) start--;
  if (key.length - start < 2) return undefined;
  for (; start < key.length - 1; start++) {
    if (start > 0 && LETTER_OR_DIGIT.test(key[start - 1])) continue;
    const network = parseNetwork(key.slice(start));
    if (network && isAssigned(network.address))
      return { prefix: key.slice(0, start), address: network.address };
  }
  return undefined;
}

function parseBracketed(key: string): IpKey | undefined {
  const start = key.lastIndexOf('[');
  if (start < 0 || LETTER_OR_DIGIT.test(key[start - 1] ?? '')) return undefined;
  const found = parseIpv6(key.slice(start + 1, -1).replace(ZONE, ''));
  return found?.prefix === '' ? { ...found, prefix: key.slice(0, start) } : undefined;
}

/** In the spelling of IPv6, which alone has brackets and zones; and it has one of each at most. */
function parseIpv6(key: string): IpKey | undefined {
  const found = /[%\]]$|%[\w.-]{1,15}$/.test(key) ? undefined : parseIpKey(key);
  return found && key.includes(':', found.prefix.length) ? found : undefined;
}

/** True for ::/16 (with IPv4), 64:ff9b::/16 (translated IPv4), and all from 2000:: on. */
const isAssigned = ([first]: IpAddress): boolean =>
  first === 0 || first === 0x64 || first >= 0x2000;
