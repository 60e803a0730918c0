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
  freePorts,
  freeUdpPorts,
  redisServer,
  startEtcd,
  startRedis,
} from './support/services.ts';

const KEY = 'a secret of all regions';
/** Practically no refill during a test, so that tokens can be counted. */
const STILL = 'bucket: { rate: 1/h, burst: 40 }';
const BUSY = 'bucket: { rate: 200/s, burst: 40 }';

const fixture = daemonFixture();
afterEach(() => fixture.end());

interface World {
  /** The configuration of a group's daemon. */
  config(group: string, limit: string, more?: string, key?: string): string;
  start(group: string, limit: string, more?: string, key?: string): Promise<RunningDaemon>;
}

/** Groups with fixed addresses, whether their daemons run or not. */
async function world(...names: readonly string[]): Promise<World> {
  const chosen = await freePorts(names.length);
  const ports = new Map(names.map((name, n) => [name, chosen[n]]));
  const all = names.map((name) => `${name}: { at: 'http://127.0.0.1:${ports.get(name)}' }`);
  const config: World['config'] = (group, limit, more = '', key = KEY) =>
    [
      `groups: { self: ${group}, groups: { ${all} }, listen: ${ports.get(group)}, key: ${key},`,
      '  deadline: 5s }', // on a busy machine a shorter one would lose loans
      `limits: { api: { ${limit}, groups: true } }`,
      more,
    ].join('\n');
  return {
    config,
    start(group, ...rest) {
      const file = fixture.place().file(`${group}.yaml`, config(group, ...rest));
      return fixture.start([...EPHEMERAL_PORTS, '--config', file]);
    },
  };
}

/** Sends calls until so many were allowed in total. */
async function callUntil(daemon: RunningDaemon, key: string, wanted: number): Promise<void> {
  let allowed = 0;
  await waitUntil(async () => {
    allowed += await countAllowed(daemon, key, 50);
    return allowed >= wanted;
  });
  expect(allowed).toBe(wanted);
}

const page = async (daemon: RunningDaemon, path: string): Promise<unknown> =>
  (await fetch(`http://${daemon.addresses.http[0]}${path}`)).json();

interface View {
  readonly lent: number;
  readonly others: readonly { readonly group: string; readonly borrowed: number }[];
}

const view = async (daemon: RunningDaemon): Promise<View> =>
  (await page(daemon, '/groups')) as View;

const remaining = async (daemon: RunningDaemon, key: string): Promise<number> =>
  ((await page(daemon, `/inspect?key=${key}`)) as { limits: { remaining: number }[] }).limits[0]
    .remaining;

const sluice = (...args: string[]) =>
  spawnSync(process.execPath, ['dist/bin/sluice.js', ...args], { encoding: 'utf8' });

describe('daemon with groups', () => {
  test('a busy group borrows the surplus of an idle one; together they keep the limit', async () => {
    const { start } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', STILL), start('us', STILL)]);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20); // its own half, at once
    await callUntil(eu, 'alice', 10); // and the surplus of the other group
    expect(await countAllowed(us, 'alice', 50)).toBe(10);
    expect(await countAllowed(us, 'bob', 50)).toBe(20); // nothing is borrowed for another key
    expect(await eu.stop()).toBe(0);
  });

  test('loans are shown on the admin page, in metrics and by the CLI', async () => {
    const { start } = await world('eu', 'us', 'ap');
    const [eu, us, ap] = await Promise.all(['eu', 'us', 'ap'].map((name) => start(name, STILL)));
    await waitUntil(async () => {
      await countAllowed(eu, 'alice', 50);
      return (await view(eu)).others.every(({ borrowed }) => borrowed === 6); // half of 13⅓ is reserved
    });
    expect(await view(us)).toMatchObject({ id: 'us', lent: 6 });
    expect(await view(ap)).toMatchObject({ id: 'ap', lent: 6 });
    expect(await page(eu, '/limits')).toMatchObject([{ name: 'api', groups: true }]);
    expect(JSON.stringify(await page(eu, '/explain?key=alice'))).toContain(
      'shared with other groups',
    );

    const metrics = await (await fetch(`http://${eu.addresses.http[0]}/metrics`)).text();
    expect(metrics).toMatch(/^sluice_groups_fraction 0\.333\d*$/m);
    expect(metrics).toMatch(/^sluice_groups_lent_total 0$/m);
    expect(metrics).toMatch(/^sluice_groups_borrowed_total\{group="us"\} 6$/m);
    expect(metrics).toMatch(/^sluice_groups_requests_total\{group="ap"\} \d+$/m);
    expect(metrics).toMatch(/^sluice_groups_failures_total\{group="ap"\} 0$/m);

    const shown = sluice('groups', '--at', eu.addresses.http[0]).stdout;
    expect(shown).toMatch(/^eu has 33\.3 % of its limits, and lent 0 to other groups\n/);
    expect(shown).toMatch(/\n +group +borrowed +requests +failed\n/);
    expect(shown).toMatch(/\n +us +6 +\d+ +0\n +ap +6 +\d+ +0\n$/);
    const json = sluice('groups', '--at', us.addresses.http[0], '--json').stdout;
    expect(JSON.parse(json)).toMatchObject({ id: 'us', lent: 6 });
    expect(eu.out()).toMatch(/^ {2}groups {2}127\.0\.0\.1:\d+ +curl -i 'http:.*\/borrow'/m);
  });

  test('a killed group is logged once, and so is its return; the rest uses its fraction', async () => {
    const { start } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', BUSY), start('us', BUSY)]);
    const callUntilLogged = (pattern: RegExp): Promise<void> =>
      waitUntil(async () => {
        await countAllowed(eu, 'alice', 100);
        return pattern.test(eu.log());
      });
    await waitUntil(async () => {
      await countAllowed(eu, 'alice', 100);
      return (await view(eu)).others[0].borrowed > 0;
    });
    await us.stop('SIGKILL');
    await callUntilLogged(/warn group unavailable group=us reason=\S/);
    await waitUntil(async () => (await countAllowed(eu, 'alice', 100)) > 0);
    expect(sluice('groups', '--at', eu.addresses.http[0]).stdout).toMatch(
      /\n {2}us is unavailable: \S/,
    );
    await start('us', BUSY);
    await callUntilLogged(/info group available again group=us\n/);
    expect(eu.log().match(/group unavailable/g)).toHaveLength(1);
    expect(eu.log().match(/group available again/g)).toHaveLength(1);
  });

  test('a group with another key borrows nothing, and its key is not shown anywhere', async () => {
    const { start } = await world('eu', 'us');
    const other = 'not the secret of all';
    const [eu, us] = await Promise.all([start('eu', STILL, '', other), start('us', STILL)]);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    await eu.waitForLog(/warn group unavailable group=us reason=".*replied 401: .*wrong key/);
    expect(await view(us)).toMatchObject({ lent: 0 });
    expect(await remaining(us, 'alice')).toBe(20);
    const output = [eu.log(), eu.out(), JSON.stringify(await view(eu))].join('\n');
    expect(output).not.toContain(other);
  });

  test('peers of a group share its bucket: a loan by one node is gone for both', async () => {
    const { start, config } = await world('eu', 'us');
    const ports = (await freeUdpPorts(2)).map((port) => `127.0.0.1:${port}`);
    const peers = (list: readonly string[]): string => `peers: { udp: [${list}] }`;
    const us = await start('us', STILL, peers(ports));
    // A second node of the same group, which does not lend.
    const text = config('us', STILL, peers([...ports].reverse())).replace(
      /listen: \d+/,
      'listen: 0',
    );
    const second = await fixture.start([
      ...EPHEMERAL_PORTS,
      ...['--config', fixture.place().file('second.yaml', text)],
    ]);
    await Promise.all([us.waitForLog(/peer found/), second.waitForLog(/peer found/)]);
    const eu = await start('eu', STILL);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    await callUntil(eu, 'alice', 10);
    await waitUntil(async () => (await remaining(second, 'alice')) === 10);
    expect(await remaining(us, 'alice')).toBe(10);
  });

  const servers = [
    ['Redis', redisServer, startRedis, (at: string) => `redis: { url: 'redis://${at}' }`],
    ['etcd', etcdServer, startEtcd, (at: string) => `etcd: 'http://${at}'`],
  ] as const;
  for (const [name, server, startServer, optionOf] of servers) {
    test.skipIf(server() === undefined)(`${name} of a region holds the bucket`, async () => {
      const service = await fixture.serve(startServer);
      const { start } = await world('eu', 'us');
      const kept = `${STILL}, ${optionOf(`127.0.0.1:${service.port}`)}`;
      const [eu, us] = await Promise.all([start('eu', STILL), start('us', kept)]);
      await waitUntil(async () => (await remaining(us, 'alice').catch(() => 0)) === 20);
      expect(await countAllowed(eu, 'alice', 50)).toBe(20);
      await callUntil(eu, 'alice', 10);
      expect(await countAllowed(us, 'alice', 50)).toBe(10);
    });
  }

  test('a reload changes limits, but not groups', async () => {
    const { start, config } = await world('eu', 'us');
    const [eu, us] = await Promise.all([start('eu', STILL), start('us', STILL)]);
    const file = us.out().match(/from (\S+)/)?.[1] ?? '';
    const change = async (text: string): Promise<number> => {
      writeFileSync(file, text);
      return (await fetch(`http://${us.addresses.http[0]}/reload`, { method: 'POST' })).status;
    };
    expect(await change(config('us', STILL.replace('40', '80')))).toBe(200);
    expect(await countAllowed(eu, 'alice', 50)).toBe(20);
    // From the new bucket, which has 40 and reserves 20. Loans that overlap may not fit into eu's bucket.
    await waitUntil(async () => {
      expect(await countAllowed(eu, 'alice', 50)).toBeLessThanOrEqual(20);
      return ((await page(us, '/groups')) as View).lent >= 20;
    });
    expect(((await page(us, '/groups')) as View).lent).toBe(20);
    expect(await countAllowed(us, 'alice', 50)).toBe(20);
    expect(await change(config('us', `${STILL.replace('40', '80')}, maxKeys: 5000`))).toBe(200);
    expect(await countAllowed(us, 'alice', 50)).toBe(0);
    expect(await change(`${config('us', STILL).replace('key:', 'reserve: 0.1, key:')}`)).toBe(422);
    await us.waitForLog(/reload failed.*`groups` has changed: that takes a restart/);
    expect(us.log()).not.toContain(KEY);
  });

  test('a snapshot restores the state, but not with another fraction', async () => {
    const { config } = await world('eu', 'us');
    const place = fixture.place();
    const file = place.file('eu.yaml', config('eu', STILL));
    const args = [...EPHEMERAL_PORTS, '--config', file, '--snapshot', join(place.path, 'state')];
    const first = await fixture.start(args);
    expect(await countAllowed(first, 'alice', 50)).toBe(20);
    expect(await first.stop()).toBe(0);
    const second = await fixture.start(args);
    expect(await countAllowed(second, 'alice', 50)).toBe(0);
    expect(await second.stop()).toBe(0);
    writeFileSync(file, config('eu', STILL).replace('eu: { at', 'eu: { weight: 3, at'));
    const third = await fixture.start(args);
    await third.waitForLog(/snapshot holds a limit that is gone or has another rule limit=api/);
    expect(await countAllowed(third, 'alice', 50)).toBe(30);
  });

  test('borrows over TLS', async () => {
    const { config } = await world('eu', 'us');
    const tls = { cert: 'test/support/tls/cert.pem', key: 'test/support/tls/key.pem' };
    const secure = config('us', STILL).replace(
      /listen: (\d+)/,
      `listen: { at: localhost:$1, tls: { cert: ${tls.cert}, key: ${tls.key} } }`,
    );
    await fixture.start([...EPHEMERAL_PORTS, '--config', fixture.place().file('us.yaml', secure)]);
    const borrower = config('eu', STILL).replace(
      /us: \{ at: 'http:\/\/127.0.0.1/,
      "us: { at: 'https://localhost",
    );
    const trusting = { NODE_EXTRA_CA_CERTS: tls.cert };
    const file = fixture.place().file('eu.yaml', borrower);
    const eu = await fixture.start([...EPHEMERAL_PORTS, '--config', file], trusting);
    await callUntil(eu, 'alice', 30);
  });

  test('closes connections above the bound', async () => {
    const { start } = await world('eu', 'us');
    const us = await start('us', STILL, 'bounds: { connections: 1 }');
    const first = connectTo(us.addresses.groups[0]);
    onTestFinished(() => void first.destroy());
    const body = '{"requests":[]}';
    const head = `Host: us\r\nAuthorization: Bearer ${KEY}\r\nContent-Length: ${body.length}`;
    first.write(`POST /borrow HTTP/1.1\r\n${head}\r\n\r\n${body}`);
    await once(first, 'data');
    const second = connectTo(us.addresses.groups[0]);
    await once(second, 'close');
    expect(first.closed).toBe(false); // it had the key
  });

  test('does not start on an address in use, and names it', async () => {
    const { config } = await world('eu', 'us');
    const taken = createServer();
    const port = await freePort();
    await new Promise<void>((ready) => taken.listen(port, '127.0.0.1', ready));
    onTestFinished(() => void taken.close());
    const text = config('eu', STILL).replace(/listen: \d+/, `listen: ${port}`);
    const file = fixture.place().file('eu.yaml', text);
    await expect(fixture.start([...EPHEMERAL_PORTS, '--config', file])).rejects.toThrow(
      `expected \`groups.listen\` to be an address that is not in use, got "127.0.0.1:${port}"`,
    );
  });
});

test('daemon without groups: the CLI says so', async () => {
  const alone = await fixture.start(EPHEMERAL_PORTS);
  expect(sluice('groups', '--at', alone.addresses.http[0]).stdout).toBe(
    'The daemon is in no group: see docs/reference/groups.md.\n',
  );
});
