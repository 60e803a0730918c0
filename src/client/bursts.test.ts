import { type AddressInfo, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { createTestDaemon, listen } from '../../test/support/small-daemon.ts';
import { systemClock } from '../core/clock.ts';
import { type CheckResult, type Client, type ClientOptions, connect } from './index.ts';

/** Long enough for a loaded machine. */
const GENEROUS_MS = 5_000;

/** The daemon of these tests runs in this process, so that a slow turn of the event loop delays both. */
const DEADLINE_MS = 200;
const BLOCK_MS = 2 * DEADLINE_MS;

const BURST = 5;
const LIMITS = { api: { bucket: { rate: '1/h', burst: BURST } } };

const DENY = '*6\r\n:0\r\n:0\r\n:1000\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n';
const HANDSHAKE = '%1\r\n$5\r\nproto\r\n:3\r\n';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function daemon(): Promise<number> {
  const server = await listen(createTestDaemon(systemClock, { limits: LIMITS }).resp);
  closing.push(() => server.close());
  return server.port;
}

/** A server that calls back with the number of checks in every chunk after the handshake. */
async function server(onChecks: (socket: Socket, checks: number) => void): Promise<number> {
  const sockets: Socket[] = [];
  const listening = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => {});
    socket.once('data', () => {
      socket.write(HANDSHAKE);
      socket.on('data', (chunk) => onChecks(socket, chunk.toString().split('CHECK').length - 1));
    });
  });
  await new Promise<void>((ready) => listening.listen(0, '127.0.0.1', ready));
  closing.push(() => {
    for (const socket of sockets) socket.destroy();
    listening.close();
  });
  return (listening.address() as AddressInfo).port;
}

async function connected(port: number, options: ClientOptions = {}): Promise<Client> {
  const sluice = connect({ at: { port }, deadline: DEADLINE_MS, ...options });
  closing.push(() => sluice.close());
  await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(true);
  return sluice;
}

const times = <T>(count: number, call: () => Promise<T>): Promise<T>[] =>
  Array.from({ length: count }, call);

function block(ms: number): void {
  const until = systemClock.now() + ms;
  while (systemClock.now() < until);
}

const countWith = (results: readonly CheckResult[], isCounted: (result: CheckResult) => unknown) =>
  results.filter(isCounted).length;

const summaryOf = (results: readonly CheckResult[]) => ({
  allowed: countWith(results, ({ verdict }) => verdict === 'allow'),
  unavailable: countWith(results, ({ unavailable }) => unavailable),
  rejected: countWith(results, ({ rejected }) => rejected),
});

describe('client: a burst while the daemon is available', () => {
  /** On a slow machine some calls may be denied because they were late. */
  const expectNoneUncounted = (results: readonly CheckResult[], sluice: Client): void => {
    const { allowed, unavailable } = summaryOf(results);
    expect({ unavailable, isCounted: allowed <= BURST }).toEqual({
      unavailable: 0,
      isCounted: true,
    });
    expect(sluice.stats()).toMatchObject({ isConnected: true, connections: 1, fallback: 0 });
  };

  test('5,000 checks at once and a blocked event loop: none is allowed uncounted', async () => {
    const sluice = await connected(await daemon());
    const results = times(5_000, () => sluice.check('one'));
    block(BLOCK_MS);
    expectNoneUncounted(await Promise.all(results), sluice);
  });

  test('20,000 checks at once before the handshake: those above maxPending are denied', async () => {
    const sluice = connect({ at: { port: await daemon() }, deadline: DEADLINE_MS });
    closing.push(() => sluice.close());
    const results = await Promise.all(times(20_000, () => sluice.check('one')));
    expectNoneUncounted(results, sluice);
    expect(results[19_999]).toMatchObject({
      retryAfterMs: DEADLINE_MS,
      rejected: { message: expect.stringContaining('too many requests are pending') },
    });
  });

  test('an event loop that is blocked after the requests were sent: none is allowed uncounted', async () => {
    const sluice = await connected(await daemon());
    const results = times(10, () => sluice.check('one'));
    await Promise.resolve();
    process.nextTick(() => block(BLOCK_MS));
    expectNoneUncounted(await Promise.all(results), sluice);
  });

  test('acquire: 200 calls at once and a blocked event loop: none is allowed uncounted', async () => {
    const sluice = await connected(await daemon());
    const results = times(200, () => sluice.acquire('one', { wait: '10ms' }));
    block(BLOCK_MS);
    expectNoneUncounted(await Promise.all(results), sluice);
  });

  test('sends at most 256 requests ahead of the replies', async () => {
    let unanswered = 0;
    const peaks: number[] = [];
    const port = await server((socket, checks) => {
      unanswered += checks;
      peaks.push(unanswered);
      setImmediate(() => socket.write(DENY.repeat(checks)));
      unanswered -= checks;
    });
    const sluice = await connected(port, { deadline: GENEROUS_MS });
    const results = await Promise.all(times(1_000, () => sluice.check('one')));
    expect(summaryOf(results)).toEqual({ allowed: 0, unavailable: 0, rejected: 0 });
    expect(Math.max(...peaks)).toBeLessThanOrEqual(256);
  });
});

describe('client: a daemon that freezes in a burst', () => {
  test('calls that it had begun to answer are denied, later ones are decided by onUnavailable', async () => {
    let answered = 0;
    const port = await server((socket, checks) => {
      const count = Math.min(checks, 300 - answered);
      answered += count;
      socket.write(DENY.repeat(count));
    });
    const sluice = await connected(port, {
      backoff: { initialDelay: '1m', maxDelay: '1m' },
    });
    const burst = await Promise.all(times(1_000, () => sluice.check('one')));
    expect(summaryOf(burst)).toEqual({ allowed: 0, unavailable: 0, rejected: 700 });
    expect(summaryOf([await sluice.check('one')])).toMatchObject({ allowed: 1, unavailable: 1 });
    expect(sluice.stats()).toMatchObject({ isConnected: false, pending: 0 });
  });
});
