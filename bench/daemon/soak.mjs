/**
 * Checks the daemon's guarantees with many keys and many connections, from outside.
 *
 *     npm run soak:daemon                  everything, one to two minutes
 *     npm run soak:daemon -- keys          a million keys: bytes per key
 *     npm run soak:daemon -- flood         ten million new keys: memory, and a client that stays throttled
 *     npm run soak:daemon -- connections   5,000 idle connections and one that never reads: latency of other clients
 *     npm run soak:daemon -- --short       10 % of everything
 *     npm run soak:daemon -- --write       everything; writes the results into docs/reference/daemon.md
 *
 * Exit code 1 if a guarantee did not hold.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isToWrite, loadLine, machineLine, madeBy, whole, writeFigures } from '../report.mjs';
import { memoryOf, startDaemon } from './process.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const scale = isShort ? 0.1 : 1;
const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-'));
const mega = (bytes) => `${(bytes / 2 ** 20).toFixed(0)} MiB`;

let missed = 0;
/** Results in the order of the scenarios. */
const results = [];
function report(isHeld, result) {
  console.log(`${isHeld ? 'held  ' : 'MISSED'}  ${result}`);
  results.push(result);
  if (!isHeld) missed++;
}

function daemonWith(text) {
  const config = join(folder, 'sluice.yaml');
  writeFileSync(config, text);
  return startDaemon([
    '--config',
    config,
    '--line',
    '127.0.0.1:0',
    '--resp',
    'off',
    '--http',
    '127.0.0.1:0',
  ]);
}

/** Checks keys over the line protocol, the next batch after the replies to the last, and counts allowed calls. */
function checkKeys(port, count, keyOf) {
  const BATCH = 4096;
  return new Promise((resolve, reject) => {
    let next = 0;
    let allowed = 0;
    let missing = 0;
    const socket = connect({ port, host: '127.0.0.1', noDelay: true }, () => sendBatch());
    const sendBatch = () => {
      const size = Math.min(BATCH, count - next);
      if (size === 0) {
        socket.destroy();
        resolve(allowed);
        return;
      }
      let text = '';
      for (let n = 0; n < size; n++) text += `${keyOf(next++)}\n`;
      missing = size * 3;
      socket.write(text, 'latin1');
    };
    socket.on('data', (chunk) => {
      for (let n = 0; n < chunk.length; n++) if (chunk[n] === 0x4b) allowed++; // K
      missing -= chunk.length;
      if (missing <= 0) sendBatch();
    });
    socket.on('error', reject);
  });
}

async function keys() {
  const count = 1_000_000 * scale;
  const daemon = await daemonWith(
    'limits: { mine: { bucket: { rate: 1/m, burst: 2 }, maxKeys: 2000000 } }',
  );
  await checkKeys(daemon.port('line'), 20_000, (n) => `warm-${n % 100}`);
  const before = memoryOf(daemon.pid);
  await checkKeys(daemon.port('line'), count, (n) => `client-${n}@example.org`);
  const metrics = await (await fetch(`http://${daemon.at.http[0]}/metrics`)).text().catch(() => '');
  const bytes = Number(/^sluice_memory_bytes\{limit="mine"\} (\d+)/m.exec(metrics)?.[1]);
  const grown = memoryOf(daemon.pid) - before;
  report(
    bytes / count <= 64,
    `${whole(count)} keys: ${(bytes / count).toFixed(1)} bytes per key in the table (${(grown / count).toFixed(1)} in the process)`,
  );
  await daemon.stop();
}

async function flood() {
  const count = 10_000_000 * scale;
  const maxKeys = 500_000 * scale;
  const daemon = await daemonWith(
    `limits: { mine: { bucket: { rate: 1/h, burst: 3 }, maxKeys: ${maxKeys} } }`,
  );
  const port = daemon.port('line');
  await checkKeys(port, 20_000, (n) => `warm-${n % 100}`);
  const burst = await checkKeys(port, 10, () => 'victim');
  const before = memoryOf(daemon.pid);
  let peak = before;
  let allowed = 0;
  let samples = 0;
  const sampling = setInterval(async () => {
    peak = Math.max(peak, memoryOf(daemon.pid));
    samples++;
    allowed += await checkKeys(port, 5, () => 'victim');
  }, 100);
  const at = performance.now();
  await checkKeys(port, count, (n) => `fresh-${n}-${n % 7}`);
  clearInterval(sampling);
  const rate = count / (performance.now() - at);
  // The table has 24 bytes per slot, at most 10/3 slots per key, twice while it grows; the rest is the process.
  const bound = maxKeys * 24 * 4 * 2 + 96 * 2 ** 20;
  report(
    peak - before <= bound,
    `${whole(count)} new keys, \`maxKeys\` ${whole(maxKeys)}: memory grew by at most ${mega(peak - before)}, bound ${mega(bound)} (${rate.toFixed(0)} k keys/s)`,
  );
  report(
    burst === 3 && allowed === 0,
    `${whole(samples * 5)} calls of a throttled client meanwhile: ${allowed} allowed`,
  );
  await daemon.stop();
}

function load(port, connections) {
  const options = { port, connections, depth: 1, kind: 'line', ms: 4000 * scale + 1000 };
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['bench/daemon/load.mjs', JSON.stringify(options)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let output = '';
    child.stdout.on('data', (chunk) => {
      output += chunk;
    });
    child.once('exit', (code) =>
      code === 0 ? resolve(JSON.parse(output.split('\n')[1])) : reject(new Error(output)),
    );
  });
}

async function connections() {
  const count = 5000 * scale;
  const daemon = await daemonWith('limits: {}');
  const port = daemon.port('line');
  await load(port, 8); // warm up
  const rounds = isShort ? 1 : 3;
  const alone = [];
  const loaded = [];
  for (let round = 0; round < rounds; round++) {
    alone.push(await load(port, 8));
    const idle = await Promise.all(
      Array.from(
        { length: count },
        () =>
          new Promise((resolve, reject) => {
            const socket = connect({ port, host: '127.0.0.1' }, () => resolve(socket));
            socket.on('error', reject);
          }),
      ),
    );
    const stalled = connect({ port, host: '127.0.0.1' });
    stalled.on('error', () => {});
    stalled.pause();
    for (let n = 0; n < 64; n++) stalled.write(Buffer.alloc(65_536, 'key\n'));
    loaded.push(await load(port, 8));
    for (const socket of [...idle, stalled]) socket.destroy();
  }
  const best = (rounds) => rounds.toSorted((a, b) => a.p99Ms - b.p99Ms)[0];
  const [a, b] = [best(alone), best(loaded)];
  report(
    b.p99Ms <= 2 * a.p99Ms,
    `with ${whole(count)} idle connections and one that never reads: p99 ${a.p99Ms.toFixed(3)} → ${b.p99Ms.toFixed(3)} ms, ${(a.perSecond / 1000).toFixed(0)} → ${(b.perSecond / 1000).toFixed(0)} k/s; memory of the daemon: ${mega(memoryOf(daemon.pid))}`,
  );
  await daemon.stop();
}

const SCENARIOS = { keys, flood, connections };
const chosen = Object.keys(SCENARIOS).filter((name) => words.includes(name));
const writes = isToWrite(!isShort && chosen.length === 0);
console.log(machineLine());
try {
  for (const name of chosen.length > 0 ? chosen : Object.keys(SCENARIOS)) await SCENARIOS[name]();
} finally {
  rmSync(folder, { recursive: true, force: true });
}
if (writes && missed === 0) {
  const made = madeBy('npm run soak:daemon', loadLine());
  writeFigures(
    'docs/reference/daemon.md',
    'daemon',
    `${results.map((result) => `- ${result}`).join('\n')}\n\n${made}`,
  );
}
process.exitCode = missed > 0 ? 1 : 0;
