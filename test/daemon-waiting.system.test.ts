import { execFile, spawn } from 'node:child_process';
import { connect as openSocket } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import { daemonFixture, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { sendRequest } from './support/http-protocol.ts';
import { decisionOf, type RespCaller, respCaller } from './support/resp-caller.ts';
import { redisServer, startRedis } from './support/services.ts';

const fixture = daemonFixture();
const callers: RespCaller[] = [];

afterEach(async () => {
  for (const caller of callers.splice(0)) caller.close();
  await fixture.end();
});

/** One daemon for the tests that need no bounds of their own: each test has its own limit. */
const LIMITS = `
limits:
  order: { bucket: { rate: 200/s, burst: 1 } }
  killed: { spacing: { every: 100ms } }
  over: { bucket: { rate: 1/10s, burst: 1 } }
  vain: { bucket: { rate: 1/20s, burst: 1 } }
  behind: { bucket: { rate: 5/s, burst: 1 } }
  total: { bucket: { rate: 1/h, burst: 5 }, per: limit, always: true, match: 'u:*' }
  user: { bucket: { rate: 1/300ms, burst: 1 }, match: 'u:*' }
  api: { bucket: { rate: 1/200ms, burst: 1 } }
  held: { concurrency: 1 }
  looking: { concurrency: 1 }
  leaving: { concurrency: 1 }
  pipelined: { bucket: { rate: 5/s, burst: 1 } }
  client: { concurrency: 1 }
  cli: { concurrency: 1 }
  multi: { bucket: { rate: 1/h, burst: 5 } }`;

const shared = daemonFixture();
let daemon: RunningDaemon;

beforeAll(async () => {
  daemon = await start(LIMITS, shared);
});

afterAll(() => shared.end());

const PORTS = 'listen: { line: off, resp: 127.0.0.1:0, http: 127.0.0.1:0 }';

const start = (yaml: string, owner = fixture): Promise<RunningDaemon> =>
  owner.start(['--config', owner.place().file('sluice.yaml', `${PORTS}\n${yaml}`)]);

async function open(daemon: RunningDaemon): Promise<RespCaller> {
  const caller = await respCaller(daemon.port('resp'));
  callers.push(caller);
  return caller;
}

const get = (daemon: RunningDaemon, path: string, options = {}) =>
  sendRequest(daemon.port('http'), path, options);

/** The statistics of a limit, as `GET /limits` shows them. */
async function statsOf(daemon: RunningDaemon, limit: string): Promise<Record<string, number>> {
  const limits = JSON.parse((await get(daemon, '/limits')).text);
  return limits.find((one: { name: string }) => one.name === limit).stats;
}

const waitingIs = (daemon: RunningDaemon, limit: string, count: number): Promise<void> =>
  waitUntil(async () => (await statsOf(daemon, limit)).waiting === count);

/** Acquires on connections of their own, one after the other, each received before the next is sent. */
async function acquireInOrder(
  daemon: RunningDaemon,
  count: number,
  args: readonly string[],
  onReply: (n: number, reply: ReturnType<typeof decisionOf>) => void = () => {},
): Promise<Promise<ReturnType<typeof decisionOf>>[]> {
  const probe = await open(daemon);
  const opened = await Promise.all(Array.from({ length: count }, () => open(daemon)));
  const replies = [];
  for (const [n, caller] of opened.entries()) {
    const reply = caller.call('SLUICE.ACQUIRE', ...args).then((value) => {
      const decision = decisionOf(value);
      onReply(n, decision);
      return decision;
    });
    replies.push(reply);
    await probe.call('PING');
  }
  return replies;
}

describe('SLUICE.ACQUIRE', () => {
  test('daemon: 100 callers on 100 connections, admitted in order of arrival at the rate of the limit', async () => {
    const order: number[] = [];
    const startedAt = performance.now();
    const args = ['order', 'k', 'WAIT', '10000'];
    const replies = await acquireInOrder(daemon, 100, args, (n) => order.push(n));
    const decisions = await Promise.all(replies);
    const elapsedMs = performance.now() - startedAt;
    expect(decisions.every(({ isAllowed }) => isAllowed)).toBe(true);
    expect(order).toEqual([...order.keys()]);
    expect(elapsedMs).toBeGreaterThanOrEqual(99 * 5 - 1);
    const { allowed, denied, waiting } = await statsOf(daemon, 'order');
    expect([allowed, denied, waiting]).toEqual([100, 0, 0]);
  });

  test('daemon: 50 waiting connections killed with SIGKILL, the others get what the limit allows at once', async () => {
    const script = `
      const { connect } = require('node:net');
      let sent = 0;
      for (let n = 0; n < 50; n++) connect(${daemon.port('resp')}, '127.0.0.1', function () {
        this.write('SLUICE.ACQUIRE killed k WAIT 30000\\r\\n', () => { if (++sent === 50) console.log('sent'); });
      });`;
    const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    await new Promise((sent) => child.stdout.once('data', sent));
    await waitUntil(async () => (await statsOf(daemon, 'killed')).waiting > 40);
    const replies = await acquireInOrder(daemon, 10, ['killed', 'k', 'WAIT', '30000']);
    const killedAt = performance.now();
    const before = (await statsOf(daemon, 'killed')).allowed;
    child.kill('SIGKILL');
    const decisions = await Promise.all(replies);
    const elapsedMs = performance.now() - killedAt;
    expect(decisions.every(({ isAllowed }) => isAllowed)).toBe(true);
    expect(elapsedMs).toBeLessThan(4000); // ten at 100 ms; behind the 50 it would be 6 s
    const { allowed, cancelled, waiting } = await statsOf(daemon, 'killed');
    expect(allowed - before).toBeLessThanOrEqual(elapsedMs / 100 + 2);
    expect(allowed + cancelled).toBe(60); // each call is counted once: nothing was charged for those that left
    expect(waiting).toBe(0);
  });

  test('daemon: SIGTERM, waiting calls are admitted in time or refused as unavailable within bounds.drain', async () => {
    const daemon = await start(`
bounds: { drain: 2s }
limits:
  jobs: { concurrency: 1, match: 'job:*' }
  api: { bucket: { rate: 20/s, burst: 1 } }`);
    const holder = await open(daemon);
    expect(decisionOf(await holder.call('SLUICE.CHECK', 'jobs', 'job:1', 'HOLD')).isAllowed).toBe(
      true,
    );
    const refused = await acquireInOrder(daemon, 5, ['jobs', 'job:1', 'WAIT', '30000', 'HOLD']);
    const overHttp = get(daemon, '/check?limit=jobs&key=job:1&hold=1&wait=30s');
    await waitingIs(daemon, 'jobs', 6);
    const admitted = await acquireInOrder(daemon, 4, ['api', 'k', 'WAIT', '30000']);
    const stoppedAt = performance.now();
    const code = await daemon.stop();
    expect(code).toBe(0);
    expect(performance.now() - stoppedAt).toBeLessThan(15_000); // the calls would wait for 30 s
    for (const decision of await Promise.all(refused))
      expect(decision).toMatchObject({ isAllowed: false, limit: 'jobs', reason: 'unavailable' });
    for (const { isAllowed } of await Promise.all(admitted)) expect(isAllowed).toBe(true);
    const { status, json } = await overHttp;
    expect([status, json.reason]).toEqual([503, 'unavailable']);
  });

  test('daemon: a wait that would be in vain, refused at once with the time until the turn comes', async () => {
    const [first, second] = await Promise.all([open(daemon), open(daemon)]);
    const acquire = async (caller: RespCaller, limit: string, waitMs: number) =>
      decisionOf(await caller.call('SLUICE.ACQUIRE', limit, 'k', 'WAIT', String(waitMs)));
    expect((await acquire(first, 'vain', 0)).isAllowed).toBe(true);
    const early = await acquire(first, 'vain', 10_000);
    expect(early).toMatchObject({ isAllowed: false, limit: 'vain', reason: '' });
    expect(early.retryAfterMs).toBeGreaterThan(10_000); // it has not waited
    expect((await acquire(first, 'over', 0)).isAllowed).toBe(true);
    void acquire(first, 'over', 15_000);
    await waitingIs(daemon, 'over', 1);
    const late = await acquire(second, 'over', 12_000);
    expect(late).toMatchObject({ isAllowed: false, limit: 'over' });
    expect(late.retryAfterMs).toBeGreaterThan(12_000); // the one in front at 10 s, its own turn at 20 s
    expect(late.retryAfterMs).toBeLessThanOrEqual(20_000);
    first.close();
    await waitingIs(daemon, 'over', 0);
  });

  test('daemon: commands behind a waiting one wait and are not counted before; their replies keep the order', async () => {
    const [caller, other] = await Promise.all([open(daemon), open(daemon)]);
    await caller.call('SLUICE.CHECK', 'behind', 'a');
    const order: string[] = [];
    const waited = caller.call('SLUICE.ACQUIRE', 'behind', 'a', 'WAIT', '2000');
    const behind = caller.call('SLUICE.CHECK', 'behind', 'b');
    const ping = caller.call('PING');
    for (const [name, reply] of Object.entries({ waited, behind, ping }))
      void reply.then(() => order.push(name));
    await waitingIs(daemon, 'behind', 1);
    expect(decisionOf(await other.call('SLUICE.CHECK', 'behind', 'b', '0')).remaining).toBe(1);
    expect(decisionOf(await waited).isAllowed).toBe(true);
    expect(decisionOf(await behind).isAllowed).toBe(true);
    expect(await ping).toBe('PONG');
    expect(order).toEqual(['waited', 'behind', 'ping']);
  });

  test('daemon: bounds.idle and bounds.slow below the wait, the connection stays', async () => {
    const strict = await start(
      'bounds: { idle: 300ms, slow: 300ms }\nlimits: { api: { bucket: { rate: 1/900ms, burst: 1 } } }',
    );
    const caller = await open(strict);
    const overHttp = [1, 2].map(() => get(strict, '/check?key=h&wait=5s'));
    const [first, second] = await Promise.all([
      caller.call('SLUICE.ACQUIRE', 'api', 'k', 'WAIT', '5000'),
      caller.call('SLUICE.ACQUIRE', 'api', 'k', 'WAIT', '5000'),
    ]);
    const ping = await caller.call('PING');
    expect([decisionOf(first), decisionOf(second)]).toMatchObject([
      { isAllowed: true },
      { isAllowed: true },
    ]);
    expect(ping).toBe('PONG');
    for (const { status } of await Promise.all(overHttp)) expect(status).toBe(200);
    await waitUntil(() => caller.socket.closed); // idle now
  });

  test('daemon: a full queue refuses at once, and a key with few waiters takes a place of the key with most', async () => {
    const daemon = await start(
      'bounds: { waiting: 4, wait: 2s }\nlimits: { jobs: { concurrency: 1 } }',
    );
    const holder = await open(daemon);
    for (const key of ['a', 'b']) await holder.call('SLUICE.CHECK', 'jobs', key, 'HOLD');
    const ofA = await acquireInOrder(daemon, 4, ['jobs', 'a', 'WAIT', '2000', 'HOLD']);
    const [fifth] = await acquireInOrder(daemon, 1, ['jobs', 'a', 'WAIT', '2000', 'HOLD']);
    expect(await fifth).toMatchObject({ isAllowed: false, limit: 'jobs', reason: 'queue-full' });
    const [ofB] = await acquireInOrder(daemon, 1, ['jobs', 'b', 'WAIT', '300', 'HOLD']);
    expect(await ofA[3]).toMatchObject({ isAllowed: false, reason: 'queue-full' });
    const overHttp = await get(daemon, '/check?limit=jobs&key=a&hold=1&wait=2s');
    expect([overHttp.status, overHttp.json.reason]).toEqual([503, 'queue-full']);
    const free = await (await open(daemon)).call('SLUICE.ACQUIRE', 'jobs', 'c', 'WAIT', '1000');
    expect(decisionOf(free).isAllowed).toBe(true); // does not have to wait
    expect(await ofB).toMatchObject({ isAllowed: false, reason: '' });
    const { text } = await get(daemon, '/metrics');
    expect(text).toContain('sluice_waiting_refused_total 3');
    expect(text).toContain('sluice_waiting{limit="jobs"} 3');
  });

  test('daemon: several limits, nothing is charged while a call waits', async () => {
    const [caller, other] = await Promise.all([open(daemon), open(daemon)]);
    await caller.call('SLUICE.CHECK', '*', 'u:1');
    const waited = caller.call('SLUICE.ACQUIRE', '*', 'u:1', 'WAIT', '2000');
    await waitingIs(daemon, 'user', 1);
    const remaining = async () =>
      decisionOf(await other.call('SLUICE.CHECK', 'total', 'x', '0')).remaining;
    expect(await remaining()).toBe(4);
    expect(decisionOf(await waited).isAllowed).toBe(true);
    expect(await remaining()).toBe(3);
  });

  test('daemon: reload changes the limit, waiting calls move to the new one in their order', async () => {
    const place = fixture.place();
    const write = (rule: string) =>
      place.file('sluice.yaml', `${PORTS}\nlimits: { jobs: { ${rule} } }`);
    const daemon = await fixture.start(['--config', write('concurrency: 1')]);
    await (await open(daemon)).call('SLUICE.CHECK', 'jobs', 'a', 'HOLD');
    const order: number[] = [];
    const args = ['jobs', 'a', 'WAIT', '20000'];
    const replies = await acquireInOrder(daemon, 10, args, (n) => order.push(n));
    await waitingIs(daemon, 'jobs', 10);
    write('bucket: { rate: 50/s, burst: 1 }');
    daemon.signal('SIGHUP');
    const decisions = await Promise.all(replies);
    expect(decisions.every(({ isAllowed }) => isAllowed)).toBe(true);
    expect(order).toEqual([...order.keys()]);
    expect((await statsOf(daemon, 'jobs')).allowed).toBe(10);
  });

  test('daemon: override while a call waits, the response has what the new rule leaves', async () => {
    const daemon = await start('limits: { slow: { bucket: { rate: 1/m, burst: 1 } } }');
    await get(daemon, '/check?key=a');
    const waiting = get(daemon, '/check?key=a&wait=60s');
    await waitingIs(daemon, 'slow', 1);
    await get(daemon, '/override?key=a&rate=1/h&burst=10&for=1h', { method: 'POST' });
    expect(JSON.parse((await waiting).text)).toEqual({ verdict: 'allow', remaining: 8 });
  });

  test('daemon: reload without a change, an IPv6 client goes on waiting at the limit of its network', async () => {
    const fleet = await start(`
limits:
  network: { concurrency: 1, match: 'ip:2001:db8::/32' }
  other: { bucket: { rate: 1000/s }, match: '*' }`);
    const key = 'ip:2001:db8::7';
    await (await open(fleet)).call('SLUICE.CHECK', '*', key, 'HOLD');
    const replies = await acquireInOrder(fleet, 1, ['*', key, 'WAIT', '1500', 'HOLD']);
    const overHttp = get(fleet, `/check?key=${key}&wait=1500ms&hold=1`);
    await waitingIs(fleet, 'network', 2);
    expect((await get(fleet, '/reload', { method: 'POST' })).status).toBe(200);
    expect(await replies[0]).toMatchObject({ isAllowed: false, limit: 'network' });
    expect((await overHttp).json.limit).toBe('network');
  });

  test('daemon: SLUICE.ACQUIRE inside MULTI is refused, and EXEC counts nothing', async () => {
    const caller = await open(daemon);
    await caller.call('MULTI');
    expect(await caller.call('SLUICE.CHECK', 'multi', 'k')).toBe('QUEUED');
    const refused = (await caller.call('SLUICE.ACQUIRE', 'multi', 'k', 'WAIT', '100')) as Error;
    expect(refused.message).toContain('inside MULTI');
    expect(((await caller.call('EXEC')) as Error).message).toContain('EXECABORT');
    expect(decisionOf(await caller.call('SLUICE.CHECK', 'multi', 'k', '0')).remaining).toBe(5);
  });

  test('daemon: a refused cost above 1, the reply says what is left', async () => {
    const caller = await open(daemon);
    const reply = await caller.call('SLUICE.ACQUIRE', 'multi', 'left', '9', 'WAIT', '100');
    expect(decisionOf(reply)).toMatchObject({ isAllowed: false, remaining: 5, retryAfterMs: -1 });
  });

  test('daemon: invalid arguments, an error that names what is wrong', async () => {
    const daemon = await start('bounds: { wait: 2s }');
    const caller = await open(daemon);
    const errorOf = async (...args: string[]) =>
      ((await caller.call('SLUICE.ACQUIRE', ...args)) as Error).message;
    expect(await errorOf('*', 'k', 'WAIT', '2001')).toBe(
      'ERR WAIT must be at most 2000 ms (bounds.wait)',
    );
    expect(await errorOf('nope', 'k', 'WAIT', '1')).toContain("no limit is named 'nope'");
    expect(await errorOf('*', 'k', 'x', 'WAIT', '1')).toContain(
      "cost must be a number from 0 to 1e15, got 'x'",
    );
    expect(await errorOf('*', 'k', '1', 'HOLD')).toContain('syntax');
    expect(await errorOf('*', 'k', 'WAIT', '-1')).toContain('not an integer');
    const { status, json } = await get(daemon, '/check?key=k&wait=3s');
    expect([status, json.detail]).toEqual([
      400,
      'expected `wait` to be at most 2000 ms (bounds.wait), got 3000',
    ]);
    const body = '[{"key":"k","wait":"1s"}]';
    const headers = { 'content-type': 'application/json' };
    const batch = await get(daemon, '/batch', { method: 'POST', body, headers });
    expect([batch.status, batch.json.detail]).toEqual([
      400,
      'expected `[0].wait` to be left out in a batch, got 1000',
    ]);
    expect((await get(daemon, '/check?key=k&wait=5')).json.detail).toContain(
      'expected `wait` to be a duration such as 500ms or 2s',
    );
    expect((await get(daemon, '/check?key=k&wait=0')).status).toBe(200);
  });
});

describe('/check?wait=', () => {
  const AGENT_HEADERS = { 'content-type': 'application/json' };

  test('HTTP: GET and POST wait until they are admitted, also for a permit that another call holds', async () => {
    expect((await get(daemon, '/check?limit=api&key=k&wait=1s')).status).toBe(200);
    const startedAt = performance.now();
    const both = await Promise.all([
      get(daemon, '/check?limit=api&key=k&wait=1s'),
      get(daemon, '/check', {
        method: 'POST',
        body: '{"limit":"api","key":"k","wait":"1s"}',
        headers: AGENT_HEADERS,
      }),
    ]);
    expect(both.map(({ status, json }) => [status, json.verdict])).toEqual([
      [200, 'allow'],
      [200, 'allow'],
    ]);
    expect(performance.now() - startedAt).toBeGreaterThan(390 - 200);
    const { permit } = (await get(daemon, '/check?limit=held&key=h&hold=1')).json;
    const next = get(daemon, '/check?limit=held&key=h&hold=1&wait=10s');
    await waitingIs(daemon, 'held', 1);
    await get(daemon, `/settle?permit=${permit}`, { method: 'POST' });
    expect((await next).json).toMatchObject({ verdict: 'allow', permit: expect.any(String) });
  });

  test('HTTP: without hold, waits for a free slot of a concurrency limit and occupies none', async () => {
    const { permit } = (await get(daemon, '/check?limit=looking&key=a&hold=1')).json;
    const looking = [1, 2, 3].map(() => get(daemon, '/check?limit=looking&key=a&wait=10s'));
    await waitingIs(daemon, 'looking', 3);
    await get(daemon, `/settle?permit=${permit}`, { method: 'POST' });
    for (const { status } of await Promise.all(looking)) expect(status).toBe(200);
    expect((await get(daemon, '/check?limit=looking&key=a&hold=1')).status).toBe(200);
  });

  test('HTTP: a client that closes its connection leaves the queue, and the next one is admitted', async () => {
    const { permit } = (await get(daemon, '/check?limit=leaving&key=a&hold=1')).json;
    const gone = new AbortController();
    const url = `http://127.0.0.1:${daemon.port('http')}/check?limit=leaving&key=a&hold=1&wait=30s`;
    const leaving = fetch(url, { signal: gone.signal }).catch((error: Error) => error.name);
    await waitingIs(daemon, 'leaving', 1);
    const staying = get(daemon, '/check?limit=leaving&key=a&hold=1&wait=30s');
    await waitingIs(daemon, 'leaving', 2);
    gone.abort();
    expect(await leaving).toBe('AbortError');
    await waitingIs(daemon, 'leaving', 1);
    await get(daemon, `/settle?permit=${permit}`, { method: 'POST' });
    expect((await staying).status).toBe(200);
    expect(daemon.log()).not.toContain('HTTP request failed');
  });

  test('HTTP: a client that closes its sending side, or resets the connection, leaves the queue', async () => {
    const { permit } = (await get(daemon, '/check?limit=leaving&key=b&hold=1')).json;
    const [halfClosed, reset] = [1, 2].map(() => {
      const at = { port: daemon.port('http'), host: '127.0.0.1', allowHalfOpen: true };
      const socket = openSocket(at).on('error', () => {});
      socket.write('GET /check?limit=leaving&key=b&hold=1&wait=30s HTTP/1.1\r\nHost: x\r\n\r\n');
      return socket;
    });
    await waitingIs(daemon, 'leaving', 2);
    halfClosed.end();
    expect(await text(halfClosed)).toMatch(/^HTTP\/1.1 499 /);
    await waitingIs(daemon, 'leaving', 1);
    reset.resetAndDestroy();
    await waitingIs(daemon, 'leaving', 0);
    await get(daemon, `/settle?permit=${permit}`, { method: 'POST' });
    expect((await get(daemon, '/check?limit=leaving&key=b&hold=1')).status).toBe(200);
  });

  test('HTTP: a keep-alive connection, requests behind a waiting one are answered in their order', async () => {
    await get(daemon, '/check?limit=pipelined&key=k');
    const caller = await respCaller(daemon.port('http')); // only its socket
    callers.push(caller);
    const request = (path: string) => `GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`;
    let text = '';
    caller.socket.removeAllListeners('data').on('data', (chunk) => {
      text += chunk;
    });
    caller.socket.write(request('/check?limit=pipelined&key=k&wait=2s') + request('/healthz'));
    await waitUntil(() => text.endsWith('ok\n'));
    expect(text.match(/"verdict":"allow"[\s\S]*ok\n$/)).not.toBeNull();
    caller.socket.write(request('/healthz'));
    await waitUntil(() => text.endsWith('ok\n') && text.split('ok\n').length === 3);
  });
});

describe('client.acquire and sluice check --wait', () => {
  test('client: waiting calls block neither checks nor each other, and an abort leaves the queue', async () => {
    const client = connect({
      at: `127.0.0.1:${daemon.port('resp')}`,
      deadline: '1s',
      onUnavailable: 'deny',
    });
    const limit = 'client';
    const held = await client.acquire('a', { limit, wait: '1s', withPermit: true });
    const abort = new AbortController();
    const aborted = client.acquire('a', { wait: '20s', signal: abort.signal, limit });
    const next = client.acquire('a', { limit, wait: '20s', withPermit: true });
    await waitingIs(daemon, 'client', 2);
    expect((await client.check('b', 1, { limit })).verdict).toBe('allow');
    expect((await client.acquire('c', { limit, wait: '20s' })).verdict).toBe('allow');
    expect(client.stats().waiting).toBe(2);
    const warnings: Error[] = [];
    const onWarning = (warning: Error): unknown => warnings.push(warning);
    process.on('warning', onWarning);
    const sharing = Array.from({ length: 20 }, () =>
      client.acquire('d', { limit, wait: '20s', signal: abort.signal }),
    );
    await Promise.all(sharing);
    process.off('warning', onWarning);
    expect(warnings).toEqual([]);
    abort.abort(new Error('enough'));
    await expect(aborted).rejects.toThrow('enough');
    await waitingIs(daemon, 'client', 1);
    expect(await client.settle(held.permit ?? '')).toBe(true);
    expect((await next).verdict).toBe('allow');
    expect(await client.acquire('a', { limit, wait: 50 })).toMatchObject({
      verdict: 'deny',
      limit: 'client',
    });
    await expect(client.acquire('a', { wait: 'soon' as never })).rejects.toThrow('options.wait');
    expect(await client.acquire('a', { limit, wait: '61s' })).toMatchObject({
      verdict: 'deny',
      rejected: { message: expect.stringContaining('bounds.wait') },
    });
    await client.close();
  });

  test('client: maxWaiting calls wait, a further one is denied; a daemon that dies ends their wait', async () => {
    const daemon = await start('limits: { jobs: { concurrency: 1 } }');
    const at = `127.0.0.1:${daemon.port('resp')}`;
    const client = connect({ at, deadline: '1s', onUnavailable: 'deny', maxWaiting: 2 });
    await client.acquire('a', { withPermit: true });
    const waiting = [1, 2].map(() => client.acquire('a', { wait: '20s' }));
    await waitingIs(daemon, 'jobs', 2);
    expect((await client.acquire('a')).rejected?.message).toContain('maxWaiting');
    await daemon.stop('SIGKILL');
    for (const result of await Promise.all(waiting))
      expect(result).toMatchObject({ verdict: 'deny', unavailable: expect.any(Error) });
    await client.close();
  });

  test('sluice check --wait: exit code 0 once it is admitted, 1 when its time is over', async () => {
    const at = `127.0.0.1:${daemon.port('resp')}`;
    const run = (...args: string[]): Promise<{ code: number; out: string }> =>
      new Promise((resolve) => {
        const flags = ['--at', at, '--limit', 'cli', ...args];
        const command = ['dist/bin/sluice.js', 'check', 'k', ...flags];
        const child = execFile(process.execPath, command, (_error, out, err) =>
          resolve({ code: child.exitCode ?? -1, out: out + err }),
        );
      });
    const holder = await open(daemon);
    const { permit } = decisionOf(await holder.call('SLUICE.CHECK', 'cli', 'k', 'HOLD'));
    const admitted = run('--wait', '30s');
    const [over, tooLong] = await Promise.all([run('--wait', '50ms'), run('--wait', '2m')]);
    expect([over.code, over.out]).toEqual([1, expect.stringContaining('NO, limit cli')]);
    expect([tooLong.code, tooLong.out]).toEqual([2, expect.stringContaining('bounds.wait')]);
    await waitingIs(daemon, 'cli', 1);
    await holder.call('SLUICE.SETTLE', permit);
    expect(await admitted).toEqual({ code: 0, out: expect.stringContaining('OK') });
  });
});

describe.skipIf(redisServer() === undefined)('redis.fairQueue', () => {
  test('local and Redis limits on one route: nothing is charged while a call waits, and the refusal has the time of Redis', async () => {
    const redis = await fixture.serve(startRedis);
    const mixed = await start(`
limits:
  total: { bucket: { rate: 1/h, burst: 5 }, per: limit, always: true }
  fleet: { bucket: { rate: 1/2s, burst: 1 }, redis: { url: 'redis://127.0.0.1:${redis.port}', deadline: 1s } }`);
    const [caller, other, third] = [await open(mixed), await open(mixed), await open(mixed)];
    const remaining = async () =>
      decisionOf(await other.call('SLUICE.CHECK', 'total', 'x', '0')).remaining;
    expect(decisionOf(await caller.call('SLUICE.CHECK', '*', 'k')).isAllowed).toBe(true);
    const left = await remaining();
    const waited = caller.call('SLUICE.ACQUIRE', '*', 'k', 'WAIT', '10000');
    await waitingIs(mixed, 'fleet', 1);
    expect(await remaining()).toBe(left);
    const early = decisionOf(await third.call('SLUICE.ACQUIRE', '*', 'k', 'WAIT', '100'));
    expect(early).toMatchObject({ isAllowed: false, limit: 'fleet', reason: '' });
    expect(early.retryAfterMs).toBeGreaterThan(0);
    const leaving = await open(mixed);
    void leaving.call('SLUICE.ACQUIRE', '*', 'k', 'WAIT', '10000').catch(() => undefined);
    await waitingIs(mixed, 'fleet', 2);
    leaving.close();
    await waitingIs(mixed, 'fleet', 1);
    expect(decisionOf(await waited).isAllowed).toBe(true);
    expect(await remaining()).toBe(left - 1);
  });

  const limitsOf = ({ port }: { port: number }, rule: string): string =>
    `limits: { api: { ${rule}, redis: { url: 'redis://127.0.0.1:${port}', deadline: 10s, fairQueue: true } } }`;

  /** Each call has arrived in Redis before the next is sent, to the daemons in turn. */
  async function acquireInTurn(
    daemons: readonly RunningDaemon[],
    count: number,
    onGrant: (n: number, permit: string | undefined) => void,
  ): Promise<unknown> {
    const probes = await Promise.all(daemons.map(open));
    const opening = Array.from({ length: count }, (_, n) => open(daemons[n % daemons.length]));
    const opened = await Promise.all(opening);
    await Promise.all(opened.map((caller) => caller.call('PING'))); // accepted by the daemon
    const replies: Promise<void>[] = [];
    for (const [n, caller] of opened.entries()) {
      const args = ['api', 'k', 'WAIT', '20000', 'HOLD'];
      const reply = caller.call('SLUICE.ACQUIRE', ...args).then((value) => {
        const { isAllowed, permit } = decisionOf(value);
        expect(isAllowed).toBe(true);
        onGrant(n, permit);
      });
      replies.push(reply);
      await probes[n % daemons.length].call('SLUICE.INSPECT', 'k', 'api');
    }
    return Promise.all(replies);
  }

  test('two daemons on one Redis: a concurrency limit is granted in order of arrival over both', async () => {
    const yaml = limitsOf(await fixture.serve(startRedis), 'concurrency: 1');
    const daemons = await Promise.all([start(yaml), start(yaml)]);
    const settlers = await Promise.all(daemons.map(open));
    const held = decisionOf(await settlers[0].call('SLUICE.CHECK', 'api', 'k', 'HOLD'));
    const order: number[] = [];
    const all = acquireInTurn(daemons, 40, (n, permit) => {
      order.push(n);
      void settlers[n % 2].call('SLUICE.SETTLE', permit ?? '');
    });
    for (const daemon of daemons) await waitingIs(daemon, 'api', 20);
    expect(order).toEqual([]);
    await settlers[0].call('SLUICE.SETTLE', held.permit);
    await all;
    // Each place is free only when the call before has settled: a slow machine does not change the order.
    expect(order).toEqual([...order.keys()]);
    expect(order.length).toBe(40);
  });

  test('two daemons on one Redis: a spacing holds over both', async () => {
    const yaml = limitsOf(await fixture.serve(startRedis), 'spacing: { every: 40ms }');
    const daemons = await Promise.all([start(yaml), start(yaml)]);
    const startedAt = performance.now();
    const grantedAt: number[] = [];
    await acquireInTurn(daemons, 40, () => grantedAt.push(performance.now()));
    expect(grantedAt[39] - startedAt).toBeGreaterThanOrEqual(39 * 40 - 1);
  });
});
