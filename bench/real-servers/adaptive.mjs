/**
 * What an adaptive limit is meant to do, five times, against real servers. It is told nothing about them.
 *
 *     climb     all is well: up to the maximum, and it stays there
 *     silence   the server stops answering: down to one, and back when it answers again
 *     slowing   the server takes longer and longer: the limit goes down with it
 *     quota     so many answers a second, 429 beyond: close to it, seldom over it
 *     flood     a quiet sender has thousands of things to send at once: the server does not notice
 *
 * The five are the behaviours that RFC 1858 of Vector describes under "Observed Behavior".
 */

import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { always, keepSending, mean, percent, serve, until, watch } from './harness.mjs';

/** A climb that takes longer than this will never get there. */
const MAX_CLIMB_MS = 15_000;

/** A server, a sender that learns, and somebody who watches: `play` says what happens to them. */
async function scene({ max, reply, timeoutMs = 10_000 }, play) {
  const server = await serve(reply);
  const engine = limiter({ limit: { adaptive: { max } } });
  const watched = watch(engine, server.url);
  const counts = new Map();
  const count = (what) => counts.set(what, (counts.get(what) ?? 0) + 1);

  // Each request has its own time-out; a sender's signal only ends its waiting for a turn.
  const request = (url) => fetch(url, { signal: AbortSignal.timeout(timeoutMs) });
  const throttled = throttleFetch(request, { limiter: engine, wait: true });
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
  const senders = (howMany) => {
    started.push(keepSending(howMany, send));
    return started.at(-1);
  };
  try {
    const told = await play({ server, engine, send, senders, watched, counted });
    return { ...told, ...watched.stop() };
  } finally {
    watched.stop();
    await Promise.all(started.map((some) => some.stop()));
    await server.close();
  }
}

export function climb() {
  const max = 10;
  return scene({ max, reply: () => always(80) }, async ({ senders, watched, counted }) => {
    const sending = senders(2 * max);
    const reached = await until(() => watched.limit() >= max, MAX_CLIMB_MS);
    const reachedAt = watched.seconds();
    await sleep(2500);
    await sending.stop();
    const after = mean(watched.limits(reachedAt));
    return {
      title: 'All is well: it climbs to the maximum and stays',
      expected: `limit reaches ${max}, then stays near it`,
      seen: `limit ${max} after ${reachedAt.toFixed(1)} s, then ${after.toFixed(1)} on average`,
      facts: { max, reached, reachedAt, after, errors: counted('TimeoutError') },
      holds: reached && after >= 0.75 * max,
    };
  });
}

export function silence() {
  const max = 8;
  const scenery = { max, reply: () => always(60), timeoutMs: 300 };
  return scene(scenery, async ({ server, senders, watched, counted }) => {
    const sending = senders(2 * max);
    await until(() => watched.limit() >= max, MAX_CLIMB_MS);
    const before = watched.limit();
    server.reply = () => always(Infinity);
    watched.mark('falls silent');
    const silentAt = watched.seconds();
    const fell = await until(() => watched.limit() === 1, 10_000);
    const fellIn = watched.seconds() - silentAt;
    const lowest = watched.limit();
    await sleep(300);
    const stayed = watched.limit() === lowest;
    server.reply = () => always(60);
    watched.mark('answers again');
    const rose = await until(() => watched.limit() >= 0.75 * before, MAX_CLIMB_MS);
    await sending.stop();
    return {
      title: 'Sudden silence: down to one, and back',
      expected: 'limit falls to 1, and rises when answers come again',
      seen: `limit ${before} to ${lowest} in ${fellIn.toFixed(1)} s, ${rose ? 'and up again' : 'and stuck'}`,
      facts: { before, fell, fellIn, stayed, rose, timeouts: counted('TimeoutError') },
      holds: fell && stayed && rose,
    };
  });
}

/**
 * How much slower the server gets at each step, and for how many of its answers' time it stays so. Steps,
 * because the rule compares with what has become normal: it is a change that it feels.
 */
const STEP = { times: 1.6, answers: 3, count: 6 };

const FIRST_MS = 60;

export function slowing() {
  const max = 8;
  let answerMs = FIRST_MS;
  const reply = () => always(answerMs);
  return scene({ max, reply }, async ({ senders, watched, counted }) => {
    const sending = senders(2 * max);
    await until(() => watched.limit() >= max, MAX_CLIMB_MS);
    const before = watched.limit();
    watched.mark('slower, step by step');
    for (let step = 0; step < STEP.count; step++) {
      answerMs *= STEP.times;
      await sleep(STEP.answers * answerMs);
    }
    const after = watched.limit();
    await sending.stop();
    return {
      title: 'Gradual slowing: it backs off',
      expected: 'limit goes down by a quarter or more',
      seen: `limit ${before} to ${after} while answers slow from ${FIRST_MS} to ${answerMs.toFixed(0)} ms`,
      facts: { before, after, answerMs, errors: counted('TimeoutError') },
      holds: after <= 0.75 * before,
    };
  });
}

/** So many a second and no more: a bucket of the server's own, not one of ours. */
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

/** A process that is woken later than this, once in a hundred times, has no say in when it sends. */
const LATE_MS = 20;

/** Runs for a while and says what the server saw in that time, and whether this process was kept from running. */
async function span({ asked }, rate) {
  const lateness = monitorEventLoopDelay({ resolution: 5 });
  lateness.enable();
  const from = performance.now();
  await sleep(SPAN_MS);
  const to = performance.now();
  lateness.disable();
  const own = asked.filter(({ at }) => at >= from && at < to);
  const served = own.filter(({ status }) => status === 200).length;
  return {
    delivered: served / ((rate * (to - from)) / 1000),
    refused: (own.length - served) / own.length,
    isStarved: lateness.percentile(99) / 1e6 > LATE_MS,
  };
}

export function quota() {
  const rate = 80;
  const reply = quotaOf(rate, rate / 2, 100);
  return scene({ max: 100, reply }, async ({ server, senders, watched }) => {
    const sending = senders(150);
    await until(() => server.asked.some(({ status }) => status === 429), MAX_CLIMB_MS);
    watched.mark('first 429');
    // What was missed while this process could not run says nothing about the limit: look again.
    let seen = await span(server, rate);
    let spans = 1;
    for (; spans < MAX_SPANS && seen.isStarved && seen.delivered < 0.9; spans++) {
      seen = await span(server, rate);
    }
    await sending.stop();
    const { delivered, refused } = seen;
    return {
      title: `A hard ${rate}/s: it hovers around it`,
      expected: `at least 90 % of ${rate}/s delivered, few 429s`,
      seen: `${percent(delivered)} of it delivered, ${percent(refused)} of calls answered 429`,
      facts: { rate, ...seen, spans },
      holds: delivered >= 0.9 && refused <= 0.2,
    };
  });
}

export function flood() {
  const [events, max] = [2000, 40];
  return scene(
    { max, reply: () => always(20) },
    async ({ server, engine, send, senders, watched, counted }) => {
      const quiet = senders(3);
      await sleep(1000);
      await quiet.stop();
      const sentBefore = server.asked.length;
      const before = watched.limit();
      server.peak = 0;
      let isOver = false;
      let highest = before;
      const unhear = engine.on((event) => {
        if (event.type !== 'decision') return;
        const { limit, inFlight } = engine.inspect(server.url);
        highest = Math.max(highest, limit);
        if (inFlight > limit || server.inFlight > highest) isOver = true;
      });
      watched.mark(`${events} sends at once`);
      const sends = Array.from({ length: events }, () => send());
      await sleep(0);
      const atOnce = engine.inspect(server.url).inFlight;
      await Promise.all(sends);
      unhear();
      const delivered = server.asked.length - sentBefore;
      return {
        title: `A flood of ${events} sends: the server does not drown`,
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
