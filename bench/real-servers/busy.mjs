/**
 * What a busy limit is meant to do, against a real server that says 503 for a while.
 *
 *     callers ──▶ throttleFetch, { busy: {} } ──▶ server: 200 … 503 503 503 … 200
 *     offered         │ refused here                sent, some of them answered busy
 *                     └─ at no cost to the server
 *
 * Three goals, those that TChannel names for throttling on busy responses: traffic collapses at once and
 * stays down while the server is busy; it is back in full soon after; and later after a longer spell.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { always, percent, SAMPLE_MS, serve, until } from './harness.mjs';

/** Few callers, often: so few are in flight when the first busy reply comes that a short spell stays short. */
const CALLERS = 4;
const CALLS_A_SECOND = 400;
const SERVER_MS = 5;

const SHORT_MS = 300;
const LONG_MS = 4000;

/** The spell begins a good way before the next second begins, as the limit counts them: a short one is over by then. */
const CALM_MS = 2300;

/** No caller calls more often than this, whatever happens. */
const MAX_CALLS = 20_000;

/** Nobody refused for longer than a whole second of the limit: traffic is back. */
const QUIET_S = 1.2;

/** Not back by then is stuck. */
const MAX_BACK_MS = 15_000;

/** Callers that call at a steady pace; who was held up makes up for it. */
function keepCalling(call) {
  const startedAt = performance.now();
  const everyMs = (1000 * CALLERS) / CALLS_A_SECOND;
  let isStopped = false;
  const caller = async (_, n) => {
    for (let turn = 0; turn < MAX_CALLS && !isStopped; turn++) {
      const dueAt = startedAt + (turn + n / CALLERS) * everyMs;
      await sleep(Math.max(0, dueAt - performance.now()));
      await call();
    }
  };
  const all = Promise.all(Array.from({ length: CALLERS }, caller));
  return {
    stop() {
      isStopped = true;
      return all;
    },
  };
}

const REFUSED = { status: 0, headers: new Headers() };

/** One spell of busy replies, from calm to calm; who is back first goes on until all are. */
async function spell(busyMs, running) {
  const server = await serve(() => always(SERVER_MS));
  const engine = limiter({ limit: { busy: {} } });
  const throttled = throttleFetch(fetch, { limiter: engine, wait: false, onDeny: () => REFUSED });

  await sleep(1000 - (engine.clock.now() % 1000)); // from a whole second on, as the limit counts
  const startedAt = performance.now();
  const seconds = () => (performance.now() - startedAt) / 1000;
  const calls = [];
  const limits = [];
  const look = () => limits.push({ t: seconds(), limit: engine.inspect(server.url).limit });
  const looking = setInterval(look, SAMPLE_MS);
  const callers = keepCalling(async () => {
    const mine = { at: seconds(), status: undefined };
    calls.push(mine);
    const response = await throttled(server.url);
    mine.status = response.status;
    if (response !== REFUSED) await response.arrayBuffer();
  });
  try {
    await sleep(CALM_MS);
    const busyFrom = seconds();
    server.reply = () => always(SERVER_MS, 503);
    await sleep(busyMs);
    const busyTo = seconds();
    server.reply = () => always(SERVER_MS);
    const lastRefused = () => calls.findLast(({ status }) => status === 0)?.at ?? busyFrom;
    const isOver = () => seconds() - Math.max(busyTo, lastRefused()) > QUIET_S;
    const isBack = await until(isOver, MAX_BACK_MS);
    const backAfter = Math.max(0, lastRefused() - busyTo);
    running.count--;
    await until(() => running.count === 0, MAX_BACK_MS);
    return { busyMs, busyFrom, busyTo, isBack, backAfter, calls, limits, seconds: seconds() };
  } finally {
    await callers.stop();
    clearInterval(looking);
    await server.close();
  }
}

const isSent = ({ status }) => status !== 0;
const isBusy = ({ status }) => status === 503;

const tally = (calls, from, to) => {
  const now = calls.filter(({ at }) => at >= from && at < to);
  return {
    t: from,
    offered: now.length,
    sent: now.filter(isSent).length,
    busy: now.filter(isBusy).length,
  };
};

/** A run with its calls counted by the second. */
function counted({ calls, ...run }) {
  const whole = Math.floor(run.seconds);
  return { ...run, perSecond: Array.from({ length: whole }, (_, n) => tally(calls, n, n + 1)) };
}

/** The most that was sent in any one second from `from` to `to`. */
function mostSent(calls, from, to) {
  const starts = calls.map(({ at }) => at).filter((at) => at >= from && at + 1 <= to);
  return starts.reduce((most, at) => Math.max(most, tally(calls, at, at + 1).sent), 0);
}

/** A stretch in which traffic is looked at. */
const LOOK_S = 0.25;

/** When no more than a tenth of what is offered was sent, counted from the first busy reply on. */
function collapsedAfter({ calls, busyFrom }) {
  const isDown = (from) => {
    const { sent } = tally(calls, from, from + LOOK_S);
    return sent <= (CALLS_A_SECOND * LOOK_S) / 10;
  };
  const down = calls.find(({ at }) => at >= busyFrom && isDown(at));
  return down ? down.at - busyFrom : Infinity;
}

export async function busy() {
  const running = { count: 2 };
  const spells = [SHORT_MS, LONG_MS].map((busyMs) => spell(busyMs, running));
  const [short, long] = await Promise.all(spells);
  const { calls, busyFrom, busyTo } = long;
  const collapse = collapsedAfter(long);
  const whileBusy = tally(calls, busyFrom + 1, busyTo);
  const most = mostSent(calls, busyFrom + 1, busyTo);
  const facts = {
    offered: CALLS_A_SECOND,
    collapse,
    sentShare: whileBusy.sent / whileBusy.offered,
    probes: whileBusy.sent,
    most,
    short: short.backAfter,
    long: long.backAfter,
    isBack: short.isBack && long.isBack,
  };
  const lengths = `${SHORT_MS / 1000} s and ${LONG_MS / 1000} s`;
  return {
    runs: [counted(short), counted(long)],
    facts,
    rows: [
      {
        name: 'collapse',
        expected: 'down to a tenth within a second',
        seen: `after ${collapse.toFixed(2)} s; later ${percent(facts.sentShare)} of ${CALLS_A_SECOND}/s are sent`,
        holds: collapse <= 1 && facts.sentShare <= 0.05,
      },
      {
        name: 'no flapping',
        expected: 'while busy: a few probes, no surge',
        seen: `${facts.probes} probes, at most ${most} in any one second`,
        holds: facts.probes > 0 && most <= 0.05 * CALLS_A_SECOND,
      },
      {
        name: 'recovery',
        expected: 'in full within seconds, later after a longer spell',
        seen: `${short.backAfter.toFixed(1)} s and ${long.backAfter.toFixed(1)} s after spells of ${lengths}`,
        holds: facts.isBack && long.backAfter <= 10 && short.backAfter < long.backAfter,
      },
    ],
  };
}
