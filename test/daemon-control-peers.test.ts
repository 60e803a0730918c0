import { afterEach, expect, test } from 'vitest';
import { udp } from '../src/backends/peers/udp-transport.ts';
import { systemClock } from '../src/core/clock.ts';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { createTestPeer } from './support/fleet.ts';
import { freeUdpPorts } from './support/services.ts';

const fixture = daemonFixture();
afterEach(() => fixture.end());

const url = (daemon: RunningDaemon, path: string): string =>
  `http://${daemon.addresses.http[0]}${path}`;
const TOKEN = 'the-token-of-the-operator';
const admin = (daemon: RunningDaemon, path: string, method = 'GET'): Promise<Response> =>
  fetch(url(daemon, path), { method, headers: { authorization: `Bearer ${TOKEN}` } });
const post = async (daemon: RunningDaemon, path: string): Promise<void> => {
  const { status } = await admin(daemon, path, 'POST');
  expect(status).toBe(200);
};
const statusOf = async (daemon: RunningDaemon, key: string): Promise<number> =>
  (await fetch(url(daemon, `/check?key=${key}&cost=0`))).status;
const controlsOf = async (daemon: RunningDaemon): Promise<string[]> => {
  const { controls } = (await (await admin(daemon, '/controls')).json()) as {
    controls: { kind: string; key: string }[];
  };
  return controls.map(({ kind, key }) => `${kind} ${key}`).sort();
};

test('controls: act on all daemons of a fleet, also on one that joins later', async () => {
  const place = fixture.place();
  const all = (await freeUdpPorts(3)).map((port) => `127.0.0.1:${port}`);
  const start = (n: number): Promise<RunningDaemon> => {
    const udp = [all[n], ...all.filter((other) => other !== all[n])];
    const peers = `peers: { udp: [${udp}], key: a secret of the whole fleet, name: n${n} }`;
    const limits = 'limits: { api: { bucket: { rate: 1/h, burst: 20 } } }';
    const file = place.file(`${n}.yaml`, `admin: { token: ${TOKEN} }\n${peers}\n${limits}\n`);
    return fixture.start([...EPHEMERAL_PORTS, '--config', file]);
  };
  const [a, b] = await Promise.all([start(0), start(1)]);
  await waitUntil(async () => {
    const { peers } = (await (await admin(a, '/peers')).json()) as { peers: unknown[] };
    return peers.length === 1;
  });

  await post(a, '/ban?key=eve&for=1h&note=scraper');
  await waitUntil(async () => (await statusOf(b, 'eve')) === 403);
  const long = await admin(a, `/ban?key=${'k'.repeat(1000)}&for=1s`, 'POST');
  expect(await long.json()).toMatchObject({ unshared: expect.stringContaining('at most 1000') });
  expect(a.log()).toContain('control not shared with peers');
  await waitUntil(async () => (await controlsOf(a)).length === 1);

  await post(b, '/override?key=zoe&rate=50/h&for=1h');
  await waitUntil(async () => (await controlsOf(a)).length === 2);
  expect(await countAllowed(a, 'zoe', 60)).toBe(50);

  expect(await countAllowed(a, 'alice', 30)).toBe(20);
  await waitUntil(async () => (await countAllowed(b, 'alice', 1)) === 0);
  await post(b, '/reset?key=alice');
  await waitUntil(async () => (await countAllowed(a, 'alice', 1)) === 1);

  const c = await start(2); // it listens when it has them
  expect(await controlsOf(c)).toEqual(['ban eve', 'override zoe']);
  expect(await statusOf(c, 'eve')).toBe(403);

  await post(c, '/unban?key=eve');
  for (const daemon of [a, b])
    await waitUntil(async () => (await controlsOf(daemon)).join() === 'override zoe');
});

test.each(['with', 'without'])(
  'controls: a program with the fleet key alone bans no key and overrides no limit of a daemon %s a token',
  async (token) => {
    const place = fixture.place();
    const [own, rogue] = (await freeUdpPorts(2)).map((port) => `127.0.0.1:${port}`);
    const key = 'a secret of the whole fleet';
    const file = place.file(
      'sluice.yaml',
      `${token === 'with' ? `admin: { token: ${TOKEN} }` : ''}
peers: { udp: ['${own}', '${rogue}'], key: ${key} }
snapshot: ${place.path}/state
limits:
  api: { bucket: { rate: 1/h, burst: 20 } }
  local: { bucket: { rate: 1/h, burst: 5 }, peers: false, match: 'local:*' }
`,
    );
    const daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', file]);
    const { node } = await createTestPeer(udp({ peers: [rogue, own], bind: rogue }), {
      clock: systemClock,
      key,
      limit: { bucket: { rate: '1/h', burst: 20 } },
      peers: { name: 'rogue' },
    });
    await waitUntil(() => node.channel.peers().length === 1);
    const now = Date.now();
    const times = { until: now + 3_600_000, setAt: now };
    const rule = { bucket: { rate: '1/h', burst: 9 } };
    const records = [
      { kind: 'ban', key: 'user:*', ...times },
      { kind: 'override', key: 'local:1', limit: 'local', rule, ...times },
    ];
    const send = (): void => node.channel.send(JSON.stringify([{ now }, ...records]));
    await waitUntil(async () => {
      send(); // a datagram may be lost
      const rejected = daemon.log().match(/control of a peer rejected/g)?.length;
      return rejected === 2 || (await controlsOf(daemon)).length > 0;
    });
    expect(await controlsOf(daemon)).toEqual([]);
    expect(daemon.log()).toMatch(/warn control of a peer rejected peer=rogue kind=ban key=user:\*/);
    expect(await statusOf(daemon, 'user:7')).toBe(200);
    expect(await countAllowed(daemon, 'local:1', 20)).toBe(5);
    expect(await controlsOf(daemon)).toEqual([]);
    await node.close();
  },
);
