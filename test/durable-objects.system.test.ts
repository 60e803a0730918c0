import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { bundleWorker, startWorkerd, workerdFolder } from './support/durable-objects/workerd.ts';
import { consumerFolder, hasRuntimes } from './support/runtimes.ts';
import type { Service } from './support/services.ts';
import { type Block, readPage } from './support/snippets/pages.ts';

const CONFIG = 'test/runtimes/programs/durable.capnp';
const SOCKETS = ['http', 'second'];

describe.skipIf(!hasRuntimes())('Cloudflare Workers with Durable Objects (workerd)', () => {
  let folder = '';
  let workerd: Service | undefined;
  /** Requests to the isolates in turns; or to the first. */
  let getFirst: (path: string) => Promise<unknown>;
  let get: (path: string, init?: RequestInit) => Promise<unknown>;

  beforeAll(async () => {
    folder = workerdFolder();
    const consumer = consumerFolder();
    await bundleWorker(join(consumer.path, 'durable.mjs'), folder);
    consumer.remove();
    const { service, ports } = await startWorkerd(folder, CONFIG, SOCKETS);
    workerd = service;
    getFirst = async (path) => (await fetch(`http://127.0.0.1:${ports[0]}${path}`)).json();
    let requests = 0;
    get = async (path, init) => {
      const port = ports[requests++ % ports.length];
      return (await fetch(`http://127.0.0.1:${port}${path}`, init)).json();
    };
  }, 60_000);
  afterAll(async () => {
    await workerd?.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  const getAll = (path: string, count: number): Promise<unknown[]> =>
    Promise.all(Array.from({ length: count }, () => get(path)));

  test('two isolates never exceed a bucket together', async () => {
    const verdicts = await getAll('/bucket', 60);
    expect(verdicts.filter((verdict) => verdict === 'allow').length).toBe(20);
  });

  test('checks of one request are decided in their order', async () => {
    expect(await get('/tick')).toEqual([19, 18, 17]);
  });

  test('requests of both isolates that wait at once are all served', async () => {
    expect(await getAll('/spaced', 12)).toEqual(Array(12).fill('allow'));
  });

  test('two isolates never exceed a concurrency limit together, beside a window', async () => {
    const counts = await getAll('/both', 12);
    expect(Math.max(...(counts as number[]))).toBeLessThanOrEqual(2);
    expect(Math.min(...(counts as number[]))).toBeGreaterThanOrEqual(1);
  });

  test('a waiting request that disconnects does not stop the others', async () => {
    const client = new AbortController();
    const first = get('/hold?ms=600');
    await vi.waitFor(async () => expect(await get('/state')).toBe(1));
    const leaving = Array.from({ length: 4 }, () =>
      get('/hold?ms=1', { signal: client.signal }).catch(() => 'gone'),
    );
    const staying = Array.from({ length: 4 }, () => get('/hold?ms=1'));
    await getAll('/spaced', 4); // all of them are under way
    client.abort();
    expect(await Promise.all([first, ...leaving, ...staying])).toEqual([
      'held',
      ...Array(4).fill('gone'),
      ...Array(4).fill('held'),
    ]);
  });

  test('a call that runs longer than the lease keeps its permit', async () => {
    const first = get('/hold?ms=2500');
    await vi.waitFor(async () => expect(await get('/state')).toBe(1));
    expect(await Promise.all([first, get('/hold?ms=1')])).toEqual(['held', 'held']);
  });

  test('the permit of a request that ended without settling is free after leaseTimeout', async () => {
    expect(await get('/leak')).toBe('allow');
    expect(await get('/hold?ms=1')).toBe('held');
  });

  test('a settlement is sent by waitUntil although the request ends at once', async () => {
    for (let n = 0; n < 4; n++) {
      expect(await get('/quick')).toBe('allow');
      await vi.waitFor(async () => expect(await get('/quick-state')).toBe(0), 5000);
    }
  });

  test('an object that was unreachable is used again, although each request ends before a probe', async () => {
    for (let n = 0; n < 2; n++) expect(await getFirst('/down')).toBe('unavailable');
    await vi.waitFor(async () => expect(await getFirst('/up')).toBe('allow'), 10_000);
  });

  test('waitUntil is required', async () => {
    expect(await get('/mistake')).toMatch(
      '`backend.waitUntil` to be waitUntil of cloudflare:workers',
    );
  });

  test('a restart of the runtime keeps what was spent', async () => {
    await workerd?.kill();
    await workerd?.restart();
    expect(await getAll('/bucket', 4)).toEqual(Array(4).fill('deny'));
  });
});

/** The Workers of these pages, run as they stand. */
const blocksOf = (page: string): readonly Block[] =>
  readPage(page).blocks.filter(
    ({ checkedBy }) => checkedBy === 'test/durable-objects.system.test.ts',
  );

describe.skipIf(!hasRuntimes())('Workers of the documentation (workerd)', () => {
  /** The status and body of requests to a Worker, to its two isolates in turns. */
  async function run({ text }: Block, requests: number) {
    const [folder, consumer] = [workerdFolder(), consumerFolder()];
    writeFileSync(join(consumer.path, 'page.mjs'), text);
    await bundleWorker(join(consumer.path, 'page.mjs'), folder);
    const { service, ports } = await startWorkerd(folder, CONFIG, SOCKETS);
    try {
      const replies: { status: number; body: string; retryAfter: string | null }[] = [];
      for (let n = 0; n < requests; n++) {
        const headers = { 'cf-connecting-ip': '192.0.2.1' };
        const response = await fetch(`http://127.0.0.1:${ports[n % ports.length]}`, { headers });
        const retryAfter = response.headers.get('retry-after');
        replies.push({ status: response.status, body: await response.text(), retryAfter });
      }
      return replies;
    } finally {
      await service.stop();
      consumer.remove();
      rmSync(folder, { recursive: true, force: true });
    }
  }

  test('docs/how-to/cloudflare-workers.md: five requests of seven are served', async () => {
    const [limited] = blocksOf('docs/how-to/cloudflare-workers.md');
    const replies = await run(limited, 7);
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200, 429, 429]);
    expect(Number(replies[6].retryAfter)).toBeGreaterThan(0);
  });

  test('docs/how-to/cloudflare-workers.md: a call to another API gets its permit', async () => {
    const [, calling] = blocksOf('docs/how-to/cloudflare-workers.md');
    expect(await run(calling, 2)).toMatchObject(
      Array(2).fill({ status: 200, body: '{"text":"hello"}' }),
    );
  });

  test('docs/reference/durable-objects.md: decides', async () => {
    const [block] = blocksOf('docs/reference/durable-objects.md');
    const [first] = await run(block, 1);
    expect(first).toMatchObject({ status: 200, body: '{"verdict":"allow","remaining":19}' });
  });
});
