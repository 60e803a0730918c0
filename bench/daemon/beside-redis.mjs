/**
 * The daemon compared with redis-server, under the same load generator: `npm run bench:daemon`.
 *
 * The generator sends the same 1,000 keys to all of them, in the protocol of each. A server is bounded by one core, so
 * its CPU time per reply and the CPU use of server and generator are reported. Where the server has the higher use, the
 * generator was not the bottleneck.
 */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { machineLine, median, writeSection } from '../report.mjs';
import { startRedis } from '../soak/server.mjs';
import { measureLoad } from './measure.mjs';
import { startDaemon } from './process.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 3;
const SPAN_MS = smoke ? 100 : 1000;
const DEPTHS = [1, 16, 256];
const CONNECTIONS = smoke ? [8] : [1, 8, 64];

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'));
const started = [];

async function startSluice() {
  const paths = { line: join(folder, 'line.sock'), resp: join(folder, 'resp.sock') };
  // A limit that is never reached, but slow enough that keys do not become idle between calls.
  const args = ['--rate', '1000/s', '--burst', '1000000000', '--http', 'off'];
  for (const at of ['127.0.0.1:0', paths.line]) args.push('--line', at);
  for (const at of ['127.0.0.1:0', paths.resp]) args.push('--resp', at);
  const daemon = await startDaemon(args);
  return {
    pid: daemon.pid,
    line: daemon.port('line'),
    resp: daemon.port('resp'),
    paths,
    stop: daemon.stop,
  };
}

async function startRedisHere() {
  const path = join(folder, 'redis.sock');
  const server = await startRedis('--unixsocket', path);
  started.push(server);
  const sha = server.cli('SCRIPT', 'LOAD', LUA_BUCKET).trim();
  return { pid: server.pid, port: server.port, path, sha };
}

/** A typical token bucket in Redis: time from Redis, two numbers in a hash, a key that expires. */
const LUA_BUCKET = `local t = redis.call('TIME')
local now = t[1] * 1000 + t[2] / 1000
local s = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tokens = math.min(burst, (tonumber(s[1]) or burst) + (now - (tonumber(s[2]) or now)) * rate)
local ok = tokens >= 1 and 1 or 0
redis.call('HSET', KEYS[1], 'tokens', tokens - ok, 'at', now)
redis.call('PEXPIRE', KEYS[1], 60000)
return ok`;

const kilo = (perSecond) => `${Math.round(perSecond / 1000)} k`;
const percent = (share) => `${Math.round(share * 100)} %`;

try {
  const sluice = await startSluice();
  const redis = await startRedisHere();
  const targets = [
    {
      name: 'line protocol',
      pid: sluice.pid,
      port: sluice.line,
      path: sluice.paths.line,
      kind: 'line',
    },
    {
      name: 'CL.THROTTLE',
      pid: sluice.pid,
      port: sluice.resp,
      path: sluice.paths.resp,
      kind: 'cell',
    },
    { name: 'Redis INCR', pid: redis.pid, port: redis.port, path: redis.path, kind: 'incr' },
    {
      name: 'Redis, bucket in Lua',
      pid: redis.pid,
      port: redis.port,
      path: redis.path,
      kind: 'lua',
      extra: [redis.sha, '1', '1000000000'],
    },
  ];
  const figures = [];
  for (const isUnix of [false, true]) {
    for (const connections of CONNECTIONS) {
      for (const depth of DEPTHS) {
        const rounds = targets.map(() => []);
        for (let round = 0; round < ROUNDS; round++) {
          for (const [n, target] of targets.entries()) {
            rounds[n].push(await measureLoad(target, { connections, depth, isUnix, ms: SPAN_MS }));
          }
        }
        const of = (n, read) => median(rounds[n].map(read));
        const cells = targets.map((target, n) => ({
          target,
          perSecond: of(n, (own) => own.perSecond),
          p99Ms: of(n, (own) => own.p99Ms),
          busy: of(n, (own) => own.busy),
          perCore: of(n, (own) => own.perCore),
          generatorCpu: of(n, (own) => own.generatorCpu),
        }));
        figures.push({ isUnix, connections, depth, cells });
        const shown = cells.map(
          ({ target, perSecond, busy, generatorCpu }) =>
            `${target.name} ${kilo(perSecond)} (${percent(busy)}, generator ${percent(generatorCpu)})`,
        );
        console.log(`${isUnix ? 'unix' : 'tcp '} ${connections} × ${depth}: ${shown.join(' · ')}`);
      }
    }
  }
  if (!smoke) write(figures);
  await sluice.stop();
} finally {
  for (const server of started) await server.stop();
  rmSync(folder, { recursive: true, force: true });
}

function write(figures) {
  const head = [
    '| connections × pipeline depth |',
    ...figures[0].cells.map(({ target }) => ` ${target.name} |`),
    ' line / INCR | CL.THROTTLE / Lua |',
  ].join('');
  const rule = `| --- |${' ---: |'.repeat(figures[0].cells.length + 2)}`;
  const rows = figures.map(({ isUnix, connections, depth, cells }) => {
    const rates = cells.map(({ perSecond }) => perSecond);
    const cores = cells.map(({ perCore }) => perCore);
    const ratio = (n, other) =>
      `${(rates[n] / rates[other]).toFixed(2)} × (${(cores[n] / cores[other]).toFixed(2)} ×)`;
    const shown = cells.map(
      ({ perSecond, p99Ms, busy, generatorCpu }) =>
        `${kilo(perSecond)}/s, p99 ${p99Ms.toFixed(2)} ms (${percent(busy)} / ${percent(generatorCpu)})`,
    );
    const ratios = [ratio(0, 2), ratio(1, 3)];
    return `| ${isUnix ? 'Unix' : 'TCP'}, ${connections} × ${depth} | ${[...shown, ...ratios].join(' | ')} |`;
  });
  writeSection(
    'Daemon compared with Redis',
    `Replies per second for 1,000 keys, from a load generator in its own process; in brackets the CPU use of server
and generator (100 %: one core). Medians of ${ROUNDS} rounds in one run of \`npm run bench:daemon\`; ${machineLine()}.
The p99 is that of a whole batch, from its first request to its last reply. Ratios are those of replies per second and, in
brackets, of replies per second of CPU time of the server, which other load disturbs less.

${[head, rule, ...rows].join('\n')}`,
  );
}
