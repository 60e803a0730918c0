/**
 * Who really asks, when a proxy stands in between.
 *
 * Every proxy writes down, at the end of `X-Forwarded-For`, who it got the request from. So the list
 * is read from the right, for as long as whoever wrote an entry is trusted:
 *
 *     X-Forwarded-For: 6.6.6.6, 203.0.113.9, 10.0.0.7        connection from 10.0.0.2
 *                      ▲        ▲            ▲                               ▲
 *                      lies     the client   a trusted proxy ◀── a trusted proxy
 *
 * The client is the first that is not trusted. What stands further left it could have written itself.
 * An entry that is no address ends the walk: whoever handed it on is the last one known.
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
 * Whom to believe about `X-Forwarded-For`: nobody (false), everybody (true), the last so many, or
 * these addresses and networks.
 */
export type TrustProxy = boolean | number | readonly string[];

/** Whether to believe hop `n` (0 is who the connection is from). A local socket has no address. */
type TrustPredicate = (hop: number, address: IpAddress | undefined) => boolean;

/** The client's address; undefined if nobody knows. */
export type ClientResolver = (
  connectedFrom: IpAddress | undefined,
  forwardedFor: string | undefined,
) => IpAddress | undefined;

/** What `trustProxy` says, ready to use; undefined if it was left out. */
export function readTrustProxy(fields: OptionReader): ClientResolver | undefined {
  const given = fields.get('trustProxy');
  if (given === undefined) return undefined;
  if (given === false || given === 0) return (connectedFrom) => connectedFrom;
  if (given === true) return forwardedForResolver(() => true);
  if (typeof given === 'number') {
    const hops = fields.integer('trustProxy', 0);
    return forwardedForResolver((hop) => hop < hops);
  }
  if (!Array.isArray(given)) {
    return fields.throwFor('trustProxy', 'true, false, a number of hops or a list of addresses');
  }
  const path = fields.pathOf('trustProxy');
  const networks = given.map((text, n) => readNetwork(text, `${path}[${n}]`));
  return forwardedForResolver(
    (_, from) => from !== undefined && networks.some((own) => isInNetwork(from, own)),
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
