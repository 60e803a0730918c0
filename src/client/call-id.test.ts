import { afterEach, describe, expect, test } from 'vitest';
import { startLossyProxy } from '../../test/support/lossy-proxy.ts';
import {
  createTestDaemon,
  listen,
  ProtocolClient,
  respCommand,
} from '../../test/support/small-daemon.ts';
import { runCliAtAsync } from '../../test/support/terminal.ts';
import { systemClock } from '../core/clock.ts';
import { type CheckOptions, type CheckResult, connect } from './index.ts';

const LIMITS = {
  api: { bucket: { rate: '1/h', burst: 5 } },
  jobs: { concurrency: 2, match: 'job:*' },
};

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

/** A client that reaches its daemon through a proxy that can lose a reply. */
async function setUp() {
  const server = await listen(createTestDaemon(systemClock, { limits: LIMITS }).resp);
  const proxy = await startLossyProxy(server.port);
  const client = connect({ at: `127.0.0.1:${proxy.port}`, deadline: 5000, onUnavailable: 'deny' });
  closing.push(
    () => server.close(),
    () => proxy.stop(),
    () => client.close(),
  );
  /** The daemon decides, and its reply is lost; then the client asks again until it gets one. */
  const checkTwice = async (key: string, options: CheckOptions): Promise<CheckResult> => {
    await client.check(key, 0); // connected
    proxy.loseReplyTo('SLUICE.CHECK');
    const lost = await client.check(key, 2, options);
    expect(lost.unavailable).toBeDefined();
    let again = lost;
    await expect
      .poll(async () => {
        again = await client.check(key, 2, options);
        return again.unavailable;
      })
      .toBeUndefined();
    return again;
  };
  return { client, checkTwice };
}

describe('check with an id', () => {
  test('client: a check whose reply was lost is charged once with an id, and twice without', async () => {
    const { checkTwice } = await setUp();
    expect(await checkTwice('alice', { id: 'order 17' })).toEqual({
      verdict: 'allow',
      remaining: 3,
    });
    expect(await checkTwice('bob', {})).toEqual({ verdict: 'allow', remaining: 1 });
  });

  test('client: a repeated check with a permit gets the same permit', async () => {
    const { client } = await setUp();
    const options = { limit: 'jobs', withPermit: true, id: 'x' };
    const first = await client.check('job:1', 1, options);
    expect(await client.check('job:1', 1, options)).toEqual(first);
    expect(await client.acquire('job:1', { ...options, wait: 10 })).toEqual(first);
    expect((await client.inspect('job:1', 'jobs'))?.limits[0]).toMatchObject({ inFlight: 1 });
    expect(first.permit).toBeDefined();
    expect(await client.settle(first.permit ?? '')).toBe(true);
  });

  test('client: refuses an invalid id, and takeUpTo with one, by name', async () => {
    const { client } = await setUp();
    await expect(client.check('k', 1, { id: '' })).rejects.toThrow('options.id');
    await expect(client.acquire('k', { id: 'ä'.repeat(129) })).rejects.toThrow('options.id');
    const take = client.takeUpTo('k', 1, { id: 'x' } as never);
    await expect(take).rejects.toThrow('options.id');
  });
});

test('RESP: ID is the last option of SLUICE.CHECK, and may be anywhere in SLUICE.ACQUIRE', async () => {
  const client = new ProtocolClient(createTestDaemon(systemClock, { limits: LIMITS }).resp);
  const send = (...args: string[]): string => client.send(respCommand(...args)).takeReceived();
  const first = send('SLUICE.CHECK', 'api', 'k', '2', 'ID', 'x');
  expect(first).toMatch(/^\*6\r\n:1\r\n:3\r\n/);
  expect(send('SLUICE.CHECK', 'api', 'k', '2', 'id', 'x')).toBe(first);
  expect(send('SLUICE.CHECK', 'api', 'k', 'ID', 'y')).toMatch(/^\*6\r\n:1\r\n:2\r\n/);
  expect(send('SLUICE.CHECK', 'api', 'k', '2', 'ID', 'z'.repeat(257))).toMatch(/^-ERR id must be/);
  expect(send('SLUICE.CHECK', 'api', 'id', '2')).toMatch(/^\*6\r\n:1\r\n:3\r\n/); // a key
  client.send(respCommand('SLUICE.ACQUIRE', 'api', 'k', 'ID', 'w', 'WAIT', '10'));
  client.send(respCommand('SLUICE.ACQUIRE', 'api', 'k', 'WAIT', '10', 'ID', 'w'));
  await expect.poll(() => send('SLUICE.CHECK', 'api', 'k', '0')).toContain(':1\r\n:1\r\n:0');
});

test('sluice check: --id charges a repeated check once, and not beside --also', async () => {
  const server = await listen(createTestDaemon(systemClock, { limits: LIMITS }).resp);
  closing.push(() => server.close());
  const check = (...more: string[]) =>
    runCliAtAsync(80, ['check', 'alice', '--at', `127.0.0.1:${server.port}`, ...more]);
  const first = await check('--id', 'x', '--deadline', '5s');
  expect(first).toMatchObject({ code: 0, out: ['OK, 4 left'] });
  expect(await check('--id', 'x', '--deadline', '5s')).toEqual(first);
  expect(await check('--deadline', '5s')).toMatchObject({ out: ['OK, 3 left'] });
  const { code, err } = await check('--id', 'x', '--also', 'api,bob');
  expect([code, err.join()]).toEqual([2, expect.stringContaining('`--id` or `--also`')]);
});
