/** What happens to an etcd while workers share a spacing through it, one thing after the other. */

import { setTimeout as sleep } from 'node:timers/promises';
import { machineNow } from './workers.mjs';

/** How long each part lasts, in milliseconds: as usual, and in short. */
const LASTS = { steady: [15_000, 2000], away: [6000, 2500], after: [6000, 1500] };

/** Each says when it began and when it was over for the servers: then there is a quorum that can be reached. */
const ACTS = [
  { name: 'nothing', isShort: true, play: ({ lasts }) => lasts('steady') },
  {
    name: 'the leader killed (`kill -9`), started again',
    times: 3,
    isShort: true,
    async play({ cluster, lasts }) {
      const lost = cluster.leader();
      await cluster.kill(lost);
      await lasts('away');
      cluster.restart(lost);
      await cluster.ready(lost);
    },
  },
  {
    name: 'the leader stands still (`SIGSTOP`), goes on',
    times: 3,
    isShort: true,
    play: ({ cluster, lasts }) => standStill(cluster, cluster.leader(), lasts),
  },
  {
    name: 'another member stands still, goes on',
    play: ({ cluster, lasts }) => standStill(cluster, cluster.others(cluster.leader())[0], lasts),
  },
  {
    name: 'the leader cut off from the others, not from the workers',
    needsCut: true,
    times: 3,
    async play({ cluster, lasts }) {
      const lost = cluster.leader();
      cluster.cutFromOthers(lost);
      await lasts('away');
      cluster.healFromOthers(lost);
      await cluster.ready(lost);
    },
  },
  {
    name: 'the leader cut off from everybody',
    needsCut: true,
    async play({ cluster, network, lasts }) {
      const lost = cluster.leader();
      network.cut(lost);
      await lasts('away');
      network.heal(lost);
    },
  },
  {
    name: 'two of three killed: no quorum; started again',
    isShort: true,
    isWithoutQuorum: true,
    async play({ cluster, lasts, noted }) {
      const [first, second] = cluster.others(cluster.leader());
      await Promise.all([cluster.kill(first), cluster.kill(second)]);
      const from = machineNow();
      await lasts('away');
      noted({ from, to: machineNow() });
      cluster.restart(first);
      cluster.restart(second);
      await cluster.ready(first);
    },
  },
];

async function standStill(cluster, member, lasts) {
  cluster.pause(member);
  await lasts('away');
  cluster.resume(member);
}

/** Plays them; gives when each began and ended, and when there was no quorum. */
export async function playAll(stage, tell) {
  const { network, isShort } = stage;
  const lasts = (part) => sleep(LASTS[part][isShort ? 1 : 0]);
  const played = [];
  for (const act of ACTS) {
    if ((isShort && !act.isShort) || (act.needsCut && !network.canCut)) continue;
    const times = isShort ? 1 : (act.times ?? 1);
    tell(`${act.name} …`);
    const turns = [];
    let quorumLost;
    const noted = (span) => {
      quorumLost = span;
    };
    for (let turn = 0; turn < times; turn++) {
      const from = machineNow();
      await act.play({ ...stage, lasts, noted });
      const over = machineNow();
      await lasts('after');
      turns.push({ from, over, to: machineNow() });
    }
    played.push({ name: act.name, times, turns, quorumLost });
  }
  return played;
}
