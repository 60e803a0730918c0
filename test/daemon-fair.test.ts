/** `queue: fair` of a daemon, with the real program: over RESP, HTTP, the client and the command line. */

import { execFile } from 'node:child_process';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import { daemonFixture, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { sendRequest } from './support/http-protocol.ts';
import { decisionOf, type RespCaller, respCaller } from './support/resp-caller.ts';

const CONFIG = `
listen: { line: off, resp: 127.0.0.1:0, http: 127.0.0.1:0 }
bounds: { waiting: 40 }
limits:
  model: { bucket: { rate: 20/s, burst: 1 }, per: limit, queue: fair }
  first: { bucket: { rate: 20/s, burst: 1 }, per: limit }`;

const fixture = daemonFixture();
const callers: RespCaller[] = [];
let daemon: RunningDaemon;

beforeAll(async () => {
  daemon = await fixture.start(['--config', fixture.place().file('sluice.yaml', CONFIG)]);
});
afterAll(() => fixture.end());
afterEach(() => {
  for (const caller of callers.splice(0)) caller.close();
});

async function open(): Promise<RespCaller> {
  const caller = await respCaller(daemon.port('resp'));
  callers.push(caller);
  return caller;
}

const get = (path: string) => sendRequest(daemon.port('http'), path, {});

async function waitingOf(limit: string): Promise<number> {
  const limits = JSON.parse((await get('/limits')).text);
  return limits.find(({ name }: { name: string }) => name === limit).stats.waiting;
}

/** Fills the queue of a limit with calls of one client; returns how many were answered so far. */
async function startHog(limit: string, count: number, ...options: string[]) {
  let answered = 0;
  const opened = await Promise.all(Array.from({ length: count }, open));
  await (await open()).call('SLUICE.CHECK', limit, 'hog');
  for (const [n, caller] of opened.entries()) {
    const args = [limit, 'hog', 'WAIT', '20000', ...options.map((one) => one.replace('#', `${n}`))];
    void caller.call('SLUICE.ACQUIRE', ...args).then(
      () => answered++,
      () => {},
    );
  }
  await waitUntil(async () => (await waitingOf(limit)) + answered >= count - 2); // some are answered meanwhile
  return () => answered;
}

describe('queue: fair', () => {
  test('per: limit, another key than the waiting ones: admitted among the first, not after all', async () => {
    const admitted = await startHog('model', 25);
    const since = admitted();
    const reply = await (await open()).call('SLUICE.ACQUIRE', 'model', 'alice', 'WAIT', '5000');
    expect(decisionOf(reply).isAllowed).toBe(true);
    expect(admitted() - since).toBeLessThanOrEqual(4);
  });

  test('without it: first come first served', async () => {
    const admitted = await startHog('first', 10);
    const reply = await (await open()).call('SLUICE.ACQUIRE', 'first', 'alice', 'WAIT', '5000');
    expect(decisionOf(reply).isAllowed).toBe(true);
    expect(admitted()).toBe(10);
  });

  test('FLOW, flow= and the options of the client and the command: each flow has its turn', async () => {
    const admitted = await startHog('model', 25, 'TENANT', 'hog', 'FLOW', 'shard-#');
    const since = admitted();
    const client = connect({ at: { port: daemon.port('resp') } });
    const cli = new Promise<string>((resolve) => {
      const at = String(daemon.port('resp'));
      const args = ['dist/bin/sluice.js', 'check', 'hog', '--limit', 'model', '--wait', '5s'];
      execFile(process.execPath, [...args, '--flow', 'dave', '--at', at], (_error, stdout) =>
        resolve(stdout),
      );
    });
    const [overResp, overHttp, byClient] = await Promise.all([
      (await open()).call('SLUICE.ACQUIRE', 'model', 'hog', 'FLOW', 'alice', 'WAIT', '5000'),
      get('/check?limit=model&key=hog&wait=5s&flow=bob&tenant=acme&tenantWeight=2'),
      client.acquire('hog', { limit: 'model', wait: '5s', flow: 'carol', flowWeight: 2 }),
    ]);
    expect(decisionOf(overResp).isAllowed).toBe(true);
    expect(overHttp.status).toBe(200);
    expect(byClient.verdict).toBe('allow');
    expect(admitted() - since).toBeLessThanOrEqual(8);
    expect(await cli).toContain('OK');
    await client.close();
  });

  test('bounds.waiting reached by one tenant: another flow takes the place of its last waiter', async () => {
    await startHog('model', 41, 'TENANT', 'hog', 'FLOW', 'shard-#'); // one of them is refused or admitted
    const reply = await (await open()).call(
      'SLUICE.ACQUIRE',
      'model',
      'x',
      'FLOW',
      'a',
      'WAIT',
      '5000',
    );
    expect(decisionOf(reply).isAllowed).toBe(true);
  });

  test('invalid flows: an error that names the field', async () => {
    const caller = await open();
    const errorOf = async (...args: string[]) =>
      String(((await caller.call('SLUICE.ACQUIRE', 'model', 'k', ...args)) as Error).message);
    expect(await errorOf('WAIT', '10', 'FLOW', 'a', 'FLOWWEIGHT', '0')).toContain('flowWeight');
    expect(await errorOf('WAIT', '10', 'TENANTWEIGHT', '2')).toContain('tenant');
    expect(await errorOf('WAIT', '10', 'FLOW')).toContain('syntax');
    const withoutWait = await get('/check?key=k&flow=a');
    expect([withoutWait.status, withoutWait.text]).toMatchObject([
      400,
      expect.stringContaining('wait'),
    ]);
    const heavy = await get('/check?key=k&wait=1s&flow=a&flowWeight=5000');
    expect([heavy.status, heavy.text]).toMatchObject([400, expect.stringContaining('flowWeight')]);
  });
});
