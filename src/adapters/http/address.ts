/**
 * Addresses of clients, as text and as numbers.
 *
 *     '203.0.113.9'  '::ffff:203.0.113.9'     the same client: one IPv4 address, two spellings
 *     '2001:db8:1:2:aaaa::1'                  one of 2⁶⁴ addresses a single customer may own
 *
 * What comes in a header was written by anybody. So nothing here throws: what is not an address, to
 * the letter, is `undefined`, and nobody takes it for one.
 */

/** Eight groups of 16 bits. IPv4 is kept as IPv6 does it: `::ffff:a.b.c.d`, mapped. */
export type Address = readonly number[];

/** The longest an address can be, with brackets, zone and port; anything longer is none. */
const CHARS_MAX = 100;

const IPV4 = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/;
const GROUP = /^[0-9a-f]{1,4}$/i;
const BRACKETED = /^\[([^\]]*)\](?::\d{1,5})?$/;
const IPV4_AND_PORT = /^([\d.]+):\d{1,5}$/;

/** Reads an address. A port behind it, brackets around it and a zone are no part of it. */
export function parseAddress(text: string): Address | undefined {
  if (text.length > CHARS_MAX) return undefined;
  const trimmed = text.trim();
  const bare = BRACKETED.exec(trimmed)?.[1] ?? IPV4_AND_PORT.exec(trimmed)?.[1] ?? trimmed;
  return bare.includes(':') ? parseIpv6(bare) : parseIpv4(bare);
}

function parseIpv4(text: string): Address | undefined {
  const parts = IPV4.exec(text)?.slice(1).map(Number);
  if (parts === undefined || parts.some((part) => part > 255)) return undefined;
  const [a, b, c, d] = parts;
  return [0, 0, 0, 0, 0, 0xffff, a * 256 + b, c * 256 + d];
}

function parseIpv6(text: string): Address | undefined {
  const zone = text.indexOf('%');
  const halves = (zone < 0 ? text : text.slice(0, zone)).split('::');
  if (halves.length > 2) return undefined;
  const [head, tail] = halves.map((half, n) => parseGroups(half, n === halves.length - 1));
  if (head === undefined) return undefined;
  if (halves.length === 1) return head.length === 8 ? head : undefined;
  if (tail === undefined || head.length + tail.length > 7) return undefined;
  return [...head, ...new Array<number>(8 - head.length - tail.length).fill(0), ...tail];
}

/** The groups of one side of `::`; only the very last may be written as IPv4. */
function parseGroups(text: string, isLast: boolean): number[] | undefined {
  if (text === '') return [];
  const parts = text.split(':');
  const v4 = isLast && text.includes('.') ? parseIpv4(parts.pop() ?? '') : [];
  if (v4 === undefined || !parts.every((part) => GROUP.test(part))) return undefined;
  return [...parts.map((part) => Number.parseInt(part, 16)), ...v4.slice(6)];
}

export const isIpv4 = (address: Address): boolean =>
  address[5] === 0xffff && address.slice(0, 5).every((group) => group === 0);

/** An address and how many of its bits count. */
export interface Network {
  readonly address: Address;
  readonly bits: number;
}

/** Reads `10.0.0.0/8`, `2001:db8::/32` or a single address. */
export function parseNetwork(text: string): Network | undefined {
  const [, base, length] = /^([^/]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
  const address = base === undefined ? undefined : parseAddress(base);
  if (base === undefined || address === undefined) return undefined;
  const bitsMax = base.includes(':') ? 128 : 32;
  const bits = length === undefined ? bitsMax : Number(length);
  return bits > bitsMax ? undefined : { address, bits: bits + 128 - bitsMax };
}

export function isWithin(address: Address, { address: base, bits }: Network): boolean {
  for (let n = 0; n * 16 < bits; n++) {
    const mask = maskOf(n, bits);
    if ((address[n] & mask) !== (base[n] & mask)) return false;
  }
  return true;
}

/** Which bits of group `n` belong to a prefix of so many bits. */
const maskOf = (n: number, bits: number): number => {
  const own = Math.max(0, Math.min(16, bits - n * 16));
  return (0xffff << (16 - own)) & 0xffff;
};

const MAPPED = '::ffff:';

/**
 * The key a client counts against: IPv4 as it is, IPv6 by its network of `ipv6Prefix` bits. Text that
 * is no address (a name a test made up) stands for itself.
 */
export function clientKey(text: string, ipv6Prefix: number): string {
  // What a socket says is well formed: the usual address needs no taking apart.
  if (!text.includes(':')) return text;
  if (text.startsWith(MAPPED) && text.includes('.')) return text.slice(MAPPED.length);
  const address = parseAddress(text);
  return address === undefined ? text : networkKey(address, ipv6Prefix);
}

/** The same for an address that was taken apart already. */
export function networkKey(address: Address, ipv6Prefix: number): string {
  if (isIpv4(address)) {
    const [high, low] = address.slice(6);
    return `${high >> 8}.${high & 255}.${low >> 8}.${low & 255}`;
  }
  const groups: string[] = [];
  for (let n = 0; n * 16 < ipv6Prefix; n++) {
    groups.push((address[n] & maskOf(n, ipv6Prefix)).toString(16));
  }
  return `${groups.join(':')}${groups.length < 8 ? '::' : ''}/${ipv6Prefix}`;
}
