/**
 * The scenario of the demo and its checks.
 *
 * Durations are in seconds at pace 1. Numbers in the log are measured.
 */

import { haveJoined, until } from './daemons.mjs';

/** Calls per second at pace 1. */
const ABUSE = 60;
const GOOD = [2, 3, 4];

/**
 * Bounds for mallory's allowed calls, relative to one bucket. Reports take some milliseconds, so a few calls more are
 * possible. Fewer are possible too: calls in west's socket during the freeze are counted later, after the client's
 * timeout.
 */
const MAX_RATIO = 1.05;
const MIN_RATIO = 0.8;

/** Runs it; resolves with mallory's remaining calls at north and south after the restart of north. */
export async function runScenario(demo) {
  const { daemons, mallory, good, limit, pace, log, pass } = demo;
  const [north, south, west] = daemons;

  await Promise.all(daemons.map((daemon) => daemon.start()));
  for (const { name, pid, http } of daemons) {
    log(`${name} is process ${pid}: curl '${http}/inspect?key=mallory'`);
  }
  log(`watch it in a browser: http://${south.http}/page`);
  await haveJoined(daemons);
  log('the daemons have joined over UDP, with authenticated datagrams');

  const rates = GOOD.map((perSecond) => perSecond * pace);
  good.forEach((caller, n) => {
    caller.start(rates[n]);
  });
  log(`alice, bob and carol start: ${rates.join(', ')} calls/s, each over all daemons`);
  await pass(3);

  mallory.start(ABUSE * pace);
  log(`mallory starts: ${ABUSE * pace} calls/s over all daemons`);
  await pass(2);
  log(`mallory: ${mallory.allowed} calls allowed, a burst of ${limit.burst} and the rate since`);
  const rateOfThree = allowedRate(demo);
  await pass(5);
  log(`mallory: ${rateOfThree()} calls/s from all daemons; the limit is ${limit.rate}/s`);

  await north.kill();
  log('north is killed (kill -9); its clients use the next daemon');
  const rateOfTwo = allowedRate(demo);
  await pass(6);
  log(`south and west continue; mallory: ${rateOfTwo()} calls/s`);

  mallory.pause();
  log('mallory pauses until its bucket is full');
  await pass(5);
  const burst = await burstDuringFreeze(demo);
  mallory.start(ABUSE * pace);
  log(`west stops for a moment; mallory bursts at west and south: ${burst} allowed`);
  const inDebt = mallory.allowed;
  const restart = await restartNorth(demo);
  await pass(1);
  demo.writeSvg();

  await until(async () => (await south.remaining(mallory.name)) >= 0, 'the debt to be paid');
  log(`the debt is paid; mallory: ${mallory.allowed - inDebt} calls allowed meanwhile`);
  await pass(4);

  west.freeze();
  log('west is frozen (kill -STOP): it receives nothing and does not reply');
  const rateSinceFreeze = allowedRate(demo);
  await pass(4);
  west.thaw();
  log('west continues, detects the pause and synchronises with its peers');
  await pass(6);
  log(`mallory: ${rateSinceFreeze()} calls/s since the freeze`);

  for (const caller of [mallory, ...good]) caller.pause();
  await until(() => [mallory, ...good].every(({ pending }) => pending === 0), 'the last replies');
  return restart;
}

/**
 * The worst case: west stops, as in a long garbage collection, and receives the reports of south only after it has
 * allowed as much itself.
 */
async function burstDuringFreeze({ daemons: [, south, west], mallory, limit }) {
  west.freeze();
  const atWest = mallory.burst(limit.burst, west);
  const atSouth = await mallory.burst(limit.burst, south);
  west.thaw();
  return atSouth + (await atWest);
}

/** Restarts north and reads mallory's state there before any other call. */
async function restartNorth({ daemons: [north, south], mallory, limit, log }) {
  const started = north.start();
  log(`north restarts, process ${north.pid}; without peers mallory would get ${limit.burst} more`);
  await started;
  const restart = { atNorth: undefined, atSouth: undefined };
  await until(async () => {
    const remaining = [north, south].map((daemon) => daemon.remaining(mallory.name));
    [restart.atNorth, restart.atSouth] = await Promise.all(remaining);
    return restart.atNorth !== undefined && restart.atSouth !== undefined;
  }, 'north to reply');
  log(`north has the state of its peers: mallory ${formatBalance(restart.atNorth)}`);
  return restart;
}

const formatBalance = (remaining) =>
  remaining < 0 ? `owes ${-remaining}` : `has ${remaining} left`;

/** Measures mallory's allowed calls per second from now until the result is called. */
function allowedRate({ mallory, seconds }) {
  const from = { allowed: mallory.allowed, at: seconds() };
  return () => ((mallory.allowed - from.allowed) / (seconds() - from.at)).toFixed(1);
}

/** The checks: a text, and whether it holds. */
export function checksOf({ daemons, mallory, good, limit }, { atNorth, atSouth }) {
  const { calls, allowed, oneBucket } = mallory;
  const bound = Math.floor(MAX_RATIO * oneBucket);
  const refused = sum(good, 'denied');
  const unanswered = sum([mallory, ...good], 'unanswered');
  const down = daemons.filter(({ state }) => state !== 'up').map(({ name }) => name);
  return [
    {
      text: `mallory: ${calls} calls, ${allowed} allowed; one bucket allows ${oneBucket}, the bound is ${bound}`,
      holds: allowed <= bound && allowed >= MIN_RATIO * oneBucket,
    },
    {
      text: `alice, bob and carol: ${sum(good, 'calls')} calls, ${refused} denied`,
      holds: refused === 0,
    },
    {
      text: `after the restart mallory ${formatBalance(atNorth)} at north and ${formatBalance(atSouth)} at south`,
      holds: Math.abs(atNorth - atSouth) <= limit.burst / 4,
    },
    { text: `calls without a reply: ${unanswered}`, holds: unanswered === 0 },
    {
      text: `daemons that ended unexpectedly: ${down.join(', ') || 'none'}`,
      holds: down.length === 0,
    },
  ];
}

const sum = (callers, field) => callers.reduce((total, caller) => total + caller[field], 0);
