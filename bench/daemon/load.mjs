/**
 * A load generator in a process of its own: so many connections, each with so many questions out at once,
 * asked again as soon as all are answered. Questions are made beforehand and answers only counted, by
 * their newlines, so that the generator has little to do.
 *
 *     node bench/daemon/load.mjs '{"port":7610,"connections":8,"depth":16,"kind":"line","ms":1000}'
 *
 * Prints `begin` when it is warm, and then one line of JSON: answers a second, and how much processor time the
 * generator itself used.
 */

import { connect } from 'node:net';

const {
  path,
  port,
  connections,
  depth,
  kind,
  ms,
  tags = 1000,
  warmMs = 300,
  extra = [],
} = JSON.parse(process.argv[2]);

const resp = (...words) =>
  `*${words.length}\r\n${words.map((w) => `$${w.length}\r\n${w}\r\n`).join('')}`;

/** A question as each server likes it, and how many newlines its answer has. */
const KINDS = {
  line: { ask: (tag) => `${tag}\n`, newlines: 1 },
  incr: { ask: (tag) => resp('INCR', tag), newlines: 1 },
  lua: { ask: (tag) => resp('EVALSHA', extra[0], '1', tag, ...extra.slice(1)), newlines: 1 },
  cell: { ask: (tag) => resp('CL.THROTTLE', tag, '1000000000', '1000', '1'), newlines: 6 },
};

const { ask, newlines } = KINDS[kind];
const BATCHES = 32;
const batches = Array.from({ length: BATCHES }, (_, b) =>
  Buffer.from(
    Array.from({ length: depth }, (_, n) => ask(`user:${((b * depth + n) * 7919) % tags}`)).join(
      '',
    ),
  ),
);

const NEWLINE = 10;
let answered = 0;
let isOver = false;
const latencies = [];

for (let c = 0; c < connections; c++) {
  let missing = 0;
  let next = c;
  let askedAt = 0;
  const go = () => {
    missing = depth * newlines;
    askedAt = performance.now();
    socket.write(batches[next++ % BATCHES]);
  };
  const hear = (length, buffer) => {
    for (let n = 0; n < length; n++) if (buffer[n] === NEWLINE) missing--;
    if (missing === 0 && !isOver) {
      answered += depth;
      if (latencies.length < 1_000_000) latencies.push(performance.now() - askedAt);
      go();
    }
    return true;
  };
  const where = path ? { path } : { host: '127.0.0.1', port };
  const socket = connect(
    { ...where, noDelay: true, onread: { buffer: Buffer.alloc(65_536), callback: hear } },
    go,
  );
  socket.on('error', (error) => {
    console.error(String(error));
    process.exit(1);
  });
}

setTimeout(() => {
  answered = 0;
  latencies.length = 0;
  process.stdout.write('begin\n'); // so that whoever watches the server knows from when on
  const at = performance.now();
  const used = process.cpuUsage();
  setTimeout(() => {
    isOver = true;
    const tookMs = performance.now() - at;
    const { user, system } = process.cpuUsage(used);
    latencies.sort((a, b) => a - b);
    const quantile = (q) => latencies[Math.floor((latencies.length - 1) * q)];
    const result = {
      perSecond: (answered / tookMs) * 1000,
      generatorCpu: (user + system) / 1000 / tookMs,
      p50Ms: quantile(0.5),
      p99Ms: quantile(0.99),
    };
    process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
  }, ms);
}, warmMs);
