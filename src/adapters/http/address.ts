/**
 *     '203.0.113.9'  '::ffff:203.0.113.9'     one IPv4 client in two spellings
 *     '2001:db8:1:2:aaaa::1'                  one of 2⁶⁴ addresses that a single customer may own
 *
 * Headers are written by clients, so nothing here throws: text that is not exactly an address is `undefined`.
 */

/** Eight groups of 16 bits. IPv4 is stored as IPv4-mapped IPv6: `::ffff:a.b.c.d`. */
export type IpAddress = readonly number[];

/** Longer than any address with brackets, zone and port. */
const MAX_ADDRESS_CHARS = 100;

const BRACKETED = /^\[([^\]]*)\](?::\d{1,5})?$/;
const IPV4_AND_PORT = /^([\d.]+):\d{1,5}$/;
const DIGIT_ZERO = 48;

/** Parses an address; a port, brackets and a zone are dropped. */
export function parseAddress(text: string): IpAddress | undefined {
  if (text.length > MAX_ADDRESS_CHARS) return undefined;
  const trimmed = text.trim();
  if (!trimmed.includes(':')) return parseIpv4(trimmed);
  if (trimmed.startsWith('[')) return parseIpv6(withoutZone(BRACKETED.exec(trimmed)?.[1] ?? ''));
  const v4 = trimmed.includes('.') ? IPV4_AND_PORT.exec(trimmed)?.[1] : undefined;
  return v4 === undefined ? parseIpv6(withoutZone(trimmed)) : parseIpv4(v4);
}

const withoutZone = (text: string): string => {
  const zone = text.indexOf('%');
  return zone < 0 ? text : text.slice(0, zone);
};

/** Parsed by hand: every request has an address, and regular expressions are slower. */
function parseIpv4(text: string): IpAddress | undefined {
  let bits = 0;
  let start = 0;
  for (let n = 0; n < 4; n++) {
    const end = n < 3 ? text.indexOf('.', start) : text.length;
    const byte = parseByte(text, start, end);
    if (byte < 0) return undefined;
    bits = bits * 256 + byte;
    start = end + 1;
  }
  return [0, 0, 0, 0, 0, 0xffff, Math.floor(bits / 65_536), bits % 65_536];
}

/** One to three decimal digits, at most 255, or -1. */
function parseByte(text: string, start: number, end: number): number {
  if (text.charCodeAt(start) === DIGIT_ZERO && end - start > 1) return -1; // ambiguous: some parsers read 010 as octal
  const value = parseDigits(text, start, end, 10, 3);
  return value > 255 ? -1 : value;
}

function parseIpv6(text: string): IpAddress | undefined {
  const gap = text.indexOf('::');
  if (gap < 0) {
    const groups = parseGroups(text, true);
    return groups?.length === 8 ? groups : undefined;
  }
  const head = gap === 0 ? [] : parseGroups(text.slice(0, gap), false);
  const tail = gap + 2 === text.length ? [] : parseGroups(text.slice(gap + 2), true);
  if (head === undefined || tail === undefined || head.length + tail.length > 7) return undefined;
  while (head.length + tail.length < 8) head.push(0);
  return head.concat(tail);
}

/** The groups on one side of `::`; only the very last may be written as IPv4. */
function parseGroups(text: string, isLast: boolean): number[] | undefined {
  const groups: number[] = [];
  let start = 0;
  for (let end = text.indexOf(':'); end >= 0; end = text.indexOf(':', start)) {
    groups.push(parseDigits(text, start, end, 16, 4));
    start = end + 1;
  }
  const v4 = isLast && text.includes('.', start) ? parseIpv4(text.slice(start)) : undefined;
  if (v4) groups.push(v4[6], v4[7]);
  else groups.push(parseDigits(text, start, text.length, 16, 4));
  return groups.includes(-1) ? undefined : groups;
}

/** One to `maxDigits` digits, or -1. */
function parseDigits(
  text: string,
  start: number,
  end: number,
  radix: number,
  maxDigits: number,
): number {
  if (end <= start || end - start > maxDigits) return -1;
  let value = 0;
  for (let n = start; n < end; n++) {
    const digit = hexDigitValue(text.charCodeAt(n));
    if (digit < 0 || digit >= radix) return -1;
    value = value * radix + digit;
  }
  return value;
}

function hexDigitValue(code: number): number {
  if (code >= DIGIT_ZERO && code <= DIGIT_ZERO + 9) return code - DIGIT_ZERO;
  const letter = code | 32; // to lower case
  return letter >= 97 && letter <= 102 ? letter - 87 : -1;
}

export const isIpv4 = ([a, b, c, d, e, f]: IpAddress): boolean =>
  f === 0xffff && (a | b | c | d | e) === 0;

/** An address and the length of its network prefix in bits. */
export interface Network {
  readonly address: IpAddress;
  readonly prefixBits: number;
}

/** Parses `10.0.0.0/8`, `2001:db8::/32` or a single address, without port and zone. */
export function parseNetwork(text: string): Network | undefined {
  if (text.length > MAX_ADDRESS_CHARS) return undefined;
  const [, base = '', length] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text.trim()) ?? [];
  const isV6 = base.includes(':');
  const address = isV6 ? parseIpv6(base) : parseIpv4(base);
  const maxBits = isV6 ? 128 : 32;
  const bits = length === undefined ? maxBits : Number(length);
  return address && bits <= maxBits ? { address, prefixBits: bits + 128 - maxBits } : undefined;
}

export function isInNetwork(address: IpAddress, { address: base, prefixBits }: Network): boolean {
  for (let n = 0; n * 16 < prefixBits; n++) {
    const mask = prefixMask(n, prefixBits);
    if ((address[n] & mask) !== (base[n] & mask)) return false;
  }
  return true;
}

/** The bits of group `n` that belong to a prefix of `bits` bits. */
const prefixMask = (n: number, bits: number): number => {
  const count = Math.max(0, Math.min(16, bits - n * 16));
  return (0xffff << (16 - count)) & 0xffff;
};

/** The address with the bits behind the prefix cleared. */
export const networkAddress = (address: IpAddress, prefixBits: number): IpAddress =>
  address.map((group, n) => group & prefixMask(n, prefixBits));

/** An address as text, in the usual short form: `203.0.113.9`, `2001:db8::1`. */
export function addressText(address: IpAddress): string {
  if (isIpv4(address)) {
    const [high, low] = [address[6], address[7]];
    return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`;
  }
  let [gap, gapLength] = [0, 1]; // the longest run of zeros, if it has two groups
  for (let start = 0; start < 8; start++) {
    let end = start;
    while (end < 8 && address[end] === 0) end++;
    if (end - start > gapLength) [gap, gapLength] = [start, end - start];
  }
  const groups = address.map((group) => group.toString(16));
  if (gapLength === 1) return groups.join(':');
  return `${groups.slice(0, gap).join(':')}::${groups.slice(gap + gapLength).join(':')}`;
}

/** A network as text: `10.0.0.0/8`, `2001:db8:0:0::/64`. */
export const networkText = (address: IpAddress, prefixBits: number): string =>
  isIpv4(address) && prefixBits >= 96
    ? `${addressText(address)}/${prefixBits - 96}`
    : clientKeyOf(networkAddress(address, prefixBits), prefixBits);

/** The key of a client: its IPv4 address, or its IPv6 network of `ipv6Prefix` bits. */
export function clientKeyOf(address: IpAddress, ipv6Prefix: number): string {
  if (isIpv4(address)) return addressText(address);
  let groups = '';
  for (let n = 0; n * 16 < ipv6Prefix; n++) {
    groups += `${n === 0 ? '' : ':'}${(address[n] & prefixMask(n, ipv6Prefix)).toString(16)}`;
  }
  return `${groups}${ipv6Prefix > 112 ? '' : '::'}/${ipv6Prefix}`;
}
