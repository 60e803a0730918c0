import { createClient } from 'redis';
import { afterAll, describe, expect, test } from 'vitest';
import { peers, udp } from '../src/backends/peers/index.ts';
import { connect } from '../src/client/index.ts';
import { limiter } from '../src/limiter/limiter.ts';
import { daemonFixture, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { freeUdpPorts, redisServer, startRedis } from './support/services.ts';
import { runCliAtAsync } from './support/terminal.ts';

const fixture = daemonFixture();
afterAll(() => fixture.end());

const PORTS = ['--line', 'off', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

async function start(config: string) {
  const file = fixture.place().file('sluice.yaml', config);
  const daemon = await fixture.start([...PORTS, '--config', file]);
  const http = `http://${daemon.addresses.http[0]}`;
  const send = (method: string, path: string, body?: object): Promise<Response> =>
    fetch(http + path, {
      method,
      ...(body && {
        body: JSON.stringify(body),
        headers: { 'content-type': 'application/json' },
      }),
    });
  return { daemon, send };
}

async function cli(daemon: RunningDaemon, protocol: 'resp' | 'http', ...words: string[]) {
  const command = [...words, '--at', daemon.addresses[protocol][0]];
  const { code, out, err } = await runCliAtAsync(100, command);
  return { code, said: [...out, ...err].join('\n') };
}

const limitsOf = (shared = ''): string => `
limits:
  login-user: { lockout: { after: 3, lock: [1m, 5m] }, match: 'user:*'${shared} }
  login-ip: { lockout: { after: 10, lock: 5m, onSuccess: return }, match: 'ip:*'${shared} }
  api: { bucket: { rate: 100/s }, match: 'api:*' }
`;

const LOGIN = [
  { limit: 'login-user', key: 'user:alice' },
  { limit: 'login-ip', key: 'ip:192.0.2.7' },
];

test('HTTP, RESP, client and command line: failures lock the user, and say until when', async () => {
  const { daemon, send } = await start(limitsOf());
  const resp = daemon.addresses.resp[0];
  const sluice = connect({ at: resp, deadline: 5000 });
  const redis = createClient({ url: `redis://${resp}` });
  await redis.connect();

  expect(await sluice.checkAll(LOGIN)).toMatchObject({ verdict: 'allow', remaining: 2 });
  expect(await sluice.report('user:alice', 'failure', { limit: 'login-user' })).toBe(true);
  expect(await sluice.report('ip:192.0.2.7', 'failure')).toBe(true);
  expect(await (await send('POST', '/check', { checks: LOGIN })).json()).toMatchObject({
    verdict: 'allow',
    remaining: 1,
  });
  const failure = { key: 'user:alice', attempt: 'failure' };
  expect(await (await send('POST', '/report', failure)).json()).toEqual({ reported: 1 });
  const byForm = '/report?key=ip:192.0.2.7&limit=login-ip&attempt=failure';
  expect(await (await send('POST', byForm)).json()).toEqual({ reported: 1 });
  const third = await redis.sendCommand(['SLUICE.CHECK', 'login-user', 'user:alice']);
  expect(third).toEqual([1, 0, 0, '', '', '']);
  const reported = ['SLUICE.REPORT', 'login-user', 'user:alice', 'FAILURE'];
  expect(await redis.sendCommand(reported)).toBe(1);

  const refused = await send('POST', '/check', { checks: LOGIN });
  expect([refused.status, Number(refused.headers.get('retry-after'))]).toEqual([429, 60]);
  expect(await refused.json()).toMatchObject({ limit: 'login-user', reason: 'locked' });
  expect(await sluice.check('user:alice')).toMatchObject({ reason: 'locked', limit: 'login-user' });
  expect(await sluice.inspect('user:alice')).toMatchObject({
    limits: [{ name: 'login-user', by: 'login-user', failures: 3, locks: 1, remaining: 0 }],
  });
  expect((await sluice.inspect('user:alice'))?.limits[0].lockedMs).toBeGreaterThan(50_000);
  expect((await sluice.inspect('ip:192.0.2.7'))?.limits[0]).toMatchObject({ failures: 2 });
  expect(await cli(daemon, 'resp', 'check', 'user:alice')).toMatchObject({
    code: 1,
    said: expect.stringMatching(/^NO, limit login-user: locked, try again in /),
  });
  expect((await cli(daemon, 'http', 'why', 'user:alice')).said).toMatch(
    /denied now by login-user \(locked\)[\s\S]*locked by a lock-out \(lock 1\), opens in [\s\S]* lockout [\s\S]*`sluice reset`/,
  );
  const denials = await (await send('GET', '/denials?key=user:alice')).json();
  const [{ lockedUntil, rule }] = (denials as { denials: { lockedUntil: number; rule: string }[] })
    .denials;
  expect([rule, lockedUntil > Date.now() + 30_000]).toEqual(['lockout', true]);
  const metrics = await (await send('GET', '/metrics')).text();
  expect(metrics).toMatch(/^sluice_locked_total\{limit="login-user"\} 3$/m);

  expect((await cli(daemon, 'http', 'reset', 'user:alice')).said).toBe(
    'user:alice is reset in login-user',
  );
  expect((await cli(daemon, 'resp', 'check', 'user:alice')).said).toBe('OK, 2 left');
  expect(await cli(daemon, 'resp', 'report', 'user:alice', 'success')).toEqual({
    code: 0,
    said: '',
  });
  expect((await cli(daemon, 'resp', 'check', 'user:alice')).said).toBe('OK, 2 left');
  await sluice.close();
  await redis.close();
});

test('permits: a settlement says how the attempt ended, for all limits of the permit', async () => {
  const { daemon, send } = await start(limitsOf());
  const sluice = connect({ at: daemon.addresses.resp[0], deadline: 5000 });
  const hold = async () => (await sluice.checkAll(LOGIN, { withPermit: true })).permit ?? '';
  const failuresOf = async (key: string) => (await sluice.inspect(key))?.limits[0].failures;
  await sluice.settle(await hold(), { attempt: 'failure' });
  expect([await failuresOf('user:alice'), await failuresOf('ip:192.0.2.7')]).toEqual([1, 1]);
  await sluice.settle(await hold(), { attempt: 'success' });
  expect([await failuresOf('user:alice'), await failuresOf('ip:192.0.2.7')]).toEqual([0, 1]);
  const settled = await send('POST', '/settle', { permit: await hold(), attempt: 'failure' });
  expect(settled.status).toBe(200);
  expect([await failuresOf('user:alice'), await failuresOf('ip:192.0.2.7')]).toEqual([1, 2]);
  await sluice.close();
});

test('reports: mistakes are refused, and named', async () => {
  const { daemon, send } = await start(limitsOf());
  const redis = createClient({ url: `redis://${daemon.addresses.resp[0]}` });
  await redis.connect();
  const problem = async (path: string) => {
    const response = await send('POST', path);
    return `${response.status} ${((await response.json()) as { detail: string }).detail}`;
  };
  expect(await problem('/report?key=user:a')).toBe(
    '400 expected `attempt` to be one of success, failure, got undefined',
  );
  expect(await problem('/report?key=user:a&attempt=failure&limit=nix')).toMatch(/^404 /);
  expect(await problem('/report?key=api:1&attempt=failure')).toBe(
    '400 expected `limit` to be a lockout with `on: failure`, alone or in `all`, for `report`, got "api"',
  );
  const report = (...args: string[]) => redis.sendCommand(['SLUICE.REPORT', ...args]);
  await expect(report('*', 'user:a', 'failed')).rejects.toThrow('success or failure');
  await expect(report('nix', 'user:a', 'failure')).rejects.toThrow("no limit is named 'nix'");
  await expect(report('*', 'api:1', 'failure')).rejects.toThrow('to be a lockout');
  expect((await send('GET', '/report?key=user:a&attempt=failure')).status).toBe(405);
  expect(await cli(daemon, 'resp', 'report', 'user:a', 'wrong')).toMatchObject({ code: 2 });
  expect(await cli(daemon, 'resp', 'report', 'api:1', 'failure')).toMatchObject({ code: 2 });
  await redis.close();
});

describe.skipIf(redisServer() === undefined)('lock-outs in Redis', () => {
  test('two daemons: 100 logins at once get three guesses, and a lock holds in both', async () => {
    const server = await fixture.serve(startRedis);
    const config = limitsOf(`, redis: { url: 'redis://127.0.0.1:${server.port}', deadline: 5s }`);
    const [a, b] = await Promise.all([start(config), start(config)]);
    for (const { send } of [a, b])
      await waitUntil(async () => (await send('GET', '/check?key=user:ready')).status === 200);
    const statuses = await Promise.all(
      Array.from({ length: 100 }, async (_, n) => {
        const { status } = await (n % 2 ? a : b).send('GET', '/check?key=user:alice');
        return status;
      }),
    );
    expect(statuses.filter((status) => status === 200).length).toBe(3);
    const refused = await b.send('GET', '/check?key=user:alice');
    expect(await refused.json()).toMatchObject({ limit: 'login-user', reason: 'locked' });
    await a.send('POST', '/report?key=user:alice&attempt=success');
    expect((await b.send('GET', '/check?key=user:alice')).status).toBe(200);
    expect((await a.send('POST', '/reset?key=user:alice')).status).toBe(200);
    expect(await (await b.send('GET', '/check?key=user:alice')).json()).toMatchObject({
      remaining: 2,
    });
  });
});

describe('lock-outs on peers', () => {
  const KEY = 'a secret of the whole fleet';

  test('two daemons and a process: failures add up, a lock holds on all, a success ends it', async () => {
    const all = (await freeUdpPorts(3)).map((port) => `127.0.0.1:${port}`);
    const [daemonsAt, own] = [all.slice(0, 2), all[2]];
    const startNode = (self: string) => {
      const udpList = [self, ...all.filter((other) => other !== self)];
      return start(`peers: { udp: [${udpList}], key: ${KEY} }${limitsOf()}`);
    };
    const fleet = peers({ transport: udp({ peers: all, bind: own }), key: KEY, name: 'process' });
    const daemons = await Promise.all(daemonsAt.map(startNode));
    const [a, b] = daemons;
    const login = limiter({
      name: 'login-user',
      limit: { lockout: { after: 3, lock: ['1m', '5m'] } },
      backend: fleet,
    });
    await fleet.opened;
    const peersOf = async ({ send }: typeof a): Promise<number> =>
      ((await (await send('GET', '/peers')).json()) as { peers: unknown[] }).peers.length;
    for (const node of daemons) await waitUntil(async () => (await peersOf(node)) === 2);
    await waitUntil(() => fleet.view().peers.length === 2);

    const failuresOf = async ({ send }: typeof a, key: string): Promise<unknown> => {
      const { limits } = (await (await send('GET', `/inspect?key=${key}`)).json()) as {
        limits: { failures: number }[];
      };
      return limits[0].failures;
    };
    const failOn = async ({ send }: typeof a, key: string): Promise<void> => {
      expect((await send('GET', `/check?key=${key}`)).status).toBe(200);
      await send('POST', `/report?key=${key}&attempt=failure`);
    };
    // Nodes that start together may count what is served meanwhile twice: this key is used when they know each other.
    await failOn(a, 'user:alice');
    await waitUntil(() => login.inspect('user:alice').failures === 1);
    expect(login.check('user:alice').verdict).toBe('allow');
    login.report('user:alice', 'failure');
    await waitUntil(async () => (await failuresOf(b, 'user:alice')) === 2);
    await failOn(b, 'user:alice');
    await waitUntil(() => (login.inspect('user:alice').lockedMs ?? 0) > 0);
    await waitUntil(async () => (await a.send('GET', '/check?key=user:alice')).status === 429);
    const refused = await (await a.send('GET', '/check?key=user:alice')).json();
    expect(refused).toMatchObject({ limit: 'login-user', reason: 'locked' });

    // A daemon that is killed and starts again knows the lock.
    await b.daemon.stop('SIGKILL');
    const again = await startNode(daemonsAt[1]);
    await waitUntil(async () => (await again.send('GET', '/check?key=user:alice')).status === 429);

    // A success without an attempt, as of a password reset, ends the lock everywhere, and its step stays.
    login.report('user:alice', 'success');
    for (const { send } of [a, again])
      await waitUntil(async () => (await send('GET', '/check?key=user:alice')).status === 200);
    await fleet.close();
  });
});
