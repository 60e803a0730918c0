/**
 * The harness of the scenarios with real servers: a configurable server on loopback, senders with an endless backlog,
 * and a recorder of the limit.
 *
 *     senders ──▶ throttleFetch ──▶ 127.0.0.1 ──▶ server: reply(now) gives status and delay
 *                      │ inspect() every 50 ms, and every settled call
 *                      ▼
 *                   samples: limit, in flight, round-trip time
 *
 * Every loop has a bound on time and on iterations.
 */

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

export const SAMPLE_MS = 50;

/** Calls per sender. */
const MAX_SENDS = 100_000;

/**
 * A server that replies with `reply(now)`: `{ status, afterMs }`; with an `afterMs` of Infinity it does not reply.
 * `reply` may be replaced at any time. Counts are those of the server.
 */
export async function serve(reply) {
  const timers = new Set();
  const server = {
    reply,
    /** One entry per request: `{ at, status }`, with the time of arrival. */
    requests: [],
    inFlight: 0,
    peak: 0,
    async close() {
      for (const timer of timers) clearTimeout(timer);
      httpServer.closeAllConnections();
      await new Promise((closed) => httpServer.close(closed));
    },
  };
  const httpServer = createServer((_request, response) => {
    server.inFlight++;
    server.peak = Math.max(server.peak, server.inFlight);
    let isOpen = true;
    const finish = () => {
      if (isOpen) server.inFlight--;
      isOpen = false;
    };
    response.on('close', finish);
    const at = performance.now();
    const { status, afterMs } = server.reply(at);
    server.requests.push({ at, status });
    if (afterMs === Infinity) return;
    const timer = setTimeout(() => {
      timers.delete(timer);
      finish();
      response.writeHead(status).end();
    }, afterMs);
    timers.add(timer);
  });
  await new Promise((ready) => httpServer.listen(0, '127.0.0.1', ready));
  server.url = `http://127.0.0.1:${httpServer.address().port}`;
  return server;
}

/** A constant reply. */
export const always = (afterMs, status = 200) => ({ status, afterMs });

/**
 * Starts senders that send one call after the other until `stop`. `send` gets a signal that ends a wait in the queue.
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

/** Waits for a condition; false if it does not hold within `maxMs`. */
export async function until(holds, maxMs) {
  const end = performance.now() + maxMs;
  while (performance.now() < end) {
    if (holds()) return true;
    await sleep(5);
  }
  return holds();
}

/** Records the limit of a key until `stop`. */
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
  const unsubscribe = limiter.on((event) => {
    if (event.type === 'settled' && event.outcome === 'ok') rtts.push(event.rttMs);
  });
  const timer = setInterval(sample, SAMPLE_MS);
  sample();
  return {
    samples,
    marks,
    seconds,
    limit: () => limiter.inspect(key).limit,
    /** Marks an event at the current time. */
    mark: (name) => marks.push({ at: seconds(), name }),
    /** Recorded limits between two times in seconds. */
    limits: (from, to = Infinity) =>
      samples.filter(({ t }) => t >= from && t < to).map(({ limit }) => limit),
    stop() {
      clearInterval(timer);
      unsubscribe();
      sample();
      return { samples, marks, seconds: seconds() };
    },
  };
}

export const mean = (values) =>
  values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
