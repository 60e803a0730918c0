/**
 * Clients that pipeline requests without pause. A proxy that waits too long for the daemon fails open, so a flood on one
 * connection must not delay the replies to others.
 */

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { FLOODS } from '../../bench/soak/attacks/pipelining.mjs';
import type { GcraTable } from '../../src/backends/local/gcra-table.ts';
import type { RemoteBackendFactory } from '../../src/backends/remote-backend.ts';
import { systemClock } from '../../src/core/clock.ts';
import { deny } from '../../src/core/decision.ts';
import { lineProtocol } from '../../src/daemon/protocols/line/handler.ts';
import { Connections } from '../../src/daemon/server/connections.ts';
import type { ProtocolFactory } from '../../src/daemon/server/protocol-handler.ts';
import { Turns } from '../../src/daemon/server/turns.ts';
import {
  createHttpServer,
  type HttpServerOptions,
  unavailableBackend,
} from '../support/http-protocol.ts';
import { createTestDaemon } from '../support/small-daemon.ts';

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A clock that only requests move, 1 µs each unless told. */
function workClock() {
  let now = 0;
  const work = { handled: 0, turns: new Turns({ now: () => now }) };
  const handle = (ms = 0.001): number => {
    now += ms;
    return ++work.handled;
  };
  return { work, handle };
}

const BOUNDS = { maxConnections: 10, slowMs: 5000, idleMs: Infinity };

const acceptFor = (protocol: ProtocolFactory, turns: Turns) => {
  const connections = new Connections(protocol, () => BOUNDS, systemClock, turns);
  return (socket: Socket) => connections.accept(socket);
};

/** Sends a megabyte of the same bytes on so many connections. */
async function flood(accept: (socket: Socket) => void, bytes: string, connections: number) {
  const server = createServer({ allowHalfOpen: true }, accept);
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  closing.push(() => server.close());
  const { port } = server.address() as AddressInfo;
  const block = Buffer.from(bytes.repeat(Math.ceil(1_000_000 / bytes.length)), 'latin1');
  for (let n = 0; n < connections; n++) {
    const socket = connect(port, '127.0.0.1').on('error', () => {});
    closing.push(() => socket.destroy());
    await once(socket, 'connect');
    socket.resume().write(block);
  }
}

/** The most requests that one turn of the event loop handles, until so many are handled. */
async function mostPerTurn(work: { readonly handled: number }, total: number): Promise<number> {
  let most = 0;
  for (let turns = 0; work.handled < total && turns < 500_000; turns++) {
    const before = work.handled;
    await new Promise((turn) => setImmediate(turn));
    most = Math.max(most, work.handled - before);
  }
  expect(work.handled).toBeGreaterThanOrEqual(total);
  return most;
}

describe.each([1, 8])('pipelining flood on %i connections', (count) => {
  test('line: a turn handles a few thousand checks', async () => {
    const { work, handle } = workClock();
    const protocol = lineProtocol(
      () => handle() > 0,
      () => 64,
    );
    await flood(acceptFor(protocol, work.turns), '\n', count);
    expect(await mostPerTurn(work, 200_000)).toBeLessThan(4000); // 65,536 a connection and more without a bound
  });

  test('RESP: a turn handles a few hundred commands', async () => {
    const { work, handle } = workClock();
    const keyHash = { low: 1, high: 2 };
    const gcraTable = { throttle: () => handle(0.01) > 0, remaining: 1, resetAfterMs: 0, keyHash };
    const { resp } = createTestDaemon(systemClock, {
      gcraTable: gcraTable as Partial<GcraTable> as GcraTable,
    });
    const [, command] = FLOODS['resp: CL.THROTTLE'];
    await flood(acceptFor(resp, work.turns), command, count);
    expect(await mostPerTurn(work, 10_000)).toBeLessThan(300);
  });

  /** Every request takes so long. */
  async function floodHttp(bytes: string, ms: number, options: HttpServerOptions = {}) {
    const { work, handle } = workClock();
    const isReady = () => handle(ms) > 0;
    const { turns } = work;
    const server = createHttpServer({ turns, isReady, ...options });
    await flood((socket) => server.accept(socket, true), bytes, count);
    closing.push(() => void server.drain(0));
    return work;
  }

  test('HTTP, plain checks: a turn handles a few hundred', async () => {
    const [, request] = FLOODS['http: GET /check'];
    const work = await floodHttp(request, 0.01);
    expect(await mostPerTurn(work, 5000)).toBeLessThan(300);
  });

  const checks = JSON.stringify(Array(1000).fill({}));
  const batch = `POST /batch HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: ${checks.length}\r\n\r\n${checks}`;

  test('HTTP, batches of 1000: a turn routes a few tens of checks', async () => {
    const { work, handle } = workClock();
    const extractKey = () => `${handle(0.01)}`;
    const server = createHttpServer({ turns: work.turns, extractKey });
    await flood((socket) => server.accept(socket, true), batch, count);
    closing.push(() => void server.drain(0));
    expect(await mostPerTurn(work, 20_000)).toBeLessThan(300);
  });

  test('HTTP, batches of 1000: a turn decides a few tens of checks', async () => {
    const { work, handle } = workClock();
    const clock = { now: () => handle(0.01) };
    const server = createHttpServer({ turns: work.turns, clock, extractKey: () => 'a' });
    await flood((socket) => server.accept(socket, true), batch, count);
    closing.push(() => void server.drain(0));
    expect(await mostPerTurn(work, 20_000)).toBeLessThan(400);
  });

  test.each([
    ['http: GET /healthz', 0.1],
    ['http: GET /metrics', 1],
  ])('%s of %d ms: a turn handles a few tens', async (name, ms) => {
    const [, request] = FLOODS[name];
    const work = await floodHttp(request, ms);
    expect(await mostPerTurn(work, 300)).toBeLessThan(40);
    const behindNode = await floodHttp(request, ms, { fastPath: false });
    expect(await mostPerTurn(behindNode, 300)).toBeLessThan(40);
  });
});

test.each([true, false])(
  'HTTP with fastPath %s, checks of a backend that does not reply: few are pending',
  async (fastPath) => {
    const checks: string[] = [];
    const never = new Promise<never>(() => {});
    const backend: RemoteBackendFactory = {
      isRemote: true,
      create: (...args) => ({
        ...unavailableBackend(deny(500)).create(...args),
        async checkNow(key) {
          checks.push(key);
          return never;
        },
        readState: () => never,
      }),
    };
    const limits = { far: { bucket: { rate: '1/s' }, redis: { url: 'redis://127.0.0.1' } } };
    const server = createHttpServer({ backend, limits, fastPath });
    const [, request] = FLOODS['http: GET /check'];
    await flood((socket) => server.accept(socket, true), request, 1);
    closing.push(() => void server.drain(0));
    await expect.poll(() => checks.length).toBeGreaterThan(0);
    await new Promise((later) => setTimeout(later, 100));
    expect(checks.length).toBeLessThanOrEqual(100); // thousands without a bound
  },
);

describe('slices that are over at once', () => {
  /** As on a machine that stops this process again and again. */
  function stallingTurns(): Turns {
    let now = 0;
    const later = (): number => {
      now += 10;
      return now;
    };
    return new Turns({ now: later });
  }

  test.each(['line', 'http: GET /check', 'http: GET /healthz'])(
    '%s: every request is answered',
    async (name) => {
      const turns = stallingTurns();
      let handled = 0;
      const count = (): boolean => ++handled > 0;
      const protocol = lineProtocol(count, () => 64);
      const httpServer = createHttpServer({ turns, isReady: count });
      const accept =
        name === 'line'
          ? acceptFor(protocol, turns)
          : (socket: Socket) => httpServer.accept(socket, true);
      const [, bytes] = FLOODS[name] ?? ['line', '\n'];
      await flood(accept, bytes, 1);
      closing.push(() => void httpServer.drain(0));
      await expect.poll(() => handled, { timeout: 10_000 }).toBeGreaterThan(2000);
    },
  );
});
