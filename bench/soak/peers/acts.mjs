/**
 * What happens to the fleet while it is asked, one thing after the other. Each act says what the bound has to
 * know of it (`split`, `crashes`, `loss`), from when on all should be well again (`overMs`), and what else was seen.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { now } from './load.mjs';

const CUT_OFF = 3;
const KILLED = 5;
const LOSS_PERCENT = 10;

/** How long each part lasts, in milliseconds: as usual, and in short. */
const LASTS = {
  steady: [61_000, 2500],
  before: [1000, 500],
  cut: [10_000, 2000],
  paidBack: [10_000, 2000],
  after: [8000, 1500],
  dead: [3000, 1000],
  next: [1000, 0],
  loss: [20_000, 2500],
};

async function steady({ lasts }) {
  await lasts('steady');
  return {};
}

async function cutOff({ lasts, network, rule }) {
  const node = CUT_OFF % rule.nodes;
  await lasts('before');
  const fromMs = now();
  network.cut(node);
  await lasts('cut');
  network.heal(node);
  const toMs = now();
  await lasts('paidBack');
  const paidMs = now();
  await lasts('after');
  const endMs = now();
  return {
    split: { fromMs, toMs },
    overMs: toMs,
    seen({ admitted }) {
      const own = perSecond(admitted.filter(by(node)), fromMs, toMs);
      const all = perSecond(admitted, fromMs, toMs);
      const paying = perSecond(admitted, toMs, paidMs);
      const then = perSecond(admitted, paidMs, endMs);
      return `cut off, it let through ${own}/s by itself and the others ${all - own}/s; for as long after it was healed all together ${paying}/s, then ${then}/s`;
    },
  };
}

async function killed({ lasts, fleet, rule: { nodes, rate } }) {
  const node = KILLED % nodes;
  await lasts('before');
  const diedMs = now();
  await fleet.stop(node, 'SIGKILL');
  await lasts('dead');
  const startMs = now();
  await fleet.start(node);
  const backMs = now();
  await lasts('after');
  return {
    crashes: 1,
    overMs: backMs,
    seen({ admitted, answers }) {
      const first = answers.filter(by(node)).find(({ at }) => at > startMs).at;
      const served = within(admitted.filter(by(node)), first, first + 1000);
      return `away for ${((first - diedMs) / 1000).toFixed(1)} s; in its first second back it let through ${served}, an even share is ${rate / nodes}`;
    },
  };
}

async function rolling({ lasts, fleet, rule: { nodes } }) {
  await lasts('before');
  const beganMs = now();
  for (let node = 0; node < nodes; node++) {
    await fleet.stop(node, 'SIGTERM');
    await fleet.start(node);
    await lasts('next');
  }
  const doneMs = now();
  await lasts('after');
  const eachS = (doneMs - beganMs) / nodes / 1000;
  return {
    crashes: nodes,
    overMs: doneMs,
    seen: () => `${eachS.toFixed(1)} s for each`,
  };
}

async function lossy({ lasts, network }) {
  const tool = network.lose(LOSS_PERCENT);
  if (!tool) return undefined;
  await lasts('loss');
  network.loseNoMore();
  const toMs = now();
  await lasts('after');
  return {
    loss: LOSS_PERCENT / 100,
    overMs: toMs,
    seen: () => `by ${tool}`,
  };
}

const by = (node) => (call) => call.node === node;
const within = (calls, from, to) => calls.filter(({ at }) => at >= from && at < to).length;

const perSecond = (calls, from, to) => Math.round((within(calls, from, to) * 1000) / (to - from));

const ACTS = [
  { name: 'steady', short: 'steady', play: steady },
  { name: 'one cut off, healed', short: 'cut off', play: cutOff, needs: 'canCut' },
  { name: 'one killed -9, back', short: 'killed', play: killed },
  { name: 'all restarted', short: 'restarted', play: rolling },
  { name: `${LOSS_PERCENT} % lost`, short: 'loss', play: lossy, needs: 'canCut' },
];

/** Plays them all, and gives what happened; `told` hears of each before it begins and when it cannot be played. */
export async function playAll(stage, told) {
  const { network, watch, isShort } = stage;
  const lasts = (part) => sleep(LASTS[part][isShort ? 1 : 0]);
  const played = [];
  for (const { name, short, play, needs } of ACTS) {
    if (needs && !network[needs]) {
      told(`${name}: left out, as this takes namespaces`);
      continue;
    }
    told(`${name} ...`);
    const before = await watch.sums();
    const fromMs = now();
    const happened = await play({ ...stage, lasts });
    if (!happened) {
      told(`${name}: left out, as neither netem nor nft is here`);
      continue;
    }
    const toMs = now();
    played.push({
      name,
      short,
      fromMs,
      toMs,
      overMs: fromMs,
      ...happened,
      before,
      after: await watch.sums(),
    });
  }
  return played;
}
