/** Looks at all daemons again and again: how differently they count, and what they have sent and missed. */

import { setTimeout as sleep } from 'node:timers/promises';
import { now } from './load.mjs';

const LOOK_MS = 100;
const VIEW_EVERY = 5;

/**
 * Nodes stand alike if none has so much more left than another, for so many looks or up to the end: healed, they
 * look alike before they have heard anything of each other.
 */
const ALIKE_PART = 0.1;
const ALIKE_LOOKS = 20;

const sum = (values) => values.reduce((all, value) => all + value, 0);

export function startWatch(fleet, key, burst) {
  const looks = [];
  /** Of every process that ever was, as it said last: one that starts again is another. */
  const told = new Map();
  let isOver = false;

  const look = async () => {
    const at = now();
    const left = await fleet.remaining(key);
    const isWhole = left.every((own) => own !== undefined);
    looks.push({ at, spread: isWhole ? Math.max(...left) - Math.min(...left) : Infinity });
  };
  const view = async () => {
    for (const own of await fleet.views()) {
      if (!own) continue;
      const { sent: _, ...counts } = own.counts;
      const lost = sum(own.peers.map((peer) => peer.lost));
      const missing = sum(own.peers.map((peer) => peer.missing));
      told.set(own.id, { ...counts, datagrams: own.transportCounts.sent, lost, missing });
    }
  };
  const watching = (async () => {
    for (let turn = 0; !isOver; turn++) {
      await look();
      if (turn % VIEW_EVERY === 0) await view();
      await sleep(LOOK_MS);
    }
  })();

  return {
    /** The figures so far, of all together. */
    async sums() {
      await view();
      const all = [...told.values()];
      const of = (name) => sum(all.map((counts) => counts[name]));
      return {
        datagrams: of('datagrams'),
        sentBytes: of('sentBytes'),
        repaired: of('repaired'),
        lost: of('lost'),
        missing: of('missing'),
      };
    },
    /** From then on, how long until all stood alike; Infinity: never, up to the end. */
    alikeAfter(fromMs, toMs) {
      const own = looks.filter(({ at }) => at >= fromMs && at < toMs);
      const isAlike = ({ spread }) => spread <= ALIKE_PART * burst;
      const first = own.findIndex((_, n) => own.slice(n, n + ALIKE_LOOKS).every(isAlike));
      return first < 0 ? Infinity : own[first].at - fromMs;
    },
    spreads: (fromMs, toMs) =>
      looks.filter(({ at }) => at >= fromMs && at < toMs).map(({ spread }) => spread),
    async stop() {
      isOver = true;
      await watching;
    },
  };
}
