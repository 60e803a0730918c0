import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
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

const fixture = daemonFixture();
afterEach(() => fixture.end());

const join = (store: string, id: string, limits = RAMP): Promise<RunningDaemon> => {
  const config = fixture.place().file(`${id}.yaml`, `pool: { ${store}, id: ${id} }\n${limits}`);
  return fixture.start([...EPHEMERAL_PORTS, '--config', config]);
};

const at = ({ port }: Service): string => `redis: 'redis://127.0.0.1:${port}', memberTimeout: 1s`;

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

/** Resolves when a client has tried to connect so many times to a port on which no server listens. */
async function reconnects(port: number, times: number): Promise<void> {
  let attempts = 0;
  const server = createServer((socket) => {
    attempts++;
    socket.destroy();
  });
  await new Promise<void>((listening) => server.listen(port, '127.0.0.1', listening));
  try {
    await waitUntil(() => attempts >= times);
  } finally {
    await new Promise((closed) => server.close(closed));
  }
}

/**
 * Sends checks to all daemons and counts what is allowed in each second. The store runs on this machine, so its seconds
 * are those of this machine. A reply that does not arrive in the second of its request is not counted.
 */
class Traffic {
  /** Allowed in each second, at least. */
  readonly sums = new Map<number, number>();
  readonly #running = new Map<RunningDaemon, Promise<void>>();
  readonly #stopped = new Set<RunningDaemon>();

  to(...daemons: RunningDaemon[]): void {
    for (const daemon of daemons) this.#running.set(daemon, this.#run(daemon));
  }

  async stop(...daemons: RunningDaemon[]): Promise<void> {
    for (const daemon of daemons) this.#stopped.add(daemon);
    await Promise.all(daemons.map((daemon) => this.#running.get(daemon)));
  }

  async #run(daemon: RunningDaemon): Promise<void> {
    while (!this.#stopped.has(daemon)) {
      const second = Math.floor(Date.now() / 1000);
      const allowed = await countAllowed(daemon, 'key', LIMIT).catch(() => 0);
      if (Math.floor(Date.now() / 1000) === second) {
        this.sums.set(second, (this.sums.get(second) ?? 0) + allowed);
      }
      await sleep(10);
    }
  }

  /** Resolves after a whole second in which the full limit was allowed. */
  async untilFullUse(): Promise<void> {
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

describe.skipIf(redisServer() === undefined)('pool of daemons', () => {
  test('pool of daemons: never exceeds the limit, and uses all of it after every change of members and store', async () => {
    const redis = await fixture.serve(startRedis);
    const [a, b, c] = await Promise.all(['a', 'b', 'c'].map((id) => join(at(redis), id)));
    const traffic = new Traffic();
    traffic.to(a, b, c);
    await agree(a, b, c);
    await traffic.untilFullUse();

    await Promise.all([b.stop('SIGKILL'), traffic.stop(b)]);
    await agree(a, c);
    await traffic.untilFullUse();

    const d = await join(at(redis), 'd');
    traffic.to(d);
    await agree(a, c, d);
    await traffic.untilFullUse();

    expect((await Promise.all([c.stop(), traffic.stop(c)]))[0]).toBe(0);
    expect((await view(a)).members?.map(({ id }) => id).sort()).toEqual(['a', 'd']);
    await agree(a, d);
    await traffic.untilFullUse();

    await redis.kill();
    await a.waitForLog(/warn "?pool unavailable/);
    await traffic.untilFullUse(); // the last agreed size stays in use
    expect(await view(a)).toMatchObject({ size: 2, reason: expect.any(String) });
    await sleep(2000);
    await redis.restart();
    await a.waitForLog(/info "?pool available again/);
    await agree(a, d);
    await traffic.untilFullUse();

    await traffic.stop(a, d);
    expect(traffic.most).toBe(LIMIT);
  }, 90_000);

  test('pool of daemons: all members together allow the burst of a bucket once', async () => {
    const redis = await fixture.serve(startRedis);
    const slow = 'limits: { api: { bucket: { rate: 1/h, burst: 9 }, pool: true } }';
    const a = await join(at(redis), 'a', slow);
    await agree(a);
    expect(await countAllowed(a, 'C', 20)).toBe(9);
    const inspected = await fetch(`http://${a.addresses.http[0]}/inspect?key=C`);
    expect(await inspected.json()).toMatchObject({ limits: [{ remaining: 0 }] }); // the same key over HTTP
    const [b, c] = await Promise.all(['b', 'c'].map((id) => join(at(redis), id, slow)));
    await agree(a, b, c);
    // A new member starts without a burst: other members may have spent it.
    expect(await Promise.all([a, b, c].map((daemon) => countAllowed(daemon, 'C', 20)))).toEqual([
      0, 0, 0,
    ]);
  }, 30_000);

  test('pool of daemons: shows its members on the admin page, in metrics, in the CLI and in the log', async () => {
    const redis = await fixture.serve(startRedis);
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
    expect(shown).toMatch(
      /^sluice, redis: 2 active, agreed\n {2}a has 1 of 2, rank \d; last reply of the store/,
    );
    expect(shown).toMatch(/\n +member +size +rank +last sync\n/);
    for (const id of ['a', 'b'])
      expect(shown).toMatch(new RegExp(`\\n +${id} +2 +[01] +0\\.\\d s`));
    const json = sluice('pool', '--at', a.addresses.http[0], '--json').stdout;
    expect(JSON.parse(json)).toMatchObject({ id: 'a', size: 2 });
    await a.waitForLog(/size of the pool.* size=2/);
  }, 30_000);

  test('pool of daemons: starts without its store, and agrees once the store is available', async () => {
    const redis = await fixture.serve(startRedis);
    await redis.kill();
    const [a, b] = await Promise.all(['a', 'b'].map((id) => join(at(redis), id)));
    await a.waitForLog(/warn "?pool unavailable/);
    expect(await countAllowed(a, 'key', 5)).toBe(0); // the size is not known
    const waits = sluice('pool', '--at', a.addresses.http[0]).stdout;
    expect(waits).toMatch(/a has no part; last reply of the store: never\n/);
    expect(waits).toMatch(/syncs failed: .*unavailable/);
    await redis.restart();
    await agree(a, b);
    expect(await a.stop()).toBe(0);
  }, 30_000);

  test('pool of daemons: a reload changes limits, but not the section `pool`', async () => {
    const redis = await fixture.serve(startRedis);
    const a = await join(at(redis), 'a');
    await agree(a);
    const file = a.out().match(/from (\S+)/)?.[1] ?? '';
    const change = async (pool: string, limits: string): Promise<number> => {
      writeFileSync(file, `pool: { ${pool}, id: a }\n${limits}`);
      return (await fetch(`http://${a.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    expect(await change(at(redis), RAMP.replaceAll(`${LIMIT}`, '5'))).toBe(200);
    await waitUntil(async () => (await countAllowed(a, 'key', 20)) === 5); // in the next second at the latest
    expect(await change(`${at(redis)}, name: other`, RAMP)).toBe(422);
    await a.waitForLog(/reload failed.*`pool` has changed/);
  }, 30_000);
});

describe('stores of a pool', () => {
  const formPool = async (store: string, name: string): Promise<void> => {
    const [a, b] = await Promise.all(['a', 'b'].map((id) => join(store, id)));
    await agree(a, b);
    expect(await view(a)).toMatchObject({ store: name, size: 2 });
    expect(await a.stop()).toBe(0);
    await agree(b);
  };

  test.skipIf(natsServer() === undefined)(
    'pool of daemons: NATS may start after the daemons',
    async () => {
      const nats = await fixture.serve(startJetStream);
      await nats.kill();
      const formed = formPool(`nats: 'nats://127.0.0.1:${nats.port}', memberTimeout: 1s`, 'nats');
      await Promise.all([formed, nats.restart()]);
    },
    40_000,
  );

  test.skipIf(natsServer() === undefined)(
    'pool of daemons: an outage of NATS is logged once with its reason, the fallback, and the recovery',
    async () => {
      const nats = await fixture.serve(startJetStream);
      await nats.kill();
      const store = `nats: 'nats://127.0.0.1:${nats.port}', memberTimeout: 1s, staleFor: 1s, onUnavailable: allow`;
      const a = await join(store, 'a');
      await a.waitForLog(/warn pool unavailable pool=.*connection refused/i);
      await nats.restart();
      await agree(a);
      await nats.kill();
      await a.waitForLog(/warn pool unavailable for too long .*onUnavailable=allow/);
      expect(await countAllowed(a, 'key', 2 * LIMIT)).toBe(2 * LIMIT);
      await reconnects(nats.port, 8); // every 200 to 300 ms; with growing intervals these would take a minute
      await nats.restart();
      await waitUntil(async () => (await view(a)).reason === undefined);
      await agree(a);
      // A stall of the machine may be an outage of its own.
      const outages = a.log().match(/pool unavailable (?!for)/g)?.length;
      expect(outages).toBeOneOf([2, 3]);
      expect(a.log().match(/pool available again/g)).toHaveLength(outages ?? 0);
    },
    40_000,
  );

  test.skipIf(etcdServer() === undefined)(
    'pool of daemons: two daemons agree on the size through etcd',
    async () => {
      const etcd = await fixture.serve(startEtcd);
      await formPool(`etcd: 'http://127.0.0.1:${etcd.port}', memberTimeout: 1s`, 'etcd');
    },
    40_000,
  );

  test('sluice pool: escapes control characters of a member id', async () => {
    const config = 'pool: { size: 3, id: "red\\e[31m" }';
    const a = await fixture.start([
      ...EPHEMERAL_PORTS,
      '--config',
      fixture.place().file('a.yaml', config),
    ]);
    expect(sluice('pool', '--at', a.addresses.http[0]).stdout).toMatch(
      /^ {2}red\\u001b\[31m has /m,
    );
  });

  test('pool of daemons: a fixed size needs no store', async () => {
    const a = await join('size: 3', 'a');
    await waitUntil(async () => (await view(a)).size === 3);
    await waitUntil(async () => (await countAllowed(a, 'key', LIMIT)) === LIMIT / 3);
    expect(sluice('pool', '--at', a.addresses.http[0]).stdout).toMatch(
      /^sluice, fixed: 3 active, agreed/,
    );
  });
});

test('sluice pool: reports a daemon without a pool', async () => {
  const alone = await fixture.start(EPHEMERAL_PORTS);
  expect(sluice('pool', '--at', alone.addresses.http[0]).stdout).toBe(
    'The daemon is in no pool: see docs/reference/pool.md.\n',
  );
});

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', ...args], { encoding: 'utf8' });
