/**
 * Wire versions: which formats of datagrams a node speaks, and which of them it sends.
 *
 * A build speaks its own version and the one before, as long as both hash keys alike. Every datagram says the newest
 * version of its sender. A node sends the newest version that all its peers speak, so a fleet is upgraded node by node.
 *
 *     versions 3 and 4     ──── 3 ───▶   version 3       a common version: both count together
 *     versions 5 and 6     ─ hello 5 ─▶  version 3       none: both count, show and log it
 *
 * A `hello` to all nodes has the oldest version of its sender, so a node that cannot read it knows that there is no
 * common version. The header of a datagram and the `hello` kinds are the same in every version.
 *
 * A change of a message body takes a new version: `FIELD_SINCE` in `messages.ts` says which fields it has, and `codec.ts`
 * encodes and decodes by version. A new kind of message does not, if nodes that ignore it still count alike.
 */

import type { OtherVersion } from './messages.ts';

export interface WireVersions {
  readonly oldest: number;
  readonly newest: number;
}

/**
 * Version 4 lists in each page of a state transfer the reports that it includes (docs/decisions/0046). Version 2 is not
 * spoken: it hashes keys in another way, and it is not encrypted (docs/decisions/0012).
 */
export const WIRE_VERSIONS: WireVersions = { oldest: 3, newest: 4 };

export const canRead = ({ oldest, newest }: WireVersions, version: number): boolean =>
  version >= oldest && version <= newest;

/** The version to send to nodes of which the oldest speaks up to `theirNewest`. */
export const versionFor = ({ oldest, newest }: WireVersions, theirNewest: number): number =>
  Math.max(oldest, Math.min(newest, theirNewest));

/** Whether a datagram that cannot be read shows that there is no common version. */
export const hasNoCommonVersion = (
  { oldest }: WireVersions,
  { version, newest, isHello }: OtherVersion,
): boolean => (version < oldest ? newest < oldest : isHello);
