/** Daemons of regions that steal from each other, as processes of their own on loopback. */

import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, onTestFinished, test } from 'vitest';
import {
  connectTo,
  countAllowed,
  daemonFixture,
  EPHEMERAL_PORTS,
  type RunningDaemon,
  waitUntil,
} from './support/daemon.ts';
import {
  etcdServer,
  freePort,
  freeUdpPorts,
  redisServer,
  startEtcd,
  startRedis,
} from './support/services.ts';

const KEY = 'a secret of all regions';
/** Nothing flows in while a test runs, so what is there can be counted. */
const STILL = 'bucket: { rate: 1/h, burst: 40 }';
const BUSY = 'bucket: { rate: 200/s, burst: 40 }';

const own = daemonFixture();
afterEach(() => own.end());

interface World {
  /** The configuration of a group's daemon. */
  config(group: string, limit: string, more?: string, key?: string): string;
  start(group: string, limit: string, more?: string, key?: string): Promise<RunningDaemon>;
}

/** Groups that know where to find each other, whether or not anybody is there. */
async function world(...names: readonly string[]): Promise<World> {
  const ports = new Map<string, number>();
  for (const name of names) ports.set(name, await freePort());
  const all = names.map((name) => `${name}: { at: 'http://127.0.0.1:${ports.get(name)}' }`);
  const config: World['config'] = (group, limit, more = '', key = KEY) =>
    [
      `groups: { own: ${group}, groups: { ${all} }, listen: ${ports.get(group)}, key: ${key},`,
      '  deadline: 5s }', // what a busy machine is late with would be nobody's
      `limits: { api: { ${limit}, groups: true } }`,
      more,
    ].join('\n');
  return {
    config,
    start(group, ...rest) {
      const file = own.place().file(`${group}.yaml`, config(group, ...rest));
      return own.start([...EPHEMERAL_PORTS, '--config', file]);
    },
  };
}

/** Asks until so many were let through in all. */
async function askUntil(daemon: RunningDaemon, tag: string, wanted: number): Promise<void> {
  let got = 0;
  await waitUntil(async () => {
    got += await countAllowed(daemon, tag, 50);
    return got >= wanted;
  });
  expect(got).toBe(wanted);
}

const page = async (daemon: RunningDaemon, path: string): Promise<unknown> =>
  (await fetch(`http://${daemon.addresses.http[0]}${path}`)).json();

interface View {
  readonly given: number;
  readonly others: readonly { readonly group: string; readonly stolen: number }[];
}

const view = async (daemon: RunningDaemon): Promise<View> =>
  (await page(daemon, '/groups')) as View;

const remaining = async (daemon: RunningDaemon, tag: string): Promise<number> =>
  ((await page(daemon, `/inspect?key=${tag}`)) as { limits: { remaining: number }[] }).limits[0]
    .remaining;

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/cli/main.js', ...args], { encoding: 'utf8' });

describe('daemons in groups', () => {
  test('a busy one steals what quiet ones leave, and together they let the limit through', async () => {
    const { start } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', STILL), start('us', STILL)]);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20); // its own half, at once
    await askUntil(eu, 'alice', 10); // and what the other has above what it keeps
    expect(await countAllowed(us, 'alice', 50)).toBe(10);
    expect(await countAllowed(us, 'bob', 50)).toBe(20); // another key was nobody's business
    expect(await eu.stop()).toBe(0);
  });

  test('tell of it: on pages, in metrics and on the command line', async () => {
    const { start } = await world('eu', 'us', 'ap');
    const [eu, us, ap] = await Promise.all(['eu', 'us', 'ap'].map((own) => start(own, STILL)));
    await waitUntil(async () => {
      await countAllowed(eu, 'alice', 50);
      return (await view(eu)).others.every(({ stolen }) => stolen === 6); // of 13⅓, half is kept
    });
    expect(await view(us)).toMatchObject({ id: 'us', given: 6 });
    expect(await view(ap)).toMatchObject({ id: 'ap', given: 6 });
    expect(await page(eu, '/limits')).toMatchObject([{ name: 'api', groups: true }]);
    expect(JSON.stringify(await page(eu, '/explain?key=alice'))).toContain('backend groups');

    const metrics = await (await fetch(`http://${eu.addresses.http[0]}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_groups_part 0\.333\d*$/m);
    expect(metrics).toMatch(/^sluice_groups_given_total 0$/m);
    expect(metrics).toMatch(/^sluice_groups_stolen_total\{group="us"\} 6$/m);
    expect(metrics).toMatch(/^sluice_groups_requests_total\{group="ap"\} \d+$/m);
    expect(metrics).toMatch(/^sluice_groups_failures_total\{group="ap"\} 0$/m);

    const shown = sluice('groups', '--at', eu.addresses.http[0]).stdout;
    expect(shown).toMatch(/^eu has 33\.3 % of its limits, and gave 0 to others\n/);
    expect(shown).toMatch(/\n +group +stolen +requests +failed\n/);
    expect(shown).toMatch(/\n +us +6 +\d+ +0\n +ap +6 +\d+ +0\n$/);
    const json = sluice('groups', '--at', us.addresses.http[0], '--json').stdout;
    expect(JSON.parse(json)).toMatchObject({ id: 'us', given: 6 });
    expect(eu.out()).toMatch(/^ {2}groups {2}127\.0\.0\.1:\d+ +curl -i 'http:.*\/steal'/m);
  });

  test('one that is killed is told of once, and so is its return; meanwhile others live on their part', async () => {
    const { start } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', BUSY), start('us', BUSY)]);
    const askUntilLogged = (pattern: RegExp): Promise<void> =>
      waitUntil(async () => {
        await countAllowed(eu, 'alice', 100);
        return pattern.test(eu.log());
      });
    await waitUntil(async () => {
      await countAllowed(eu, 'alice', 100);
      return (await view(eu)).others[0].stolen > 0;
    });
    await us.stop('SIGKILL');
    await askUntilLogged(/warn group out of reach group=us reason=\S/);
    await waitUntil(async () => (await countAllowed(eu, 'alice', 100)) > 0);
    expect(sluice('groups', '--at', eu.addresses.http[0]).stdout).toMatch(
      /\n {2}us is out of reach: \S/,
    );
    await start('us', BUSY);
    await askUntilLogged(/info group in reach again group=us\n/);
    expect(eu.log().match(/group out of reach/g)).toHaveLength(1);
    expect(eu.log().match(/group in reach again/g)).toHaveLength(1);
  });

  test('one with another key gets nothing, and its key stands nowhere', async () => {
    const { start } = await world('eu', 'us');
    const other = 'not the secret of all';
    const [eu, us] = await Promise.all([start('eu', STILL, '', other), start('us', STILL)]);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    await eu.waitForLog(
      /warn group out of reach group=us reason=".*says 401: .*the key is another/,
    );
    expect(await view(us)).toMatchObject({ given: 0 });
    expect(await remaining(us, 'alice')).toBe(20);
    const told = [eu.log(), eu.out(), JSON.stringify(await view(eu))].join('\n');
    expect(told).not.toContain(other);
  });

  test('with peers in their region keep its bucket together: what one gave is gone for both', async () => {
    const { start, config } = await world('eu', 'us');
    const ports = (await freeUdpPorts(2)).map((port) => `127.0.0.1:${port}`);
    const peers = (list: readonly string[]): string => `peers: { udp: [${list}] }`;
    const us = await start('us', STILL, peers(ports));
    // Another one of the same region, that nobody steals from.
    const text = config('us', STILL, peers([...ports].reverse())).replace(
      /listen: \d+/,
      'listen: 0',
    );
    const also = await own.start([
      ...EPHEMERAL_PORTS,
      ...['--config', own.place().file('also.yaml', text)],
    ]);
    await Promise.all([us.waitForLog(/peer is there/), also.waitForLog(/peer is there/)]);
    const eu = await start('eu', STILL);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    await askUntil(eu, 'alice', 10);
    await waitUntil(async () => (await remaining(also, 'alice')) === 10);
    expect(await remaining(us, 'alice')).toBe(10);
  });

  const servers = [
    ['Redis', redisServer, startRedis, (at: string) => `redis: { url: 'redis://${at}' }`],
    ['etcd', etcdServer, startEtcd, (at: string) => `etcd: 'http://${at}'`],
  ] as const;
  for (const [name, server, startServer, keptBy] of servers) {
    test.skipIf(server() === undefined)(`a region's ${name} keeps its bucket`, async () => {
      const service = await own.serve(startServer);
      const { start } = await world('eu', 'us');
      const kept = `${STILL}, ${keptBy(`127.0.0.1:${service.port}`)}`;
      const [eu, us] = await Promise.all([start('eu', STILL), start('us', kept)]);
      await waitUntil(async () => (await remaining(us, 'alice').catch(() => 0)) === 20);
      expect(await countAllowed(eu, 'alice', 50)).toBe(20);
      await askUntil(eu, 'alice', 10);
      expect(await countAllowed(us, 'alice', 50)).toBe(10);
    });
  }

  test('change their limits with a reload, but not their groups', async () => {
    const { start, config } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', STILL), start('us', STILL)]);
    const file = us.out().match(/from (\S+)/)?.[1] ?? '';
    const change = async (text: string): Promise<number> => {
      writeFileSync(file, text);
      return (await fetch(`http://${us.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    expect(await change(config('us', STILL.replace('40', '80')))).toBe(200);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    await askUntil(eu, 'alice', 20); // stolen from the new bucket, which has 40 and keeps 20
    expect(await countAllowed(us, 'alice', 50)).toBe(20);
    expect(await change(`${config('us', STILL).replace('key:', 'keep: 0.1, key:')}`)).toBe(422);
    await us.waitForLog(/reload failed.*`groups` has changed: that takes a restart/);
    expect(us.log()).not.toContain(KEY);
  });

  test('leave their state to a successor, but not to one with another part of the limit', async () => {
    const { config } = await world('eu', 'us');
    const place = own.place();
    const file = place.file('eu.yaml', config('eu', STILL));
    const args = [...EPHEMERAL_PORTS, '--config', file, '--snapshot', join(place.path, 'state')];
    const first = await own.start(args);
    expect(await countAllowed(first, 'alice', 50)).toBe(20);
    expect(await first.stop()).toBe(0);
    const second = await own.start(args);
    expect(await countAllowed(second, 'alice', 50)).toBe(0);
    expect(await second.stop()).toBe(0);
    writeFileSync(file, config('eu', STILL).replace('eu: { at', 'eu: { weight: 3, at'));
    const third = await own.start(args);
    await third.waitForLog(/snapshot holds a limit that is gone or has changed limit=api/);
    expect(await countAllowed(third, 'alice', 50)).toBe(30);
  });

  test('steal over TLS from one that listens so', async () => {
    const { config } = await world('eu', 'us');
    const tls = { cert: 'test/support/tls/cert.pem', key: 'test/support/tls/key.pem' };
    const secure = config('us', STILL).replace(
      /listen: (\d+)/,
      `listen: { at: localhost:$1, tls: { cert: ${tls.cert}, key: ${tls.key} } }`,
    );
    await own.start([...EPHEMERAL_PORTS, '--config', own.place().file('us.yaml', secure)]);
    const thief = config('eu', STILL).replace(
      /us: \{ at: 'http:\/\/127.0.0.1/,
      "us: { at: 'https://localhost",
    );
    const trusting = { NODE_EXTRA_CA_CERTS: tls.cert };
    const file = own.place().file('eu.yaml', thief);
    const eu = await own.start([...EPHEMERAL_PORTS, '--config', file], trusting);
    await askUntil(eu, 'alice', 30);
  });

  test('hang up on more connections than are bounded', async () => {
    const { start } = await world('eu', 'us');
    const us = await start('us', STILL, 'bounds: { connections: 1 }');
    const first = connectTo(us.addresses.groups[0]);
    onTestFinished(() => void first.destroy());
    await once(first, 'connect');
    const second = connectTo(us.addresses.groups[0]);
    await once(second, 'close');
    expect(first.closed).toBe(false);
  });

  test('cannot listen where somebody else does, and say so', async () => {
    const { config } = await world('eu', 'us');
    const taken = createServer();
    const port = await freePort();
    await new Promise<void>((ready) => taken.listen(port, '127.0.0.1', ready));
    onTestFinished(() => void taken.close());
    const text = config('eu', STILL).replace(/listen: \d+/, `listen: ${port}`);
    const file = own.place().file('eu.yaml', text);
    await expect(own.start([...EPHEMERAL_PORTS, '--config', file])).rejects.toThrow(
      `expected \`groups.listen\` to be an address that is not in use, got "127.0.0.1:${port}"`,
    );
  });
});

test('a daemon in no group says so', async () => {
  const alone = await own.start(EPHEMERAL_PORTS);
  expect(sluice('groups', '--at', alone.addresses.http[0]).stdout).toBe(
    'It is in no group: see docs/groups.md.\n',
  );
});
