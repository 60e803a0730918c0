/**
 * Finds the client's address behind proxies, from `X-Forwarded-For`.
 *
 * Every proxy appends the address it received the request from. The list is therefore read from the right, as long as the
 * proxy that appended an entry is trusted:
 *
 *     X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7        connection from 10.0.0.2
 *                      ▲        ▲            ▲                               ▲
 *                      forged   the client   a trusted proxy ◀── a trusted proxy
 *
 * The client is the first address that is not trusted; it could have forged everything further left. An entry that is no
 * address ends the search: the proxy that passed it on is the last known address.
 */

import { ConfigError } from '../../core/errors.ts';
import type { OptionReader } from '../../core/options.ts';
import {
  type IpAddress,
  isInNetwork,
  type Network,
  parseAddress,
  parseNetwork,
} from './address.ts';

/**
 * Which proxies to trust for `X-Forwarded-For`: none (false), all (true), a number of hops from the right, or these
 * addresses and networks.
 */
export type TrustProxy = boolean | number | readonly string[];

/** Whether a hop is trusted; 0 is the connection itself. A Unix socket has no address. */
type TrustPredicate = (hop: number, address: IpAddress | undefined) => boolean;

/** The client's address; undefined if it is unknown. */
export type ClientResolver = (
  connectedFrom: IpAddress | undefined,
  forwardedFor: string | undefined,
) => IpAddress | undefined;

/** Reads `trustProxy`; undefined if it is left out. */
export function readTrustProxy(reader: OptionReader): ClientResolver | undefined {
  const given = reader.get('trustProxy');
  if (given === undefined) return undefined;
  if (given === false || given === 0) return (connectedFrom) => connectedFrom;
  if (given === true) return forwardedForResolver(() => true);
  if (typeof given === 'number') {
    const hops = reader.integer('trustProxy', 0);
    return forwardedForResolver((hop) => hop < hops);
  }
  if (!Array.isArray(given)) {
    return reader.throwFor('trustProxy', 'true, false, a number of hops or a list of addresses');
  }
  const path = reader.pathOf('trustProxy');
  const networks = given.map((text, n) => readNetwork(text, `${path}[${n}]`));
  return forwardedForResolver(
    (_, address) =>
      address !== undefined && networks.some((network) => isInNetwork(address, network)),
  );
}

function readNetwork(text: unknown, path: string): Network {
  const network = typeof text === 'string' ? parseNetwork(text) : undefined;
  if (network) return network;
  throw new ConfigError(path, 'an address or a network such as "10.0.0.0/8"', text);
}

const forwardedForResolver =
  (trusts: TrustPredicate): ClientResolver =>
  (connectedFrom, forwardedFor) => {
    let client = connectedFrom;
    if (forwardedFor === undefined) return client;
    let end = forwardedFor.length;
    for (let hop = 0; end >= 0 && trusts(hop, client); hop++) {
      const comma = end === 0 ? -1 : forwardedFor.lastIndexOf(',', end - 1);
      const next = parseAddress(forwardedFor.slice(comma + 1, end));
      if (next === undefined) break;
      client = next;
      end = comma;
    }
    return client;
  };
