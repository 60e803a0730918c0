/** A process that converts the keys of a limit is killed: another one continues, and no key is converted twice. */

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

/** Hours until the next permit of a key: 1 before the change, 3 after it, 5 after a second one. */
async function hoursOf(api: RemoteLimiter, keys: readonly string[]): Promise<Map<number, number>> {
  const counts = new Map<number, number>();
  for (const key of keys) {
    const decision = await api.peek(key);
    const hours = decision?.verdict === 'deny' ? Math.round(decision.retryAfterMs / HOUR_MS) : 0;
    counts.set(hours, (counts.get(hours) ?? 0) + 1);
  }
  return counts;
}

/** Continues the change that was begun, and makes two more. */
async function expectChangedOnce(api: RemoteLimiter, keys: readonly string[]): Promise<void> {
  await api.change(AFTER);
  expect(await hoursOf(api, keys)).toEqual(new Map([[3, keys.length]]));
  // Another change, and back to the first one, are changes of their own.
  await api.change(BEFORE);
  await api.change(AFTER);
  expect(await hoursOf(api, keys)).toEqual(new Map([[3, keys.length]]));
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

  test('another process continues once it is stale: each key is converted once', async () => {
    const backend = redis(connection.client, { deadline: '10s' });
    const api = limiter({ name: 'api', limit: BEFORE, backend });
    const keys = Array.from({ length: 1500 }, (_, n) => `key ${n}`); // three pages
    await Promise.all(keys.map((key) => api.check(key)));
    await killInChange(REDIS_CLIENT, String(server.port));
    const half = await hoursOf(api, keys);
    expect([...half.keys()].sort()).toEqual([1, 3]);
    const marker = 'sluice:{api}:spacing:changed';
    const begun = redisCli(server.port, 'GET', marker).trim();
    const at = begun.split(' ')[3];
    redisCli(server.port, 'SET', marker, begun.replace(at, String(Number(at) - 15_000)));
    await expectChangedOnce(api, keys);
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

  test('another process continues once its lease has ended: each key is converted once', async () => {
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
    expect(await hoursOf(api, keys)).toEqual(
      new Map([
        [1, 40],
        [3, 20],
      ]),
    );
    // Stands for the end of its lease.
    await fetch(`http://127.0.0.1:${server.port}/v3/kv/deleterange`, {
      method: 'POST',
      body: JSON.stringify({ key: base64(`${PREFIX.slice(0, -1)}:changing`) }),
    });
    await expectChangedOnce(api, keys);
    await api.close();
  }, 60_000);
});
