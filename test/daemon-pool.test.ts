/** Daemons that divide limits among them, as processes of their own that meet in a real Redis, NATS and etcd. */

import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import {
  etcdServer,
  natsServer,
  redisServer,
  type Service,
  startEtcd,
  startJetStream,
  startRedis,
} from './support/services.ts';

const LIMIT = 60;
const RAMP = `limits: { api: { ramp: { min: ${LIMIT}, max: ${LIMIT}, over: 1s }, pool: true } }`;

const own = daemonFixture();
afterEach(() => own.end());

const join = (store: string, id: string, limits = RAMP): Promise<RunningDaemon> => {
  const config = own.place().file(`${id}.yaml`, `pool: { ${store}, id: ${id} }\n${limits}`);
  return own.start([...EPHEMERAL_PORTS, '--config', config]);
};

const at = ({ port }: Service): string => `redis: 'redis://127.0.0.1:${port}', stale: 1s`;

interface View {
  readonly size: number;
  readonly rank: number;
  readonly isAgreed: boolean;
  readonly reason?: string;
  readonly members?: readonly { readonly id: string }[];
}

const view = async (daemon: RunningDaemon): Promise<View> =>
  (await (await fetch(`http://${daemon.addresses.http[0]}/pool`)).json()) as View;

const agree = (...daemons: RunningDaemon[]): Promise<void> =>
  waitUntil(async () => {
    const views = await Promise.all(daemons.map(view));
    return views.every(({ size, rank }) => size === daemons.length && rank >= 0);
  });

/**
 * Asks all of them all the time, and counts what they let through in each second. The server that they meet in
 * runs on this machine, so its seconds are this machine's. An answer is given between the question and its
 * arrival: where that is not within one second, nobody can tell which one it counts for.
 */
class Traffic {
  /** What was let through in each second, at least. */
  readonly sums = new Map<number, number>();
  readonly #asked = new Map<RunningDaemon, Promise<void>>();
  readonly #stopped = new Set<RunningDaemon>();

  to(...daemons: RunningDaemon[]): void {
    for (const daemon of daemons) this.#asked.set(daemon, this.#ask(daemon));
  }

  async stop(...daemons: RunningDaemon[]): Promise<void> {
    for (const daemon of daemons) this.#stopped.add(daemon);
    await Promise.all(daemons.map((daemon) => this.#asked.get(daemon)));
  }

  async #ask(daemon: RunningDaemon): Promise<void> {
    while (!this.#stopped.has(daemon)) {
      const second = Math.floor(Date.now() / 1000);
      const allowed = await countAllowed(daemon, 'key', LIMIT).catch(() => 0);
      if (Math.floor(Date.now() / 1000) === second) {
        this.sums.set(second, (this.sums.get(second) ?? 0) + allowed);
      }
      await sleep(10);
    }
  }

  /** Somebody was let through in every part of a second that is yet to begin: all of the limit is in use. */
  async untilWhole(): Promise<void> {
    const from = Math.floor(Date.now() / 1000);
    await waitUntil(() => {
      const now = Math.floor(Date.now() / 1000);
      return [...this.sums].some(([second, sum]) => second > from && second < now && sum === LIMIT);
    });
  }

  get most(): number {
    return Math.max(...this.sums.values());
  }
}

describe.skipIf(redisServer() === undefined)('daemon pool', () => {
  test('daemon pool: members never overshoot and soon use the whole limit again after failures', async () => {
    const redis = await own.serve(startRedis);
    const [a, b, c] = await Promise.all(['a', 'b', 'c'].map((id) => join(at(redis), id)));
    const traffic = new Traffic();
    traffic.to(a, b, c);
    await agree(a, b, c);
    await traffic.untilWhole();

    await Promise.all([b.stop('SIGKILL'), traffic.stop(b)]);
    await agree(a, c);
    await traffic.untilWhole();

    const d = await join(at(redis), 'd');
    traffic.to(d);
    await agree(a, c, d);
    await traffic.untilWhole();

    expect((await Promise.all([c.stop(), traffic.stop(c)]))[0]).toBe(0);
    expect((await view(a)).members?.map(({ id }) => id).sort()).toEqual(['a', 'd']);
    await agree(a, d);
    await traffic.untilWhole();

    await redis.kill();
    await a.waitForLog(/warn "?pool out of reach/);
    await traffic.untilWhole(); // they go on with what they had
    expect(await view(a)).toMatchObject({ size: 2, reason: expect.any(String) });
    await sleep(2000);
    await redis.restart();
    await a.waitForLog(/info "?pool in reach again/);
    await agree(a, d);
    await traffic.untilWhole();

    await traffic.stop(a, d);
    expect(traffic.most).toBe(LIMIT);
  }, 90_000);

  test('daemon pool: a divided bucket admits its burst once over all members', async () => {
    const redis = await own.serve(startRedis);
    const slow = 'limits: { api: { bucket: { rate: 1/h, burst: 9 }, pool: true } }';
    const a = await join(at(redis), 'a', slow);
    await agree(a);
    expect(await countAllowed(a, 'C', 20)).toBe(9);
    const inspected = await fetch(`http://${a.addresses.http[0]}/inspect?key=C`);
    expect(await inspected.json()).toMatchObject({ limits: [{ remaining: 0 }] }); // the same key
    const [b, c] = await Promise.all(['b', 'c'].map((id) => join(at(redis), id, slow)));
    await agree(a, b, c);
    // Who comes brings no burst along: what there was, others may have spent.
    expect(await Promise.all([a, b, c].map((own) => countAllowed(own, 'C', 20)))).toEqual([
      0, 0, 0,
    ]);
  }, 30_000);

  test('daemon pool: reports members on the page, in metrics, on the command line and in the log', async () => {
    const redis = await own.serve(startRedis);
    const [a, b] = await Promise.all(['a', 'b'].map((id) => join(at(redis), id)));
    await agree(a, b);
    const page = await view(a);
    expect(page).toMatchObject({ name: 'sluice', store: 'redis', id: 'a', active: 2, failures: 0 });
    expect(page.members?.map(({ id }) => id).sort()).toEqual(['a', 'b']);
    const limits = await (await fetch(`http://${a.addresses.http[0]}/limits`)).json();
    expect(limits).toMatchObject([{ name: 'api', pool: true }]);
    const metrics = await (await fetch(`http://${a.addresses.http[0]}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_pool_size 2$/m);
    expect(metrics).toMatch(/^sluice_pool_agreed 1$/m);
    expect(metrics).toMatch(/^sluice_pool_saturation\{limit="[^"]+"\} 0(\.\d+)?$/m);
    expect(metrics).toMatch(/^sluice_pool_syncs_total\{result="failed"\} 0$/m);
    const shown = sluice('pool', '--at', a.addresses.http[0]).stdout;
    expect(shown).toMatch(/^sluice, redis: 2 active, agreed\n {2}a has 1 of 2, rank \d; the store/);
    expect(shown).toMatch(/\n +member +size +rank +heard\n/);
    for (const id of ['a', 'b'])
      expect(shown).toMatch(new RegExp(`\\n +${id} +2 +[01] +0\\.\\d s`));
    const json = sluice('pool', '--at', a.addresses.http[0], '--json').stdout;
    expect(JSON.parse(json)).toMatchObject({ id: 'a', size: 2 });
    await a.waitForLog(/size of the pool.* size=2/);
  }, 30_000);

  test('daemon pool: starts without its store, and joins when it is available', async () => {
    const redis = await own.serve(startRedis);
    await redis.kill();
    const [a, b] = await Promise.all(['a', 'b'].map((id) => join(at(redis), id)));
    await a.waitForLog(/warn "?pool out of reach/);
    expect(await countAllowed(a, 'key', 5)).toBe(0); // nobody knows how many there are
    const waits = sluice('pool', '--at', a.addresses.http[0]).stdout;
    expect(waits).toMatch(/a has no part; the store was never heard\n/);
    expect(waits).toMatch(/syncs failed: .*out of reach/);
    await redis.restart();
    await agree(a, b);
    expect(await a.stop()).toBe(0);
  }, 30_000);

  test('daemon pool: a reload changes limits but not the pool', async () => {
    const redis = await own.serve(startRedis);
    const a = await join(at(redis), 'a');
    await agree(a);
    const file = a.out().match(/from (\S+)/)?.[1] ?? '';
    const change = async (pool: string, limits: string): Promise<number> => {
      writeFileSync(file, `pool: { ${pool}, id: a }\n${limits}`);
      return (await fetch(`http://${a.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    expect(await change(at(redis), RAMP.replaceAll(`${LIMIT}`, '5'))).toBe(200);
    await waitUntil(async () => (await countAllowed(a, 'key', 20)) === 5); // at the latest in the next second
    expect(await change(`${at(redis)}, name: other`, RAMP)).toBe(422);
    await a.waitForLog(/reload failed.*`pool` has changed/);
  }, 30_000);
});

describe('daemon pool: other stores', () => {
  const comeTogether = async (store: string, name: string): Promise<void> => {
    const [a, b] = await Promise.all(['a', 'b'].map((id) => join(store, id)));
    await agree(a, b);
    expect(await view(a)).toMatchObject({ store: name, size: 2 });
    expect(await a.stop()).toBe(0);
    await agree(b);
  };

  test.skipIf(natsServer() === undefined)(
    'NATS, also if it comes later',
    async () => {
      const nats = await own.serve(startJetStream);
      await nats.kill();
      const met = comeTogether(`nats: 'nats://127.0.0.1:${nats.port}', stale: 1s`, 'nats');
      await Promise.all([met, nats.restart()]);
    },
    40_000,
  );

  test.skipIf(natsServer() === undefined)(
    'NATS: an outage is told once, and why, what holds after that, and when it is over',
    async () => {
      const nats = await own.serve(startJetStream);
      await nats.kill();
      const store = `nats: 'nats://127.0.0.1:${nats.port}', stale: 1s, hold: 1s, onUnavailable: allow`;
      const a = await join(store, 'a');
      await a.waitForLog(/warn pool out of reach pool=.*connection refused/i);
      await nats.restart();
      await agree(a);
      await nats.kill();
      await a.waitForLog(/warn pool out of reach for too long .*onUnavailable=allow/);
      expect(await countAllowed(a, 'key', 2 * LIMIT)).toBe(2 * LIMIT);
      await sleep(3000); // a client that waits longer and longer would not be back within a second
      await nats.restart();
      const backAt = Date.now();
      await waitUntil(async () => (await view(a)).reason === undefined);
      expect(Date.now() - backAt).toBeLessThan(1500);
      await agree(a);
      expect(a.log().match(/pool out of reach (?!for)/g)).toHaveLength(2);
      expect(a.log().match(/pool in reach again/g)).toHaveLength(2);
    },
    40_000,
  );

  test.skipIf(etcdServer() === undefined)(
    'etcd',
    async () => {
      const etcd = await own.serve(startEtcd);
      await comeTogether(`etcd: 'http://127.0.0.1:${etcd.port}', stale: 1s`, 'etcd');
    },
    40_000,
  );

  test('daemon pool: escapes member ids in terminal output', async () => {
    const config = 'pool: { size: 3, id: "red\\e[31m" }';
    const a = await own.start([...EPHEMERAL_PORTS, '--config', own.place().file('a.yaml', config)]);
    expect(sluice('pool', '--at', a.addresses.http[0]).stdout).toMatch(/^ {2}red\?\[31m has /m);
  });

  test('daemon pool: a static pool needs no store', async () => {
    const a = await join('size: 3', 'a');
    await waitUntil(async () => (await view(a)).size === 3);
    await waitUntil(async () => (await countAllowed(a, 'key', LIMIT)) === LIMIT / 3);
    expect(sluice('pool', '--at', a.addresses.http[0]).stdout).toMatch(
      /^sluice, fixed: 3 active, agreed/,
    );
  });
});

test('daemon pool: a daemon without a pool says so', async () => {
  const alone = await own.start(EPHEMERAL_PORTS);
  expect(sluice('pool', '--at', alone.addresses.http[0]).stdout).toBe(
    'It is in no pool: see docs/pool.md.\n',
  );
});

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/cli/main.js', ...args], { encoding: 'utf8' });
