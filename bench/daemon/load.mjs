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
import { batchesOf, newlinesOf } from './requests.mjs';

const {
  path,
  port,
  connections,
  depth,
  kind,
  ms,
  keys,
  extra,
  newlines = newlinesOf(kind),
  warmMs = 300,
} = JSON.parse(process.argv[2]);

const batches = batchesOf(kind, depth, { keys, extra });

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
    socket.write(batches[next++ % batches.length]);
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
