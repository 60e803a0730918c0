/**
 * Five scenarios of an adaptive concurrency limit (rule aimd) against real servers of unknown capacity.
 *
 *     ramp-up   a healthy server; the limit reaches its maximum and stays there
 *     outage    the server stops replying; the limit falls to 1 and recovers
 *     slow-down response times grow; the limit decreases
 *     quota     a fixed rate, 429 above it: high throughput, few rejections
 *     flood     thousands of calls at once: never more in flight than the limit
 *
 * These are the behaviours that Vector's RFC 1858 describes under "Observed Behavior".
 */

import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { percent } from '../report.mjs';
import { always, keepSending, mean, serve, until, watch } from './harness.mjs';

/** A ramp-up that takes longer has failed. */
const MAX_RAMP_UP_MS = 15_000;

/** Runs a scenario with a server, a limited client and a recorder of the limit. */
async function runScenario({ max, reply, timeoutMs = 10_000 }, scenario) {
  const server = await serve(reply);
  const api = limiter({ limit: { adaptive: { rule: 'aimd', max } } });
  const recorder = watch(api, server.url);
  const counts = new Map();
  const count = (what) => counts.set(what, (counts.get(what) ?? 0) + 1);

  // Each request has its own timeout. The signal of a sender only ends its wait for a permit.
  const request = (url) => fetch(url, { signal: AbortSignal.timeout(timeoutMs) });
  const throttled = throttleFetch(request, { limiter: api, wait: true });
  const send = async (signal) => {
    try {
      const response = await throttled(server.url, { signal });
      await response.arrayBuffer();
      count(response.status);
    } catch (error) {
      count(error.name);
    }
  };
  const counted = (what) => counts.get(what) ?? 0;
  const started = [];
  const senders = (count) => {
    started.push(keepSending(count, send));
    return started.at(-1);
  };
  try {
    const result = await scenario({ server, api, send, senders, recorder, counted });
    return { ...result, ...recorder.stop() };
  } finally {
    recorder.stop();
    await Promise.all(started.map((group) => group.stop()));
    await server.close();
  }
}

export function rampUp() {
  const max = 10;
  return runScenario({ max, reply: () => always(80) }, async ({ senders, recorder, counted }) => {
    const sending = senders(2 * max);
    const reached = await until(() => recorder.limit() >= max, MAX_RAMP_UP_MS);
    const reachedAt = recorder.seconds();
    await sleep(2500);
    await sending.stop();
    const after = mean(recorder.limits(reachedAt));
    return {
      title: 'Healthy server: the limit reaches its maximum',
      expected: `limit reaches ${max}, then stays near it`,
      seen: `limit ${max} after ${reachedAt.toFixed(1)} s, then ${after.toFixed(1)} on average`,
      facts: { max, reached, reachedAt, after, errors: counted('TimeoutError') },
      holds: reached && after >= 0.75 * max,
    };
  });
}

export function outage() {
  const max = 8;
  const setup = { max, reply: () => always(60), timeoutMs: 300 };
  return runScenario(setup, async ({ server, senders, recorder, counted }) => {
    const sending = senders(2 * max);
    await until(() => recorder.limit() >= max, MAX_RAMP_UP_MS);
    const before = recorder.limit();
    server.reply = () => always(Infinity);
    recorder.mark('down');
    const silentAt = recorder.seconds();
    const fell = await until(() => recorder.limit() === 1, 10_000);
    const fellIn = recorder.seconds() - silentAt;
    const lowest = recorder.limit();
    await sleep(300);
    const stayed = recorder.limit() === lowest;
    server.reply = () => always(60);
    recorder.mark('up');
    const rose = await until(() => recorder.limit() >= 0.75 * before, MAX_RAMP_UP_MS);
    await sending.stop();
    return {
      title: 'Outage: the limit falls to 1 and recovers',
      expected: 'limit falls to 1, and rises after the outage',
      seen: `limit ${before} to ${lowest} in ${fellIn.toFixed(1)} s, ${rose ? 'then recovered' : 'not recovered'}`,
      facts: { before, fell, fellIn, stayed, rose, timeouts: counted('TimeoutError') },
      holds: fell && stayed && rose,
    };
  });
}

/**
 * The slow-down factor of each step, and the duration of a step in response times. Steps, because the policy compares
 * with its moving average and reacts to changes.
 */
const STEP = { times: 1.6, answers: 3, count: 6 };

const FIRST_MS = 60;

export function slowDown() {
  const max = 8;
  let replyMs = FIRST_MS;
  const reply = () => always(replyMs);
  return runScenario({ max, reply }, async ({ senders, recorder, counted }) => {
    const sending = senders(2 * max);
    await until(() => recorder.limit() >= max, MAX_RAMP_UP_MS);
    const before = recorder.limit();
    recorder.mark('slower, step by step');
    for (let step = 0; step < STEP.count; step++) {
      replyMs *= STEP.times;
      await sleep(STEP.answers * replyMs);
    }
    const after = recorder.limit();
    await sending.stop();
    return {
      title: 'Slow-down: the limit decreases',
      expected: 'limit decreases by a quarter or more',
      seen: `limit ${before} to ${after} while replies slow down from ${FIRST_MS} to ${replyMs.toFixed(0)} ms`,
      facts: { before, after, replyMs, errors: counted('TimeoutError') },
      holds: after <= 0.75 * before,
    };
  });
}

/** A fixed rate: a token bucket of the server, independent of Sluice. */
function quotaOf(rate, burst, afterMs) {
  let tokens = burst;
  let filledAt = performance.now();
  return (now) => {
    tokens = Math.min(burst, tokens + ((now - filledAt) / 1000) * rate);
    filledAt = now;
    if (tokens < 1) return always(afterMs, 429);
    tokens -= 1;
    return always(afterMs);
  };
}

const SPAN_MS = 5000;
const MAX_SPANS = 3;

/** With a p99 of the event loop delay above this, the process cannot control when it sends. */
const LATE_MS = 20;

/** Measures throughput and rejections at the server, and whether this process lacked CPU time. */
async function measureSpan({ requests }, rate) {
  const lateness = monitorEventLoopDelay({ resolution: 5 });
  lateness.enable();
  const from = performance.now();
  await sleep(SPAN_MS);
  const to = performance.now();
  lateness.disable();
  const inSpan = requests.filter(({ at }) => at >= from && at < to);
  const served = inSpan.filter(({ status }) => status === 200).length;
  return {
    delivered: served / ((rate * (to - from)) / 1000),
    refused: (inSpan.length - served) / inSpan.length,
    isStarved: lateness.percentile(99) / 1e6 > LATE_MS,
  };
}

export function quota() {
  const rate = 80;
  const reply = quotaOf(rate, rate / 2, 100);
  return runScenario({ max: 100, reply }, async ({ server, senders, recorder }) => {
    const sending = senders(150);
    await until(() => server.requests.some(({ status }) => status === 429), MAX_RAMP_UP_MS);
    recorder.mark('first 429');
    // A span without CPU time says nothing about the limit: measure again.
    let measured = await measureSpan(server, rate);
    let spans = 1;
    for (; spans < MAX_SPANS && measured.isStarved && measured.delivered < 0.9; spans++) {
      measured = await measureSpan(server, rate);
    }
    await sending.stop();
    const { delivered, refused } = measured;
    return {
      title: `Fixed rate of ${rate}/s: the limit stays close to it`,
      expected: `at least 90 % of ${rate}/s delivered, few 429s`,
      seen: `${percent(delivered)} delivered, ${percent(refused)} of calls refused with 429`,
      facts: { rate, ...measured, spans },
      holds: delivered >= 0.9 && refused <= 0.2,
    };
  });
}

export function flood() {
  const [events, max] = [2000, 40];
  return runScenario(
    { max, reply: () => always(20) },
    async ({ server, api, send, senders, recorder, counted }) => {
      const few = senders(3);
      await sleep(1000);
      await few.stop();
      const sentBefore = server.requests.length;
      const before = recorder.limit();
      server.peak = 0;
      let isOver = false;
      let highest = before;
      const unsubscribe = api.on((event) => {
        if (event.type !== 'decision') return;
        const { limit, inFlight } = api.inspect(server.url);
        highest = Math.max(highest, limit);
        if (inFlight > limit || server.inFlight > highest) isOver = true;
      });
      recorder.mark(`${events} calls`);
      const sends = Array.from({ length: events }, () => send());
      await sleep(0);
      const atOnce = api.inspect(server.url).inFlight;
      await Promise.all(sends);
      unsubscribe();
      const delivered = server.requests.length - sentBefore;
      return {
        title: `${events} calls at once: no overload`,
        expected: 'never more in flight than the limit, nothing lost',
        seen: `${delivered} delivered, ${atOnce} in flight at first, ${server.peak} at most, limit ${highest}`,
        facts: {
          events,
          delivered,
          errors: events + sentBefore - counted(200),
          before,
          atOnce,
          peak: server.peak,
          highest,
          isOver,
        },
        holds: !isOver && delivered === events && server.peak <= highest,
      };
    },
  );
}
