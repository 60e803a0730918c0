import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { afterEach, describe, expect, test } from 'vitest';
import {
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import { buildSpeaking } from './support/other-build.ts';
import { freeUdpPorts } from './support/services.ts';

const KEY = 'a secret of the whole fleet';
const NEXT_KEY = 'the next secret of the fleet';
const BURST = 60;
const LIMITS = `limits: { api: { bucket: { rate: 1/h, burst: ${BURST} } } }`;

const fixture = daemonFixture();
afterEach(() => fixture.end());

/** Slots for daemons that know each other's addresses; each slot can be started again with other secrets or code. */
async function slots(count: number) {
  const addresses = (await freeUdpPorts(count)).map((port) => `127.0.0.1:${port}`);
  const place = fixture.place();
  const daemons: RunningDaemon[] = [];
  const start = async (n: number, secrets = `key: ${KEY}`, build?: string): Promise<void> => {
    await daemons[n]?.stop();
    const udp = [addresses[n], ...addresses.filter((_, other) => other !== n)];
    const peers = `peers: { udp: [${udp}], ${secrets}, name: n${n} }`;
    const config = place.file(`${n}.yaml`, `${peers}\n${LIMITS}`);
    daemons[n] = await fixture.start([...EPHEMERAL_PORTS, '--config', config], {}, build);
  };
  const startAll = (build?: string) =>
    Promise.all(addresses.map((_, n) => start(n, undefined, build)));
  return { addresses, daemons, start, startAll };
}

interface View {
  readonly version: number;
  readonly otherKey: number;
  readonly peers: readonly { readonly name: string; readonly version: number }[];
  readonly rejected: readonly { readonly from: string; readonly reason: string }[];
}

const viewOf = async (daemon: RunningDaemon): Promise<View> =>
  (await (await fetch(`http://${daemon.addresses.http[0]}/peers`)).json()) as View;

const metricsOf = async (daemon: RunningDaemon): Promise<string> =>
  (await fetch(`http://${daemon.addresses.http[0]}/metrics`)).text();

/** Calls that all daemons together allow for one key, with twice the burst of demand, daemon by daemon. */
async function admitted(daemons: readonly RunningDaemon[], key: string): Promise<number> {
  let sum = 0;
  const rounds = 6;
  const calls = Math.ceil((2 * BURST) / daemons.length / rounds);
  for (let round = 0; round < rounds; round++)
    for (const daemon of daemons) sum += await countAllowed(daemon, key, calls);
  return sum;
}

const untilComplete = (daemons: readonly RunningDaemon[]): Promise<void> =>
  waitUntil(async () => {
    const views = await Promise.all(daemons.map(viewOf));
    const names = daemons.map((_, n) => `n${n}`);
    return views.every(
      ({ peers }) =>
        names.filter((name) => peers.some((peer) => peer.name === name)).length >= names.length - 1,
    );
  });

/** Every daemon counts with all others, and a client that was throttled before is throttled still. */
async function expectOneFleet(daemons: readonly RunningDaemon[], step: string): Promise<void> {
  for (const daemon of daemons)
    expect([step, await countAllowed(daemon, 'throttled', 3)]).toEqual([step, 0]);
  await untilComplete(daemons);
  const sum = await admitted(daemons, step);
  expect([step, sum >= BURST && sum <= 1.1 * BURST, sum]).toEqual([step, true, sum]);
}

describe('fleet: wire versions', () => {
  test('rolling upgrade from version 3 to 4 and back: admitted calls stay within the bound at each step', async () => {
    const { daemons, start, startAll } = await slots(5);
    const older = buildSpeaking(3, 3, fixture.place().path);
    await startAll(older);
    await untilComplete(daemons);
    expect(await admitted(daemons, 'throttled')).toBeLessThanOrEqual(1.1 * BURST);
    for (let n = 0; n < daemons.length; n++) {
      await start(n);
      await expectOneFleet(daemons, `upgraded ${n}`);
    }
    for (const n of [1, 3]) {
      await start(n, undefined, older);
      await expectOneFleet(daemons, `rolled back ${n}`);
    }
    const views = await Promise.all(daemons.map(viewOf));
    expect(views.flatMap(({ rejected }) => rejected)).toEqual([]);
    expect(daemons.map((daemon) => daemon.log()).join('')).not.toContain('wire version');
  }, 120_000);

  test('no common version: metric, page and log of both daemons say so with the first datagrams', async () => {
    const { addresses, daemons, start } = await slots(2);
    const future = buildSpeaking(5, 6, fixture.place().path);
    await Promise.all([start(0), start(1, undefined, future)]);
    const from = Date.now();
    for (const daemon of daemons) await countAllowed(daemon, 'C', 3);
    const isReported = async (daemon: RunningDaemon): Promise<boolean> =>
      /^sluice_peers_rejected\{reason="other_version"\} 1$/m.test(await metricsOf(daemon)) &&
      daemon.log().includes('a peer has no common wire version');
    await waitUntil(async () => (await isReported(daemons[0])) && isReported(daemons[1]));
    const lines = daemons.map((daemon) => daemon.log().match(/^.*no common wire version.*$/gm));
    for (const line of lines.flatMap((found) => found ?? []))
      expect(Date.parse(line.split(' ')[0]) - from).toBeLessThan(4000); // the interval is 100 ms, `peerTimeout` 5 s
    expect(lines).toEqual([
      [expect.stringContaining(`upgrade the older one from=${addresses[1]} version=6 spoken=3-4`)],
      [expect.stringContaining(`upgrade the older one from=${addresses[0]} version=4 spoken=5-6`)],
    ]);
    expect((await viewOf(daemons[0])).rejected).toMatchObject([
      { from: addresses[1], reason: 'other_version', version: 6 },
    ]);
    const command = ['dist/bin/sluice.js', 'peers', '--at', daemons[0].addresses.http[0]];
    const shown = spawnSync(process.execPath, command, { encoding: 'utf8' }).stdout;
    expect(shown).toMatch(new RegExp(`${addresses[1]} +version 6 +\\d+`));
  }, 30_000);

  test('a datagram of version 2, authenticated and not encrypted: named in metric and log', async () => {
    const { addresses, daemons, start } = await slots(1);
    await start(0);
    const socket = createSocket('udp4');
    const [host, port] = addresses[0].split(':');
    // Recorded from the last build that spoke version 2, with this key: a `hello`.
    const hello =
      '020011223344556600000000000000000000000100000000004d05b0ebc4f0ef3791ccc0b88af8a0c6555e';
    socket.send(Buffer.from(hello, 'hex'), Number(port), host);
    await daemons[0].waitForLog(/error a peer has no common wire version.* version=2 spoken=3-4/);
    socket.close();
    expect(await metricsOf(daemons[0])).toMatch(
      /^sluice_peers_datagrams_total\{fate="other_version"\} 1$/m,
    );
  });
});

describe('fleet: key rotation', () => {
  const STEPS = [
    `key: [${KEY}, ${NEXT_KEY}], seed: ${KEY}`,
    `key: [${NEXT_KEY}, ${KEY}], seed: ${KEY}`,
    `key: ${NEXT_KEY}, seed: ${KEY}`,
  ];

  test('old, both, both with the new first, new: the fleet stays one at each step', async () => {
    const { daemons, start, startAll } = await slots(2);
    await startAll();
    await untilComplete(daemons);
    expect(await admitted(daemons, 'throttled')).toBeLessThanOrEqual(1.1 * BURST);
    for (const [step, secrets] of STEPS.entries())
      for (let n = 0; n < daemons.length; n++) {
        await start(n, secrets);
        await expectOneFleet(daemons, `step ${step}, daemon ${n}`);
      }
    for (const daemon of daemons) {
      const { rejected, otherKey } = await viewOf(daemon);
      expect([rejected, otherKey]).toEqual([[], 0]);
    }
  }, 120_000);

  test('a daemon with another key or seed: each daemon logs the address of the other, once', async () => {
    const { addresses, daemons, start } = await slots(2);
    await Promise.all([start(0, `key: ${NEXT_KEY}, seed: ${KEY}`), start(1, `key: ${NEXT_KEY}`)]);
    const failed = /^.* warn datagrams failed authentication.*$/gm;
    for (const n of [0, 1]) {
      await daemons[n].waitForLog(new RegExp(failed.source, 'm'));
      await waitUntil(async () => (await viewOf(daemons[n])).rejected.length > 0);
      await waitUntil(async () =>
        /fate="auth_failed"\} ([2-9]|\d\d)/.test(await metricsOf(daemons[n])),
      );
      expect(daemons[n].log().match(failed)).toEqual([
        expect.stringMatching(new RegExp(` from=${addresses[1 - n]}$`)),
      ]);
    }
  });
});
