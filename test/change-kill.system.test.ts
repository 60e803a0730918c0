import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { etcd } from '../src/backends/etcd/options.ts';
import { redis } from '../src/backends/redis/options.ts';
import type { RemoteLimiter } from '../src/limiter/async-limiter.ts';
import { limiter } from '../src/limiter/limiter.ts';
import { nodeRedis, type RedisConnection } from './support/redis-clients.ts';
import {
  etcdServer,
  redisCli,
  redisServer,
  type Service,
  startEtcd,
  startRedis,
} from './support/services.ts';

const HOUR_MS = 3_600_000;
const BEFORE = { spacing: { every: '1h' } } as const;
const AFTER = { spacing: { every: '3h' } } as const;

/** Keys that the server keeps for at least the new interval. A lease of etcd may be longer than its key needs. */
const countConverted = (expiries: readonly number[]): number =>
  expiries.filter((ms) => ms > 2.5 * HOUR_MS).length;

/** Times until the next permits of these keys. */
async function waitsOf(api: RemoteLimiter, keys: readonly string[]): Promise<number[]> {
  const decisions = await Promise.all(keys.map((key) => api.peek(key)));
  return decisions.map((each) => (each?.verdict === 'deny' ? each.retryAfterMs : 0));
}

/** Continues the change that was begun, and makes two more. `expiriesOf` reads how long the server keeps each key. */
async function expectChanged(
  api: RemoteLimiter,
  keys: readonly string[],
  expiriesOf: () => Promise<number[]>,
): Promise<void> {
  const expectAll = async (hours: number, converted: number): Promise<void> => {
    const waits = await waitsOf(api, keys);
    expect(new Set(waits.map((ms) => Math.round(ms / HOUR_MS)))).toEqual(new Set([hours]));
    expect(countConverted(await expiriesOf())).toBe(converted);
  };
  await api.change(AFTER);
  await expectAll(3, keys.length);
  // Another change, and back to the first one, are changes of their own.
  await api.change(BEFORE);
  await expectAll(1, 0);
  await api.change(AFTER);
  await expectAll(3, keys.length);
}

/** Runs a program until it has stopped in the middle of a change, and kills it. */
async function killInChange(program: string, ...args: string[]): Promise<void> {
  const child = spawn(process.execPath, ['--input-type=module', '--eval', program, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [said] = await once(child.stdout, 'data');
  child.kill('SIGKILL');
  expect(String(said)).toBe('stopped\n');
  await once(child, 'close');
}

/** Its second page of keys never comes. */
const REDIS_CLIENT = `
import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';
const client = await createClient({ url: 'redis://127.0.0.1:' + process.argv[1] }).connect();
let pages = 0;
const stopping = {
  evalSha() {},
  sendCommand(words) {
    if (words[0] !== 'SCAN' || ++pages < 2) return client.sendCommand(words);
    process.stdout.write('stopped\\n');
    return new Promise(() => {});
  },
};
const backend = redis(stopping, { deadline: '1h' });
const api = limiter({ name: 'api', limit: ${JSON.stringify(BEFORE)}, backend });
await api.change(${JSON.stringify(AFTER)});
process.stdout.write('changed\\n');
`;

const EXPIRIES_LUA = `
local expiries = {}
for n, key in ipairs(redis.call('KEYS', ARGV[1])) do expiries[n] = redis.call('PTTL', key) end
return expiries`;

describe.skipIf(redisServer() === undefined)('change in Redis by a process that is killed', () => {
  let server: Service;
  let connection: RedisConnection;
  beforeAll(async () => {
    server = await startRedis();
    connection = await nodeRedis(server.port);
  });
  afterAll(async () => {
    connection?.disconnect();
    await server?.stop();
  });

  test('another process continues once it is stale, and converts all keys', async () => {
    const backend = redis(connection.client, { deadline: '10s' });
    const api = limiter({ name: 'api', limit: BEFORE, backend });
    const keys = Array.from({ length: 1500 }, (_, n) => `key ${n}`); // three pages
    await Promise.all(keys.map((key) => api.check(key)));
    await killInChange(REDIS_CLIENT, String(server.port));
    const expiriesOf = async (): Promise<number[]> => {
      const lines = redisCli(server.port, 'EVAL', EXPIRIES_LUA, '0', 'sluice:{api:*}:spacing');
      return lines.split('\n').map(Number);
    };
    const converted = countConverted(await expiriesOf());
    expect(converted).toBeGreaterThan(0);
    expect(converted).toBeLessThan(keys.length);
    const marker = 'sluice:{api}:spacing:changed';
    const begun = redisCli(server.port, 'GET', marker).trim();
    const at = begun.split(' ')[3];
    redisCli(server.port, 'SET', marker, begun.replace(at, String(Number(at) - 15_000)));
    await expectChanged(api, keys, expiriesOf);
    await api.close();
  }, 60_000);
});

const ETCD_CLIENT = `
import { limiter } from 'sluice';
import { etcd } from 'sluice/etcd';
const backend = etcd({ endpoints: [process.argv[1]], deadline: '1h' });
const api = limiter({ name: 'api', limit: ${JSON.stringify(BEFORE)}, backend });
await api.change(${JSON.stringify(AFTER)}).catch(() => {});
`;

const PREFIX = '/sluice/limits/api/spacing/';
const base64 = (plain: string): string => Buffer.from(plain).toString('base64');

describe.skipIf(etcdServer() === undefined)('change in etcd by a process that is killed', () => {
  let server: Service;
  beforeAll(async () => {
    server = await startEtcd();
  });
  afterAll(() => server?.stop());

  /** A proxy that executes so many writes of registers, and then answers nothing. */
  async function startProxy(writes: number, onStopped: () => void) {
    let written = 0;
    const isWrite = (body: string): boolean => {
      const { success: [first] = [] } = JSON.parse(body);
      const key = first?.request_put?.key ?? '';
      return Buffer.from(key, 'base64').toString().startsWith(PREFIX);
    };
    const proxy = createServer(async (request, response) => {
      const body = await text(request);
      if (isWrite(body) && ++written > writes) return onStopped();
      const reply = await fetch(`http://127.0.0.1:${server.port}${request.url}`, {
        method: 'POST',
        body,
      });
      response.writeHead(reply.status).end(await reply.text());
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const { port } = proxy.address() as AddressInfo;
    const close = (): void => {
      proxy.closeAllConnections();
      proxy.close();
    };
    return { address: `http://127.0.0.1:${port}`, close };
  }

  async function post(path: string, body: object): Promise<Record<string, unknown>> {
    const url = `http://127.0.0.1:${server.port}${path}`;
    const response = await fetch(url, { method: 'POST', body: JSON.stringify(body) });
    return (await response.json()) as Record<string, unknown>;
  }

  async function expiriesOf(): Promise<number[]> {
    const range = { key: base64(PREFIX), range_end: base64(`${PREFIX.slice(0, -1)}0`) };
    const { kvs } = await post('/v3/kv/range', range);
    return Promise.all(
      (kvs as { lease: string }[]).map(async ({ lease }) => {
        const { TTL } = await post('/v3/lease/timetolive', { ID: lease });
        return Number(TTL) * 1000;
      }),
    );
  }

  test('another process continues once its lease has ended, and converts all keys', async () => {
    const backend = etcd({ endpoints: [`http://127.0.0.1:${server.port}`], deadline: '10s' });
    const api = limiter({ name: 'api', limit: BEFORE, backend });
    const keys = Array.from({ length: 60 }, (_, n) => `key ${n}`);
    await Promise.all(keys.map((key) => api.check(key)));
    let stop = (): void => {};
    const stopped = new Promise<void>((resolve) => {
      stop = resolve;
    });
    const proxy = await startProxy(20, () => stop());
    const child = spawn(
      process.execPath,
      ['--input-type=module', '--eval', ETCD_CLIENT, proxy.address],
      { stdio: 'inherit' },
    );
    await stopped;
    child.kill('SIGKILL');
    await once(child, 'close');
    proxy.close();
    expect(countConverted(await expiriesOf())).toBe(20);
    // Stands for the end of its lease.
    await post('/v3/kv/deleterange', { key: base64(`${PREFIX.slice(0, -1)}:changing`) });
    await expectChanged(api, keys, expiriesOf);
    await api.close();
  }, 60_000);
});
