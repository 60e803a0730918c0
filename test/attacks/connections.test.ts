import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, describe, expect, test } from 'vitest';
import { DEFAULT_BOUNDS } from '../../src/daemon/config/read.ts';
import { Connections } from '../../src/daemon/server/connections.ts';
import { HeldBytes } from '../../src/daemon/server/held-bytes.ts';
import { IdleEviction } from '../../src/daemon/server/idle-eviction.ts';
import { Listeners } from '../../src/daemon/server/listeners.ts';
import { PacedSocket } from '../../src/daemon/server/paced-socket.ts';
import type { ProtocolFactory } from '../../src/daemon/server/protocol-handler.ts';
import { Turns } from '../../src/daemon/server/turns.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { createHttpServer } from '../support/http-protocol.ts';
import { createTestDaemon, ProtocolClient, respCommand } from '../support/small-daemon.ts';

const MAX_CONNECTIONS = 100;
const SLOW_MS = 30_000;
const BOUNDS = { maxConnections: MAX_CONNECTIONS, slowMs: SLOW_MS, idleMs: Infinity };

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Target {
  readonly clock: VirtualClock;
  readonly counts: () => { readonly open: number; readonly evicted: number; readonly slow: number };
  accept(socket: Socket): void;
}

function streamTarget(protocolOf: (clock: VirtualClock) => ProtocolFactory): Target {
  const clock = new VirtualClock(1e9);
  const turns = new Turns(clock);
  const connections = new Connections(protocolOf(clock), () => BOUNDS, clock, turns);
  return {
    clock,
    counts: () => connections.counts,
    accept: (socket) => connections.accept(socket),
  };
}

function httpTarget(fastPath: boolean): Target {
  const clock = new VirtualClock(1e9);
  const server = createHttpServer({ clock, turns: new Turns(clock), bounds: BOUNDS, fastPath });
  closing.push(() => server.drain(0));
  return {
    clock,
    counts: () => server.counts,
    accept: (socket) => server.accept(socket, true),
  };
}

/** Node's server says when it has read the head. */
const HALF_BODY =
  'POST /check HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\nkey';

const CHECK = 'GET /check?key=alice HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** Every protocol, one request of it, and how a reply begins. */
const PROTOCOLS: Readonly<Record<string, readonly [() => Target, string, string]>> = {
  line: [
    () => streamTarget((clock) => createTestDaemon(clock).line),
    'alice, with a longer name\n',
    '\n',
  ],
  RESP: [
    () => streamTarget((clock) => createTestDaemon(clock).resp),
    respCommand('SLUICE.CHECK', '*', 'alice'),
    '*6\r\n',
  ],
  HTTP: [() => httpTarget(true), CHECK, 'HTTP/1.1 '],
  'HTTP without fast path': [() => httpTarget(false), CHECK, 'HTTP/1.1 '],
};

async function listen(target: Target) {
  const server = createServer({ allowHalfOpen: true }, (socket) => target.accept(socket));
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  closing.push(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return async (): Promise<Socket> => {
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    closing.push(() => socket.destroy());
    await once(socket, 'connect');
    return socket;
  };
}

/** The reply to a request; undefined if the connection is closed instead. */
async function ask(socket: Socket, request: string): Promise<string | undefined> {
  const closed = once(socket.resume(), 'close').then(() => undefined);
  const replied = once(socket, 'data').then(([chunk]) => String(chunk));
  if (!socket.destroyed) socket.write(request);
  return Promise.race([replied, closed]);
}

test.each([true, false])(
  'HTTP with fastPath %s, half bodies on all connections: make space for a client',
  async (fastPath) => {
    const target = httpTarget(fastPath);
    const open = await listen(target);
    for (let n = 0; n < MAX_CONNECTIONS; n++)
      expect(await ask(await open(), HALF_BODY)).toContain('100 Continue');
    await target.clock.advanceAsync(1100);
    expect(await ask(await open(), CHECK)).toContain('HTTP/1.1 200');
    expect(target.counts()).toMatchObject({ open: MAX_CONNECTIONS, evicted: 1 });
  },
);

test('TLS, connections without a handshake: are bounded, and make space for a client', async () => {
  const listeners = new Listeners({ http: (socket) => void socket.end('accepted') });
  const fileOf = (name: string) =>
    fileURLToPath(new URL(`../support/tls/${name}`, import.meta.url));
  const tls = { cert: fileOf('cert.pem'), key: fileOf('key.pem'), ca: undefined };
  await listeners.change({ http: [{ kind: 'tcp', host: '127.0.0.1', port: 0, tls }] });
  closing.push(() => listeners.close());
  const { port } = listeners.addresses[0].listen as { readonly port: number };
  let closed = 0;
  for (let n = 0; n < 1100; n++) {
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    socket.on('close', () => closed++).resume();
    closing.push(() => socket.destroy());
    await once(socket, 'connect');
  }
  await expect.poll(() => closed, { timeout: 20_000 }).toBe(100);
  await new Promise((later) => setTimeout(later, 1100));
  const client = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false });
  closing.push(() => client.destroy());
  expect(String((await once(client, 'data'))[0])).toBe('accepted');
});

describe.each(Object.entries(PROTOCOLS))('%s, connections at the maximum', (_, protocol) => {
  const [create, request, reply] = protocol;

  test('idle ones: make space for a client, and active ones stay', async () => {
    const target = create();
    const open = await listen(target);
    const idle: Socket[] = [];
    for (let n = 0; n < MAX_CONNECTIONS - 1; n++) idle.push((await open()).resume());
    const active = await open();
    await expect.poll(() => target.counts().open).toBe(MAX_CONNECTIONS);
    await target.clock.advanceAsync(900);
    expect(await ask(active, request)).toContain(reply);
    expect(await ask(await open(), request)).toBeUndefined(); // no connection is idle for 1 s yet
    await target.clock.advanceAsync(200);
    for (let n = 0; n < 3; n++) expect(await ask(await open(), request)).toContain(reply);
    expect(target.counts()).toMatchObject({ open: MAX_CONNECTIONS, evicted: 3 });
    await expect.poll(() => idle.filter(({ destroyed }) => destroyed).length).toBe(3);
    expect(await ask(active, request)).toContain(reply);
  });
});

describe.each(['line', 'RESP'])('%s, half a request', (name) => {
  const [create, request] = PROTOCOLS[name];

  test('is closed in time, even if a byte comes now and then', async () => {
    const target = create();
    const open = await listen(target);
    const socket = (await open()).resume();
    socket.write(request.slice(0, 2));
    await expect.poll(() => target.counts().open).toBe(1);
    for (let n = 0; n < 5 && target.counts().open > 0; n++) {
      socket.write(request.slice(2 + n, 3 + n));
      await new Promise((turn) => setTimeout(turn, 5));
      await target.clock.advanceAsync(SLOW_MS / 2);
    }
    await expect.poll(() => target.counts()).toMatchObject({ open: 0, slow: 1 });
  });

  test('of a client that completes it each time: stays', async () => {
    const target = create();
    const socket = await (await listen(target))();
    socket.write(request.slice(0, 2));
    for (let n = 0; n < 6; n++) {
      await target.clock.advanceAsync(SLOW_MS * 0.9);
      expect(await ask(socket, request.slice(2) + request.slice(0, 2))).toMatch(/^(OK|NO|\*6)/);
    }
    expect(target.counts()).toMatchObject({ open: 1, slow: 0 });
  });
});

test('RESP, MULTI without EXEC: is closed in time, even if commands are queued', async () => {
  const target = PROTOCOLS.RESP[0]();
  const socket = await (await listen(target))();
  socket.write(respCommand('MULTI'));
  for (let n = 0; n < 4 && !socket.destroyed; n++) {
    await ask(socket, respCommand('SLUICE.CHECK', '*', 'alice'));
    await target.clock.advanceAsync(SLOW_MS / 2);
  }
  await expect.poll(() => target.counts()).toMatchObject({ open: 0, slow: 1 });
});

test('RESP, MULTI with EXEC in time: stays', async () => {
  const target = PROTOCOLS.RESP[0]();
  const socket = await (await listen(target))();
  for (let n = 0; n < 4; n++) {
    await ask(socket, respCommand('MULTI'));
    await target.clock.advanceAsync(SLOW_MS * 0.9);
    expect(await ask(socket, respCommand('EXEC'))).toBe('*0\r\n');
  }
  expect(target.counts()).toMatchObject({ open: 1, slow: 0 });
});

describe('unfinished requests of all connections at the bound in bytes', () => {
  const HELD_BYTES = 1_000_000;
  const word = 'x'.repeat(60_000);
  const half = `*3\r\n$4\r\nECHO\r\n$60000\r\n${word}\r\n$9\r\n`;
  const queue = respCommand('MULTI') + respCommand('ECHO', word);
  const body = `POST /check HTTP/1.1\r\nHost: a\r\nContent-Length: 65000\r\n\r\n${word}`;
  const head = `GET / HTTP/1.1\r\nHost: a\r\n${'A: b\r\n'.repeat(900)}`;

  test.each([
    ['RESP', 'half commands', half, /^-ERR out of memory for incomplete commands/],
    ['RESP', 'queued commands', queue, /-ERR out of memory for incomplete commands/],
    ['HTTP', 'half bodies', body, /^HTTP\/1\.1 503 .*Out of memory for incomplete requests/s],
    ['HTTP without fast path', 'half heads', head, /^HTTP\/1\.1 503 /],
  ])('%s, %s: the largest are refused, a small one stays', async (name, _, bytes, error) => {
    const clock = new VirtualClock(1e9);
    const turns = new Turns(clock, undefined, new HeldBytes(HELD_BYTES));
    const fastPath = name === 'HTTP';
    const connections = name.startsWith('HTTP')
      ? createHttpServer({ clock, turns, bounds: BOUNDS, fastPath })
      : new Connections(createTestDaemon(clock).resp, () => BOUNDS, clock, turns);
    const open = await listen({
      clock,
      counts: () => connections.counts,
      accept: (socket) => connections.accept(socket, true),
    });
    const [, request] = PROTOCOLS[name];
    const small = await open();
    small.write(request.slice(0, 20));
    const refusals: string[] = [];
    for (let n = 0; n < 60; n++) {
      const socket = await open();
      let received = '';
      socket.on('data', (chunk) => {
        received += chunk;
      });
      socket.on('close', () => refusals.push(received));
      socket.write(bytes);
    }
    await expect.poll(() => connections.counts.oversized).toBeGreaterThan(10);
    await expect.poll(() => refusals.length).toBe(connections.counts.oversized);
    expect(refusals.filter((text) => !error.test(text))).toEqual([]);
    expect(connections.counts.open).toBeGreaterThan(3);
    expect(await ask(small, request.slice(20))).toMatch(/^(\*6|HTTP\/1\.1 200)/);
  });

  test('line, half keys: the largest are closed', async () => {
    const clock = new VirtualClock(1e9);
    const turns = new Turns(clock, undefined, new HeldBytes(1000));
    const { line } = createTestDaemon(clock, { maxLine: 1000 });
    const connections = new Connections(line, () => BOUNDS, clock, turns);
    const open = await listen({
      clock,
      counts: () => connections.counts,
      accept: (socket) => connections.accept(socket),
    });
    for (let n = 0; n < 10; n++) (await open()).resume().write('x'.repeat(200));
    await expect.poll(() => connections.counts).toMatchObject({ accepted: 10, oversized: 6 });
  });

  test('held bytes above the bound: connections that hold most are refused', () => {
    const held = new HeldBytes(100);
    const refused: string[] = [];
    const holder = (name: string) => ({ refuse: () => void refused.push(name) });
    const [a, b, c] = ['a', 'b', 'c'].map(holder);
    held.set(a, 40);
    held.set(b, 50);
    held.set(a, 10);
    held.set(c, 39);
    expect(refused).toEqual([]);
    held.set(c, 45);
    expect(refused).toEqual(['b']);
    held.set(a, 56);
    expect(refused).toEqual(['b', 'a']);
  });
});

test('connections without memory for more: each protocol keeps a part', () => {
  const held = new HeldBytes(1e6, 7000 * 100);
  held.connections = 100;
  expect([held.isFull(100), held.isFull(25), held.isFull(24)]).toEqual([true, true, false]);
  held.connections = 99;
  expect([held.isFull(99), held.isFull(99, 10)]).toEqual([false, true]);
});

test('idle eviction: keeps no connection that has closed', async () => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const open = new Set<{ readonly idleSince: number }>();
  const eviction = new IdleEviction(open);
  const closed = Array.from({ length: 100 }, () => {
    const connection = { idleSince: 0 };
    open.add(connection);
    return new WeakRef(connection);
  });
  expect(eviction.choose(500)).toBeUndefined();
  open.clear();
  for (let n = 0; n < 1000; n++) open.add({ idleSince: 0 });
  await new Promise((turn) => setImmediate(turn)); // a WeakRef keeps its target until the turn ends
  collectGarbage();
  expect(closed.filter((connection) => connection.deref() !== undefined)).toEqual([]);
});

describe('RESP before AUTH', () => {
  const { resp } = createTestDaemon(new VirtualClock(), { password: () => 'a long password' });

  test('a long command: is a protocol error as soon as it is announced', () => {
    for (const start of ['*11\r\n', '*2\r\n$16385\r\n', `PING ${'x'.repeat(17_000)}`]) {
      const client = new ProtocolClient(resp).send(start);
      expect([client.takeReceived(), client.isClosed]).toEqual([
        expect.stringMatching(/^-ERR Protocol error: /),
        true,
      ]);
    }
  });

  test('AUTH, then a long command in the same chunk: is accepted', () => {
    const long = 'x'.repeat(20_000);
    const client = new ProtocolClient(resp);
    client.send(respCommand('AUTH', 'a long password') + respCommand('ECHO', long));
    expect(client.takeReceived()).toBe(`+OK\r\n$20000\r\n${long}\r\n`);
    client.send(respCommand('RESET') + respCommand('ECHO', long));
    expect([client.takeReceived(), client.isClosed]).toEqual([
      expect.stringMatching(/^\+RESET\r\n-ERR Protocol error: /),
      true,
    ]);
  });
});

test('idle connections: are closed by default, and after minutes', () => {
  expect(DEFAULT_BOUNDS.idleMs).toBeLessThanOrEqual(3_600_000);
});

test('HTTP connections from other hosts at the maximum: a local operator still gets in', async () => {
  const clock = new VirtualClock(1e9);
  const server = createHttpServer({ clock, turns: new Turns(clock), bounds: BOUNDS });
  closing.push(() => server.drain(0));
  let isLoopback = false;
  const listener = createServer((socket) => server.accept(socket, isLoopback)).listen(0);
  closing.push(() => listener.close());
  await once(listener, 'listening');
  const open = async (): Promise<Socket> => {
    const socket = connect((listener.address() as AddressInfo).port, '127.0.0.1');
    closing.push(() => socket.destroy());
    socket.on('error', () => {});
    await once(socket, 'connect');
    return socket;
  };
  for (let n = 0; n < MAX_CONNECTIONS + 5; n++) await open();
  while (server.counts.accepted + server.counts.refused < MAX_CONNECTIONS + 5)
    await new Promise((resolve) => setImmediate(resolve));
  expect(server.counts.open).toBe(0.9 * MAX_CONNECTIONS);
  isLoopback = true;
  const operator = await open();
  operator.write(CHECK);
  const [reply] = await once(operator, 'data');
  expect(String(reply)).toMatch(/^HTTP\/1\.1 \d/);
});

test('HTTP connection that is reset while a response is written: the process goes on', async () => {
  const { socket } = await new Promise<{ socket: PacedSocket }>((resolve) => {
    const listener = createServer((accepted) => {
      resolve({ socket: new PacedSocket(accepted, new Turns()) });
    }).listen(0, () => {
      const client = connect((listener.address() as AddressInfo).port, '127.0.0.1');
      closing.push(() => listener.close());
      closing.push(() => client.destroy());
    });
  });
  socket.destroy(new Error('write ECONNRESET')); // without a listener for errors, this would be thrown
  await new Promise((closed) => socket.once('close', closed));
  expect(socket.destroyed).toBe(true);
});
