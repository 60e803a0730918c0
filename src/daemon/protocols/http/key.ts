/**
 * Whose request it is, where the URL does not say: a proxy that asks for every request it gets cannot
 * always put the key into the URL, but it sends headers.
 */

import { clientKeyOf, parseAddress } from '../../../adapters/http/address.ts';
import type { HttpConfig } from '../../config/http.ts';
import { toBinaryKey } from '../../keys/binary-key.ts';

/** The least that is needed of a request; Node's own has it. */
export interface RequestHead {
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  /** By names in small letters; one character for each byte. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly socket: { readonly remoteAddress?: string | undefined };
}

/** The key of a request as a tag; undefined if there is none. */
export type KeyExtractor = (request: RequestHead) => string | undefined;

/** How many bits of an IPv6 address make one client. */
const IPV6_PREFIX = 64;

/**
 * Takes keys from where the configuration says. Where a header is missing there is no key: if the
 * address counted instead, a client could write somebody else's into the header.
 */
export function createKeyExtractor({ header, prefix, clientOf }: HttpConfig): KeyExtractor {
  const start = toBinaryKey(prefix);
  const find = header === undefined ? fromAddress(clientOf) : fromHeader(header);
  return (request) => {
    const found = find(request);
    return found === undefined ? undefined : start + found;
  };
}

const fromHeader =
  (name: string): KeyExtractor =>
  ({ headers }) =>
    joinHeader(headers[name]) || undefined;

const fromAddress =
  (clientOf: HttpConfig['clientOf']): KeyExtractor =>
  ({ headers, socket: { remoteAddress } }) => {
    const from = remoteAddress === undefined ? undefined : parseAddress(remoteAddress);
    const client = clientOf ? clientOf(from, joinHeader(headers['x-forwarded-for'])) : from;
    return client && clientKeyOf(client, IPV6_PREFIX);
  };

const joinHeader = (value: string | string[] | undefined): string | undefined =>
  typeof value === 'object' ? value.join(', ') : value;
