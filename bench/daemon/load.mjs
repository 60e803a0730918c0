/**
 * A load generator: connections that send a batch of pipelined requests, and the next batch when all replies are there.
 * Requests are prepared and replies are counted by their newlines, so that the generator uses little CPU.
 *
 *     node bench/daemon/load.mjs '{"port":7610,"connections":8,"depth":16,"kind":"line","ms":1000}'
 *
 * Prints `begin` after the warm-up, then one line of JSON: replies per second, latency of batches, CPU use of the
 * generator.
 */

import { connect } from 'node:net';

const {
  path,
  port,
  connections,
  depth,
  kind,
  ms,
  keys = 1000,
  warmMs = 300,
  extra = [],
} = JSON.parse(process.argv[2]);

const resp = (...words) =>
  `*${words.length}\r\n${words.map((w) => `$${w.length}\r\n${w}\r\n`).join('')}`;

/** The request of each protocol, and the number of newlines in its reply. */
const KINDS = {
  line: { request: (key) => `${key}\n`, newlines: 1 },
  incr: { request: (key) => resp('INCR', key), newlines: 1 },
  lua: { request: (key) => resp('EVALSHA', extra[0], '1', key, ...extra.slice(1)), newlines: 1 },
  http: {
    request: (key) => `GET /check?limit=default&key=${key} HTTP/1.1\r\nHost: localhost\r\n\r\n`,
    newlines: 9,
  },
  cell: { request: (key) => resp('CL.THROTTLE', key, '1000000000', '1000000', '1'), newlines: 6 },
};

const { request, newlines } = KINDS[kind];
const BATCHES = 32;
const batches = Array.from({ length: BATCHES }, (_, b) =>
  Buffer.from(
    Array.from({ length: depth }, (_, n) =>
      request(`user:${((b * depth + n) * 7919) % keys}`),
    ).join(''),
  ),
);

const NEWLINE = 10;
let replies = 0;
let isOver = false;
const latencies = [];

for (let c = 0; c < connections; c++) {
  let missing = 0;
  let next = c;
  let sentAt = 0;
  const sendBatch = () => {
    missing = depth * newlines;
    sentAt = performance.now();
    socket.write(batches[next++ % BATCHES]);
  };
  const onData = (length, buffer) => {
    for (let n = 0; n < length; n++) if (buffer[n] === NEWLINE) missing--;
    if (missing === 0 && !isOver) {
      replies += depth;
      if (latencies.length < 1_000_000) latencies.push(performance.now() - sentAt);
      sendBatch();
    }
    return true;
  };
  const where = path ? { path } : { host: '127.0.0.1', port };
  const socket = connect(
    { ...where, noDelay: true, onread: { buffer: Buffer.alloc(65_536), callback: onData } },
    sendBatch,
  );
  socket.on('error', (error) => {
    console.error(String(error));
    process.exit(1);
  });
}

setTimeout(() => {
  replies = 0;
  latencies.length = 0;
  process.stdout.write('begin\n'); // starts the measurement of the server's CPU time
  const at = performance.now();
  const used = process.cpuUsage();
  setTimeout(() => {
    isOver = true;
    const tookMs = performance.now() - at;
    const { user, system } = process.cpuUsage(used);
    latencies.sort((a, b) => a - b);
    const quantile = (q) => latencies[Math.floor((latencies.length - 1) * q)];
    const result = {
      perSecond: (replies / tookMs) * 1000,
      generatorCpu: (user + system) / 1000 / tookMs,
      p50Ms: quantile(0.5),
      p99Ms: quantile(0.99),
    };
    process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
  }, ms);
}, warmMs);
