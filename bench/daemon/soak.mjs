/**
 * What the daemon promises under crowds, seen from outside.
 *
 *     npm run soak:daemon                  all of it, a minute or two
 *     npm run soak:daemon -- tags          a million tags: bytes for each
 *     npm run soak:daemon -- flood         ten million fresh tags: memory, and a client that is throttled meanwhile
 *     npm run soak:daemon -- crowd         5,000 idle connections and a slow reader: what a fast client notices
 *     npm run soak:daemon -- --short       a tenth of everything
 *     npm run soak:daemon -- --write       all of it, and write what came out into docs/daemon.md
 *
 * Exit code 1 if a promise did not hold.
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
/** What was seen, in the order of the plays. */
const seen = [];
function held(isHeld, what) {
  console.log(`${isHeld ? 'held  ' : 'MISSED'}  ${what}`);
  seen.push(what);
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

/** Asks for tags as fast as they are answered, and counts how many were served. */
function ask(port, count, tagOf) {
  const BATCH = 4096;
  return new Promise((resolve, reject) => {
    let next = 0;
    let answered = 0;
    let served = 0;
    let missing = 0;
    const socket = connect({ port, host: '127.0.0.1', noDelay: true }, () => go());
    const go = () => {
      const size = Math.min(BATCH, count - next);
      if (size === 0) {
        socket.destroy();
        resolve({ answered, served });
        return;
      }
      let text = '';
      for (let n = 0; n < size; n++) text += `${tagOf(next++)}\n`;
      missing = size * 3;
      socket.write(text, 'latin1');
    };
    socket.on('data', (chunk) => {
      for (let n = 0; n < chunk.length; n++) if (chunk[n] === 0x4b) served++; // K
      missing -= chunk.length;
      if (missing > 0) return;
      answered = next;
      go();
    });
    socket.on('error', reject);
  });
}

async function tags() {
  const count = 1_000_000 * scale;
  const daemon = await daemonWith(
    'limits: { mine: { bucket: { rate: 1/m, burst: 2 }, maxKeys: 2000000 } }',
  );
  await ask(daemon.port('line'), 20_000, (n) => `warm-${n % 100}`);
  const before = memoryOf(daemon.pid);
  await ask(daemon.port('line'), count, (n) => `client-${n}@example.org`);
  const metrics = await (await fetch(`http://${daemon.at.http[0]}/metrics`)).text().catch(() => '');
  const bytes = Number(/^sluice_memory_bytes\{limit="mine"\} (\d+)/m.exec(metrics)?.[1]);
  const grown = memoryOf(daemon.pid) - before;
  held(
    bytes / count <= 64,
    `${whole(count)} tags: ${(bytes / count).toFixed(1)} bytes a tag in the table (the process grew by ${(grown / count).toFixed(1)})`,
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
  await ask(port, 20_000, (n) => `warm-${n % 100}`);
  const first = await ask(port, 10, () => 'victim');
  const before = memoryOf(daemon.pid);
  let most = before;
  let again = 0;
  let looks = 0;
  const watch = setInterval(async () => {
    most = Math.max(most, memoryOf(daemon.pid));
    looks++;
    again += (await ask(port, 5, () => 'victim')).served;
  }, 100);
  const at = performance.now();
  await ask(port, count, (n) => `fresh-${n}-${n % 7}`);
  clearInterval(watch);
  const rate = count / (performance.now() - at);
  // A table of a bucket is 24 bytes a place, at most 10/3 places a key, twice while it grows; the rest is the process.
  const bound = maxKeys * 24 * 4 * 2 + 96 * 2 ** 20;
  held(
    most - before <= bound,
    `${whole(count)} fresh tags, ${whole(maxKeys)} kept: memory grew by ${mega(most - before)} at most, bound ${mega(bound)} (${rate.toFixed(0)} k tags/s)`,
  );
  held(
    first.served === 3 && again === 0,
    `a throttled client was asked for ${whole(looks * 5)} times meanwhile and served ${again} times`,
  );
  await daemon.stop();
}

function load(port, connections) {
  const order = { port, connections, depth: 1, kind: 'line', ms: 4000 * scale + 1000 };
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['bench/daemon/load.mjs', JSON.stringify(order)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let said = '';
    child.stdout.on('data', (chunk) => {
      said += chunk;
    });
    child.once('exit', (code) =>
      code === 0 ? resolve(JSON.parse(said.split('\n')[1])) : reject(new Error(said)),
    );
  });
}

async function crowd() {
  const count = 5000 * scale;
  const daemon = await daemonWith('limits: {}');
  const port = daemon.port('line');
  await load(port, 8); // so that everything is warm
  const rounds = isShort ? 1 : 3;
  const alone = [];
  const crowded = [];
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
    const deaf = connect({ port, host: '127.0.0.1' });
    deaf.on('error', () => {});
    deaf.pause();
    for (let n = 0; n < 64; n++) deaf.write(Buffer.alloc(65_536, 'tag\n'));
    crowded.push(await load(port, 8));
    for (const socket of [...idle, deaf]) socket.destroy();
  }
  const best = (rows) => rows.toSorted((a, b) => a.p99Ms - b.p99Ms)[0];
  const [a, b] = [best(alone), best(crowded)];
  held(
    b.p99Ms <= 2 * a.p99Ms,
    `beside ${whole(count)} idle connections and one that never reads: p99 ${a.p99Ms.toFixed(3)} → ${b.p99Ms.toFixed(3)} ms, ${(a.perSecond / 1000).toFixed(0)} → ${(b.perSecond / 1000).toFixed(0)} k/s; the daemon holds ${mega(memoryOf(daemon.pid))}`,
  );
  await daemon.stop();
}

const PLAYS = { tags, flood, crowd };
const chosen = Object.keys(PLAYS).filter((name) => words.includes(name));
const writes = isToWrite(!isShort && chosen.length === 0);
console.log(machineLine());
try {
  for (const name of chosen.length > 0 ? chosen : Object.keys(PLAYS)) await PLAYS[name]();
} finally {
  rmSync(folder, { recursive: true, force: true });
}
if (writes && missed === 0) {
  const made = madeBy('npm run soak:daemon', loadLine());
  writeFigures(
    'docs/daemon.md',
    'daemon',
    `${seen.map((what) => `- ${what}`).join('\n')}\n\n${made}`,
  );
}
process.exitCode = missed > 0 ? 1 : 0;
