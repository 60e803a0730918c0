/** Polls all daemons: the spread of their levels, and their message counters. */

import { setTimeout as sleep } from 'node:timers/promises';
import { now } from './load.mjs';

const POLL_MS = 100;
const VIEW_EVERY = 5;

/**
 * Nodes have converged if their levels differ by at most this fraction of the burst, for this many samples or up to the
 * end. One sample is not enough: right after a partition, levels may be equal before any report has arrived.
 */
const MAX_SPREAD_FRACTION = 0.1;
const CONVERGED_SAMPLES = 20;

const sum = (values) => values.reduce((total, value) => total + value, 0);

export function startMonitor(fleet, key, burst) {
  const samples = [];
  /** Last counters by node id; a restarted daemon has a new id. */
  const countsById = new Map();
  let isOver = false;

  const sample = async () => {
    const at = now();
    const levels = await fleet.remaining(key);
    const isComplete = levels.every((level) => level !== undefined);
    samples.push({ at, spread: isComplete ? Math.max(...levels) - Math.min(...levels) : Infinity });
  };
  const readViews = async () => {
    for (const view of await fleet.views()) {
      if (!view) continue;
      const { sent: _, ...counts } = view.counts;
      const lost = sum(view.peers.map((peer) => peer.lost));
      const missing = sum(view.peers.map((peer) => peer.missing));
      countsById.set(view.id, { ...counts, datagrams: view.transportCounts.sent, lost, missing });
    }
  };
  const polling = (async () => {
    for (let turn = 0; !isOver; turn++) {
      await sample();
      if (turn % VIEW_EVERY === 0) await readViews();
      await sleep(POLL_MS);
    }
  })();

  return {
    /** Counter totals of all nodes so far. */
    async sums() {
      await readViews();
      const all = [...countsById.values()];
      const of = (name) => sum(all.map((counts) => counts[name]));
      return {
        datagrams: of('datagrams'),
        sentBytes: of('sentBytes'),
        repaired: of('repaired'),
        lost: of('lost'),
        missing: of('missing'),
      };
    },
    /** Time until all nodes have converged; Infinity if they did not. */
    convergedAfter(fromMs, toMs) {
      const inSpan = samples.filter(({ at }) => at >= fromMs && at < toMs);
      const isClose = ({ spread }) => spread <= MAX_SPREAD_FRACTION * burst;
      const first = inSpan.findIndex((_, n) =>
        inSpan.slice(n, n + CONVERGED_SAMPLES).every(isClose),
      );
      return first < 0 ? Infinity : inSpan[first].at - fromMs;
    },
    spreads: (fromMs, toMs) =>
      samples.filter(({ at }) => at >= fromMs && at < toMs).map(({ spread }) => spread),
    async stop() {
      isOver = true;
      await polling;
    },
  };
}
