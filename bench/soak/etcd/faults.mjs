/** Faults of an etcd cluster, injected one after the other while workers share a spacing through it. */

import { setTimeout as sleep } from 'node:timers/promises';
import { machineNow } from './workers.mjs';

/** Milliseconds of each phase: in a full run and in a short one. */
const PHASES = { steady: [15_000, 2000], fault: [6000, 2500], after: [6000, 1500] };

/** A phase lasts until permits are granted again, at most so long after the fault. */
const MAX_RECOVERY_MS = 15_000;

/** `run` resolves when the fault is over: a quorum can be reached again. */
const FAULTS = [
  { name: 'none', isShort: true, run: ({ wait }) => wait('steady') },
  {
    name: 'leader killed (`kill -9`), restarted',
    times: 3,
    isShort: true,
    async run({ cluster, wait }) {
      const lost = cluster.leader();
      await cluster.kill(lost);
      await wait('fault');
      await cluster.restart(lost);
    },
  },
  {
    name: 'leader paused (`SIGSTOP`), resumed',
    times: 3,
    isShort: true,
    run: ({ cluster, wait }) => pauseMember(cluster, cluster.leader(), wait),
  },
  {
    name: 'follower paused, resumed',
    run: ({ cluster, wait }) => pauseMember(cluster, cluster.others(cluster.leader())[0], wait),
  },
  {
    name: 'leader partitioned from the members, not from the workers',
    needsCut: true,
    times: 3,
    async run({ cluster, wait }) {
      const lost = cluster.leader();
      cluster.cutFromOthers(lost);
      await wait('fault');
      cluster.healFromOthers(lost);
      await cluster.ready(lost);
    },
  },
  {
    name: 'leader partitioned from members and workers',
    needsCut: true,
    async run({ cluster, network, wait }) {
      const lost = cluster.leader();
      network.cut(lost);
      await wait('fault');
      network.heal(lost);
    },
  },
  {
    name: 'two of three killed (no quorum), restarted',
    isShort: true,
    isWithoutQuorum: true,
    async run({ cluster, wait, onQuorumLost }) {
      const [first, second] = cluster.others(cluster.leader());
      await Promise.all([cluster.kill(first), cluster.kill(second)]);
      const from = machineNow();
      await wait('fault');
      onQuorumLost({ from, to: machineNow() });
      await Promise.all([cluster.restart(first), cluster.restart(second)]);
    },
  },
];

async function pauseMember(cluster, member, wait) {
  cluster.pause(member);
  await wait('fault');
  cluster.resume(member);
}

/** Runs all faults; returns when each began and ended, and when there was no quorum. */
export async function runFaults(env, log) {
  const { network, isShort } = env;
  const wait = (phase) => sleep(PHASES[phase][isShort ? 1 : 0]);
  const results = [];
  for (const fault of FAULTS) {
    if ((isShort && !fault.isShort) || (fault.needsCut && !network.canCut)) continue;
    const times = isShort ? 1 : (fault.times ?? 1);
    log(`${fault.name} …`);
    const rounds = [];
    let quorumLost;
    const onQuorumLost = (span) => {
      quorumLost = span;
    };
    for (let round = 0; round < times; round++) {
      const from = machineNow();
      await fault.run({ ...env, wait, onQuorumLost });
      const over = machineNow();
      await wait('after');
      while (!env.hasPermitSince(over) && machineNow() < over + MAX_RECOVERY_MS) await sleep(50);
      rounds.push({ from, over, to: machineNow() });
    }
    results.push({ name: fault.name, times, rounds, quorumLost });
  }
  return results;
}
