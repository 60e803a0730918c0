/**
 * The table of limits and backends in docs/reference/limits.md and README.md: made from what the code accepts, and every cell is
 * tried with real servers. A limit that a backend accepts must be decided by it; one that it cannot decide must be
 * refused when the limiter is created.
 */

import { readFileSync, rmSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import type { AnyBackendFactory } from '../src/backends/daemon-backend.ts';
import { durableObjects } from '../src/backends/durable-objects/index.ts';
import { etcd } from '../src/backends/etcd/options.ts';
import { groups } from '../src/backends/groups/options.ts';
import { MemoryHub } from '../src/backends/peers/memory-transport.ts';
import { peers } from '../src/backends/peers/options.ts';
import { memoryStore, pool } from '../src/backends/pool/index.ts';
import { redis } from '../src/backends/redis/index.ts';
import { systemClock } from '../src/core/clock.ts';
import { ConfigError } from '../src/core/errors.ts';
import { limiter } from '../src/limiter/limiter.ts';
import { LIMIT_KINDS, type Limit } from '../src/policies/limit.ts';
import { namespaceOf, startObjects, workerdFolder } from './support/durable-objects/workerd.ts';
import { nodeRedis } from './support/redis-clients.ts';
import { hasRuntimes } from './support/runtimes.ts';
import { etcdServer, redisServer, startEtcd, startRedis } from './support/services.ts';

/** One limit of each kind that admits no more than MOST of the calls below. */
const LIMITS: Readonly<Record<string, Limit>> = {
  bucket: { bucket: { rate: '3/h', burst: 3 } },
  spacing: { spacing: { every: '1h' } },
  window: { window: { limit: 3, per: '1h' } },
  ramp: { ramp: { min: 3, max: 3, over: '1m' } },
  quota: { quota: { limit: 3, per: 'hour' } },
  lockout: { lockout: { after: 3, within: '1h', lock: '1h' } },
  concurrency: { concurrency: 3 },
  adaptive: { adaptive: { initial: 1, max: 3 } },
  busy: { busy: {} },
};
const MOST = 3;
const CALLS = 8;

/** Kinds whose limit these calls do not reach: it is the service's. */
const UNBOUNDED = ['busy'];

const KINDS = LIMIT_KINDS.filter((kind) => kind !== 'all');
const SECRET = 'a secret of the test, long enough';

const SERVED = ['redis', 'etcd', 'peers', 'pool', 'groups', 'durableObjects'] as const;
type BackendName = (typeof SERVED)[number];

/** Set before the first test. */
let backends: Readonly<Record<BackendName, AnyBackendFactory>>;
const closing: (() => unknown)[] = [];
const limiters: TriedLimiter[] = [];
let count = 0;

async function startBackends(): Promise<typeof backends> {
  const folder = workerdFolder();
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const servers = await Promise.all([startRedis(), startEtcd(), startObjects(folder)]);
  const [redisAt, etcdAt, objects] = servers;
  const { client, disconnect } = await nodeRedis(redisAt.port);
  const node = peers({
    transport: new MemoryHub({ clock: systemClock }).transport('a'),
    key: SECRET,
  });
  const member = pool(memoryStore());
  const region = groups({
    self: 'eu',
    groups: { eu: {}, us: { at: 'http://127.0.0.1:1' } },
    key: SECRET,
  });
  closing.push(() => Promise.all(servers.map((server) => server.stop())), disconnect);
  closing.push(() => Promise.all([node.close(), member.close(), region.close()]));
  // A member refuses calls until the pool has agreed on its size.
  limiter({ name: 'any', limit: LIMITS.bucket, backend: member });
  await vi.waitFor(() => expect(member.view().isAgreed).toBe(true), 15_000);
  return {
    redis: redis(client, { deadline: '5s' }),
    etcd: etcd({ endpoints: [`http://127.0.0.1:${etcdAt.port}`], deadline: '5s' }),
    peers: node,
    pool: member,
    groups: region,
    durableObjects: durableObjects(namespaceOf(objects, ''), { deadline: '5s' }),
  };
}

interface TriedLimiter {
  tryAcquire(key: string): unknown;
  close?(): Promise<void>;
}

/** A limiter with this limit, alone or in `all` with a bucket that never refuses; undefined if it is refused. */
function create(kind: string, backend: BackendName, isInAll: boolean): TriedLimiter | undefined {
  const wide: Limit = { bucket: { rate: '1000/s', burst: 1000 } };
  try {
    const created: TriedLimiter = limiter({
      name: `${kind} ${count++}`, // no two have a state in common
      limit: isInAll ? { all: [LIMITS[kind], wide] } : LIMITS[kind],
      backend: backends[backend] as never,
    });
    limiters.push(created);
    return created;
  } catch (error) {
    if (error instanceof ConfigError) return undefined;
    throw error;
  }
}

/** The row of a kind as the code has it. */
const cellOf = (kind: string, backend: BackendName): string => {
  if (!create(kind, backend, false)) return '–';
  return create(kind, backend, true) ? 'yes' : 'alone';
};

/** The table with these columns in a document: rows by kind. */
function tableIn(file: string): Map<string, string[]> {
  const lines = readFileSync(file, 'utf8').split('\n');
  const header = lines.findIndex((line) => /^\| limit \| .*redis.*etcd.*peers.*pool/.test(line));
  expect(header, `a table of limits and backends in ${file}`).toBeGreaterThanOrEqual(0);
  const rows = lines.slice(header + 2);
  const end = rows.findIndex((line) => !line.startsWith('|'));
  return new Map(
    rows.slice(0, end).map((row) => {
      const [kind, ...cells] = row.split('|').slice(1, -1);
      return [kind.replaceAll(/[\s`]/g, ''), cells.map((cell) => cell.trim())];
    }),
  );
}

const hasServers = redisServer() !== undefined && etcdServer() !== undefined && hasRuntimes();

describe.skipIf(!hasServers)('limits and backends', () => {
  beforeAll(async () => {
    backends = await startBackends();
  });
  afterAll(async () => {
    for (const each of limiters) await each.close?.();
    for (const close of closing.toReversed()) await close();
  });

  test.each(['docs/reference/limits.md', 'README.md'])(
    '%s: the table is what the code accepts',
    (file) => {
      const expected = KINDS.map((kind) => [kind, SERVED.map((backend) => cellOf(kind, backend))]);
      expect([...tableIn(file)]).toEqual(expected);
    },
  );

  const cells = KINDS.flatMap((kind) =>
    SERVED.flatMap((backend) => [false, true].map((isInAll) => ({ kind, backend, isInAll }))),
  );

  test.each(cells)(
    '$backend: $kind (in all: $isInAll), an accepted limit is decided',
    async ({ kind, backend, isInAll }) => {
      const tried = create(kind, backend, isInAll);
      if (!tried) return; // refused at creation, as the table says
      let admitted = 0;
      for (let n = 0; n < CALLS; n++) {
        const result = (await tried.tryAcquire('alice')) as { readonly verdict: string };
        if (result.verdict === 'allow') admitted++;
      }
      const isBounded = !UNBOUNDED.includes(kind);
      expect(admitted).toBeGreaterThanOrEqual(1);
      if (isBounded) expect(admitted).toBeLessThanOrEqual(MOST);
    },
  );
});
