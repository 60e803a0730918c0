/**
 * What every live scenario stands on: a real server on loopback that behaves as it is told, senders
 * that never run dry, and somebody who writes down how the limit moves.
 *
 *     senders ──▶ throttleFetch ──▶ 127.0.0.1 ──▶ server: reply(now) says which status, and after how long
 *                      │ inspect() every 50 ms, and every settled call
 *                      ▼
 *                   samples: limit, in flight, round-trip time
 *
 * Everything that goes round has an end: a bound on time, and a bound on turns.
 */

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

export const SAMPLE_MS = 50;

/** No sender goes round more often than this, whatever happens. */
const MAX_SENDS = 100_000;

/**
 * A server whose answers are `reply(now)`: `{ status, afterMs }`; an `afterMs` of Infinity is silence.
 * `reply` may be replaced while it runs. What it counts, it counts by its own clock and on its own side.
 */
export async function serve(reply) {
  const timers = new Set();
  const own = {
    reply,
    /** One entry for every request: `{ at, status }`, at the instant it came in. */
    asked: [],
    inFlight: 0,
    peak: 0,
    async close() {
      for (const timer of timers) clearTimeout(timer);
      server.closeAllConnections();
      await new Promise((closed) => server.close(closed));
    },
  };
  const server = createServer((_request, response) => {
    own.inFlight++;
    own.peak = Math.max(own.peak, own.inFlight);
    let isOpen = true;
    const leave = () => {
      if (isOpen) own.inFlight--;
      isOpen = false;
    };
    response.on('close', leave);
    const at = performance.now();
    const { status, afterMs } = own.reply(at);
    own.asked.push({ at, status });
    if (afterMs === Infinity) return;
    const timer = setTimeout(() => {
      timers.delete(timer);
      leave();
      response.writeHead(status).end();
    }, afterMs);
    timers.add(timer);
  });
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  own.url = `http://127.0.0.1:${server.address().port}`;
  return own;
}

/** A server's reply that is always the same. */
export const always = (afterMs, status = 200) => ({ status, afterMs });

/**
 * As many senders as it says, each sending one after the other until they are told to stop. Who stands in
 * line then leaves it: `send` gets a signal for that.
 */
export function keepSending(count, send) {
  const stopping = new AbortController();
  const { signal } = stopping;
  const sender = async () => {
    for (let n = 0; n < MAX_SENDS && !signal.aborted; n++) await send(signal);
  };
  const all = Promise.all(Array.from({ length: count }, sender));
  return {
    stop() {
      stopping.abort();
      return all;
    },
  };
}

/** Waits until something holds; false if it did not within `mostMs`. */
export async function until(holds, mostMs) {
  const end = performance.now() + mostMs;
  while (performance.now() < end) {
    if (holds()) return true;
    await sleep(5);
  }
  return holds();
}

/** Writes down how a key of a limiter stands, from now until `stop`. */
export function watch(limiter, key) {
  const startedAt = performance.now();
  const samples = [];
  const marks = [];
  let rtts = [];
  const seconds = () => (performance.now() - startedAt) / 1000;
  const sample = () => {
    const { limit, inFlight = 0 } = limiter.inspect(key);
    const rttMs = rtts.length > 0 ? mean(rtts) : undefined;
    samples.push({ t: seconds(), limit, inFlight, rttMs });
    rtts = [];
  };
  const unhear = limiter.on((event) => {
    if (event.type === 'settled' && event.outcome === 'ok') rtts.push(event.rttMs);
  });
  const timer = setInterval(sample, SAMPLE_MS);
  sample();
  return {
    samples,
    marks,
    seconds,
    limit: () => limiter.inspect(key).limit,
    /** Something changes on the server now. */
    mark: (name) => marks.push({ at: seconds(), name }),
    /** The limits seen from one second to another. */
    limits: (from, to = Infinity) =>
      samples.filter(({ t }) => t >= from && t < to).map(({ limit }) => limit),
    stop() {
      clearInterval(timer);
      unhear();
      sample();
      return { samples, marks, seconds: seconds() };
    },
  };
}

export const mean = (values) =>
  values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);

export const percent = (part) => `${(100 * part).toFixed(1)} %`;
