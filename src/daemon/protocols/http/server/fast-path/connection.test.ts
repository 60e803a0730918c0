import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpServerOptions,
  type RunningHttpServer,
  serveHttp,
  unavailableBackend,
} from '../../../../../../test/support/http-protocol.ts';
import { allow } from '../../../../../core/decision.ts';
import { VirtualClock } from '../../../../../testing/index.ts';
import { canReuseReadBuffer } from '../../../../server/read-buffer.ts';
import { Turns } from '../../../../server/turns.ts';
import type { HttpServer } from '../server.ts';
import { FastPathConnection, type FastPathHooks } from './connection.ts';

const open: { stop(): unknown }[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((each) => each.stop()));
});

async function start(
  options: HttpServerOptions = {},
  prepare?: (socket: Socket) => Socket,
): Promise<{ httpServer: HttpServer; running: RunningHttpServer }> {
  const httpServer = createHttpServer({ clock: new VirtualClock(1e9), ...options });
  const running = await serveHttp(httpServer, true, prepare);
  open.push(running);
  return { httpServer, running };
}

const SHARED = { api: { bucket: { rate: '1/s', burst: 3 }, redis: { url: 'redis://127.0.0.1' } } };

/** Limits whose responses are long. */
const LONG_RESPONSES = Object.fromEntries(
  Array.from({ length: 20 }, (_, n) => [
    `${n}-`.padEnd(64, 'x'),
    { bucket: { rate: 1, burst: 1e6 }, always: true },
  ]),
);

const never = (): never => {
  throw new Error('not expected here');
};

/** Simulates a Node whose sockets have no `useUserBuffer`. */
const withoutUserBuffer = (socket: Socket): Socket => {
  Object.defineProperty(Reflect.get(socket, '_handle'), 'useUserBuffer', { value: undefined });
  expect(canReuseReadBuffer(socket)).toBe(false);
  return socket;
};

const CHECK = 'GET /check?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** A client and everything it received. */
interface Client {
  readonly socket: Socket;
  received(): string;
  /** The first `count` statuses, once they have arrived. */
  statuses(count: number): Promise<string[]>;
}

async function client(port: number): Promise<Client> {
  let text = '';
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  socket.setEncoding('latin1').on('data', (chunk) => {
    text += chunk;
  });
  socket.on('error', () => {});
  open.push({ stop: () => socket.destroy() });
  await once(socket, 'connect');
  const found = () => [...text.matchAll(/HTTP\/1.1 (\d+)/g)].map(([, status]) => status);
  return {
    socket,
    received: () => text,
    async statuses(count) {
      await expect.poll(() => found().length).toBe(count);
      return found();
    },
  };
}

describe('HTTP fast path', () => {
  test('response: has Date from the clock, and Keep-Alive', async () => {
    const { running } = await start({ bounds: { idleMs: 5000 } });
    const { socket, statuses, received } = await client(running.port);
    socket.write(CHECK);
    await statuses(1);
    expect(received()).toContain(
      'Date: Mon, 12 Jan 1970 13:46:40 GMT\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n\r\n',
    );
  });

  test('idle connection: is closed; without any request it gets 408', async () => {
    const [patient, hasty] = [
      await start({ bounds: { idleMs: 30 } }),
      await start({ bounds: { slowMs: 30 } }),
    ];
    const [active, silent] = [await client(patient.running.port), await client(hasty.running.port)];
    active.socket.write(CHECK);
    await Promise.all([once(active.socket, 'close'), once(silent.socket, 'close')]);
    expect(await active.statuses(1)).toEqual(['200']);
    expect(await silent.statuses(1)).toEqual(['408']);
    await expect.poll(() => patient.httpServer.counts.open + hasty.httpServer.counts.open).toBe(0);
  });

  test('after a request: the idle timeout replaces the request timeout', async () => {
    const { running } = await start({ bounds: { slowMs: 30 } });
    const active = await client(running.port);
    active.socket.write(CHECK);
    await active.statuses(1);
    const silent = await client(running.port);
    await once(silent.socket, 'close'); // by then the first one has been idle for longer
    active.socket.write(CHECK);
    expect(await active.statuses(2)).toEqual(['200', '200']);
  });

  test('client that does not read: is disconnected as slow', async () => {
    const clock = new VirtualClock(1e9);
    const { httpServer, running } = await start({ clock, limits: LONG_RESPONSES });
    const { socket } = await client(running.port);
    socket.pause();
    const answered = () =>
      Object.values(httpServer.counts.responsesByStatus).reduce((sum, n) => sum + n, 0);
    for (let sent = 0; answered() === sent; sent++) {
      socket.write(CHECK); // one per chunk, so that all stay on the fast path
      const isAnswered = () => answered() > sent;
      for (let n = 0; n < 100 && !isAnswered(); n++) await turn();
    }
    for (let n = 0; httpServer.counts.slow === 0 && n < 100; n++) {
      await turn();
      clock.advance(10_000);
    }
    expect(httpServer.counts.slow).toBe(1);
    await expect.poll(() => httpServer.counts.open).toBe(0);
  });

  test('drain: answers with Connection: close, and closes idle connections', async () => {
    let isReady = true;
    const { httpServer, running } = await start({ isReady: () => isReady });
    const [asking, idle] = [await client(running.port), await client(running.port)];
    for (const { socket, statuses } of [asking, idle]) {
      socket.write(CHECK);
      await statuses(1);
    }
    isReady = false;
    asking.socket.write(CHECK);
    await once(asking.socket, 'close');
    expect(asking.received()).toMatch(
      /Connection: keep-alive[\s\S]*HTTP\/1.1 200[\s\S]*Connection: close/,
    );
    const closed = once(idle.socket, 'close');
    await httpServer.drain(60_000); // no time passes on this clock
    await closed;
    expect(httpServer.counts.open).toBe(0);
  });

  test.each([
    { name: 'Node without the private field', options: {}, prepare: withoutUserBuffer },
    { name: 'fastPath: false', options: { fastPath: false }, prepare: undefined },
  ])('$name: Node serves the same responses', async ({ options, prepare }) => {
    const { httpServer, running } = await start(options, prepare);
    const { socket, statuses, received } = await client(running.port);
    socket.write(CHECK.repeat(4));
    expect(await statuses(4)).toEqual(['200', '200', '200', '429']);
    expect(received()).toContain('{"verdict":"allow","remaining":2}');
    expect(httpServer.counts.responsesByStatus).toEqual({ 200: 3, 429: 1 });
  });

  test('reset by the client at any time: leaves no open connection', async () => {
    const { httpServer, running } = await start();
    for (let n = 0; n < 20; n++) {
      const { socket } = await client(running.port);
      socket.write(CHECK.repeat(n * 10));
      socket.resetAndDestroy();
    }
    await expect.poll(() => httpServer.counts.open).toBe(0);
    expect((await running.sendRequest('/healthz')).status).toBe(200);
  });

  test('configure: applies to the next request', async () => {
    const { httpServer, running } = await start();
    const { socket, statuses, received } = await client(running.port);
    socket.write(CHECK);
    await statuses(1);
    httpServer.configure({ admin: {}, bounds: { maxKey: 0, idleMs: 7000 } });
    socket.write(CHECK);
    expect(await statuses(2)).toEqual(['200', '400']);
    expect(received()).toContain('Keep-Alive: timeout=7');
  });

  test('remote limit: Node handles the connection, and each check is sent once', async () => {
    const checks: string[] = [];
    const { running } = await start({
      limits: SHARED,
      backend: unavailableBackend(allow(1), checks),
    });
    const { socket, statuses } = await client(running.port);
    socket.write(CHECK + CHECK);
    expect(await statuses(2)).toEqual(['200', '200']);
    expect(checks).toEqual(['a', 'a']);
  });
});

describe('HTTP fast-path connection', () => {
  /** A client of a bare fast path with this response to every check. */
  async function fastPath(
    handle: () => string,
    onHandOff: FastPathHooks['onHandOff'] = never,
    slowMs = 10_000,
  ) {
    const hooks = {
      handle,
      onHandOff,
      onRequestTimeout: never,
      onRefused: never,
      timeouts: { slowMs, idleMs: 0 },
      turns: new Turns(),
    };
    const server = createServer(
      { allowHalfOpen: true },
      (socket) => new FastPathConnection(socket, hooks),
    );
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
    open.push({ stop: () => server.close() });
    return client((server.address() as AddressInfo).port);
  }

  test('client that does not read: is not read from until it does', async () => {
    let answered = 0;
    const long = 'x'.repeat(1_000_000);
    const { socket, received } = await fastPath(() => {
      answered++;
      return long;
    });
    socket.pause();
    const count = 50;
    for (let n = 0; n < count; n++) {
      socket.write(CHECK);
      await turn();
    }
    for (let n = 0; n < 100; n++) await turn();
    expect(answered).toBeLessThan(count / 2);
    socket.resume();
    await expect.poll(() => received().length, { timeout: 10_000 }).toBe(count * long.length);
  });

  test('pipeline of several chunks: requests that are cut stay on the fast path', async () => {
    const { socket, received } = await fastPath(() => 'y');
    const count = 20_000; // fifteen chunks
    socket.write(CHECK.repeat(count));
    await expect.poll(() => received().length, { timeout: 10_000 }).toBe(count);
  });

  test('request cut anywhere, behind a complete one: stays on the fast path', async () => {
    const { socket, received } = await fastPath(() => 'y');
    const responses = async (count: number): Promise<void> => {
      for (let n = 0; n < 10_000 && received().length < count; n++) await turn();
      expect(received()).toHaveLength(count);
    };
    for (let n = 1; n < CHECK.length; n++) {
      socket.write(CHECK + CHECK.slice(0, n));
      await responses(n * 2 - 1);
      socket.write(CHECK.slice(n));
      await responses(n * 2);
    }
  });

  test('request that the next chunk does not complete: is handed off from its first byte', async () => {
    let rest = '';
    const { socket, received } = await fastPath(
      () => 'yes ',
      (taken) =>
        taken.setEncoding('latin1').on('data', (chunk) => {
          rest += chunk;
        }),
    );
    socket.write(`${CHECK}GET /ch`);
    await expect.poll(received).toBe('yes ');
    socket.write('eck?key=a HT');
    await expect.poll(() => rest).toBe('GET /check?key=a HT');
  });

  test('request that is not continued: its connection is closed after the request timeout', async () => {
    const { socket, received } = await fastPath(() => 'yes ', never, 50);
    socket.write(`${CHECK}GET /ch`);
    await once(socket, 'close');
    expect(received()).toBe('yes ');
  });

  test('client that ends within a request: it is handed off with its end', async () => {
    let rest = '';
    const { socket } = await fastPath(
      () => 'yes ',
      (taken) => {
        taken.setEncoding('latin1').on('data', (chunk) => {
          rest += chunk;
        });
        taken.on('end', () => taken.end('bye'));
      },
    );
    socket.end(`${CHECK}GET /ch`);
    await once(socket, 'close');
    expect(rest).toBe('GET /ch');
  });

  test('hand-off: the new owner reads everything unanswered, and all that follows', async () => {
    let rest = '';
    const { socket, received } = await fastPath(
      () => 'yes ',
      (taken) => {
        taken.setEncoding('latin1').on('data', (chunk) => {
          rest += chunk;
        });
        taken.on('error', () => {}).on('end', () => taken.end('bye'));
      },
    );
    const long = 'x'.repeat(1_000_000); // more than a socket buffers
    socket.write(`${CHECK}${CHECK}GET /other`);
    await expect.poll(() => rest).toBe('GET /other');
    socket.end(CHECK + long);
    await once(socket, 'close');
    expect(rest).toBe(`GET /other${CHECK}${long}`);
    expect(received()).toBe('yes yes bye');
  });

  test('hand-off: unread bytes survive the reuse of the read buffer', async () => {
    const taken: Duplex[] = [];
    const take = (connection: Duplex) => taken.push(connection.on('readable', () => {}));
    for (const text of ['GET /other', 'something else']) {
      const { socket } = await fastPath(never, take);
      socket.write(text);
      await expect.poll(() => taken.at(-1)?.readableLength).toBe(text.length);
    }
    expect(taken.map((socket) => String(socket.read()))).toEqual(['GET /other', 'something else']);
    for (const socket of taken) socket.destroy();
  });
});
