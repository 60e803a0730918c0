import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { RESERVATION_TTL_MS } from '../src/backends/redis/lua-reservations.ts';
import { LEASE_TTL_MS } from '../src/backends/redis/lua-semaphore.ts';
import { redis } from '../src/backends/redis/options.ts';
import type { RemoteLimiter } from '../src/limiter/async-limiter.ts';
import { limiter } from '../src/limiter/limiter.ts';
import type { Limit } from '../src/policies/limit.ts';
import { nodeRedis, type RedisConnection } from './support/redis-clients.ts';
import { redisCli, redisServer, type Service, startRedis } from './support/services.ts';

const LIMITS = {
  first: { bucket: { rate: '1/365d', burst: 10 } },
  second: { bucket: { rate: '1/365d', burst: 10 } },
  spaced: { spacing: { every: '1h' } },
  flights: { concurrency: 5 },
  both: { all: [{ bucket: { rate: '1/365d', burst: 10 } }, { concurrency: 20 }] },
} satisfies Record<string, Limit>;

/** Two servers, so that all of them take two steps. A confirmation (`k<id>`) is never sent: the process stops there. */
const CLIENT = `
import { createClient } from 'redis';
import { all, limiter } from 'sluice';
import { redis } from 'sluice/redis';
const [step, ...ports] = process.argv.slice(1);
const clients = await Promise.all(ports.map((port) => createClient({ url: 'redis://127.0.0.1:' + port }).connect()));
const stopping = (client) => ({
  evalSha() {},
  sendCommand(words) {
    const commands = words.slice(3);
    if (commands.some((word) => new RegExp('^' + step + '\\\\d+').test(word))) {
      process.stdout.write('stopped\\n');
      return new Promise(() => {});
    }
    return client.sendCommand(words);
  },
});
const backends = clients.map((client) => redis(stopping(client), { deadline: '1h' }));
const limits = ${JSON.stringify(LIMITS)};
const parts = Object.entries(limits).map(([name, limit], n) => limiter({ name, limit, backend: backends[n % 2] }));
const [first, second, spaced, flights, both] = parts;
const costly = (limiter, cost) => ({ limiter, cost });
const api = all([costly(first, 4), costly(second, 3), costly(spaced, 1), costly(flights, 2), costly(both, 3)]);
await api.check('k', 1, { willSettle: true });
process.stdout.write('allowed\\n');
`;

describe.skipIf(redisServer() === undefined)('joint check of a client that is killed', () => {
  let servers: Service[];
  let connections: RedisConnection[];
  let limiters: RemoteLimiter[];

  beforeAll(async () => {
    servers = await Promise.all([startRedis(), startRedis()]);
    connections = await Promise.all(servers.map(({ port }) => nodeRedis(port)));
  });
  afterAll(async () => {
    for (const { disconnect } of connections ?? []) disconnect();
    await Promise.all((servers ?? []).map((server) => server.stop()));
  });
  beforeEach(() => {
    for (const { port } of servers) redisCli(port, 'FLUSHALL');
    limiters = Object.entries(LIMITS).map(([name, limit], n) =>
      limiter({ name, limit, backend: redis(connections[n % 2].client, { deadline: '5s' }) }),
    );
  });
  afterEach(async () => {
    for (const one of limiters) await one.close();
  });

  /** What each rule has left. */
  const left = async (): Promise<(number | undefined)[]> => {
    const keys = await Promise.all(limiters.map((one) => one.inspect('k')));
    return keys.flatMap((key) => key?.rules.map(({ remaining }) => remaining));
  };

  /** Starts a client and kills it with SIGKILL as soon as it is about to send its first command of this kind. */
  async function killBefore(step: string): Promise<number> {
    const ports = servers.map(({ port }) => String(port));
    const args = ['--input-type=module', '--eval', CLIENT, step, ...ports];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const [said] = await once(child.stdout, 'data');
    child.kill('SIGKILL');
    expect(String(said)).toMatch(/^(stopped\n)+$/); // several confirmations may be about to be sent
    await once(child, 'close');
    return performance.now();
  }

  test('between reserve and confirm: nothing stays charged past the bound', async () => {
    const killedAt = await killBefore('k');
    expect(await left()).toEqual([6, 7, 0, 3, 7, 17]); // all five are reserved
    const rates = async (): Promise<unknown> => (await left()).filter((_, n) => n !== 3 && n !== 5);
    let lastChargedAt = killedAt;
    await vi.waitFor(
      async () => {
        const readAt = performance.now();
        const found = await rates();
        if (!isDeepStrictEqual(found, [10, 10, 1, 10])) lastChargedAt = readAt;
        expect(found).toEqual([10, 10, 1, 10]);
      },
      { timeout: RESERVATION_TTL_MS + 10_000, interval: 50 },
    );
    const keptMs = lastChargedAt - killedAt;
    expect(keptMs).toBeLessThan(RESERVATION_TTL_MS + 100);
    const [first, , spaced] = limiters;
    expect((await first.check('k', 10)).verdict).toBe('allow'); // in full, and once
    expect((await first.check('k')).verdict).toBe('deny');
    expect((await spaced.check('k')).verdict).toBe('allow');
    await vi.waitFor(async () => expect(await inFlight()).toEqual([5, 20]), {
      timeout: LEASE_TTL_MS + 3000,
      interval: 100,
    });
  }, 30_000);

  const inFlight = async (): Promise<unknown> =>
    (await left()).filter((_, n) => n === 3 || n === 5);

  test('calls in flight beside other rules: the cost stays charged, and the lease of a killed process expires', async () => {
    const child = spawn(process.execPath, [
      '--input-type=module',
      '--eval',
      CLIENT.replace('const api = all', "await both.tryAcquire('k', 4); const api = all"),
      'v',
      ...servers.map(({ port }) => String(port)),
    ]);
    await once(child.stdout, 'data'); // about to reserve: its permit is held
    child.kill('SIGKILL');
    await once(child, 'close');
    expect((await left()).slice(4)).toEqual([6, 16]);
    await vi.waitFor(async () => expect((await left()).slice(4)).toEqual([6, 20]), {
      timeout: LEASE_TTL_MS + 3000,
      interval: 100,
    });
  }, 30_000);

  test('docs/reference/redis.md: the example of combined limiters runs', () => {
    const page = readFileSync('docs/reference/redis.md', 'utf8');
    const section = page.slice(page.indexOf('## Combine shared limiters'));
    const [, code = ''] = /```js\n([\s\S]*?)```/.exec(section) ?? [];
    const program = code.replace(':6379', `:${servers[0].port}`);
    const args = ['--input-type=module', '--eval', program];
    const said = execFileSync(process.execPath, args, { encoding: 'utf8', timeout: 20_000 });
    expect(said).toMatch(/^allow (89\d{3}|90000)\n$/); // less the 640 that were used, until they are refilled
  });
});
