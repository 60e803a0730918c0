/** Daemons that keep limits together without a server, as processes of their own on real sockets. */

import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import {
  freeUdpPorts,
  natsServer,
  redisServer,
  startNats,
  startRedis,
} from './support/services.ts';

const KEY = 'a secret of the whole fleet';

const own = daemonFixture();
afterEach(() => own.end());

/** A configuration for each of a fleet: `ways` are the sections with which they reach each other. */
async function fleetOf(ways: readonly string[], rest: string): Promise<RunningDaemon[]> {
  const place = own.place();
  return Promise.all(
    ways.map((way, n) => {
      const config = place.file(
        `${n}.yaml`,
        `peers: { ${way}, key: ${KEY}, name: n${n} }\n${rest}`,
      );
      return own.start([...EPHEMERAL_PORTS, '--config', config]);
    }),
  );
}

/** Each daemon's own way: its own address first. */
async function lists(count: number): Promise<string[]> {
  const all = (await freeUdpPorts(count)).map((port) => `127.0.0.1:${port}`);
  return all.map((self) => `udp: [${[self, ...all.filter((other) => other !== self)]}]`);
}

const page = async (daemon: RunningDaemon, path: string): Promise<unknown> =>
  (await fetch(`http://${daemon.addresses.http[0]}${path}`)).json();

async function remaining(daemon: RunningDaemon, tag: string): Promise<number> {
  const { limits } = (await page(daemon, `/inspect?key=${tag}`)) as {
    limits: { remaining: number }[];
  };
  return limits[0].remaining;
}

interface View {
  readonly peers: readonly { readonly name: string }[];
  readonly forged: number;
}

const namesSeen = async (daemon: RunningDaemon): Promise<string[]> =>
  ((await page(daemon, '/peers')) as View).peers.map(({ name }) => name).sort();

const meet = (daemons: readonly RunningDaemon[]): Promise<void> =>
  waitUntil(async () => {
    const seen = await Promise.all(daemons.map(namesSeen));
    return seen.every((names) => names.length === daemons.length - 1);
  });

const SLOW = 'limits: { api: { bucket: { rate: 1/h, burst: 10 } } }';

describe('two daemons and one client', () => {
  test('the story of the two onlines, on real sockets and in real time', async () => {
    const story = 'limits: { api: { bucket: { rate: 1/s, burst: 10 } } }';
    const ways = (await lists(2)).map((way) => `${way}, exchange: interval, interval: 5s`);
    const [a, b] = await fleetOf(ways, story);
    await meet([a, b]);
    const buckets = async (): Promise<number[]> => [
      await remaining(a, 'C'),
      await remaining(b, 'C'),
    ];
    // When each of them has just reported, which the other one shows: both started together.
    await Promise.all([countAllowed(a, 'from-a', 1), countAllowed(b, 'from-b', 1)]);
    await Promise.all([
      waitUntil(async () => (await remaining(b, 'from-a')) < 10),
      waitUntil(async () => (await remaining(a, 'from-b')) < 10),
    ]);
    const start = performance.now();
    const at = (s: number): Promise<void> =>
      new Promise((then) => setTimeout(then, start + s * 1000 - performance.now()));

    expect(await buckets()).toEqual([10, 10]);
    await at(0.1);
    expect(await Promise.all([countAllowed(a, 'C', 9), countAllowed(b, 'C', 8)])).toEqual([9, 8]);
    expect(await buckets()).toEqual([1, 2]);
    await at(0.2);
    expect(await countAllowed(a, 'C', 2)).toBe(1);
    expect(await buckets()).toEqual([0, 2]);
    await at(5.4);
    expect(await buckets()).toEqual([-3, -3]);
    expect(await Promise.all([countAllowed(a, 'C', 1), countAllowed(b, 'C', 1)])).toEqual([0, 0]);
    for (const [s, debt] of [
      [6.4, -2],
      [7.4, -1],
      [8.4, 0],
    ]) {
      await at(s);
      expect([s, ...(await buckets())]).toEqual([s, debt, debt]);
      expect(await countAllowed(a, 'C', 1)).toBe(0);
    }
    await at(9.4);
    expect(await buckets()).toEqual([1, 1]);
    expect(await countAllowed(b, 'C', 2)).toBe(1);
  }, 40_000);
});

describe('a fleet of daemons', () => {
  test('has one count, and a daemon that was killed comes back with the debts of its clients', async () => {
    const ways = await lists(3);
    const daemons = await fleetOf(ways, SLOW);
    await meet(daemons);
    expect(await countAllowed(daemons[0], 'C', 12)).toBe(10);
    for (const other of daemons) await waitUntil(async () => (await remaining(other, 'C')) === 0);
    expect(await countAllowed(daemons[1], 'C', 5)).toBe(0);

    await daemons[2].stop('SIGKILL');
    const config = own
      .place()
      .file('again.yaml', `peers: { ${ways[2]}, key: ${KEY}, name: again }\n${SLOW}`);
    const again = await own.start([...EPHEMERAL_PORTS, '--config', config]);
    expect(await countAllowed(again, 'C', 5)).toBe(0); // as soon as it answers at all
    expect(await countAllowed(again, 'D', 12)).toBe(10);
    await waitUntil(async () => (await remaining(daemons[0], 'D')) === 0);
    await daemons[0].waitForLog(/peer is there peer=again/);
  }, 30_000);

  test('tells who is there: on its page, in metrics, on the command line and in its log', async () => {
    const [a, b] = await fleetOf(await lists(2), SLOW);
    await meet([a, b]);
    expect(await page(a, '/peers')).toMatchObject({
      name: 'n0',
      peers: [{ name: 'n1', missing: 0, lost: 0 }],
      forged: 0,
    });
    expect(await page(a, '/limits')).toMatchObject([{ name: 'api', peers: true }]);
    const metrics = await (await fetch(`http://${a.addresses.http[0]}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_peers 1$/m);
    expect(metrics).toMatch(/^sluice_peers_datagrams_total\{fate="forged"\} 0$/m);
    const shown = sluice('peers', '--at', a.addresses.http[0]);
    expect(shown.stdout).toMatch(
      /^n0, udp 127[^\n]*\n +peer +heard +reports +missing +lost\n +n1 /,
    );
    expect(JSON.parse(sluice('peers', '--at', a.addresses.http[0], '--json').stdout)).toMatchObject(
      {
        name: 'n0',
      },
    );
    await a.waitForLog(/one of a fleet .*\n.*peer is there peer=n1/);
  });

  test('hears nobody who has another key, and says so', async () => {
    const ways = await lists(2);
    const [a] = await fleetOf([ways[0]], SLOW);
    const config = own
      .place()
      .file('stranger.yaml', `peers: { ${ways[1]}, key: quite another secret }\n${SLOW}`);
    const stranger = await own.start([...EPHEMERAL_PORTS, '--config', config]);
    await waitUntil(async () => ((await page(a, '/peers')) as View).forged > 0);
    expect(await countAllowed(stranger, 'C', 10)).toBe(10);
    expect(await countAllowed(a, 'C', 10)).toBe(10);
    expect(await namesSeen(a)).toEqual([]);
    const [, at] = /udp: \[([^,\]]+)/.exec(ways[1]) ?? [];
    await a.waitForLog(new RegExp(`warn not sealed with our key.* from=${at}\n`));
  });

  test('tells of what would otherwise be silent: nobody there, no such name, another rule', async () => {
    const [way, other] = await lists(2);
    const [lost] = await fleetOf([`udp: 'nobody.invalid:${(await freeUdpPorts(1))[0]}'`], SLOW);
    const [a] = await fleetOf([way], SLOW);
    await lost.waitForLog(/warn peers cannot be found, [^\n]* name=nobody.invalid reason=/);
    expect(lost.log()).not.toContain('SluiceWarning');
    await a.waitForLog(/warn no peer is there yet/);
    const [b] = await fleetOf([other], SLOW.replace('1/h', '2/h'));
    await meet([a, b]);
    expect(await countAllowed(b, 'C', 1)).toBe(1);
    await a.waitForLog(/warn peers tell of limits that are not here/);
    const shown = sluice('peers', '--at', a.addresses.http[0]).stdout;
    expect(shown).toContain('1 keys were of limits it has not');
  }, 30_000);

  test('shows the name of a peer, and lets it do nothing to a terminal', async () => {
    const [way, other] = await lists(2);
    const [a] = await fleetOf([way], SLOW);
    const config = own
      .place()
      .file('odd.yaml', `peers: { ${other}, key: ${KEY}, name: "x\\e[31m" }\n${SLOW}`);
    await own.start([...EPHEMERAL_PORTS, '--config', config]);
    await a.waitForLog(/peer is there peer="x\\u001b\[31m"/);
    expect(sluice('peers', '--at', a.addresses.http[0]).stdout).toContain(' x?[31m ');
  });

  test('wants a token to tell it, if there is one', async () => {
    const [way] = await lists(1);
    const [a] = await fleetOf([way], 'admin: { token: sixteen-characters }');
    const shown = sluice('peers', '--at', a.addresses.http[0]);
    expect([shown.status, shown.stderr]).toEqual([
      2,
      expect.stringContaining('wants an admin token; it comes from $SLUICE_ADMIN_TOKEN'),
    ]);
  });

  test('keeps counts over a restart with a snapshot, and ignores one of another fleet', async () => {
    const [way] = await lists(2);
    const place = own.place();
    const start = (key: string): Promise<RunningDaemon> => {
      const config = place.file(
        'sluice.yaml',
        `peers: { ${way}, key: ${key} }\nsnapshot: ${place.path}/state\n${SLOW}`,
      );
      return own.start([...EPHEMERAL_PORTS, '--config', config]);
    };
    const first = await start(KEY);
    expect(await countAllowed(first, 'C', 7)).toBe(7);
    await first.stop();
    const second = await start(KEY);
    expect(await countAllowed(second, 'C', 7)).toBe(3);
    await second.stop();
    const third = await start('quite another secret');
    expect(third.log()).toMatch(/snapshot not used .*reason="its keys are those of another fleet"/);
    expect(await countAllowed(third, 'C', 7)).toBe(7);
  });

  test('changes its limits with a reload, but not its peers', async () => {
    const ways = await lists(2);
    const [a, b] = await fleetOf(ways, SLOW);
    await meet([a, b]);
    expect(await countAllowed(a, 'C', 4)).toBe(4);
    const change = async (limits: string, name = 'n0'): Promise<number> => {
      const file = a.out().match(/from (\S+)/)?.[1] ?? '';
      writeFileSync(file, `peers: { ${ways[0]}, key: ${KEY}, name: ${name} }\n${limits}`);
      return (await fetch(`http://${a.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    const more = `${SLOW.slice(0, -2)}, other: { bucket: { rate: 1/h, burst: 2 }, match: 'o:*' } }`;
    expect(await change(more)).toBe(200);
    expect(await countAllowed(a, 'C', 9)).toBe(6); // it went on from where it was
    await waitUntil(async () => (await remaining(b, 'C')) === 0);
    expect(await change(SLOW)).toBe(200);
    expect(await countAllowed(b, 'D', 3)).toBe(3);
    await waitUntil(async () => (await remaining(a, 'D')) === 7);
    expect(await change(SLOW, 'renamed')).toBe(422);
    await a.waitForLog(/reload failed.*`peers` has changed/);
  });

  test('does not start where somebody else listens, and says where', async () => {
    const ways = await lists(1);
    await fleetOf(ways, SLOW);
    await expect(fleetOf(ways, SLOW)).rejects.toThrow(
      /ended with 2: .*expected `peers` to be an address to listen at \(bind EADDRINUSE 127[^)]*\), got "udp 127/,
    );
  });
});

describe('a fleet through a server', () => {
  const oneCount = async ([a, b]: readonly RunningDaemon[]): Promise<void> => {
    await meet([a, b]);
    expect(await countAllowed(a, 'C', 4)).toBe(4);
    await waitUntil(async () => (await remaining(b, 'C')) === 6);
  };

  test.skipIf(natsServer() === undefined)(
    'NATS, also if it comes later',
    async () => {
      const nats = await own.serve(startNats);
      await nats.kill();
      const way = `nats: 'nats://127.0.0.1:${nats.port}'`;
      const daemons = await fleetOf([way, way], SLOW);
      await daemons[0].waitForLog(
        /warn peers out of reach through=nats reason="connection refused"/,
      );
      expect(sluice('peers', '--at', daemons[0].addresses.http[0]).stdout).toContain(
        'not in reach',
      );
      expect(await daemons[1].stop()).toBe(0);
      expect(daemons[1].log()).not.toContain('one of a fleet'); // it never was
      daemons[1] = (await fleetOf([way], SLOW))[0];
      expect(await countAllowed(daemons[0], 'alone', 12)).toBe(10);
      await nats.restart();
      await oneCount(daemons);
      await nats.kill();
      await daemons[0].waitForLog(/one of a fleet[\s\S]*warn peers out of reach/);
      await nats.restart();
      await daemons[0].waitForLog(/one of a fleet[\s\S]*info peers in reach again/);
      expect(await daemons[0].stop()).toBe(0);
    },
    30_000,
  );

  test.skipIf(redisServer() === undefined)(
    'Redis, also if it comes later',
    async () => {
      const redis = await own.serve(startRedis);
      await redis.kill();
      const way = `redis: 'redis://127.0.0.1:${redis.port}'`;
      const daemons = await fleetOf([way, way], SLOW);
      expect(await countAllowed(daemons[0], 'alone', 12)).toBe(10);
      await redis.restart();
      await oneCount(daemons);
      expect(await daemons[0].stop()).toBe(0);
    },
    30_000,
  );
});

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/cli/main.js', ...args], { encoding: 'utf8' });
