/**
 * Probes a daemon from its own process: one check over the line protocol each millisecond, whether the last one was
 * answered or not. Started by `fork`: the message `read` returns the latencies since the last one, in milliseconds.
 *
 * The probe stands for a client on another machine, so it takes precedence over the daemon where it may (root): on two
 * processors it would otherwise wait for one, and count that as time of the daemon.
 *
 *     node bench/daemon/probe.mjs 7610
 */

import { readdirSync } from 'node:fs';
import { connect } from 'node:net';
import { constants, setPriority } from 'node:os';

const PROBE = Buffer.from('probe\n');
const REPLY_BYTES = 3;

try {
  for (const thread of readdirSync('/proc/self/task'))
    setPriority(Number(thread), constants.priority.PRIORITY_HIGHEST);
} catch {
  console.error('the probe has no precedence over the daemon: latencies include its own waiting');
}

let sentAt = [];
let latencies = [];

const socket = connect({ host: '127.0.0.1', port: Number(process.argv[2]), noDelay: true });
socket.on('data', (chunk) => {
  const now = performance.now();
  const replies = chunk.length / REPLY_BYTES;
  for (let n = 0; n < replies; n++) latencies.push(now - sentAt[n]);
  sentAt = sentAt.slice(replies);
});
socket.on('error', () => process.exit(0)); // the daemon has ended

let due = performance.now();
const probe = () => {
  const now = performance.now();
  // A probe that this process sends late counts from then: its own pauses are not the daemon's.
  sentAt.push(now);
  socket.write(PROBE);
  due = Math.max(due + 1, now);
  setTimeout(probe, due - now);
};
socket.once('connect', probe);

process.on('message', () => {
  latencies.sort((a, b) => a - b);
  const quantile = (q) =>
    latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * q))];
  process.send({
    probes: latencies.length,
    p50: quantile(0.5),
    p99: quantile(0.99),
    p999: quantile(0.999),
    max: latencies.at(-1),
  });
  latencies = [];
});
process.on('disconnect', () => process.exit(0));
