import { spawnSync } from 'node:child_process';
import { createClient } from 'redis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import { daemonFixture, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { redisCli, redisServer, startRedis } from './support/services.ts';

const fixture = daemonFixture();
afterAll(() => fixture.end());

const PORTS = ['--line', 'off', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

const start = (config: string): Promise<RunningDaemon> =>
  fixture.start([...PORTS, '--config', fixture.place().file('sluice.yaml', config)]);

const LOGIN = `
limits:
  login-user: { bucket: { rate: 5/h, burst: 5 }, match: 'user:*' }
  login-ip: { bucket: { rate: 20/h, burst: 20 }, match: 'ip:*' }
`;

test('HTTP, RESP, client and command line: one question, and a refusal charges nothing', async () => {
  const daemon = await start(LOGIN);
  const resp = `127.0.0.1:${daemon.port('resp')}`;
  const url = `http://${daemon.addresses.http[0]}/check`;
  const sluice = connect({ at: resp, deadline: 5000 });
  const redis = createClient({ url: `redis://${resp}` });
  await redis.connect();

  const query = 'check=login-user,user:a&check=login-ip,ip:1';
  expect(await (await fetch(`${url}?${query}`)).json()).toEqual({ verdict: 'allow', remaining: 4 });
  const login = ['login-user', 'user:a', '1', 'login-ip', 'ip:1', '1'];
  expect(await redis.sendCommand(['SLUICE.CHECKALL', ...login])).toEqual([1, 3, 0, '', '', '']);
  const checks = [
    { limit: 'login-user', key: 'user:a' },
    { limit: 'login-ip', key: 'ip:1' },
  ];
  expect(await sluice.checkAll(checks)).toEqual({ verdict: 'allow', remaining: 2 });
  const check = (...args: string[]) => {
    const command = ['dist/bin/sluice.js', 'check', ...args, '--at', resp, '--deadline', '5s'];
    const { status, stdout, stderr } = spawnSync(process.execPath, command, { encoding: 'utf8' });
    return { status, said: stdout + stderr };
  };
  const also = ['user:a', '--limit', 'login-user', '--also', 'login-ip@2,ip:1'];
  expect(check(...also)).toEqual({ status: 0, said: 'OK, 1 left\n' });
  expect(check(...also, '--cost', '3')).toMatchObject({
    status: 1,
    said: expect.stringMatching(/^NO, limit login-user, 1 left: try again in /),
  });
  expect(check(...also, '--cost', '9', '--wait', '5s')).toMatchObject({
    status: 1,
    said: expect.stringMatching(/^NO, limit login-user, 1 left: never/),
  });
  const free = ['user:a', '--limit', 'login-user', '--cost', '0', '--also', 'login-ip@0,ip:1'];
  expect(check(...free, '--wait', '5s')).toEqual({ status: 0, said: 'OK, 1 left\n' });
  expect(check('user:a', '--also', 'login-ip')).toMatchObject({
    status: 2,
    said: expect.stringMatching(/expected `--also` to be LIMIT,KEY or LIMIT@COST,KEY/),
  });
  const body = { checks: checks.map((one) => ({ ...one, cost: 2 })), status: 403 };
  const headers = { 'content-type': 'application/json' };
  const refused = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([
    403,
    expect.stringMatching(/^7\d\d$/),
  ]);
  expect(await refused.json()).toMatchObject({ limit: 'login-user', remaining: 1 });
  expect(await sluice.check('ip:1', 0)).toEqual({ verdict: 'allow', remaining: 15 });

  await sluice.close();
  await redis.close();
});

describe.skipIf(redisServer() === undefined)('limits in Redis', () => {
  let daemons: RunningDaemon[];
  let redisPort: number;

  beforeAll(async () => {
    const redis = await fixture.serve(startRedis);
    redisPort = redis.port;
    const shared = `redis: { url: 'redis://127.0.0.1:${redis.port}', onUnavailable: deny, deadline: 5s }`;
    const config = `
limits:
  user: { bucket: { rate: 1/h, burst: 5 }, match: 'user:*', ${shared} }
  ip: { bucket: { rate: 1/h, burst: 20 }, match: 'ip:*', ${shared} }
  slots: { concurrency: 3, match: 'slot:*', ${shared} }
  slow: { bucket: { rate: 1/2s, burst: 1 }, match: 'slow:*', ${shared} }
  here: { bucket: { rate: 1/h, burst: 100 }, match: 'here:*' }
`;
    daemons = await Promise.all([start(config), start(config)]);
    for (const daemon of daemons)
      await waitUntil(async () => (await get(daemon, '/check?key=user:ready')).status === 200);
  });

  const get = (daemon: RunningDaemon, path: string): Promise<Response> =>
    fetch(`http://${daemon.addresses.http[0]}${path}`);

  /** Not rounded: a bucket that gets a token back loses the refill of the meantime, here less than 0.1. */
  const left = async (daemon: RunningDaemon, key: string): Promise<number> => {
    const page = (await (await get(daemon, `/inspect?key=${key}`)).json()) as {
      limits: { remaining: number }[];
    };
    return page.limits[0].remaining;
  };

  test('client.acquireAll: nothing is charged in Redis and here while the call waits, then all of it', async () => {
    const [daemon] = daemons;
    const sluice = connect({ at: `127.0.0.1:${daemon.port('resp')}`, deadline: 5000 });
    const keys = ['ip:w', 'here:w'];
    const checks = ['slow:w', ...keys].map((key) => ({ limit: key.split(':')[0], key }));
    const leftOfOthers = async () =>
      (await Promise.all(keys.map((key) => left(daemon, key)))).map(Math.round);
    expect(await sluice.acquireAll(checks, { wait: '1s' })).toMatchObject({ verdict: 'allow' });
    const late = await sluice.acquireAll(checks, { wait: '10ms' });
    expect(late).toMatchObject({ verdict: 'deny', limit: 'slow' });
    const leaving = new AbortController();
    const left1 = sluice.acquireAll(checks, { wait: '20s', signal: leaving.signal });
    const waiting = sluice.acquireAll(checks, { wait: '20s' });
    leaving.abort(new Error('left'));
    await expect(left1).rejects.toThrow('left');
    expect(await leftOfOthers()).toEqual([19, 99]);
    expect(await waiting).toMatchObject({ verdict: 'allow' });
    expect(await leftOfOthers()).toEqual([18, 98]);
    await sluice.close();
  });

  test('HTTP, RESP and client: one question about two limits of one Redis is one call', async () => {
    const calls = (): number => {
      const text = redisCli(redisPort, 'INFO', 'commandstats');
      const names = ['eval', 'evalsha'];
      const counts = names.map((name) => new RegExp(`cmdstat_${name}:calls=(\\d+)`).exec(text));
      return counts.reduce((sum, count) => sum + Number(count?.[1] ?? 0), 0);
    };
    const [daemon] = daemons;
    const at = `127.0.0.1:${daemon.port('resp')}`;
    const sluice = connect({ at, deadline: 5000 });
    const resp = createClient({ url: `redis://${at}` }).on('error', () => {});
    await resp.connect();
    const path = '/check?check=user,user:q&check=ip,ip:q';
    await get(daemon, path);
    const atFirst = calls();
    expect(await (await get(daemon, path)).json()).toMatchObject({ verdict: 'allow' });
    expect(calls() - atFirst).toBe(1 + 2); // RateLimit headers read each limit
    const before = calls();
    const words = ['user', 'user:q', '1', 'ip', 'ip:q', '4'];
    expect((await resp.sendCommand(['SLUICE.CHECKALL', ...words])) as unknown[]).toContain(1);
    const checks = [
      { limit: 'user', key: 'user:q' },
      { limit: 'ip', key: 'ip:q', cost: 2 },
    ];
    expect(await sluice.checkAll(checks)).toMatchObject({ verdict: 'allow', remaining: 1 });
    expect(calls() - before).toBe(2);
    expect(Math.round(await left(daemon, 'ip:q'))).toBe(12);
    const heavy = ['ip', 'ip:q', '1', 'slots', 'slot:q', '2', 'HOLD'];
    const [isAllowed, , , , permit] = (await resp.sendCommand([
      'SLUICE.CHECKALL',
      ...heavy,
    ])) as unknown[];
    expect([isAllowed, await left(daemon, 'slot:q')]).toEqual([1, 1]);
    expect(await resp.sendCommand(['SLUICE.CHECKALL', ...heavy])).toContain('slots');
    expect(Math.round(await left(daemon, 'ip:q'))).toBe(11);
    await resp.sendCommand(['SLUICE.SETTLE', String(permit)]);
    await waitUntil(async () => (await left(daemon, 'slot:q')) === 3);
    await sluice.close();
    resp.destroy();
  });

  test('60 questions at once by two daemons: each limit admits its number, refusals give back all', async () => {
    const ask = (n: number) => {
      const keys = [`user,user:${n % 3}`, 'ip,ip:1', 'here,here:1'].map((each) => `check=${each}`);
      return get(daemons[n % 2], `/check?${keys.join('&')}`);
    };
    const statuses = await Promise.all(
      Array.from({ length: 60 }, async (_, n) => (await ask(n)).status),
    );
    const admitted = statuses.filter((status) => status === 200).length;
    expect(admitted).toBeLessThanOrEqual(15);
    // What a refusal took for a moment may have refused another call; all of it comes back.
    for (let n = 0; n < 30; n++) statuses.push((await ask(n)).status);
    const total = statuses.filter((status) => status === 200).length;
    // On a busy machine a reply of Redis may come too late: that call is refused, and may have been counted.
    const late = statuses.filter((status) => status === 503).length;
    expect(total).toBeLessThanOrEqual(15);
    expect(total).toBeGreaterThanOrEqual(15 - late);
    for (const n of [0, 1, 2]) expect(await left(daemons[0], `user:${n}`)).toBeLessThan(0.2);
    await waitUntil(async () => (await left(daemons[0], 'ip:1')) > 19.9 - total - late);
    const here = (await left(daemons[0], 'here:1')) + (await left(daemons[1], 'here:1'));
    expect(here).toBeGreaterThan(199.9 - total);
  });

  test('two remote limits refuse: the retry time is the longest', async () => {
    const [daemon] = daemons;
    await get(daemon, '/check?check=user@5,user:x&check=ip@20,ip:x');
    const refused = await get(daemon, '/check?check=ip@20,ip:x&check=user@1,user:x');
    expect(await refused.json()).toMatchObject({ verdict: 'deny', remaining: 0 });
    const user = await get(daemon, '/check?key=user:x');
    const ip = await get(daemon, '/check?key=ip:x&cost=20');
    const seconds = [user, ip].map(({ headers }) => Number(headers.get('retry-after')));
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThanOrEqual(Math.max(...seconds));
  });

  test('remaining over RESP: after a check, with HOLD, and after a refusal', async () => {
    const redis = createClient({ url: `redis://127.0.0.1:${daemons[0].port('resp')}` });
    await redis.connect();
    const check = (...args: string[]) => redis.sendCommand(['SLUICE.CHECK', ...args]);
    expect(await check('user', 'user:r', '2')).toEqual([1, 3, 0, '', '', '']);
    expect(await check('user', 'user:r', '1', 'HOLD')).toEqual([
      1,
      2,
      0,
      '',
      expect.any(String),
      '',
    ]);
    expect(await check('user', 'user:r', '4')).toEqual([0, 2, expect.any(Number), 'user', '', '']);
    expect(await check('ip', 'ip:r', '15')).toEqual([1, 5, 0, '', '', '']);
    expect(await check('ip', 'ip:r', '6')).toEqual([0, 5, expect.any(Number), 'ip', '', '']);
    expect(await check('slots', 'slot:r', '1', 'HOLD')).toEqual([
      1,
      2,
      0,
      '',
      expect.any(String),
      '',
    ]);
    expect(await check('slots', 'slot:r', '3', 'HOLD')).toEqual([
      0,
      2,
      expect.any(Number),
      'slots',
      '',
      '',
    ]);
    const multi = redis.multi().addCommand(['SLUICE.CHECK', 'user', 'user:r']).ping();
    expect(await multi.exec()).toEqual([[1, 1, 0, '', '', ''], 'PONG']);
    await redis.close();
  });
});
