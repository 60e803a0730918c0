import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { bundleWorker, startWorkerd, workerdFolder } from './support/durable-objects/workerd.ts';
import { consumerFolder, hasRuntimes } from './support/runtimes.ts';
import { redisCli, redisServer, type Service, startRedis } from './support/services.ts';
import { startUpstash, type UpstashServer } from './support/upstash-bridge.ts';

const DEADLINE_MS = 3000; // of the program

describe.skipIf(redisServer() === undefined || !hasRuntimes())(
  'Cloudflare Workers with Redis over HTTP (workerd)',
  () => {
    const folder = workerdFolder();
    let server: Service;
    let upstash: UpstashServer;
    let workerd: Service | undefined;
    let get: (path: string, key?: string) => Promise<unknown>;

    beforeAll(async () => {
      server = await startRedis();
      upstash = await startUpstash(server.port);
      const consumer = consumerFolder();
      mkdirSync(join(consumer.path, 'node_modules/@upstash'));
      symlinkSync(
        resolve('node_modules/@upstash/redis'),
        join(consumer.path, 'node_modules/@upstash/redis'),
        'junction',
      );
      await bundleWorker(join(consumer.path, 'upstash.mjs'), folder);
      const config = readFileSync(join(consumer.path, 'upstash.capnp'), 'utf8');
      consumer.remove();
      const path = join(folder, 'upstash.capnp');
      writeFileSync(path, config.replace('REDIS_PORT', new URL(upstash.url).port));
      const { service, ports } = await startWorkerd(folder, path);
      workerd = service;
      get = async (path, key = 'k') => {
        const query = new URLSearchParams({ key });
        return (await fetch(`http://127.0.0.1:${ports[0]}${path}?${query}`)).json();
      };
    }, 60_000);
    afterAll(async () => {
      await workerd?.stop();
      upstash?.close();
      await server?.stop();
      rmSync(folder, { recursive: true, force: true });
    });

    test('the bundle of a Worker imports no module of Node', () => {
      const imports = readFileSync(join(folder, 'bundle.mjs'), 'utf8').match(
        /^import .* from "[^"]+"/gm,
      );
      expect(imports).toEqual([expect.stringContaining('cloudflare:workers')]);
    });

    test('requests share one count, and a long key has the name that it has on Node', async () => {
      const long = 'x'.repeat(600);
      for (const key of ['short', long]) {
        const verdicts = [await get('/check', key), await get('/check', key)];
        verdicts.push(await get('/check', key), await get('/check', key));
        expect(verdicts).toEqual(['allow', 'allow', 'allow', 'deny']);
      }
      const digest = createHash('sha256').update(long).digest('base64url');
      const names = redisCli(server.port, 'KEYS', '*}:bucket').split('\n').sort();
      expect(names).toEqual([`sluice:{bucket#${digest}}:bucket`, 'sluice:{bucket:short}:bucket']);
    });

    test('a settlement is sent by waitUntil although the request ends at once', async () => {
      expect(await get('/settle')).toBe('allow');
      await vi.waitFor(async () => expect(await get('/remaining')).toBe(3));
    });

    test('redis() without waitUntil, and a limit on calls in flight, are errors', async () => {
      expect(await get('/without-wait-until')).toContain('backend.waitUntil');
      expect(await get('/concurrency')).toContain('use durableObjects()');
    });

    test('a server that never answers costs one deadline, then onUnavailable decides; it is probed by later requests', async () => {
      expect(await get('/acquire', 'outage')).toBe('allow');
      upstash.isAnswering = false;
      const since = performance.now();
      expect(await get('/acquire', 'outage')).toBe('unavailable');
      expect(performance.now() - since).toBeGreaterThan(0.9 * DEADLINE_MS);
      for (let n = 0; n < 20; n++) expect(await get('/acquire', 'outage')).toBe('unavailable');
      expect(performance.now() - since).toBeLessThan(10 * DEADLINE_MS); // not one deadline for each
      upstash.isAnswering = true;
      await vi.waitFor(async () => expect(await get('/acquire', 'outage')).toBe('allow'), 20_000);
    }, 60_000);
  },
);
