/**
 * A busy limit against a real server that replies 503 for a while.
 *
 *     callers ──▶ throttleFetch, { busy: {} } ──▶ server: 200 … 503 503 503 … 200
 *     offered         │ refused by the client       sent, some replies are busy
 *                     └─ no load on the server
 *
 * Checks the goals of TChannel for throttling on busy replies: traffic drops at once and stays low during the overload,
 * it recovers fully within seconds, and the recovery takes longer after a longer overload.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { percent } from '../report.mjs';
import { always, SAMPLE_MS, serve, until } from './harness.mjs';

/** Few callers with many calls each, so that few calls are in flight at the first busy reply. */
const CALLERS = 4;
const CALLS_PER_SECOND = 400;
const SERVER_MS = 5;

const SHORT_MS = 300;
const LONG_MS = 4000;

/** The overload starts well before the next second of the limit, so that a short one ends within one second. */
const CALM_MS = 2300;

/** Calls per caller. */
const MAX_CALLS = 20_000;

/** No refusal for longer than a second of the limit: traffic has recovered. */
const QUIET_S = 1.2;

const MAX_RECOVERY_MS = 15_000;

/** Callers with a constant rate; late calls are made up for. */
function keepCalling(call) {
  const startedAt = performance.now();
  const everyMs = (1000 * CALLERS) / CALLS_PER_SECOND;
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

/** One overload with recovery. Continues until all runs have recovered. */
async function runOverload(busyMs, running) {
  const server = await serve(() => always(SERVER_MS));
  const api = limiter({ limit: { busy: {} } });
  const throttled = throttleFetch(fetch, { limiter: api, wait: false, onDeny: () => REFUSED });

  await sleep(1000 - (api.clock.now() % 1000)); // starts at a full second of the limit
  const startedAt = performance.now();
  const seconds = () => (performance.now() - startedAt) / 1000;
  const calls = [];
  const limits = [];
  const sample = () => limits.push({ t: seconds(), limit: api.inspect(server.url).limit });
  const sampling = setInterval(sample, SAMPLE_MS);
  const callers = keepCalling(async () => {
    const call = { at: seconds(), status: undefined };
    calls.push(call);
    const response = await throttled(server.url);
    call.status = response.status;
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
    const isBack = await until(isOver, MAX_RECOVERY_MS);
    const recoveryS = Math.max(0, lastRefused() - busyTo);
    running.count--;
    await until(() => running.count === 0, MAX_RECOVERY_MS);
    return { busyMs, busyFrom, busyTo, isBack, recoveryS, calls, limits, seconds: seconds() };
  } finally {
    await callers.stop();
    clearInterval(sampling);
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

/** A run with its calls per second. */
function counted({ calls, ...run }) {
  const whole = Math.floor(run.seconds);
  return { ...run, perSecond: Array.from({ length: whole }, (_, n) => tally(calls, n, n + 1)) };
}

/** The most calls sent in any second between `from` and `to`. */
function mostSent(calls, from, to) {
  const starts = calls.map(({ at }) => at).filter((at) => at >= from && at + 1 <= to);
  return starts.reduce((most, at) => Math.max(most, tally(calls, at, at + 1).sent), 0);
}

/** Window in which traffic is measured. */
const WINDOW_S = 0.25;

/** Seconds from the first busy reply until at most a tenth of the offered calls are sent. */
function collapsedAfter({ calls, busyFrom }) {
  const isDown = (from) => {
    const { sent } = tally(calls, from, from + WINDOW_S);
    return sent <= (CALLS_PER_SECOND * WINDOW_S) / 10;
  };
  const down = calls.find(({ at }) => at >= busyFrom && isDown(at));
  return down ? down.at - busyFrom : Infinity;
}

export async function busy() {
  const running = { count: 2 };
  const runs = [SHORT_MS, LONG_MS].map((busyMs) => runOverload(busyMs, running));
  const [short, long] = await Promise.all(runs);
  const { calls, busyFrom, busyTo } = long;
  const collapse = collapsedAfter(long);
  const whileBusy = tally(calls, busyFrom + 1, busyTo);
  const most = mostSent(calls, busyFrom + 1, busyTo);
  const facts = {
    offered: CALLS_PER_SECOND,
    collapse,
    sentShare: whileBusy.sent / whileBusy.offered,
    probes: whileBusy.sent,
    most,
    short: short.recoveryS,
    long: long.recoveryS,
    isBack: short.isBack && long.isBack,
  };
  const lengths = `${SHORT_MS / 1000} s and ${LONG_MS / 1000} s`;
  return {
    runs: [counted(short), counted(long)],
    facts,
    rows: [
      {
        name: 'collapse',
        expected: 'at most a tenth of the traffic within a second',
        seen: `after ${collapse.toFixed(2)} s; later ${percent(facts.sentShare)} of ${CALLS_PER_SECOND}/s are sent`,
        holds: collapse <= 1 && facts.sentShare <= 0.05,
      },
      {
        name: 'no flapping',
        expected: 'few probes during the overload, no bursts',
        seen: `${facts.probes} probes, at most ${most} in one second`,
        holds: facts.probes > 0 && most <= 0.05 * CALLS_PER_SECOND,
      },
      {
        name: 'recovery',
        expected: 'full within seconds, later after a longer overload',
        seen: `${short.recoveryS.toFixed(1)} s and ${long.recoveryS.toFixed(1)} s after overloads of ${lengths}`,
        holds: facts.isBack && long.recoveryS <= 10 && short.recoveryS < long.recoveryS,
      },
    ],
  };
}
