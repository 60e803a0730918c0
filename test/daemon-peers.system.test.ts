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

const fixture = daemonFixture();
afterEach(() => fixture.end());

/** Starts one daemon per entry; `transports` are the options of their `peers` sections. */
async function fleetOf(transports: readonly string[], rest: string): Promise<RunningDaemon[]> {
  const place = fixture.place();
  return Promise.all(
    transports.map((transport, n) => {
      const config = place.file(
        `${n}.yaml`,
        `peers: { ${transport}, key: ${KEY}, name: n${n} }\n${rest}`,
      );
      return fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    }),
  );
}

/** A `udp` option per daemon: its own address first, then its peers. */
async function udpLists(count: number): Promise<string[]> {
  const all = (await freeUdpPorts(count)).map((port) => `127.0.0.1:${port}`);
  return all.map((self) => `udp: [${[self, ...all.filter((other) => other !== self)]}]`);
}

const page = async (daemon: RunningDaemon, path: string): Promise<unknown> =>
  (await fetch(`http://${daemon.addresses.http[0]}${path}`)).json();

async function remaining(daemon: RunningDaemon, key: string): Promise<number> {
  const { limits } = (await page(daemon, `/inspect?key=${key}`)) as {
    limits: { remaining: number }[];
  };
  return limits[0].remaining;
}

interface View {
  readonly peers: readonly { readonly name: string }[];
  readonly authFailed: number;
}

const peerNames = async (daemon: RunningDaemon): Promise<string[]> =>
  ((await page(daemon, '/peers')) as View).peers.map(({ name }) => name).sort();

const untilPeers = (daemons: readonly RunningDaemon[]): Promise<void> =>
  waitUntil(async () => {
    const seen = await Promise.all(daemons.map(peerNames));
    return seen.every((names) => names.length === daemons.length - 1);
  });

const SLOW = 'limits: { api: { bucket: { rate: 1/h, burst: 10 } } }';

describe('daemon with peers: two nodes, one key', () => {
  test('overshoot between reports becomes debt, in real time', async () => {
    const limits = 'limits: { api: { bucket: { rate: 1/s, burst: 10 } } }';
    const lists = (await udpLists(2)).map((udp) => `${udp}, exchange: periodic, interval: 5s`);
    const [a, b] = await fleetOf(lists, limits);
    await untilPeers([a, b]);
    const buckets = async (): Promise<number[]> => [
      await remaining(a, 'C'),
      await remaining(b, 'C'),
    ];
    // Both nodes started together; each has just reported when the other one shows its hit.
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

describe('daemon with peers', () => {
  test('nodes share one count, and a killed node restarts with the debts of its keys', async () => {
    const lists = await udpLists(3);
    const daemons = await fleetOf(lists, SLOW);
    await untilPeers(daemons);
    expect(await countAllowed(daemons[0], 'C', 12)).toBe(10);
    for (const node of daemons) await waitUntil(async () => (await remaining(node, 'C')) === 0);
    expect(await countAllowed(daemons[1], 'C', 5)).toBe(0);

    await daemons[2].stop('SIGKILL');
    const config = fixture
      .place()
      .file('again.yaml', `peers: { ${lists[2]}, key: ${KEY}, name: again }\n${SLOW}`);
    const again = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    expect(await countAllowed(again, 'C', 5)).toBe(0); // from its first reply on
    expect(await countAllowed(again, 'D', 12)).toBe(10);
    await waitUntil(async () => (await remaining(daemons[0], 'D')) === 0);
    await daemons[0].waitForLog(/peer found peer=again/);
  }, 30_000);

  test('peers are shown on the admin page, in metrics, by the CLI and in the log', async () => {
    const [a, b] = await fleetOf(await udpLists(2), SLOW);
    await untilPeers([a, b]);
    expect(await page(a, '/peers')).toMatchObject({
      name: 'n0',
      peers: [{ name: 'n1', missing: 0, lost: 0 }],
      authFailed: 0,
    });
    expect(await page(a, '/limits')).toMatchObject([{ name: 'api', peers: true }]);
    const metrics = await (await fetch(`http://${a.addresses.http[0]}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_peers 1$/m);
    expect(metrics).toMatch(/^sluice_peers_datagrams_total\{fate="auth_failed"\} 0$/m);
    const shown = sluice('peers', '--at', a.addresses.http[0]);
    expect(shown.stdout).toMatch(
      /^n0, udp 127[^\n]*\n +peer +version +last datagram +reports +missing +lost\n +n1 /,
    );
    expect(JSON.parse(sluice('peers', '--at', a.addresses.http[0], '--json').stdout)).toMatchObject(
      {
        name: 'n0',
      },
    );
    await a.waitForLog(/joined the fleet .*\n.*peer found peer=n1/);
  });

  test('datagrams with another key are ignored, counted and logged', async () => {
    const lists = await udpLists(2);
    const [a] = await fleetOf([lists[0]], SLOW);
    const config = fixture
      .place()
      .file('intruder.yaml', `peers: { ${lists[1]}, key: quite another secret }\n${SLOW}`);
    const intruder = await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    await waitUntil(async () => ((await page(a, '/peers')) as View).authFailed > 0);
    expect(await countAllowed(intruder, 'C', 10)).toBe(10);
    expect(await countAllowed(a, 'C', 10)).toBe(10);
    expect(await peerNames(a)).toEqual([]);
    const [, at] = /udp: \[([^,\]]+)/.exec(lists[1]) ?? [];
    await a.waitForLog(new RegExp(`warn datagrams failed authentication.* from=${at}\n`));
  });

  test('logs that there is no peer, that a name does not resolve, that a rule differs', async () => {
    const [list, otherList] = await udpLists(2);
    const name = `udp: 'missing.invalid:${(await freeUdpPorts(1))[0]}'`;
    const [unresolved] = await fleetOf([name], SLOW);
    const [a] = await fleetOf([list], SLOW);
    await unresolved.waitForLog(/warn peer name not resolved, [^\n]* name=missing.invalid reason=/);
    expect(unresolved.log()).not.toContain('SluiceWarning');
    await a.waitForLog(/warn no peers found/);
    const [b] = await fleetOf([otherList], SLOW.replace('1/h', '2/h'));
    await untilPeers([a, b]);
    expect(await countAllowed(b, 'C', 1)).toBe(1);
    await a.waitForLog(/warn peers report unknown limits/);
    const shown = sluice('peers', '--at', a.addresses.http[0]).stdout;
    expect(shown).toContain('1 keys were of unknown limits');
  }, 30_000);

  test('control characters in the name of a peer do not reach the terminal', async () => {
    const [list, otherList] = await udpLists(2);
    const [a] = await fleetOf([list], SLOW);
    const config = fixture
      .place()
      .file('odd.yaml', `peers: { ${otherList}, key: ${KEY}, name: "x\\e[31m" }\n${SLOW}`);
    await fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    await a.waitForLog(/peer found peer="x\\u001b\[31m"/);
    expect(sluice('peers', '--at', a.addresses.http[0]).stdout).toContain(' x\\u001b[31m ');
  });

  test('the CLI needs the admin token, if there is one', async () => {
    const [list] = await udpLists(1);
    const [a] = await fleetOf([list], 'admin: { token: sixteen-characters }');
    const shown = sluice('peers', '--at', a.addresses.http[0]);
    expect([shown.status, shown.stderr]).toEqual([
      2,
      expect.stringContaining('requires an admin token; set $SLUICE_ADMIN_TOKEN'),
    ]);
  });

  test('a snapshot keeps counts over a restart and a new key, and is ignored with another seed', async () => {
    const [list] = await udpLists(2);
    const place = fixture.place();
    const start = (key: string): Promise<RunningDaemon> => {
      const config = place.file(
        'sluice.yaml',
        `peers: { ${list}, key: ${key} }\nsnapshot: ${place.path}/state\n${SLOW}`,
      );
      return fixture.start([...EPHEMERAL_PORTS, '--config', config]);
    };
    const first = await start(KEY);
    expect(await countAllowed(first, 'C', 7)).toBe(7);
    await first.stop();
    const second = await start(KEY);
    expect(await countAllowed(second, 'C', 7)).toBe(3);
    await second.stop();
    const rotated = await start(`quite another secret, seed: ${KEY}`);
    expect(await countAllowed(rotated, 'C', 7)).toBe(0);
    await rotated.stop();
    const third = await start('quite another secret');
    expect(third.log()).toMatch(/snapshot not used .*reason="its keys are those of another fleet"/);
    expect(await countAllowed(third, 'C', 7)).toBe(7);
  });

  test('a reload changes limits, but not peers', async () => {
    const lists = await udpLists(2);
    const [a, b] = await fleetOf(lists, SLOW);
    await untilPeers([a, b]);
    expect(await countAllowed(a, 'C', 4)).toBe(4);
    const change = async (limits: string, name = 'n0'): Promise<number> => {
      const file = a.out().match(/from (\S+)/)?.[1] ?? '';
      writeFileSync(file, `peers: { ${lists[0]}, key: ${KEY}, name: ${name} }\n${limits}`);
      return (await fetch(`http://${a.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    const more = `${SLOW.slice(0, -2)}, other: { bucket: { rate: 1/h, burst: 2 }, match: 'o:*' } }`;
    expect(await change(more)).toBe(200);
    expect(await countAllowed(a, 'C', 9)).toBe(6); // the count is kept
    await waitUntil(async () => (await remaining(b, 'C')) === 0);
    expect(await change(SLOW)).toBe(200);
    expect(await countAllowed(b, 'D', 3)).toBe(3);
    await waitUntil(async () => (await remaining(a, 'D')) === 7);
    expect(await change(SLOW, 'renamed')).toBe(422);
    await a.waitForLog(/reload failed.*`peers` has changed/);
  });

  test('does not start on an address in use, and names it', async () => {
    const lists = await udpLists(1);
    await fleetOf(lists, SLOW);
    await expect(fleetOf(lists, SLOW)).rejects.toThrow(
      /ended with 69: .*expected `peers` to be an address to listen at \(bind EADDRINUSE 127[^)]*\), got "udp 127/,
    );
  });
});

describe('daemon with peers over a server', () => {
  const expectOneCount = async ([a, b]: readonly RunningDaemon[]): Promise<void> => {
    await untilPeers([a, b]);
    expect(await countAllowed(a, 'C', 4)).toBe(4);
    await waitUntil(async () => (await remaining(b, 'C')) === 6);
  };

  test.skipIf(natsServer() === undefined)(
    'NATS: starts without it, joins when it is available, and survives an outage',
    async () => {
      const nats = await fixture.serve(startNats);
      await nats.kill();
      const transport = `nats: 'nats://127.0.0.1:${nats.port}'`;
      const daemons = await fleetOf([transport, transport], SLOW);
      await daemons[0].waitForLog(
        /warn peers unavailable through=nats reason="connection refused"/,
      );
      expect(sluice('peers', '--at', daemons[0].addresses.http[0]).stdout).toContain(
        'transport not open yet',
      );
      expect(await daemons[1].stop()).toBe(0);
      expect(daemons[1].log()).not.toContain('joined the fleet');
      daemons[1] = (await fleetOf([transport], SLOW))[0];
      expect(await countAllowed(daemons[0], 'alone', 12)).toBe(10);
      await nats.restart();
      await expectOneCount(daemons);
      await nats.kill();
      await daemons[0].waitForLog(/joined the fleet[\s\S]*warn peers unavailable/);
      await nats.restart();
      await daemons[0].waitForLog(/joined the fleet[\s\S]*info peers available again/);
      expect(await daemons[0].stop()).toBe(0);
    },
    30_000,
  );

  test.skipIf(redisServer() === undefined)(
    'Redis: starts without it, and joins when it is available',
    async () => {
      const redis = await fixture.serve(startRedis);
      await redis.kill();
      const transport = `redis: 'redis://127.0.0.1:${redis.port}'`;
      const daemons = await fleetOf([transport, transport], SLOW);
      expect(await countAllowed(daemons[0], 'alone', 12)).toBe(10);
      await redis.restart();
      await expectOneCount(daemons);
      expect(await daemons[0].stop()).toBe(0);
    },
    30_000,
  );
});

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', ...args], { encoding: 'utf8' });
