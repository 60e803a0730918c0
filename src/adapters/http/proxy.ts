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
import type { Fields } from '../../core/options.ts';
import { type Address, isWithin, type Network, parseAddress, parseNetwork } from './address.ts';

/**
 * Whom to believe about `X-Forwarded-For`: nobody (false), everybody (true), the last so many, or
 * these addresses and networks.
 */
export type TrustProxy = boolean | number | readonly string[];

/** Whether to believe hop `n` (0 is who the connection is from). A local socket has no address. */
type Trust = (hop: number, address: Address | undefined) => boolean;

/** The client's address; undefined if nobody knows. */
export type ClientOf = (
  connectedFrom: Address | undefined,
  forwardedFor: string | undefined,
) => Address | undefined;

/** What `trustProxy` says, ready to use; undefined if it was left out. */
export function readTrust(fields: Fields): ClientOf | undefined {
  const given = fields.raw('trustProxy');
  if (given === undefined) return undefined;
  if (given === false || given === 0) return (connectedFrom) => connectedFrom;
  if (given === true) return walker(() => true);
  if (typeof given === 'number') {
    const hops = fields.whole('trustProxy', 0);
    return walker((hop) => hop < hops);
  }
  if (!Array.isArray(given)) {
    return fields.fail('trustProxy', 'true, false, a number of hops or a list of addresses');
  }
  const path = fields.at('trustProxy');
  const networks = given.map((text, n) => readNetwork(text, `${path}[${n}]`));
  return walker((_, from) => from !== undefined && networks.some((own) => isWithin(from, own)));
}

function readNetwork(text: unknown, path: string): Network {
  const network = typeof text === 'string' ? parseNetwork(text) : undefined;
  if (network) return network;
  throw new ConfigError(path, 'an address or a network such as "10.0.0.0/8"', text);
}

const walker =
  (trusts: Trust): ClientOf =>
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
