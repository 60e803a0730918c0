/**
 * Takes the key of a check from the request where the URL has none. A proxy that authorises each request (nginx
 * auth_request, Traefik ForwardAuth) forwards headers, but cannot always build a URL.
 */

import { addressText, type IpAddress, parseAddress } from '../../../adapters/http/address.ts';
import type { HttpConfig } from '../../config/http.ts';
import { toBinaryKey } from '../../keys/binary-key.ts';
import type { IgnoredHeader } from './proxy-warning.ts';

/** The part of a request that is needed here; Node's `IncomingMessage` has it. */
export interface RequestHead {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  /** By lower-case name; one character per byte. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  /** Names and values in turn, as received; undefined if no name is repeated. */
  readonly rawHeaders?: readonly string[] | undefined;
  readonly socket: {
    readonly remoteAddress?: string | undefined;
    /** Aborts when the client leaves; absent without a connection. */
    readonly clientLeft?: AbortSignal;
  };
}

/** The binary key of a request; undefined if it has none. */
export interface KeyExtractor {
  (request: RequestHead): string | undefined;
  /** The header that holds the key, for error messages. */
  readonly header?: string | undefined;
  /** The header that names the plan of the key. */
  readonly planHeader?: string | undefined;
}

/**
 * Extracts keys as the configuration says. A missing header means no key. A fallback to the address would let a client
 * choose the key of another client, by sending its address in the header.
 */
export function createKeyExtractor(
  { header, planHeader, prefix, clientOf }: HttpConfig,
  onIgnored: OnIgnoredHeader = () => {},
): KeyExtractor {
  const binaryPrefix = toBinaryKey(prefix);
  const extract = header === undefined ? fromAddress(clientOf, onIgnored) : fromHeader(header);
  const withPrefix = (request: RequestHead): string | undefined => {
    const key = extract(request);
    return key === undefined ? undefined : binaryPrefix + key;
  };
  return Object.assign(withPrefix, { header, planHeader });
}

/** The plan that a header names; undefined if it is missing, empty or repeated. */
export const planOf = (request: RequestHead, header: string | undefined): string | undefined =>
  header === undefined ? undefined : soleHeader(request, header);

const fromHeader =
  (name: string): KeyExtractor =>
  (request) =>
    soleHeader(request, name);

/** The value of a header that names a key; undefined if it is missing, empty or repeated. */
export const soleHeader = (
  { headers, rawHeaders }: RequestHead,
  name: string,
): string | undefined =>
  rawHeaders !== undefined && isRepeated(name, rawHeaders)
    ? undefined
    : joinHeader(headers[name]) || undefined;

/** A proxy that appends its header to the client's would let the client choose a part of the key, or all of it. */
const isRepeated = (name: string, rawHeaders: readonly string[]): boolean =>
  rawHeaders.filter((text, n) => n % 2 === 0 && text.toLowerCase() === name).length > 1;

const fromAddress =
  (clientOf: HttpConfig['clientOf'], onIgnored: OnIgnoredHeader): KeyExtractor =>
  ({ headers, socket: { remoteAddress } }) => {
    const from = remoteAddress === undefined ? undefined : parseAddress(remoteAddress);
    const client = clientOf ? clientOf(from, joinHeader(headers['x-forwarded-for'])) : from;
    if (client === from) reportIgnored(headers, from, clientOf, onIgnored);
    return client && addressText(client);
  };

type OnIgnoredHeader = (ignored: IgnoredHeader) => void;

/** Proxies set these, and the option that makes the daemon use them. `Forwarded` is never read. */
const CLIENT_HEADERS = [
  ['x-forwarded-for', 'http.trustProxy'],
  ['forwarded', 'http.trustProxy, and X-Forwarded-For in the proxy'],
  ['sluice-key', 'http.key'],
] as const;

/** An address for documentation: no client has it. */
const NO_CLIENT = '192.0.2.1';

/** No header has named the client: because there is none, or because its sender is not trusted. */
function reportIgnored(
  headers: RequestHead['headers'],
  from: IpAddress | undefined,
  clientOf: HttpConfig['clientOf'],
  onIgnored: OnIgnoredHeader,
): void {
  const isTrusted = clientOf !== undefined && clientOf(from, NO_CLIENT) !== from;
  for (const [header, option] of CLIENT_HEADERS) {
    if (headers[header] === undefined) continue;
    if (header !== 'sluice-key' && isTrusted) continue; // it has no address
    onIgnored({ header, from: from ? addressText(from) : 'a Unix socket', option });
    return;
  }
}

const joinHeader = (value: string | string[] | undefined): string | undefined =>
  typeof value === 'object' ? value.join(', ') : value;
