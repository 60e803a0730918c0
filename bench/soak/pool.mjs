/**
 * Pods that divide a limit through one real Redis, and what happens to them and to it.
 *
 *     npm run soak:pool               each thing five times, outages of 15 s
 *     npm run soak:pool -- --short    once, outages of 4 s, as in the tests
 *     npm run soak:pool -- --json     for a machine
 *
 * Everything happens on loopback with processes of its own, whose clocks are hours apart; Redis's clock is this machine's, so
 * its seconds are. Exit code 1 if in any second they took more than the limit, or did not soon take all of it again; then it
 * ends at once.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { machineLine, row } from '../report.mjs';
import { Pods } from './pods.mjs';
import { startRedis } from './server.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const TIMES = isShort ? 1 : 5;
const OUTAGE_MS = isShort ? 4000 : 15_000;

/** No number of pods divides it. */
const LIMIT = 103;
const PODS = 5;
const OPTIONS = { name: 'soak', hold: '30s' };

const WHOLE_WITHIN_MS = 30_000;

/** Things happen so long after each other, and in another part of a second each time. */
let played = 0;
const apartMs = () => 1000 + ((played++ * 370) % 1000);

/** What happens. What comes back is when it was over. */
const ACTS = {
  'one more comes': async (pods) => pods.start(),
  'one leaves': (pods) => pods.leave(),
  'one comes': async (pods) => pods.start(),
  'one is killed (`kill -9`)': (pods) => pods.kill(),
  'another comes': async (pods) => pods.start(),
  [`Redis stands still for ${OUTAGE_MS / 1000} s`]: async (_, redis) => {
    redis.pause();
    await sleep(OUTAGE_MS);
    redis.resume();
  },
  [`Redis is killed, and back after ${OUTAGE_MS / 1000} s without a memory`]: async (_, redis) => {
    await redis.kill();
    await sleep(OUTAGE_MS);
    await redis.restart();
  },
  'Redis comes back without a memory, and one comes at once': async (pods, redis) => {
    await redis.kill();
    await redis.restart();
    pods.start();
  },
  'Redis forgets everything, and one is killed': async (pods, redis) => {
    redis.cli('FLUSHALL');
    await pods.kill();
  },
};

const isHeld = ({ most, wholeAfterMs }) => most <= LIMIT && wholeAfterMs < Infinity;

/** Plays one thing, until all of the limit is in use again. */
async function play(name, pods, redis) {
  pods.sums = new Map();
  await sleep(apartMs());
  const startedAt = Date.now();
  await ACTS[name](pods, redis);
  const since = Date.now();
  const wholeAfterMs = (await pods.wholeFrom(since, LIMIT, WHOLE_WITHIN_MS)) - since;
  const seconds = [...pods.sums].filter(([second]) => second * 1000 + 1000 < Date.now());
  const meanwhile = Array.from(
    { length: Math.max(0, Math.floor(since / 1000) - Math.ceil(startedAt / 1000)) },
    (_, n) => pods.sums.get(Math.ceil(startedAt / 1000) + n) ?? 0,
  );
  return {
    pods: pods.count,
    most: Math.max(...seconds.map(([, sum]) => sum)),
    leastMeanwhile: meanwhile.length > 0 ? Math.min(...meanwhile) : null,
    wholeAfterMs,
  };
}

const redis = await startRedis();
const pods = new Pods({
  port: redis.port,
  limit: { ramp: { min: LIMIT, max: LIMIT, over: '1s' } },
  options: OPTIONS,
});
const results = [];
try {
  const since = Date.now();
  for (let n = 0; n < PODS; n++) pods.start();
  const wholeAfterMs = (await pods.wholeFrom(since, LIMIT, WHOLE_WITHIN_MS)) - since;
  const most = Math.max(...pods.sums.values());
  results.push({ name: `${PODS} start at once`, plays: [{ pods: PODS, most, wholeAfterMs }] });
  const names = Array.from({ length: TIMES }, () => Object.keys(ACTS)).flat();
  for (const name of names) {
    if (!results.every(({ plays }) => plays.every(isHeld))) break;
    const latest = await play(name, pods, redis);
    const known = results.find((own) => own.name === name);
    if (known) known.plays.push(latest);
    else results.push({ name, plays: [latest] });
  }
} finally {
  await pods.stop();
  await redis.stop();
}

const judged = results.map(({ name, plays }) => {
  const most = Math.max(...plays.map((own) => own.most));
  const wholeAfterMs = Math.max(...plays.map((own) => own.wholeAfterMs));
  const least = plays.map((own) => own.leastMeanwhile ?? Infinity);
  return {
    name,
    times: plays.length,
    limit: LIMIT,
    most,
    leastMeanwhile: Math.min(...least),
    wholeAfterMs,
    holds: plays.every(isHeld),
  };
});

if (words.includes('--json')) console.log(JSON.stringify(judged));
else {
  const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
  console.log(`${machineLine()}; taken while a second changed: ${pods.unsure}\n`);
  console.log(
    row([
      'what happens',
      'times',
      'most in a second',
      'least meanwhile',
      'all in use again after, at most',
    ]),
  );
  console.log(row(Array(5).fill('---')));
  for (const { name, times, most, leastMeanwhile, wholeAfterMs } of judged) {
    const least = leastMeanwhile === Infinity ? '' : leastMeanwhile;
    console.log(row([name, times, `${most} of ${LIMIT}`, least, seconds(wholeAfterMs)]));
  }
}
process.exitCode = judged.every(({ holds }) => holds) ? 0 : 1;
