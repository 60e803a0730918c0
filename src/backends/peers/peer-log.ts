/** Logs peers that appear and disappear. A restarted peer is listed twice until its former id times out. */

import type { Log } from '../../core/log.ts';
import type { PeerView } from './peer-table.ts';

/** Returns a function that logs the changes since its last call. */
export function peerLogger(log: Log): (peers: readonly Pick<PeerView, 'id' | 'name'>[]) => void {
  /** Names by id, in the order in which the peers were found. */
  const known = new Map<number, string>();

  /** A node has a new id at each start: a later id with this name is its restart. */
  const hasSuccessor = (id: number, name: string): boolean => {
    let isLater = false;
    for (const [other, otherName] of known) {
      if (isLater && otherName === name) return true;
      if (other === id) isLater = true;
    }
    return false;
  };

  return (peers) => {
    for (const { id, name } of peers) {
      if (!known.has(id)) log('info', 'peer found', { peer: name });
      known.set(id, name);
    }
    const ids = new Set(peers.map(({ id }) => id));
    for (const [id, peer] of [...known]) {
      if (ids.has(id)) continue;
      if (hasSuccessor(id, peer)) log('info', 'peer has restarted', { peer });
      else log('warn', 'peer gone', { peer });
      known.delete(id);
    }
  };
}
