/**
 * Decisions per second through a real Redis, compared with other limiters on the same client.
 *
 *     npm run bench:redis              medians of five rounds, a section of bench/RESULTS.md
 *     npm run bench:redis -- --smoke   a short run, writes nothing
 *
 * Concurrent callers check again as soon as they have a decision. 1,000 keys; a limit that is never reached. A bare EVALSHA
 * for each decision, and redis-benchmark with the same script, show the upper bound.
 */

import { execFileSync } from 'node:child_process';
import { Ratelimit } from '@upstash/ratelimit';
import Bottleneck from 'bottleneck';
import { RedisStore } from 'rate-limit-redis';
import { RateLimiterRedis } from 'rate-limiter-flexible';
import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';
import { measureCallers } from './call-rate.mjs';
import { machineLine, median, row, times, writeSection } from './report.mjs';
import { startRedis } from './soak/server.mjs';
import { upstashClient } from './upstash-client.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 5;
const SPAN_MS = smoke ? 30 : 800;
const IN_FLIGHT = [1, 64, 512];
const KEYS = Array.from({ length: 1000 }, (_, n) => `client-${n}`);

const server = await startRedis();
const { port } = server;
const client = createClient({ socket: { port, host: '127.0.0.1', reconnectStrategy: 50 } });
client.on('error', () => {});
await client.connect();

const BARE = `local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n`;

const limit = { bucket: { rate: 1e9, burst: 1e9 } };

const competitors = {
  sluice: () => {
    const api = limiter({ name: 'bench', limit, backend: redis(client) });
    return { check: (key) => api.check(key), end: () => api.close() };
  },
  'sluice, sliding window': () => {
    const window = { limit: 1e9, per: '1m' };
    const api = limiter({ name: 'window', limit: { window }, backend: redis(client) });
    return { check: (key) => api.check(key), end: () => api.close() };
  },
  'sluice, quota a month in a time zone': () => {
    const quota = { limit: 1e9, per: 'month', timeZone: 'Europe/Berlin' };
    const api = limiter({ name: 'quota', limit: { quota }, backend: redis(client) });
    return { check: (key) => api.check(key), end: () => api.close() };
  },
  'sluice, prefetch 1000': () => {
    const api = limiter({ name: 'prefetch', limit, backend: redis(client, { prefetch: 1000 }) });
    return { check: (key) => api.check(key), end: () => api.close() };
  },
  'bare EVALSHA': async () => {
    const sha = await client.scriptLoad(BARE);
    const plain = client.withCommandOptions({ timeout: undefined });
    return { check: (key) => plain.evalSha(sha, { keys: [`bare:${key}`], arguments: ['60000'] }) };
  },
  'rate-limiter-flexible': () => {
    const flexible = new RateLimiterRedis({
      storeClient: client,
      useRedisPackage: true,
      points: 1e9,
      duration: 60,
    });
    return { check: (key) => flexible.consume(key) };
  },
  'rate-limit-redis': async () => {
    const store = new RedisStore({ sendCommand: (...args) => client.sendCommand(args) });
    await store.init({ windowMs: 60_000 });
    return { check: (key) => store.increment(key) };
  },
  '@upstash/ratelimit, fixed window': () => {
    const ratelimit = new Ratelimit({
      redis: upstashClient(client),
      limiter: Ratelimit.fixedWindow(1e9, '60 s'),
      prefix: 'upstash-fixed',
    });
    return { check: (key) => ratelimit.limit(key) };
  },
  '@upstash/ratelimit, sliding window': () => {
    const ratelimit = new Ratelimit({
      redis: upstashClient(client),
      limiter: Ratelimit.slidingWindow(1e9, '60 s'),
    });
    return { check: (key) => ratelimit.limit(key) };
  },
  bottleneck: () => {
    const bottleneck = new Bottleneck({
      datastore: 'ioredis',
      clientOptions: { port, host: '127.0.0.1' },
      reservoir: 1e9,
    });
    return { check: () => bottleneck.schedule(async () => {}), end: () => bottleneck.disconnect() };
  },
};

/** Decisions per second with this many concurrent callers. */
const rateOf = async (check, callers) =>
  (await measureCallers((n) => check(KEYS[n % KEYS.length]), callers, SPAN_MS)).perSecond;

const running = {};
for (const [name, start] of Object.entries(competitors)) {
  try {
    running[name] = await start();
    for (const callers of IN_FLIGHT) await rateOf(running[name].check, callers);
  } catch (error) {
    console.error(`${name}: ${error.message}`);
    delete running[name];
  }
}
const rates = {};
for (let round = 0; round < ROUNDS; round++) {
  for (const name of Object.keys(running)) {
    for (const callers of IN_FLIGHT) {
      rates[name] ??= Object.fromEntries(IN_FLIGHT.map((n) => [n, []]));
      rates[name][callers].push(await rateOf(running[name].check, callers));
    }
  }
}

const ALTERNATIVES = [
  'rate-limiter-flexible',
  'rate-limit-redis',
  '@upstash/ratelimit, fixed window',
  '@upstash/ratelimit, sliding window',
  'bottleneck',
];
const best = (callers) =>
  Math.max(
    ...ALTERNATIVES.filter((name) => rates[name]).map((name) => median(rates[name][callers])),
  );
const thousands = (value) => `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)} k/s`;
const table = [
  row(['', ...IN_FLIGHT.map((callers) => `${callers} in flight`)]),
  row(['---', ...IN_FLIGHT.map(() => '---:')]),
  ...Object.entries(rates).map(([name, byCallers]) =>
    row([
      name,
      ...IN_FLIGHT.map((callers) => {
        const value = median(byCallers[callers]);
        return `${thousands(value)} (${times(value / best(callers))})`;
      }),
    ]),
  ),
].join('\n');
console.log(table);

const scriptRates = IN_FLIGHT.map((callers) => {
  const args = [
    '-p',
    `${port}`,
    '-c',
    `${callers}`,
    '-n',
    smoke ? '2000' : '100000',
    '-q',
    '--csv',
  ];
  const sha = execFileSync('redis-cli', ['-p', `${port}`, 'SCRIPT', 'LOAD', BARE], {
    encoding: 'utf8',
  });
  const command = ['EVALSHA', sha.trim(), '1', 'bench:__rand_int__', '60000'];
  const out = execFileSync('redis-benchmark', [...args, '-r', '1000', ...command], {
    encoding: 'utf8',
  });
  const perSecond = Number(/"(\d+\.\d+)"/.exec(out.split('\n').at(-2) ?? '')?.[1] ?? Number.NaN);
  return `${callers}: ${thousands(perSecond)}`;
});
console.log(`redis-benchmark of the bare script: ${scriptRates.join(', ')}`);

if (!smoke) {
  writeSection(
    'Through Redis',
    `Decisions per second, and the ratio to the best alternative. Medians of ${ROUNDS} rounds in one run of
\`npm run bench:redis\`; ${machineLine()}. 1,000 keys, node-redis 6, a Redis of its own on the same machine.

${table}

redis-benchmark of the bare script, by clients: ${scriptRates.join(', ')}.`,
  );
}
for (const { end } of Object.values(running)) await end?.();
client.destroy();
await server.stop();
process.exit(0);
