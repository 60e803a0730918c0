/**
 * The client on real sockets: against a daemon that is well, one that is not there, one that never answers,
 * one that is killed, and one that comes back.
 */

import { execFile } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer } from 'node:tls';
import { promisify } from 'node:util';
import { afterEach, describe, expect, test } from 'vitest';
import { freePort } from '../../test/support/services.ts';
import { createTestDaemon, type ListeningServer, listen } from '../../test/support/small-daemon.ts';
import { systemClock } from '../core/clock.ts';
import { Connections } from '../daemon/server/connections.ts';
import { VirtualClock } from '../testing/index.ts';
import { type Client, type ClientOptions, connect } from './index.ts';

/** Long enough for a machine that is busy with other things. */
const PATIENT = 2_000;

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
  const made = connect({ ...(at !== undefined && { at }), deadline: PATIENT, ...options });
  closing.push(() => made.close());
  return made;
}

const at = ({ port }: ListeningServer): string => `127.0.0.1:${port}`;

/** A server that does with connections whatever is said; how many came. */
async function server(greet: (socket: Socket) => void, port = 0) {
  const sockets = new Set<Socket>();
  const listening: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    greet(socket);
  });
  await new Promise<void>((ready) => listening.listen(port, '127.0.0.1', ready));
  const close = async (): Promise<void> => {
    for (const socket of sockets) socket.destroy();
    await new Promise((closed) => listening.close(closed));
  };
  closing.push(close);
  return { at: `127.0.0.1:${(listening.address() as AddressInfo).port}`, sockets, close };
}

const GREETING = '%1\r\n$5\r\nproto\r\n:3\r\n';

/** Greets, and then does with every chunk whatever is said. */
const greeting =
  (then: (socket: Socket, chunk: string) => void) =>
  (socket: Socket): void => {
    socket.once('data', () => {
      socket.write(GREETING);
      socket.on('data', (chunk) => then(socket, chunk.toString()));
    });
  };

const took = async <T>(work: Promise<T>): Promise<[T, number]> => {
  const since = systemClock.now();
  return [await work, systemClock.now() - since];
};

describe('a daemon that is well', () => {
  test('answers', async () => {
    const sluice = client(at(await daemon()));
    expect(await sluice.isAllowed('alice')).toBe(true);
    expect(await sluice.isAllowed('alice', 5)).toBe(false);
    expect(await sluice.check('alice')).toEqual({ verdict: 'allow', remaining: 3 });
    expect(await sluice.check('alice', { limit: 'everybody', cost: 6 })).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
      limit: 'everybody',
    });
    expect(await sluice.check('flight:1')).toMatchObject({ verdict: 'allow' });
    expect(sluice.stats()).toEqual({
      isConnected: true,
      connections: 1,
      pending: 0,
      allowed: 3,
      denied: 2,
      fallback: 0,
    });
  });

  test('is asked in one write for what is asked in one tick, and answers each its own', async () => {
    const chunks: string[] = [];
    const { at } = await server(
      greeting((socket, chunk) => {
        chunks.push(chunk);
        const keys = [...chunk.matchAll(/key(\d+)/g)].map(([, n]) => n);
        const reply = keys
          .map((n) => `*6\r\n:1\r\n:${n}\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n`)
          .join('');
        // In pieces that end anywhere.
        for (let from = 0; from < reply.length; from += 33)
          socket.write(reply.slice(from, from + 33));
      }),
    );
    const sluice = client(at);
    await expect.poll(() => sluice.stats().isConnected, { timeout: PATIENT }).toBe(true);
    const asks = Array.from({ length: 100 }, (_, n) => sluice.check(`key${n}`));
    const left = (await Promise.all(asks)).map((own) => own.verdict === 'allow' && own.remaining);
    expect(left).toEqual(Array.from({ length: 100 }, (_, n) => n));
    expect(chunks.length).toBe(1);
  });

  test('holds and settles', async () => {
    const sluice = client(at(await daemon()));
    const checkWithPermit = () => sluice.check('flight:1', { withPermit: true });
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

  test('tells how a key stands', async () => {
    const sluice = client(at(await daemon()));
    await sluice.isAllowed('élise', 5);
    const seen = await sluice.inspect('élise');
    expect(seen).toMatchObject({ key: 'élise', limits: [{ name: 'everybody', remaining: 0 }] });
    expect(seen?.limits[0].rules?.[0]).toMatchObject({ kind: 'bucket', quota: 5, windowMs: 5000 });
    expect(await sluice.inspect('élise', 'nobody')).toBe(undefined);
  });

  test('listens on a socket in the file system too', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-client-'));
    closing.push(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'sluice.sock');
    await daemon(path);
    expect(await client(path).check('a')).toEqual({ verdict: 'allow', remaining: 4 });
    expect(await client({ path }).check('a')).toEqual({ verdict: 'allow', remaining: 3 });
  });

  test('wants a password', async () => {
    const server = await daemon(0, { token: () => 'sécret' });
    const told = await client(at(server), { password: 'sécret' }).check('a');
    expect(told).toEqual({ verdict: 'allow', remaining: 4 });
    const wrong = await client(at(server), { password: 'guess' }).check('a');
    expect(wrong.unavailable?.message).toMatch(/is out of reach: WRONGPASS/);
  });

  test('makes nothing of a question: that is no refusal', async () => {
    const sluice = client(at(await daemon()), { onUnavailable: 'deny' });
    const answer = await sluice.check('a', { limit: 'nobody' });
    expect(answer).toMatchObject({ verdict: 'deny' });
    expect(answer.unavailable?.message).toMatch(/no limit is named 'nobody'/);
    expect(await sluice.isAllowed('a')).toBe(true);
  });

  test('is asked for long keys by their beginning', async () => {
    const sluice = client(at(await daemon()));
    const long = 'x'.repeat(100_000);
    expect(await sluice.isAllowed(`${long}1`, 5)).toBe(true);
    expect(await sluice.isAllowed(`${long}2`, 1)).toBe(false);
  });

  test('is left by everybody who closes, once what was asked before is answered', async () => {
    const sluice = client(at(await daemon()));
    const asked = sluice.check('alice');
    const closed = [sluice.close(), sluice.close()];
    expect((await sluice.check('alice')).unavailable?.message).toMatch(/the client is closed/);
    expect(await asked).toEqual({ verdict: 'allow', remaining: 4 });
    await Promise.all(closed);
    expect(sluice.stats().isConnected).toBe(false);
  });
});

describe('a daemon behind TLS', () => {
  const own = {
    key: readFileSync('test/support/tls/key.pem', 'utf8'),
    cert: readFileSync('test/support/tls/cert.pem', 'utf8'),
  };

  async function behindTls() {
    const bounds = { maxConnections: 10, slowMs: 1000, idleMs: Infinity };
    const streams = new Connections(createTestDaemon().resp, () => bounds, systemClock);
    const listening = createTlsServer({ ...own, allowHalfOpen: true }, (s) => streams.accept(s));
    await new Promise<void>((ready) => listening.listen(0, ready));
    closing.push(() => listening.close());
    return { host: 'localhost', port: (listening.address() as AddressInfo).port };
  }

  test('answers who trusts it', async () => {
    const sluice = client(await behindTls(), { tls: { ca: own.cert } });
    expect(await sluice.check('a')).toEqual({ verdict: 'allow', remaining: 4 });
  });

  test('is no daemon to who does not', async () => {
    const { unavailable } = await client(await behindTls(), { tls: true }).check('a');
    expect(unavailable?.message).toMatch(/self-signed certificate/);
  });
});

describe('no daemon', () => {
  test('everybody is let through, or nobody, and nobody waits', async () => {
    const port = await freePort();
    const open = client({ port });
    const closed = client({ port }, { onUnavailable: 'deny' });
    expect([await open.isAllowed('a'), await closed.isAllowed('a')]).toEqual([true, false]);
    const answer = await open.check('a');
    expect(answer).toMatchObject({ verdict: 'allow', remaining: Infinity });
    expect(answer.unavailable?.message).toMatch(
      /^sluice at 127.0.0.1:\d+ is out of reach: .*REFUSED/,
    );
    expect(await closed.check('a')).toMatchObject({
      verdict: 'deny',
      retryAfterMs: expect.any(Number),
    });
    expect(await open.settle('1')).toBe(false);
    expect(await open.inspect('a')).toBe(undefined);
    expect(open.stats()).toMatchObject({ isConnected: false, fallback: 2, allowed: 2 });
  });

  test('one that comes up is found, without anybody trying', async () => {
    const port = await freePort();
    const sluice = client({ port }, { backoff: { first: 10, max: 40 } });
    expect((await sluice.check('a')).unavailable).toBeDefined();
    await daemon(port);
    await expect.poll(() => sluice.stats().isConnected, { timeout: PATIENT }).toBe(true);
    expect(await sluice.check('a')).toEqual({ verdict: 'allow', remaining: 4 });
  });
});

describe('a daemon that does not answer', () => {
  test('costs a deadline once, and then nothing', async () => {
    const { at } = await server(greeting(() => {}));
    const sluice = client(at, { deadline: 300, backoff: { first: '1m', max: '1m' } });
    const [answers, ms] = await took(Promise.all([sluice.check('a'), sluice.check('b')]));
    for (const { unavailable } of answers) {
      expect(unavailable?.message).toMatch(/no answer within 300 ms/);
    }
    expect(ms).toBeGreaterThanOrEqual(299);
    const [, thenMs] = await took(sluice.check('c'));
    expect(thenMs).toBeLessThan(200);
    expect(sluice.stats()).toMatchObject({ pending: 0, fallback: 3 });
  });

  test('not even with a greeting', async () => {
    const { at, sockets } = await server(() => {});
    const sluice = client(at, { deadline: 50, backoff: { first: '1m', max: '1m' } });
    expect(await sluice.isAllowed('a')).toBe(true);
    expect(sockets.size).toBe(1);
  });

  /** A client on a clock that stands still, and how long it says that it is away. */
  function patient(at: string) {
    const clock = new VirtualClock();
    const backoff = { first: 20, max: 70 };
    const sluice = client(at, { backoff, random: () => 1, clock, onUnavailable: 'deny' });
    const isAwayFor = async (ms: number): Promise<void> => {
      const pause = async () =>
        ((await sluice.check('a')) as { retryAfterMs: number }).retryAfterMs;
      await expect.poll(pause, { timeout: PATIENT }).toBe(ms);
      clock.advance(ms);
    };
    return { clock, sluice, isAwayFor };
  }

  test('is left alone for longer and longer, until it is well', async () => {
    const { at, sockets } = await server((socket) => {
      if (sockets.size === 5) greeting(() => socket.destroy())(socket);
      else socket.destroy();
    });
    const { sluice, isAwayFor } = patient(at);
    for (const [n, ms] of [20, 40, 70, 70].entries()) {
      await isAwayFor(ms);
      expect(sockets.size).toBe(n + 1);
    }
    await expect.poll(() => sluice.stats().isConnected, { timeout: PATIENT }).toBe(true);
    await sluice.check('a');
    await isAwayFor(20);
  });

  test('nor greet is given up in the background too', async () => {
    const { at, sockets } = await server(() => {});
    const { clock, isAwayFor } = patient(at);
    for (const [n, ms] of [20, 40].entries()) {
      await expect.poll(() => sockets.size, { timeout: PATIENT }).toBe(n + 1);
      clock.advance(1000);
      await isAwayFor(ms);
    }
  });

  test('a client that was too busy to look is not taken for an outage', async () => {
    const sluice = client(at(await daemon()), { deadline: 30 });
    await expect.poll(() => sluice.stats().isConnected).toBe(true);
    const asked = sluice.check('a');
    await Promise.resolve();
    process.nextTick(() => {
      const until = systemClock.now() + 100;
      while (systemClock.now() < until);
    });
    expect(await asked).toEqual({ verdict: 'allow', remaining: 4 });
  });

  test.each([
    ['no RESP', 'HTTP/1.1 400 Bad Request\r\n\r\n'],
    ['too much', GREETING + GREETING],
    ['an endless text', `$${'9'.repeat(12)}\r\n`],
    ['lists without end', '*1\r\n'.repeat(100_000)],
  ])('or says %s', async (_, said) => {
    const { at } = await server((socket) => {
      socket.once('data', () => socket.write(said));
    });
    const sluice = client(at, { deadline: 200, backoff: { first: '1m', max: '1m' } });
    await sluice.isAllowed('a');
    expect((await sluice.check('a')).unavailable).toBeDefined();
  });

  test('has only so many questions open', async () => {
    const { at } = await server(greeting(() => {}));
    const sluice = client(at, { maxPending: 10, deadline: 600 });
    const answers = Array.from({ length: 12 }, () => sluice.check('a'));
    const [, ms] = await took(Promise.all(answers.slice(10)));
    expect(ms).toBeLessThan(500);
    expect((await answers[11]).unavailable?.message).toMatch(/too many questions are open/);
    await Promise.all(answers);
  });
});

describe('a daemon that is killed', () => {
  test('leaves nobody waiting, and is found when it is back', async () => {
    const dying = await server(greeting((socket) => socket.destroy()));
    const port = Number(dying.at.split(':')[1]);
    const sluice = client(dying.at, { backoff: { first: 10, max: 50 } });
    const [answers, ms] = await took(Promise.all(['a', 'b', 'c'].map((key) => sluice.check(key))));
    expect(answers.every(({ unavailable }) => unavailable !== undefined)).toBe(true);
    expect(ms).toBeLessThan(PATIENT);
    await dying.close();
    await daemon(port);
    await expect
      .poll(async () => (await sluice.check('a')).unavailable, { timeout: PATIENT })
      .toBe(undefined);
  });

  test('one that drains and starts again, in the middle of traffic', async () => {
    const first = await listen(createTestDaemon().resp);
    const sluice = client(at(first), { backoff: { first: 10, max: 50 } });
    let isOn = true;
    let asked = 0;
    const traffic = (async () => {
      while (isOn) {
        const { verdict } = await sluice.check(`key ${asked++ % 1000}`);
        if (verdict !== 'allow' && verdict !== 'deny') throw new Error('no answer');
        if (asked % 100 === 0) await new Promise((later) => setTimeout(later, 1));
      }
    })();
    await expect.poll(() => asked, { timeout: PATIENT }).toBeGreaterThan(200);
    await first.close();
    await expect.poll(() => sluice.stats().isConnected, { timeout: PATIENT }).toBe(false);
    await daemon(first.port);
    await expect
      .poll(() => sluice.stats(), { timeout: PATIENT })
      .toMatchObject({
        isConnected: true,
        connections: 2,
      });
    isOn = false;
    await traffic;
  });
});

describe('the end', () => {
  test('waits for what was asked, and then answers for itself', async () => {
    const server = await daemon();
    const sluice = client(at(server));
    const asked = sluice.check('a');
    await sluice.close();
    expect(await asked).toEqual({ verdict: 'allow', remaining: 4 });
    expect((await sluice.check('a')).unavailable?.message).toMatch(/the client is closed/);
    await expect.poll(() => server.connections.counts.open).toBe(0);
    await sluice.close();
  });

  const run = promisify(execFile);
  const program = (port: number, work: string): string => `
    import { connect } from '${join(process.cwd(), 'dist/client/index.js')}';
    const sluice = connect({ at: '127.0.0.1:${port}', deadline: ${PATIENT} });
    ${work}`;

  test('a process stays for an answer, and not for an idle client', {
    timeout: 20_000,
  }, async () => {
    const { port } = await daemon();
    const work = `console.log(await sluice.check('a'), await sluice.check('a', 9));`;
    const args = ['--input-type=module', '-e', program(port, work)];
    const { stdout } = await run(process.execPath, args, { timeout: 10_000 });
    expect(stdout).toBe('true false\n');
  });

  test('nor for one that was never asked anything', { timeout: 20_000 }, async () => {
    const silent = await server(() => {});
    for (const port of [(await daemon()).port, Number(silent.at.split(':')[1])]) {
      const args = ['--input-type=module', '-e', program(port, '')];
      await run(process.execPath, args, { timeout: 5000 });
    }
  });

  test('nor for a daemon that is not there', { timeout: 20_000 }, async () => {
    const work = `console.log(await sluice.check('a'));`;
    const args = ['--input-type=module', '-e', program(await freePort(), work)];
    expect((await run(process.execPath, args, { timeout: 10_000 })).stdout).toBe('true\n');
  });
});

describe('options', () => {
  test.each([
    [{ at: 'nowhere:99999' }, /`at` to be a port/],
    [{ at: 'a b' }, /`at` to be an address/],
    [{ at: '' }, /`at` to be an address/],
    [{ at: { port: 0 } }, /`at.port` to be a port/],
    [{ at: { hosts: 'x' } }, /`at.hosts` to be one of host, port, path/],
    [{ deadline: 0 }, /`deadline` to be a duration/],
    [{ onUnavailable: 'local' }, /`onUnavailable` to be one of allow, deny/],
    [{ backoff: { most: 1 } }, /`backoff.most` to be one of first, max/],
    [{ tls: 'yes' }, /`tls` to be true, false/],
    [{ retries: 3 }, /`retries` to be one of/],
    [{ clock: { now: 7 } }, /`clock` to be a clock/],
  ])('%j make no sense', (options, complaint) => {
    expect(() => connect(options as ClientOptions)).toThrow(complaint);
  });

  test('nor do some questions', async () => {
    const sluice = client({ port: await freePort() });
    await expect(sluice.isAllowed(7 as never)).rejects.toThrow(/`key` to be a text/);
    await expect(sluice.isAllowed('a', -1)).rejects.toThrow(/`cost` to be a number of at least 0/);
    await expect(sluice.check('a', { cost: Number.NaN })).rejects.toThrow(/`cost`/);
  });
});
