import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer } from 'node:tls';
import { promisify } from 'node:util';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { freePort } from '../../test/support/services.ts';
import { createTestDaemon, type ListeningServer, listen } from '../../test/support/small-daemon.ts';
import { systemClock } from '../core/clock.ts';
import { RejectedError, UnavailableError } from '../core/errors.ts';
import { RESP_BOUNDS } from '../daemon/protocols/resp/parser.ts';
import { Connections } from '../daemon/server/connections.ts';
import { VirtualClock } from '../testing/index.ts';
import {
  type CheckOptions,
  type CheckResult,
  type Client,
  type ClientOptions,
  connect,
} from './index.ts';

/** Long enough for a loaded machine. */
const GENEROUS_MS = 10_000;

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

async function daemon(at?: number | string, extra?: Parameters<typeof createTestDaemon>[1]) {
  const server = await listen(createTestDaemon(systemClock, extra).resp, at);
  closing.push(() => server.close());
  return server;
}

function client(at: ClientOptions['at'], options: ClientOptions = {}): Client {
  const created = connect({ ...(at !== undefined && { at }), deadline: GENEROUS_MS, ...options });
  closing.push(() => created.close());
  return created;
}

const at = ({ port }: ListeningServer): string => `127.0.0.1:${port}`;

/** A server with the given behaviour, and its connections so far. */
async function server(onConnection: (socket: Socket) => void, port = 0) {
  const sockets = new Set<Socket>();
  const listening: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    onConnection(socket);
  });
  await new Promise<void>((ready) => listening.listen(port, '127.0.0.1', ready));
  const close = async (): Promise<void> => {
    for (const socket of sockets) socket.destroy();
    await new Promise((closed) => listening.close(closed));
  };
  closing.push(close);
  return { at: `127.0.0.1:${(listening.address() as AddressInfo).port}`, sockets, close };
}

const HANDSHAKE = '%1\r\n$5\r\nproto\r\n:3\r\n';

/** Completes the handshake, then calls back with every chunk. */
const afterHandshake =
  (then: (socket: Socket, chunk: string) => void) =>
  (socket: Socket): void => {
    socket.once('data', () => {
      socket.write(HANDSHAKE);
      socket.on('data', (chunk) => then(socket, chunk.toString()));
    });
  };

const timed = async <T>(work: Promise<T>): Promise<[T, number]> => {
  const since = systemClock.now();
  return [await work, systemClock.now() - since];
};

describe('client: takeUpTo and giveBack', () => {
  test('take what is left, and give back what was not used', async () => {
    const sluice = client(at(await daemon()));
    expect(await sluice.takeUpTo('alice', 2)).toEqual({ taken: 2 });
    const batch = await sluice.takeUpTo('alice', 100, { withPermit: true, limit: 'all-users' });
    expect(batch).toEqual({ taken: 3, permit: expect.any(String) });
    expect(await sluice.giveBack(batch.permit ?? '', 2)).toBe(true);
    expect(await sluice.giveBack(batch.permit ?? '', 2)).toBe(false);
    expect(await sluice.takeUpTo('alice', 100)).toEqual({ taken: 2 });
    expect(await sluice.takeUpTo('alice', 100, { withPermit: true })).toEqual({ taken: 0 });
    expect(sluice.stats()).toMatchObject({ allowed: 3, denied: 1, fallback: 0 });
    await expect(sluice.takeUpTo('alice', 1.5)).rejects.toThrow('`max`');
    await expect(sluice.giveBack('1-0', -1)).rejects.toThrow('`unused`');
  });

  test('without a daemon: everything or nothing, as onUnavailable says', async () => {
    const nowhere = `127.0.0.1:${await freePort()}`;
    const open = await client(nowhere).takeUpTo('alice', 100);
    expect(open).toMatchObject({ taken: 100, unavailable: expect.any(Error) });
    const closed = client(nowhere, { onUnavailable: 'deny' });
    expect(await closed.takeUpTo('alice', 100, { withPermit: true })).toMatchObject({ taken: 0 });
    expect(await closed.giveBack('1-0', 1)).toBe(false);
  });

  test('a limit on calls in flight: nothing is taken, with the reason', async () => {
    const { taken, rejected } = await client(at(await daemon())).takeUpTo('flight:1', 2);
    expect(taken).toBe(0);
    expect(rejected?.message).toContain('one that does not count calls in flight: use check');
  });
});

describe('client: a daemon that works', () => {
  test('check and isAllowed: return its decisions', async () => {
    const sluice = client(at(await daemon()));
    expect(await sluice.isAllowed('alice')).toBe(true);
    expect(await sluice.isAllowed('alice', 5)).toBe(false);
    expect(await sluice.check('alice')).toEqual({ verdict: 'allow', remaining: 3 });
    expect(await sluice.check('alice', 6, { limit: 'all-users' })).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
      remaining: 3,
      limit: 'all-users',
    });
    expect(await sluice.check('flight:1')).toMatchObject({ verdict: 'allow' });
    expect(sluice.stats()).toEqual({
      isConnected: true,
      waiting: 0,
      connections: 1,
      pending: 0,
      allowed: 3,
      denied: 2,
      fallback: 0,
      rejected: 0,
    });
  });

  test('checkAll: one decision, and a refusal charges nothing', async () => {
    const limits = {
      user: { bucket: { rate: '1/h', burst: 3 }, match: 'user:*' },
      db: { concurrency: 1, match: 'db:*' },
    };
    const sluice = client(at(await daemon(undefined, { limits })));
    const checks = [{ key: 'user:é', limit: 'user', cost: 2 }, { key: 'db:1' }];
    const held = await sluice.checkAll(checks, { withPermit: true });
    expect(held).toEqual({ verdict: 'allow', remaining: 0, permit: expect.any(String) });
    expect(await sluice.checkAll([{ key: 'user:é' }, { key: 'db:1' }])).toEqual({
      verdict: 'deny',
      retryAfterMs: 0,
      remaining: 0,
      limit: 'db',
    });
    expect(await sluice.check('user:é', 0)).toMatchObject({ remaining: 1 });
    expect(await sluice.settle(held.permit ?? '', { outcome: 'ignored' })).toBe(true);
    expect(await sluice.check('user:é', 0)).toMatchObject({ remaining: 3 });
    expect(sluice.stats()).toMatchObject({ allowed: 3, denied: 1 });
  });

  test('checkAll: fails open or closed, and an unknown limit is rejected', async () => {
    const nowhere = `127.0.0.1:${await freePort()}`;
    const checks = [{ key: 'a' }, { key: 'b' }];
    expect(await client(nowhere).checkAll(checks)).toMatchObject({
      verdict: 'allow',
      unavailable: expect.any(UnavailableError),
    });
    expect(await client(nowhere, { onUnavailable: 'deny' }).checkAll(checks)).toMatchObject({
      verdict: 'deny',
      unavailable: expect.any(UnavailableError),
    });
    const sluice = client(at(await daemon()));
    const unknown = sluice.checkAll([{ key: 'a' }, { key: 'b', limit: 'nope' }]);
    await expect(unknown).rejects.toThrow("ERR no limit is named 'nope'");
    expect(await sluice.check('a', 0)).toMatchObject({ remaining: 5 });
  });

  test.each([
    [[], '`checks` to be a list of 1 to 32 checks'],
    [Array(33).fill({ key: 'a' }), '`checks` to be a list of 1 to 32 checks'],
    [[{ key: 'a' }, {}], '`checks[1].key` to be a string'],
    [[{ key: 'a', cost: -1 }], '`checks[0].cost`'],
    [[{ key: 'a', withPermit: true }], '`checks[0].withPermit`'],
  ])('checkAll(%j): rejects as an invalid argument', async (checks, message) => {
    const sluice = client(`127.0.0.1:${await freePort()}`);
    await expect(sluice.checkAll(checks as { key: string }[])).rejects.toThrow(message);
  });

  test('sends the requests of one tick in one write, and matches replies by order', async () => {
    const chunks: string[] = [];
    const { at } = await server(
      afterHandshake((socket, chunk) => {
        chunks.push(chunk);
        const keys = [...chunk.matchAll(/key(\d+)/g)].map(([, n]) => n);
        const reply = keys
          .map((n) => `*6\r\n:1\r\n:${n}\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n`)
          .join('');
        // In chunks that end anywhere.
        for (let from = 0; from < reply.length; from += 33)
          socket.write(reply.slice(from, from + 33));
      }),
    );
    const sluice = client(at);
    await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(true);
    const checks = Array.from({ length: 100 }, (_, n) => sluice.check(`key${n}`));
    const results = await Promise.all(checks);
    const remaining = results.map((result) => result.verdict === 'allow' && result.remaining);
    expect(remaining).toEqual(Array.from({ length: 100 }, (_, n) => n));
    expect(chunks.length).toBe(1);
  });

  test('check with a permit, then settle', async () => {
    const sluice = client(at(await daemon()));
    const checkWithPermit = () => sluice.check('flight:1', 1, { withPermit: true });
    const [one, two] = [await checkWithPermit(), await checkWithPermit()];
    expect([one.verdict, two.verdict, (await checkWithPermit()).verdict]).toEqual([
      'allow',
      'allow',
      'deny',
    ]);
    const permit = one.verdict === 'allow' ? (one.permit ?? '') : '';
    expect(await sluice.settle(permit, { outcome: 'ok', rttMs: 12.5, used: 1 })).toBe(true);
    expect(await sluice.settle(permit)).toBe(false);
    expect((await checkWithPermit()).verdict).toBe('allow');
  });

  test('inspect: returns the state of a key', async () => {
    const sluice = client(at(await daemon()));
    await sluice.isAllowed('élise', 5);
    const state = await sluice.inspect('élise');
    expect(state).toMatchObject({ key: 'élise', limits: [{ name: 'all-users', remaining: 0 }] });
    expect(state?.limits[0].rules?.[0]).toMatchObject({ kind: 'bucket', quota: 5, windowMs: 5000 });
  });

  test('inspect: returns what an adaptive limit has learnt', async () => {
    const limits = { sink: { adaptive: { max: 2 } } };
    const clock = new VirtualClock();
    const server = await listen(createTestDaemon(clock, { limits }).resp);
    closing.push(() => server.close());
    const sluice = client(at(server));
    /** As many calls as the limit allows, and one that it refuses. */
    const callAll = async (outcome: 'ok' | 'busy', rttMs: number): Promise<void> => {
      const permits: string[] = [];
      for (let n = 0; n <= permits.length; n++) {
        const checked = await sluice.check('db', 1, { withPermit: true });
        if (checked.verdict === 'allow' && checked.permit !== undefined)
          permits.push(checked.permit);
      }
      clock.advance(rttMs);
      for (const permit of permits) await sluice.settle(permit, { outcome, rttMs });
    };
    for (let n = 0; n < 200; n++) await callAll('ok', 40); // 8 s, with a test
    for (let n = 0; n < 20; n++) await callAll('busy', 0.5);
    const inspected = (await sluice.inspect('db'))?.limits[0];
    expect(inspected).toMatchObject({ name: 'sink', inFlight: 0, cause: 'refusal' });
    const { baseRttMs, rttMs = 0, ratePerSecond = 0, pacePerSecond } = inspected ?? {};
    const { knee = 0, headroom = 0 } = inspected ?? {};
    expect(baseRttMs).toBeCloseTo(40);
    for (const figure of [ratePerSecond, knee, headroom, pacePerSecond])
      expect(figure).toBeGreaterThan(0);
    expect(knee + headroom).toBeCloseTo((ratePerSecond * rttMs) / 1000);
  });

  test('connects through a Unix socket', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-client-'));
    closing.push(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'sluice.sock');
    await daemon(path);
    expect(await client(path).check('a')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(await client({ path }).check('a')).toEqual({ verdict: 'allow', remaining: 3 });
  });

  test('authenticates with a password', async () => {
    const server = await daemon(0, { password: () => 'sécret' });
    const result = await client(at(server), { password: 'sécret' }).check('a');
    expect(result).toEqual({ verdict: 'allow', remaining: 4 });
    const wrong = client(at(server), { password: 'guess' }).check('a');
    await expect(wrong).rejects.toThrow(/rejected the request: WRONGPASS/);
  });

  test('long keys that begin alike have separate counts', async () => {
    const sluice = client(at(await daemon()));
    for (const long of ['x'.repeat(4096), 'é'.repeat(50_000)]) {
      expect(await sluice.isAllowed(`${long}1`, 5)).toBe(true);
      expect(await sluice.isAllowed(`${long}1`, 1)).toBe(false);
      expect(await sluice.isAllowed(`${long}2`, 1)).toBe(true);
      const { key = '' } = (await sluice.inspect(`${long}1`)) ?? {};
      expect(key.slice(0, 2000)).toBe(long.slice(0, 2000));
    }
  });

  test('close: waits for pending replies, and can be called twice', async () => {
    const sluice = client(at(await daemon()));
    const pending = sluice.check('alice');
    const closed = [sluice.close(), sluice.close()];
    expect((await sluice.check('alice')).rejected?.message).toMatch(/the client is closed/);
    expect(await pending).toEqual({ verdict: 'allow', remaining: 4 });
    await Promise.all(closed);
    expect(sluice.stats().isConnected).toBe(false);
  });
});

describe('client: TLS', () => {
  const certificate = {
    key: readFileSync('test/support/tls/key.pem', 'utf8'),
    cert: readFileSync('test/support/tls/cert.pem', 'utf8'),
  };

  async function behindTls() {
    const bounds = { maxConnections: 10, slowMs: 1000, idleMs: Infinity };
    const streams = new Connections(createTestDaemon().resp, () => bounds, systemClock);
    const sockets: Socket[] = [];
    const listening = createTlsServer({ ...certificate, allowHalfOpen: true }, (s) =>
      streams.accept(s),
    );
    listening.on('connection', (socket) => sockets.push(socket)); // also without a TLS handshake
    await new Promise<void>((ready) => listening.listen(0, ready));
    const stop = () => {
      for (const socket of sockets) socket.destroy();
      return new Promise((closed) => listening.close(closed));
    };
    closing.push(stop);
    return { at: `localhost:${(listening.address() as AddressInfo).port}`, stop };
  }

  test('connects with a trusted certificate', async () => {
    const sluice = client((await behindTls()).at, { tls: { ca: certificate.cert } });
    expect(await sluice.check('a')).toEqual({ verdict: 'allow', remaining: 4 });
  });

  test('is unavailable with an untrusted certificate', async () => {
    const { unavailable } = await client((await behindTls()).at, { tls: true }).check('a');
    expect(unavailable?.message).toMatch(/self-signed certificate/);
  });

  test('TLS client at a plain port: rejects, as no connection ever worked', async () => {
    const sluice = client(at(await daemon()), { tls: { ca: certificate.cert } });
    for (const call of [sluice.check('a'), sluice.isAllowed('a'), sluice.acquire('a')])
      await expect(call).rejects.toThrow(
        /rejected the request: the server does not speak TLS\. Leave out `tls`/,
      );
  });

  test('TLS client, and the daemon loses its TLS: an outage whose warning names the cause', async () => {
    const { at: place, stop } = await behindTls();
    const sluice = client(place, { tls: { ca: certificate.cert } });
    expect(await sluice.check('a')).toEqual({ verdict: 'allow', remaining: 4 });
    await stop();
    await daemon(Number(place.split(':')[1]));
    await vi.waitFor(async () => {
      const { verdict, unavailable } = await sluice.check('a');
      expect(verdict).toBe('allow');
      expect(unavailable?.message).toMatch(/is unavailable: the server does not speak TLS/);
    }, 10_000);
  });

  test('plain client at a port with TLS: an outage whose message names the probable cause', async () => {
    const { unavailable } = await client((await behindTls()).at).check('a');
    expect(unavailable?.message).toMatch(/without a reply; if this port has TLS, set `tls`/);
  });

  test('plain client, and the server replies with a TLS alert: rejects', async () => {
    const { at } = await server((socket) => socket.end(Buffer.from([21, 3, 1, 0, 2, 2, 70])));
    const sluice = client(at);
    await expect(sluice.check('a')).rejects.toThrow(/the server speaks TLS: set `tls`/);
  });
});

describe('client: an error reply is not an outage', () => {
  const deny = { verdict: 'deny', rejected: expect.any(RejectedError) };
  const allow = { verdict: 'allow', unavailable: expect.any(UnavailableError) };
  const error = { rejects: true };

  /** Checks ten times, failing open. */
  async function checkTen(sluice: Client, key = 'a', options: CheckOptions = {}) {
    const results: CheckResult[] = [];
    for (let n = 0; n < 10; n++) results.push(await sluice.check(key, 1, options));
    return results;
  }

  const LIMITS = { three: { bucket: { rate: '1/h', burst: 3 } } };

  test('key longer than the bound of the daemon: is denied, and other keys are decided', async () => {
    const bounds = () => ({ ...RESP_BOUNDS, maxKeyBytes: 64 });
    const sluice = client(at(await daemon(0, { limits: LIMITS, bounds })));
    const results = await checkTen(sluice, 'x'.repeat(65));
    expect(results).toEqual(results.map(() => expect.objectContaining(deny)));
    expect(results[0].rejected?.message).toMatch(
      /^sluice at 127.0.0.1:\d+ rejected the request: ERR key is longer than 64 bytes/,
    );
    expect((await checkTen(sluice)).filter(({ verdict }) => verdict === 'allow')).toHaveLength(3);
    expect(sluice.stats()).toMatchObject({ allowed: 3, denied: 17, rejected: 10, fallback: 0 });
  });

  test('unknown limit: every call with its name rejects, and other calls are decided', async () => {
    const sluice = client(at(await daemon(0, { limits: LIMITS })));
    const options = { limit: 'thre' };
    const mistaken = [
      () => sluice.check('a', 1, options),
      () => sluice.checkAll([{ key: 'a', ...options }]),
      () => sluice.acquire('a', options),
      () => sluice.takeUpTo('a', 5, options),
      () => sluice.report('a', 'failure', options),
      () => sluice.inspect('a', 'thre'),
    ];
    for (const call of mistaken)
      await expect(call()).rejects.toThrow("rejected the request: ERR no limit is named 'thre'");
    await expect(sluice.check('a', 1, options)).rejects.toBeInstanceOf(RejectedError);
    expect(await sluice.isAllowed('a', 1)).toBe(true);
    expect(sluice.stats()).toMatchObject({ allowed: 1, denied: 0, fallback: 0 });
  });

  test('wrong or missing password: every call rejects', async () => {
    const server = await daemon(0, { password: () => 'secret' });
    for (const options of [{ password: 'guess' }, {}]) {
      const sluice = client(at(server), options);
      for (let n = 0; n < 2; n++)
        await expect(sluice.isAllowed('a')).rejects.toThrow(
          /rejected the request: (WRONGPASS|NOAUTH)/,
        );
    }
  });

  test.each([
    ['an unknown command', '-ERR unknown command\r\n', error],
    ['a number that is invalid', '-ERR value is not a valid float\r\n', deny],
    ['an error inside the daemon', '-ERR internal error\r\n', deny],
    ['a login that is required', '-NOAUTH Authentication required.\r\n', error],
    ['a reply of another shape', '+OK\r\n', error],
    ['a list of another length', '*3\r\n:1\r\n:1\r\n:1\r\n', error],
    ['a reply that is not RESP', 'HTTP/1.1 400 Bad Request\r\n\r\n', error],
    ['a server that loads its data', '-LOADING Redis is loading the dataset in memory\r\n', allow],
    ['a server that is busy', '-BUSY running a script\r\n', allow],
    ['a server with too many clients', '-ERR max number of clients reached\r\n', allow],
  ])('%s: decides as the table of the docs says', async (_, reply, expected) => {
    const { at } = await server(afterHandshake((socket) => socket.write(reply)));
    if (expected === error) {
      await expect(client(at).check('a')).rejects.toBeInstanceOf(RejectedError);
      await expect(client(at).takeUpTo('a', 7)).rejects.toBeInstanceOf(RejectedError);
      return;
    }
    expect(await client(at).check('a')).toMatchObject(expected);
    const { taken, rejected } = await client(at).takeUpTo('a', 7);
    expect([taken, rejected !== undefined]).toEqual(expected === deny ? [0, true] : [7, false]);
  });

  test('a server that is no daemon: every call rejects, and the error says what was expected', async () => {
    const http = await server((socket) => socket.write('HTTP/1.1 400 Bad Request\r\n\r\n'));
    const redis = await server((socket) => socket.write("-ERR unknown command 'HELLO'\r\n"));
    for (const { at } of [http, redis]) {
      const sluice = client(at);
      for (let n = 0; n < 2; n++)
        await expect(sluice.check('a')).rejects.toBeInstanceOf(RejectedError);
    }
    await expect(client(http.at).check('a')).rejects.toThrow("Expected a daemon's RESP port");
  });

  test('an outage that fails open is one process warning', async () => {
    const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    try {
      const sluice = client(`127.0.0.1:${await freePort()}`);
      expect(await checkTen(sluice)).toMatchObject(Array(10).fill(allow));
      expect(emit.mock.calls).toEqual([
        [
          expect.stringMatching(/is unavailable.*`onUnavailable: 'allow'` allows calls/),
          expect.objectContaining({ code: 'SLUICE_FAIL_OPEN' }),
        ],
      ]);
    } finally {
      emit.mockRestore();
    }
  });
});

describe('client: no daemon', () => {
  test('decides by onUnavailable, without waiting', async () => {
    const port = await freePort();
    const open = client({ port });
    const closed = client({ port }, { onUnavailable: 'deny' });
    expect([await open.isAllowed('a'), await closed.isAllowed('a')]).toEqual([true, false]);
    const result = await open.check('a');
    expect(result).toEqual({ verdict: 'allow', unavailable: expect.any(Error) });
    expect(result.unavailable?.message).toMatch(
      /^sluice at 127.0.0.1:\d+ is unavailable: .*REFUSED/,
    );
    expect(await closed.check('a')).toMatchObject({
      verdict: 'deny',
      retryAfterMs: expect.any(Number),
    });
    expect(await open.settle('1')).toBe(false);
    expect(await open.inspect('a')).toBe(undefined);
    expect(open.stats()).toMatchObject({ isConnected: false, fallback: 2, allowed: 2 });
  });

  test('connects in the background when a daemon comes up', async () => {
    const port = await freePort();
    const sluice = client({ port }, { backoff: { initialDelay: 10, maxDelay: 40 } });
    expect((await sluice.check('a')).unavailable).toBeDefined();
    await daemon(port);
    await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(true);
    expect(await sluice.check('a')).toEqual({ verdict: 'allow', remaining: 4 });
  });
});

describe('client: a daemon that does not reply', () => {
  test('costs one deadline, then decides at once', async () => {
    const { at } = await server(afterHandshake(() => {}));
    const sluice = client(at, { deadline: 300, backoff: { initialDelay: '1m', maxDelay: '1m' } });
    const [results, ms] = await timed(Promise.all([sluice.check('a'), sluice.check('b')]));
    for (const { unavailable } of results) {
      expect(unavailable?.message).toMatch(/no reply within 300 ms/);
    }
    expect(ms).toBeGreaterThanOrEqual(299);
    let isDecided = false;
    void sluice.check('c').then(() => {
      isDecided = true;
    });
    await new Promise(setImmediate);
    expect(isDecided).toBe(true);
    expect(sluice.stats()).toMatchObject({ pending: 0, fallback: 3 });
  });

  test('no handshake: costs one deadline', async () => {
    const { at, sockets } = await server(() => {});
    const sluice = client(at, { deadline: 50, backoff: { initialDelay: '1m', maxDelay: '1m' } });
    expect(await sluice.isAllowed('a')).toBe(true);
    expect(sockets.size).toBe(1);
  });

  /** A client on a virtual clock, and a check of its backoff. */
  function onVirtualClock(at: string) {
    const clock = new VirtualClock();
    const backoff = { initialDelay: 20, maxDelay: 70 };
    const sluice = client(at, { backoff, random: () => 1, clock, onUnavailable: 'deny' });
    const backsOffFor = async (ms: number): Promise<void> => {
      const retryAfter = async () =>
        ((await sluice.check('a')) as { retryAfterMs: number }).retryAfterMs;
      await expect.poll(retryAfter, { timeout: GENEROUS_MS }).toBe(ms);
      clock.advance(ms);
    };
    return { clock, sluice, backsOffFor };
  }

  test('backs off exponentially, and starts again after a success', async () => {
    const { at, sockets } = await server((socket) => {
      if (sockets.size === 5) afterHandshake(() => socket.destroy())(socket);
      else socket.destroy();
    });
    const { sluice, backsOffFor } = onVirtualClock(at);
    for (const [n, ms] of [20, 40, 70, 70].entries()) {
      await backsOffFor(ms);
      expect(sockets.size).toBe(n + 1);
    }
    await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(true);
    await sluice.check('a');
    await backsOffFor(20);
  });

  test('no handshake in the background: backs off as well', async () => {
    const { at, sockets } = await server(() => {});
    const { clock, backsOffFor } = onVirtualClock(at);
    for (const [n, ms] of [20, 40].entries()) {
      await expect.poll(() => sockets.size, { timeout: GENEROUS_MS }).toBe(n + 1);
      clock.advance(1000);
      await backsOffFor(ms);
    }
  });

  test('a blocked event loop past the deadline is no outage', async () => {
    const sluice = client(at(await daemon()), { deadline: 30 });
    await expect.poll(() => sluice.stats().isConnected).toBe(true);
    const pending = sluice.check('a');
    await Promise.resolve();
    process.nextTick(() => {
      const until = systemClock.now() + 100;
      while (systemClock.now() < until);
    });
    expect(await pending).toEqual({ verdict: 'allow', remaining: 4 });
  });

  test.each([
    ['invalid RESP', 'HTTP/1.1 400 Bad Request\r\n\r\n'],
    ['a reply without a request', HANDSHAKE + HANDSHAKE],
    ['an unbounded string', `$${'9'.repeat(12)}\r\n`],
    ['unbounded nesting', '*1\r\n'.repeat(100_000)],
  ])('replies with %s: rejects', async (_, reply) => {
    const { at } = await server((socket) => {
      socket.once('data', () => socket.write(reply));
    });
    const sluice = client(at, { backoff: { initialDelay: '1m', maxDelay: '1m' } });
    for (let n = 0; n < 2; n++)
      await expect(sluice.isAllowed('a')).rejects.toBeInstanceOf(RejectedError);
  });

  test('maxPending: denies further requests at once', async () => {
    const { at } = await server(afterHandshake(() => {}));
    const sluice = client(at, { maxPending: 10, deadline: 200 });
    const results = Array.from({ length: 12 }, () => sluice.check('a'));
    const order: number[] = [];
    for (const [n, result] of results.entries()) void result.then(() => order.push(n));
    const all = await Promise.all(results);
    expect(order.slice(0, 2)).toEqual([10, 11]); // before the deadline of the others
    expect(all[11]).toMatchObject({
      verdict: 'deny',
      retryAfterMs: 200,
      rejected: { message: expect.stringContaining('too many requests are pending') },
    });
    expect(all.filter(({ unavailable }) => unavailable)).toHaveLength(10);
  });
});

describe('client: a burst of requests that takes longer than the deadline', () => {
  /** Replies to the first 250 keys at once, and later to the others. */
  const slowAfter = (laterMs: number) =>
    afterHandshake((socket, chunk) => {
      const keys = [...chunk.matchAll(/key(\d+)/g)].map(([, n]) => Number(n));
      const replyTo = (some: readonly number[]) =>
        socket.write(
          '*6\r\n:0\r\n:0\r\n:1000\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n'.repeat(some.length),
        );
      replyTo(keys.filter((n) => n < 250));
      const rest = keys.filter((n) => n >= 250);
      if (rest.length > 0) setTimeout(() => replyTo(rest), laterMs);
    });

  test('while others are answered in time: the rest is denied, not allowed', async () => {
    const { at } = await server(slowAfter(2500));
    const sluice = client(at, { deadline: 1000 });
    await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(true);
    const results = await Promise.all(
      Array.from({ length: 400 }, (_, n) => sluice.check(`key${n}`)),
    );
    expect(results.filter(({ verdict }) => verdict === 'allow')).toEqual([]);
    expect(results[399]).toMatchObject({ retryAfterMs: 1000, rejected: { code: 'REJECTED' } });
    expect(sluice.stats()).toMatchObject({ isConnected: true, fallback: 0 });
  });

  test('maxPending while others are answered in time: the rest is denied', async () => {
    const { at } = await server(slowAfter(5));
    const sluice = client(at, { deadline: 1000, maxPending: 300 });
    expect(await sluice.check('key0')).toMatchObject({ verdict: 'deny' });
    const results = await Promise.all(
      Array.from({ length: 400 }, (_, n) => sluice.check(`key${n}`)),
    );
    expect(results.filter(({ verdict }) => verdict === 'allow')).toEqual([]);
    expect(results[399].rejected?.message).toMatch(/too many requests are pending/);
  });
});

describe('client: a daemon that is killed', () => {
  test('resolves pending requests, and reconnects when it is back', async () => {
    const dying = await server(afterHandshake((socket) => socket.destroy()));
    const port = Number(dying.at.split(':')[1]);
    const sluice = client(dying.at, { backoff: { initialDelay: 10, maxDelay: 50 } });
    const [results, ms] = await timed(Promise.all(['a', 'b', 'c'].map((key) => sluice.check(key))));
    expect(results.every(({ unavailable }) => unavailable !== undefined)).toBe(true);
    expect(ms).toBeLessThan(GENEROUS_MS);
    await dying.close();
    await daemon(port);
    await expect
      .poll(async () => (await sluice.check('a')).unavailable, { timeout: GENEROUS_MS })
      .toBe(undefined);
  });

  test('survives a restart of the daemon under traffic', async () => {
    const first = await listen(createTestDaemon().resp);
    const sluice = client(at(first), { backoff: { initialDelay: 10, maxDelay: 50 } });
    let isOn = true;
    let checked = 0;
    const traffic = (async () => {
      while (isOn) {
        const { verdict } = await sluice.check(`key ${checked++ % 1000}`);
        if (verdict !== 'allow' && verdict !== 'deny') throw new Error('no answer');
        if (checked % 100 === 0) await new Promise((later) => setTimeout(later, 1));
      }
    })();
    await expect.poll(() => checked, { timeout: GENEROUS_MS }).toBeGreaterThan(200);
    await first.close();
    await expect.poll(() => sluice.stats().isConnected, { timeout: GENEROUS_MS }).toBe(false);
    await daemon(first.port);
    await expect
      .poll(() => sluice.stats(), { timeout: GENEROUS_MS })
      .toMatchObject({
        isConnected: true,
        connections: 2,
      });
    isOn = false;
    await traffic;
  });
});

describe('client: end of the process', () => {
  test('close: waits for pending replies, then disconnects', async () => {
    const server = await daemon();
    const sluice = client(at(server));
    const pending = sluice.check('a');
    await sluice.close();
    expect(await pending).toEqual({ verdict: 'allow', remaining: 4 });
    expect(await sluice.check('a')).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
      rejected: expect.objectContaining({
        message: expect.stringMatching(/was not asked: the client is closed$/),
      }),
    });
    expect(await sluice.acquire('a')).toMatchObject({ verdict: 'deny' });
    expect(await sluice.takeUpTo('a', 3)).toMatchObject({ taken: 0 });
    expect(await sluice.isAllowed('a')).toBe(false);
    expect(sluice.stats()).toMatchObject({ fallback: 0 });
    await expect.poll(() => server.connections.counts.open).toBe(0);
    await sluice.close();
  });

  const run = promisify(execFile);
  const program = (port: number, work: string): string => `
    import { connect } from '${join(process.cwd(), 'dist/client/index.js')}';
    const sluice = connect({ at: '127.0.0.1:${port}', deadline: ${GENEROUS_MS} });
    ${work}`;

  test('a pending request keeps the process alive, an idle client does not', async () => {
    const { port } = await daemon();
    const work = `console.log(await sluice.isAllowed('a'), await sluice.isAllowed('a', 9));`;
    const args = ['--input-type=module', '-e', program(port, work)];
    const { stdout } = await run(process.execPath, args, { timeout: 200_000 });
    expect(stdout).toBe('true false\n');
  });

  test('an unused client does not keep the process alive', async () => {
    const silent = await server(() => {});
    for (const port of [(await daemon()).port, Number(silent.at.split(':')[1])]) {
      const args = ['--input-type=module', '-e', program(port, '')];
      await run(process.execPath, args, { timeout: 100_000 });
    }
  });

  test('backoff does not keep the process alive', async () => {
    const work = `console.log(await sluice.isAllowed('a'));`;
    const args = ['--input-type=module', '-e', program(await freePort(), work)];
    expect((await run(process.execPath, args, { timeout: 200_000 })).stdout).toBe('true\n');
  });
});

describe('connect: options', () => {
  test.each([
    [{ at: 'nowhere:99999' }, /`at` to be a port/],
    [{ at: 'a b' }, /`at` to be an address/],
    [{ at: '' }, /`at` to be an address/],
    [{ at: { port: 0 } }, /`at.port` to be a port/],
    [{ at: { hosts: 'x' } }, /`at.hosts` to be one of host, port, path/],
    [{ deadline: 0 }, /`deadline` to be a duration/],
    [{ onUnavailable: 'local' }, /`onUnavailable` to be one of allow, deny/],
    [{ backoff: { most: 1 } }, /`backoff.most` to be one of initialDelay, maxDelay/],
    [{ tls: 'yes' }, /`tls` to be true, false/],
    [{ retries: 3 }, /`retries` to be one of/],
    [{ clock: { now: 7 } }, /`clock` to be a clock/],
  ])('refuses %j', (options, message) => {
    expect(() => connect(options as ClientOptions)).toThrow(message);
  });

  test('check and isAllowed: refuse invalid keys and costs', async () => {
    const sluice = client({ port: await freePort() });
    await expect(sluice.isAllowed(7 as never)).rejects.toThrow(/`key` to be a string/);
    await expect(sluice.isAllowed('a', -1)).rejects.toThrow(/`cost` to be a number of at least 0/);
    await expect(sluice.check('a', Number.NaN)).rejects.toThrow(/`cost`/);
  });

  test.each([
    [{ limit: 5 }, '`options.limit` to be a non-empty string, got 5'],
    [{ witPermit: true }, '`options.witPermit`'],
    [{ withPermit: 'yes' }, '`options.withPermit` to be true or false'],
    [null, '`options` to be an object, got null'],
  ])('check: refuses the options %j', async (options, message) => {
    const check = client({ port: await freePort() }).check('a', 1, options as never);
    await expect(check).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringContaining(message),
    });
  });

  test.each([
    [undefined, {}, '`permit` to be a non-empty string, got undefined'],
    ['p', { outcome: 'Ok' }, '`result.outcome` to be one of ok, busy'],
    ['p', { rtt: 1 }, '`result.rtt`'],
    ['p', { rttMs: -1 }, '`result.rttMs` to be a number of at least 0'],
    ['p', { used: null }, '`result.used` to be a number of at least 0'],
    ['p', null, '`result` to be an object, got null'],
  ])('settle: refuses the permit %j with %j', async (permit, result, message) => {
    const settle = client({ port: await freePort() }).settle(permit as never, result as never);
    await expect(settle).rejects.toMatchObject({
      code: 'CONFIG',
      message: expect.stringContaining(message),
    });
  });

  test('inspect: refuses a limit that is not a string', async () => {
    const inspect = client({ port: await freePort() }).inspect('a', 5 as never);
    await expect(inspect).rejects.toThrow(/`limit` to be a non-empty string, got 5/);
  });
});
