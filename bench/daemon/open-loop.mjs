/**
 * An open-loop load generator: sends at a fixed rate, whether replies come or not, over several connections. All keys
 * are used up before, so a decided check is denied, and an allowed one was shed.
 *
 *     node bench/daemon/open-loop.mjs '{"port":7610,"kind":"line","rate":100000,"ms":5000}'
 *
 * Without `rate` it sends the next batch of a connection after the replies to the last: the capacity. Prints one line of
 * JSON: replies per second, latencies of decided and of shed checks, and how late the generator was itself.
 */

import { connect } from 'node:net';

const { port, kind, rate, ms, connections = 16, depth = 1024 } = JSON.parse(process.argv[2]);

const resp = (...words) =>
  `*${words.length}\r\n${words.map((w) => `$${w.length}\r\n${w}\r\n`).join('')}`;

/** A request by protocol; which byte begins a reply, and where and which byte a denial has. */
const KINDS = {
  line: { request: (key) => `${key}\n`, begin: ['O', 'N'], at: 0, denied: 'N', bytes: 3 },
  resp: {
    request: (key) => resp('SLUICE.CHECK', '*', key),
    begin: ['*'],
    at: '*6\r\n:'.length,
    denied: '0',
    bytes: 20,
  },
  http: {
    request: (key) => `GET /check?key=${key} HTTP/1.1\r\nHost: localhost\r\n\r\n`,
    begin: ['H'], // no header or body of a reply has another one
    at: 'HTTP/1.1 '.length,
    denied: '4',
    bytes: 50,
  },
};
const { request, begin, at: verdictAt, denied, bytes: minBytes } = KINDS[kind];
const [first, second = first] = begin.map((char) => char.charCodeAt(0));
const deniedByte = denied.charCodeAt(0);
const BATCHES = 64;
const requests = Array.from({ length: 1000 }, (_, n) => request(`k${n}`));
const batches = new Map();
let nextBatch = 0;
/** Prepared requests: the generator must be faster than the daemon. */
function batchOf(count) {
  let prepared = batches.get(count);
  if (!prepared) {
    const from = (b) => (b * 157) % requests.length;
    prepared = Array.from({ length: BATCHES }, (_, b) =>
      Buffer.from(
        Array.from({ length: count }, (_, n) => requests[(from(b) + n) % requests.length]).join(''),
      ),
    );
    batches.set(count, prepared);
  }
  return prepared[nextBatch++ % BATCHES];
}

/** Latencies in tenths of a millisecond, up to a minute. */
class Histogram {
  count = 0;
  #max = 0;
  #buckets = new Uint32Array(600_000);
  add(latencyMs) {
    this.count++;
    if (latencyMs > this.#max) this.#max = latencyMs;
    this.#buckets[Math.min(599_999, Math.floor(latencyMs * 10))]++;
  }
  #quantile(q) {
    let left = Math.ceil(this.count * q);
    const bucket = this.#buckets.findIndex((count) => {
      left -= count;
      return left <= 0;
    });
    return (bucket + 1) / 10;
  }
  toJSON() {
    const { count } = this;
    return count === 0
      ? { count }
      : { count, p50: this.#quantile(0.5), p99: this.#quantile(0.99), max: this.#max };
  }
}

const decided = new Histogram();
const shed = new Histogram();
const lag = new Histogram();
let pending = 0;
let lastReplyAt = 0;

function open(onAnswered) {
  let due = []; // of requests in order: instant and count
  let carry = Buffer.alloc(0);
  const socket = connect({ host: '127.0.0.1', port, noDelay: true });
  socket.on('data', (chunk) => {
    const now = performance.now();
    lastReplyAt = now;
    const bytes = carry.length > 0 ? Buffer.concat([carry, chunk]) : chunk;
    let answered = 0;
    let at = 0;
    while (at + minBytes <= bytes.length) {
      if (bytes[at] !== first && bytes[at] !== second) {
        at++;
        continue;
      }
      (bytes[at + verdictAt] === deniedByte ? decided : shed).add(now - due[answered].at);
      pending--;
      if (--due[answered].count === 0) answered++;
      at += minBytes;
    }
    carry = bytes.subarray(Math.min(at, bytes.length));
    if (answered > 0) due = due.slice(answered);
    if (due.length === 0) onAnswered();
  });
  socket.on('error', (error) => {
    console.error(String(error));
    process.exit(1);
  });
  const send = (count, at) => {
    due.push({ at, count });
    pending += count;
    socket.write(batchOf(count));
  };
  return new Promise((ready) => socket.once('connect', () => ready(send)));
}

const sleep = (time) => new Promise((resolve) => setTimeout(resolve, time));
const startedAt = performance.now();
const senders = [];
for (let n = 0; n < connections; n++) {
  const answered = () => {
    if (!rate && performance.now() - startedAt < ms) senders[n](depth, performance.now());
  };
  senders.push(await open(answered));
}

if (!rate) for (const send of senders) send(depth, performance.now());
let due = performance.now();
for (let sent = 0, turn = 0; rate && sent < (rate * ms) / 1000; due++, turn++) {
  const now = performance.now();
  if (due > now) await sleep(due - now);
  // Each millisecond its requests, over a few connections in turn. Latencies count from when they are sent; how late
  // that is tells whether the generator is fast enough.
  const sentAt = performance.now();
  lag.add(Math.max(0, sentAt - due));
  const count = Math.floor(((turn + 1) * rate) / 1000) - Math.floor((turn * rate) / 1000);
  const parts = Math.min(4, count);
  for (let n = 0; n < parts; n++) {
    const size = Math.floor(((n + 1) * count) / parts) - Math.floor((n * count) / parts);
    senders[(turn * parts + n) % connections](size, sentAt);
  }
  sent += count;
}
const until = performance.now() + (rate ? 20_000 : ms);
while (performance.now() < until && (rate ? pending > 0 : performance.now() < startedAt + ms))
  await sleep(10);

const perSecond = ((decided.count + shed.count) / (lastReplyAt - startedAt)) * 1000;
const result = { perSecond, decided, shed, lag, lost: pending };
process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
