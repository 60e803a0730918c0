import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../src/client/index.ts';
import { daemonFixture, type RunningDaemon, waitUntil } from './support/daemon.ts';
import { sendRequest } from './support/http-protocol.ts';
import { decisionOf, type RespCaller, respCaller } from './support/resp-caller.ts';

/** Of all limits. */
const MAX_WAITING = 40;

const CONFIG = `
listen: { line: off, resp: 127.0.0.1:0, http: 127.0.0.1:0 }
bounds: { waiting: ${MAX_WAITING} }
limits:
  model: { concurrency: 1, per: limit, queue: fair }
  first: { concurrency: 1, per: limit }`;

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

/**
 * Fills the queue of a limit of one call in flight with calls of one client. After `serve`, each call settles when it is
 * admitted. So the order of admission is exact, however slow the machine is.
 */
async function startHog(limit: string, count: number, ...options: string[]) {
  const opened = await Promise.all(Array.from({ length: count }, open));
  const settler = await open();
  const settle = (permit = ''): Promise<unknown> => settler.call('SLUICE.SETTLE', permit);
  const held = decisionOf(await settler.call('SLUICE.CHECK', limit, 'hog', 'HOLD'));
  expect(held.isAllowed).toBe(true);
  const admitted: string[] = [];
  let refused = 0;
  const admit = (name: string, permit: string | undefined): Promise<unknown> => {
    admitted.push(name);
    return settle(permit);
  };
  const calls = opened.map(async (caller, n) => {
    const flow = options.map((one) => one.replace('#', `${n}`));
    const args = [limit, 'hog', 'WAIT', '20000', 'HOLD', ...flow];
    const { isAllowed, permit } = decisionOf(await caller.call('SLUICE.ACQUIRE', ...args));
    if (isAllowed) await admit('hog', permit);
    else refused++;
  });
  const waits = (calls: number) => waitUntil(async () => (await waitingOf(limit)) === calls);
  await waits(Math.min(count, MAX_WAITING));
  return {
    admitted,
    admit,
    refused: () => refused,
    /** So many others wait, too. */
    joined: (others: number) => waits(count + others),
    serve: () => settle(held.permit),
    /** All its calls are settled. */
    end: () => Promise.all(calls),
  };
}

describe('queue: fair', () => {
  test('per: limit, another key than the waiting ones: admitted among the first, not after all', async () => {
    const hog = await startHog('model', 25);
    const alice = (await open()).call('SLUICE.ACQUIRE', 'model', 'alice', 'WAIT', '20000', 'HOLD');
    await hog.joined(1);
    await hog.serve();
    const { isAllowed, permit } = decisionOf(await alice);
    expect(isAllowed).toBe(true);
    expect(hog.admitted.length).toBeLessThanOrEqual(2);
    await hog.admit('alice', permit);
    await hog.end();
  });

  test('without it: first come first served', async () => {
    const hog = await startHog('first', 10);
    const alice = (await open()).call('SLUICE.ACQUIRE', 'first', 'alice', 'WAIT', '20000', 'HOLD');
    await hog.joined(1);
    await hog.serve();
    expect(decisionOf(await alice).isAllowed).toBe(true);
    expect(hog.admitted.length).toBe(10);
  });

  test('FLOW, flow= and the options of the client and the command: each flow has its turn', async () => {
    const hog = await startHog('model', 25, 'TENANT', 'hog', 'FLOW', 'shard-#');
    const client = connect({ at: { port: daemon.port('resp') }, deadline: '5s' });
    const at = String(daemon.port('resp'));
    const args = ['dist/bin/sluice.js', 'check', 'hog', '--limit', 'model', '--wait', '20s'];
    const cli = promisify(execFile)(process.execPath, [...args, '--flow', 'dave', '--at', at]);
    const flow = ['FLOW', 'alice', 'WAIT', '20000', 'HOLD'];
    const overResp = (await open()).call('SLUICE.ACQUIRE', 'model', 'hog', ...flow);
    const tenant = 'flow=bob&tenant=acme&tenantWeight=2';
    const overHttp = get(`/check?limit=model&key=hog&hold=1&wait=20s&${tenant}`);
    const weighted = { flow: 'carol', flowWeight: 2, withPermit: true } as const;
    const byClient = client.acquire('hog', { limit: 'model', wait: '20s', ...weighted });
    const others = [
      overResp.then((reply) => hog.admit('alice', decisionOf(reply).permit)),
      overHttp.then(({ json }) => hog.admit('bob', String(json.permit))),
      byClient.then(({ permit }) => hog.admit('carol', permit)),
      cli.then(({ stdout }) => hog.admitted.push(stdout.includes('OK') ? 'dave' : stdout)),
    ];
    await hog.joined(4);
    await hog.serve();
    await Promise.all(others);
    // The reply of the command arrives when its process has ended.
    const order = hog.admitted.filter((name) => name !== 'dave').slice(0, 8);
    expect(order).toEqual(expect.arrayContaining(['alice', 'bob', 'carol']));
    expect(hog.admitted).toContain('dave');
    await hog.end();
    await client.close();
  });

  test('bounds.waiting reached by one tenant: another flow takes the place of its last waiter', async () => {
    const hog = await startHog('model', 41, 'TENANT', 'hog', 'FLOW', 'shard-#'); // one of them is refused
    const args = ['model', 'x', 'FLOW', 'a', 'WAIT', '20000'];
    const reply = (await open()).call('SLUICE.ACQUIRE', ...args);
    await waitUntil(() => hog.refused() === 2);
    await hog.serve();
    expect(decisionOf(await reply).isAllowed).toBe(true);
    await hog.end();
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
