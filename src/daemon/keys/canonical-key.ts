/**
 * The key that a limit counts under. One host owns at least 2⁶⁴ IPv6 addresses, so an address counts as its network:
 *
 *     ip:2001:db8:1:2:aaaa::1  ──▶  ip:2001:db8:1:2::/64
 *     ip:::ffff:203.0.113.9    ──▶  ip:203.0.113.9          IPv4 in another spelling
 *
 * Every daemon and protocol makes the same text of it. Patterns match the address as it was sent; one of IPv4 in its own
 * spelling (`matchedKeyOf`), so that `::ffff:` does not lead around a list.
 */

import { addressText, clientKeyOf, isIpv4 } from '../../adapters/http/address.ts';
import { parseIpKey } from './ip-key.ts';

/** Bits of an IPv6 address that are one client. */
export const DEFAULT_IPV6_BITS = 64;

/** All bits: every address has its own count. */
export const ALL_IPV6_BITS = 128;

/** Loopback (::1) and translated IPv4 addresses (64:ff9b::) are below. */
const FIRST_UNICAST_GROUP = 0x2000;

export function canonicalKeyOf(key: string, ipv6Bits: number): string {
  if (ipv6Bits === ALL_IPV6_BITS || !endsLikeIpv6(key)) return key;
  const found = parseIpKey(key);
  if (!found) return key;
  const { prefix, address } = found;
  if (isIpv4(address)) return prefix + addressText(address);
  return address[0] < FIRST_UNICAST_GROUP ? key : prefix + clientKeyOf(address, ipv6Bits);
}

/** The key with its IPv6 address in the usual spelling: `ip:2001:DB8:0::1` is `ip:2001:db8::1`. */
export function addressKeyOf(key: string): string {
  const found = endsLikeIpv6(key) ? parseIpKey(key) : undefined;
  if (!found) return key;
  const usual = found.prefix + addressText(found.address);
  return parseIpKey(usual)?.prefix === found.prefix ? usual : key; // the prefix may read as a part of it
}

/** The key that patterns are compared with. */
export function matchedKeyOf(key: string): string {
  if (!endsLikeIpv6(key)) return key;
  const found = parseIpKey(key);
  return found && isIpv4(found.address) ? found.prefix + addressText(found.address) : key;
}

const COLON = 58;
const DOT = 46;
const LOWER_F = 102;
const TO_LOWER_CASE = 32;
const PERCENT = 37;
const CLOSING_BRACKET = 93;

/** The longest zone, such as `%eth0`. */
const MAX_ZONE_CHARS = 16;

/** Longer than an address with seven colons, or a zone. */
const MAX_END_CHARS = 64;
const keyEnd = new Uint8Array(MAX_END_CHARS);

/**
 * False for a key that does not end with an IPv6 address; true needs a closer look. Reads the end of the key only, as
 * every check of a key does this. It looks for `::` or seven colons with up to four hexadecimal digits between them,
 * for a closing bracket, or for a zone.
 */
export function endsLikeIpv6(key: string): boolean {
  const from = Math.max(0, key.length - MAX_END_CHARS);
  for (let n = from; n < key.length; n++) keyEnd[n - from] = Math.min(key.charCodeAt(n), 0xff);
  return bytesEndLikeIpv6(keyEnd, 0, key.length - from);
}

export function bytesEndLikeIpv6(bytes: Uint8Array, from: number, to: number): boolean {
  let colons = 0;
  let dots = 0;
  let digits = 0;
  if (to > from && bytes[to - 1] === CLOSING_BRACKET) return true;
  for (let n = to - 1; n >= from; n--) {
    const code = bytes[n];
    if (code === COLON) {
      const before = n > from ? bytes[n - 1] : 0;
      if (dots > 0) return (before | TO_LOWER_CASE) === LOWER_F; // ::ffff:203.0.113.9
      if (before === COLON || ++colons === 7) return true;
      digits = 0;
    } else if (code === DOT) {
      if (colons > 0 || ++dots > 3) return false;
      digits = 0;
    } else {
      const lower = code | TO_LOWER_CASE; // leaves digits as they are
      const isHexDigit = (lower >= 48 && lower <= 57) || (lower >= 97 && lower <= LOWER_F);
      if (!isHexDigit || ++digits > 4) {
        if (colons + dots > 0) return false;
        const last = Math.max(from, to - MAX_ZONE_CHARS);
        while (n > last && bytes[n] !== PERCENT && bytes[n] !== COLON) n--;
        return n >= last && bytes[n] === PERCENT;
      }
    }
  }
  return false;
}
