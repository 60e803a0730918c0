/**
 * The phases of a soak run: faults that are injected into the fleet under load, one after the other. Each phase returns
 * what the overshoot bound depends on (`split`, `crashes`, `loss`), when the fault ended (`overMs`), and an observation.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { now } from './load.mjs';

const PARTITIONED = 3;
const KILLED = 5;
const LOSS_PERCENT = 10;

/** Duration of each step in milliseconds: in a full run and in a short one. */
const DURATIONS = {
  steady: [61_000, 2500],
  before: [1000, 500],
  cut: [10_000, 2000],
  paidBack: [10_000, 2000],
  after: [8000, 1500],
  dead: [3000, 1000],
  next: [1000, 0],
  loss: [20_000, 2500],
};

async function steady({ wait }) {
  await wait('steady');
  return {};
}

async function partition({ wait, network, rule }) {
  const node = PARTITIONED % rule.nodes;
  await wait('before');
  const fromMs = now();
  network.cut(node);
  await wait('cut');
  network.heal(node);
  const toMs = now();
  await wait('paidBack');
  const paidMs = now();
  await wait('after');
  const endMs = now();
  return {
    split: { fromMs, toMs },
    overMs: toMs,
    observe({ admitted }) {
      const alone = perSecond(admitted.filter(by(node)), fromMs, toMs);
      const all = perSecond(admitted, fromMs, toMs);
      const paying = perSecond(admitted, toMs, paidMs);
      const then = perSecond(admitted, paidMs, endMs);
      return `during the partition the node admitted ${alone}/s and the rest ${all - alone}/s; for as long afterwards all together ${paying}/s, then ${then}/s`;
    },
  };
}

async function killed({ wait, fleet, rule: { nodes, rate } }) {
  const node = KILLED % nodes;
  await wait('before');
  const diedMs = now();
  await fleet.stop(node, 'SIGKILL');
  await wait('dead');
  const startMs = now();
  await fleet.start(node);
  const backMs = now();
  await wait('after');
  return {
    crashes: 1,
    overMs: backMs,
    observe({ admitted, replies }) {
      const first = replies.filter(by(node)).find(({ at }) => at > startMs).at;
      const admittedThen = within(admitted.filter(by(node)), first, first + 1000);
      return `down for ${((first - diedMs) / 1000).toFixed(1)} s; in its first second back it admitted ${admittedThen}, an even share is ${rate / nodes}`;
    },
  };
}

async function rollingRestart({ wait, fleet, rule: { nodes } }) {
  await wait('before');
  const startMs = now();
  for (let node = 0; node < nodes; node++) {
    await fleet.stop(node, 'SIGTERM');
    await fleet.start(node);
    await wait('next');
  }
  const doneMs = now();
  await wait('after');
  const eachS = (doneMs - startMs) / nodes / 1000;
  return {
    crashes: nodes,
    overMs: doneMs,
    observe: () => `${eachS.toFixed(1)} s per node`,
  };
}

async function lossy({ wait, network }) {
  const tool = network.lose(LOSS_PERCENT);
  if (!tool) return undefined;
  await wait('loss');
  network.stopLoss();
  const toMs = now();
  await wait('after');
  return {
    loss: LOSS_PERCENT / 100,
    overMs: toMs,
    observe: () => `by ${tool}`,
  };
}

const by = (node) => (call) => call.node === node;
const within = (calls, from, to) => calls.filter(({ at }) => at >= from && at < to).length;

const perSecond = (calls, from, to) => Math.round((within(calls, from, to) * 1000) / (to - from));

const PHASES = [
  { name: 'steady', short: 'steady', run: steady },
  { name: 'partition of one node', short: 'partition', run: partition, needs: 'canCut' },
  { name: 'one node killed -9, restarted', short: 'killed', run: killed },
  { name: 'rolling restart', short: 'restart', run: rollingRestart },
  { name: `${LOSS_PERCENT} % datagram loss`, short: 'loss', run: lossy, needs: 'canCut' },
];

/** Runs all phases. `log` gets a line before each, and when one is skipped. */
export async function runPhases(context, log) {
  const { network, monitor, isShort } = context;
  const wait = (step) => sleep(DURATIONS[step][isShort ? 1 : 0]);
  const phases = [];
  for (const { name, short, run, needs } of PHASES) {
    if (needs && !network[needs]) {
      log(`${name}: skipped, needs network namespaces`);
      continue;
    }
    log(`${name} ...`);
    const before = await monitor.sums();
    const fromMs = now();
    const result = await run({ ...context, wait });
    if (!result) {
      log(`${name}: skipped, needs netem or nft`);
      continue;
    }
    const toMs = now();
    phases.push({
      name,
      short,
      fromMs,
      toMs,
      overMs: fromMs,
      ...result,
      before,
      after: await monitor.sums(),
    });
  }
  return phases;
}
