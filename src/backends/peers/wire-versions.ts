/**
 * Wire versions: the datagram formats that a node speaks, and the one that it sends.
 *
 * A build speaks its own version and the previous one, as long as both hash keys alike. Every datagram has the newest
 * version of its sender. A node sends the newest version that all its peers speak: fleets are upgraded node by node.
 *
 *     versions 3 and 4     ──── 3 ───▶   version 3       a common version: both nodes count together
 *     versions 5 and 6     ─ hello 5 ─▶  version 3       none: both nodes count, show and log it
 *
 * A broadcast `hello` has the oldest version of its sender, so a node that cannot read it knows that there is no common
 * version. The datagram header and the `hello` kinds are equal in every version.
 *
 * A changed message body needs a new version: `FIELD_SINCE` in `messages.ts` lists the fields by version, and
 * `codec.ts` encodes and decodes by version. A new kind of message does not, if nodes that ignore it still count alike.
 */

import type { OtherVersion } from './messages.ts';

export interface WireVersions {
  readonly oldest: number;
  readonly newest: number;
}

/**
 * Version 4 lists in each page of a state transfer the reports that it includes (docs/decisions/0046). Version 2 is not
 * spoken: it hashes keys differently and is not encrypted (docs/decisions/0012).
 */
export const WIRE_VERSIONS: WireVersions = { oldest: 3, newest: 4 };

export const canRead = ({ oldest, newest }: WireVersions, version: number): boolean =>
  version >= oldest && version <= newest;

/** The version to send to nodes; the oldest of them speaks up to `theirNewest`. */
export const versionFor = ({ oldest, newest }: WireVersions, theirNewest: number): number =>
  Math.max(oldest, Math.min(newest, theirNewest));

/** Whether an unreadable datagram shows that there is no common version. */
export const hasNoCommonVersion = (
  { oldest }: WireVersions,
  { version, newest, isHello }: OtherVersion,
): boolean => (version < oldest ? newest < oldest : isHello);
