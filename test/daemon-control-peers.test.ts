import { afterEach, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { freeUdpPorts } from './support/services.ts';

const fixture = daemonFixture();
afterEach(() => fixture.end());

const url = (daemon: RunningDaemon, path: string): string =>
  `http://${daemon.addresses.http[0]}${path}`;
const post = async (daemon: RunningDaemon, path: string): Promise<void> => {
  const { status } = await fetch(url(daemon, path), { method: 'POST' });
  expect(status).toBe(200);
};
const statusOf = async (daemon: RunningDaemon, key: string): Promise<number> =>
  (await fetch(url(daemon, `/check?key=${key}&cost=0`))).status;
const controlsOf = async (daemon: RunningDaemon): Promise<string[]> => {
  const { controls } = (await (await fetch(url(daemon, '/controls'))).json()) as {
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
    const file = place.file(`${n}.yaml`, `${peers}\n${limits}\n`);
    return fixture.start([...EPHEMERAL_PORTS, '--config', file]);
  };
  const [a, b] = await Promise.all([start(0), start(1)]);
  await waitUntil(async () => {
    const { peers } = (await (await fetch(url(a, '/peers'))).json()) as { peers: unknown[] };
    return peers.length === 1;
  });

  await post(a, '/ban?key=eve&for=1h&note=scraper');
  await waitUntil(async () => (await statusOf(b, 'eve')) === 403);
  const long = await fetch(url(a, `/ban?key=${'k'.repeat(1000)}&for=1s`), { method: 'POST' });
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
