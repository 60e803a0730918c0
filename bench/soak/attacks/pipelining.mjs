/**
 * Attack: clients that pipeline requests without pause, over every protocol, beside a client that sends one request
 * at a time. The flooders are processes of their own. A proxy that waits longer than its timeout for the daemon may
 * fail open, so the time of the other client's replies is what counts.
 *
 *     const { p50Ms, p99Ms, allowed } = await attack({ rounds: 2, seed: 1 });
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { startDaemon } from '../../daemon/process.mjs';

const FLOODER = new URL('../flooder.mjs', import.meta.url).pathname;

const resp = (...words) =>
  `*${words.length}\r\n${words.map((word) => `$${word.length}\r\n${word}\r\n`).join('')}`;

const http = (line, extra = '', body = '') =>
  `${line} HTTP/1.1\r\nHost: localhost\r\n${extra}\r\n${body}`;

const batch = JSON.stringify(Array.from({ length: 1000 }, (_, n) => ({ key: `b${n}` })));
const json = `Content-Type: application/json\r\nContent-Length: ${batch.length}\r\n`;
const chunked = 'Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n';

/** What a flooder repeats, by protocol. */
export const FLOODS = {
  'line: empty keys': ['line', '\n'],
  'line: keys of 4 KiB': ['line', `${'k'.repeat(4000)}\n`],
  'resp: CL.THROTTLE': ['resp', resp('CL.THROTTLE', 'f', '1', '1', '60')],
  'resp: SLUICE.CHECK': ['resp', resp('SLUICE.CHECK', '*', 'f')],
  'resp: SLUICE.INSPECT': ['resp', resp('SLUICE.INSPECT', 'f')],
  'resp: COMMAND DOCS, INFO': ['resp', resp('COMMAND', 'DOCS') + resp('INFO')],
  'resp: inline PING': ['resp', 'PING\n'],
  'http: GET /check': ['http', http('GET /check?key=f')],
  'http: GET /healthz': ['http', http('GET /healthz')],
  'http: GET /metrics': ['http', http('GET /metrics')],
  'http: GET /inspect': ['http', http('GET /inspect?key=f')],
  'http: POST /batch of 1,000': ['http', http('POST /batch', json, batch)],
  'http: chunks of a byte': [
    'http',
    http('POST /check', chunked, `${'1\r\n \r\n'.repeat(5000)}0\r\n\r\n`),
  ],
};

/** One request of the other client by protocol, and what an allowed reply begins with. */
const REQUESTS = {
  line: ['bystander\n', 'OK'],
  resp: [resp('SLUICE.CHECK', '*', 'bystander'), '*6\r\n:1'],
  http: [http('GET /check?key=bystander'), 'HTTP/1.1 200'],
};

/** A client that sends one request at a time; `ask` resolves with the milliseconds until the reply. */
async function openBystander(port, protocol) {
  const [request, allowed] = REQUESTS[protocol];
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await once(socket, 'connect');
  return {
    async ask() {
      const sentAt = performance.now();
      socket.write(request);
      const [reply] = await once(socket, 'data');
      return { ms: performance.now() - sentAt, isAllowed: String(reply).startsWith(allowed) };
    },
    close: () => socket.destroy(),
  };
}

async function startFlooder(options) {
  const child = spawn(process.execPath, [FLOODER, JSON.stringify(options)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  return async () => {
    const ended = once(child, 'exit');
    child.stdin.end();
    child.kill('SIGKILL');
    await ended;
  };
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];

/** The other client's latency while one kind of flood runs, over every protocol. */
export async function floodOnce(daemon, name, { processes, connections, asks, gapMs }) {
  const [protocol, bytes] = FLOODS[name];
  const flooder = { port: daemon.port(protocol), connections: connections / processes, bytes };
  const stops = await Promise.all(Array.from({ length: processes }, () => startFlooder(flooder)));
  const bystanders = await Promise.all(
    Object.keys(REQUESTS).map((each) => openBystander(daemon.port(each), each)),
  );
  const times = [];
  let allowed = 0;
  try {
    await sleep(200); // every flooder is connected, and the daemon has compiled what they use
    for (let n = 0; n < asks; n++) {
      const replies = await Promise.all(bystanders.map((bystander) => bystander.ask()));
      for (const { ms, isAllowed } of replies) {
        times.push(ms);
        if (isAllowed) allowed++;
      }
      await sleep(gapMs);
    }
  } finally {
    for (const bystander of bystanders) bystander.close();
    for (const stop of stops) await stop();
  }
  times.sort((a, b) => a - b);
  return { name, asks: times.length, allowed, times };
}

/** The bystander's limit: a burst of 10 and no refill to speak of, over all protocols together. */
export const BURST = 10;

/** Well below the timeout of a proxy, and far above what a free core needs. */
const MAX_WAIT_MS = 50;

/**
 * Runs so many floods, one kind after the other, the first by the seed. Rejects if the other client gets more than its
 * burst, or waits longer than `MAX_WAIT_MS` half of the time.
 */
export async function attack({
  rounds,
  seed,
  names = Object.keys(FLOODS),
  processes = 2,
  connections = 8,
  asks = 100,
  gapMs = 2,
  onFlood = () => {},
}) {
  const results = [];
  const folder = mkdtempSync(join(tmpdir(), 'sluice-attack-'));
  const config = join(folder, 'sluice.yaml');
  // After a stall of the machine, checks that were shed would be allowed without being counted.
  writeFileSync(
    config,
    `overload: off\nlimits: { all: { bucket: { rate: 1/h, burst: ${BURST} } } }`,
  );
  for (let round = 0; round < rounds; round++) {
    const name = names[(seed + round) % names.length];
    const ports = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];
    const daemon = await startDaemon(['--config', config, ...ports], { log: 'ignore' });
    try {
      const flood = await floodOnce(daemon, name, { processes, connections, asks, gapMs });
      const result = { ...flood, ...figuresOf(flood.times) };
      onFlood(result);
      if (result.allowed > BURST || result.p50Ms > MAX_WAIT_MS)
        throw new Error(`${name}: ${result.allowed} allowed, p50 ${result.p50Ms} ms`);
      results.push(result);
    } finally {
      await daemon.stop('SIGKILL');
    }
  }
  rmSync(folder, { recursive: true });
  const times = results.flatMap((result) => result.times).sort((a, b) => a - b);
  const allowed = Math.max(...results.map((result) => result.allowed));
  return { floods: results.length, asks: times.length, allowed, ...figuresOf(times) };
}

const figuresOf = (times) => ({
  p50Ms: quantile(times, 0.5),
  p99Ms: quantile(times, 0.99),
  maxMs: times.at(-1),
});
