/** A connection on the short way: how long it may be silent, who does not read, and what is handed over. */

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createSurface,
  type RunningSurface,
  type SurfaceOptions,
  serveSurface,
  unavailableBackend,
} from '../../../../../../test/support/http-surface.ts';
import { allow } from '../../../../../core/decision.ts';
import { VirtualClock } from '../../../../../testing/index.ts';
import type { HttpServer } from '../server.ts';
import { FastPathConnection, type FastPathHooks } from './connection.ts';

const open: { stop(): unknown }[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((own) => own.stop()));
});

async function served(
  given: SurfaceOptions = {},
): Promise<{ surface: HttpServer; own: RunningSurface }> {
  const surface = createSurface({ clock: new VirtualClock(1e9), ...given });
  const own = await serveSurface(surface);
  open.push(own);
  return { surface, own };
}

const SHARED = { api: { bucket: { rate: '1/s', burst: 3 }, redis: { url: 'redis://127.0.0.1' } } };

/** Those whose answers are long. */
const MANY = Object.fromEntries(
  Array.from({ length: 20 }, (_, n) => [
    `${n}-`.padEnd(64, 'x'),
    { bucket: { rate: 1, burst: 1e6 }, always: true },
  ]),
);

const never = (): never => {
  throw new Error('not asked for here');
};

const CHECK = 'GET /check?key=a HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** A client, and all it has heard. */
interface Client {
  readonly socket: Socket;
  heard(): string;
  /** Resolves when so many answers have come. */
  answers(count: number): Promise<string[]>;
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
  const statuses = () => [...text.matchAll(/HTTP\/1.1 (\d+)/g)].map(([, status]) => status);
  return {
    socket,
    heard: () => text,
    async answers(count) {
      await expect.poll(() => statuses().length).toBe(count);
      return statuses();
    },
  };
}

describe('a connection on the short way', () => {
  test('says the date of the clock, and how long it may be silent', async () => {
    const { own } = await served({ bounds: { idleMs: 5000 } });
    const { socket, answers, heard } = await client(own.port);
    socket.write(CHECK);
    await answers(1);
    expect(heard()).toContain(
      'Date: Mon, 12 Jan 1970 13:46:40 GMT\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n\r\n',
    );
  });

  test('is hung up when it was silent for too long, and told so if it never asked', async () => {
    const [patient, hasty] = [
      await served({ bounds: { idleMs: 30 } }),
      await served({ bounds: { slowMs: 30 } }),
    ];
    const [asked, silent] = [await client(patient.own.port), await client(hasty.own.port)];
    asked.socket.write(CHECK);
    await Promise.all([once(asked.socket, 'close'), once(silent.socket, 'close')]);
    expect(await asked.answers(1)).toEqual(['200']);
    expect(await silent.answers(1)).toEqual(['408']);
    await expect.poll(() => patient.surface.counts.open + hasty.surface.counts.open).toBe(0);
  });

  test('may be silent for as long as is set once it has asked', async () => {
    const { own } = await served({ bounds: { slowMs: 30 } });
    const asked = await client(own.port);
    asked.socket.write(CHECK);
    await asked.answers(1);
    const silent = await client(own.port);
    await once(silent.socket, 'close'); // by then it has been silent for longer than that
    asked.socket.write(CHECK);
    expect(await asked.answers(2)).toEqual(['200', '200']);
  });

  test('that does not read is let go', async () => {
    const clock = new VirtualClock(1e9);
    const { surface, own } = await served({ clock, limits: MANY });
    const { socket } = await client(own.port);
    socket.pause();
    const answered = () =>
      Object.values(surface.counts.responsesByStatus).reduce((sum, n) => sum + n, 0);
    for (let asked = 0; answered() === asked; asked++) {
      socket.write(CHECK); // each alone, so that none is cut in two and all of them go the short way
      const isAnswered = () => answered() > asked;
      for (let n = 0; n < 100 && !isAnswered(); n++) await turn();
    }
    for (let n = 0; surface.counts.slow === 0 && n < 100; n++) {
      await turn();
      clock.advance(10_000);
    }
    expect(surface.counts.slow).toBe(1);
    await expect.poll(() => surface.counts.open).toBe(0);
  });

  test('is told to go when the server drains, and hung up where nothing is asked', async () => {
    let isReady = true;
    const { surface, own } = await served({ isReady: () => isReady });
    const [asking, idle] = [await client(own.port), await client(own.port)];
    for (const { socket, answers } of [asking, idle]) {
      socket.write(CHECK);
      await answers(1);
    }
    isReady = false;
    asking.socket.write(CHECK);
    await once(asking.socket, 'close');
    expect(asking.heard()).toMatch(
      /Connection: keep-alive[\s\S]*HTTP\/1.1 200[\s\S]*Connection: close/,
    );
    const closed = once(idle.socket, 'close');
    await surface.drain(60_000); // no time passes on this clock
    await closed;
    expect(surface.counts.open).toBe(0);
  });

  test('may be torn down at any time', async () => {
    const { surface, own } = await served();
    for (let n = 0; n < 20; n++) {
      const { socket } = await client(own.port);
      socket.write(CHECK.repeat(n * 10));
      socket.resetAndDestroy();
    }
    await expect.poll(() => surface.counts.open).toBe(0);
    expect((await own.sendRequest('/healthz')).status).toBe(200);
  });

  test('goes by a new configuration from one request to the next', async () => {
    const { surface, own } = await served();
    const { socket, answers, heard } = await client(own.port);
    socket.write(CHECK);
    await answers(1);
    surface.configure({ admin: {}, bounds: { maxKey: 0, idleMs: 7000 } });
    socket.write(CHECK);
    expect(await answers(2)).toEqual(['200', '400']);
    expect(heard()).toContain('Keep-Alive: timeout=7');
  });

  test('takes the long way where somebody else decides, and is asked for once', async () => {
    const asks: string[] = [];
    const { own } = await served({ limits: SHARED, backend: unavailableBackend(allow(1), asks) });
    const { socket, answers } = await client(own.port);
    socket.write(CHECK + CHECK);
    expect(await answers(2)).toEqual(['200', '200']);
    expect(asks).toEqual(['a', 'a']);
  });
});

describe('a connection', () => {
  /** A client of a short way alone, which says this to every check. */
  async function shortWay(handle: () => string, onHandOff: FastPathHooks['onHandOff'] = never) {
    const told = {
      handle,
      onHandOff,
      onRequestTimeout: never,
      timeouts: { slowMs: 10_000, idleMs: 0 },
    };
    const server = createServer(
      { allowHalfOpen: true },
      (socket) => new FastPathConnection(socket, told),
    );
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
    open.push({ stop: () => server.close() });
    return client((server.address() as AddressInfo).port);
  }

  test('that does not read is read no further until it does', async () => {
    let answered = 0;
    const long = 'x'.repeat(1_000_000);
    const { socket, heard } = await shortWay(() => {
      answered++;
      return long;
    });
    socket.pause();
    const asked = 50;
    for (let n = 0; n < asked; n++) {
      socket.write(CHECK);
      await turn();
    }
    for (let n = 0; n < 100; n++) await turn();
    expect(answered).toBeLessThan(asked / 2);
    socket.resume();
    await expect.poll(() => heard().length, { timeout: 10_000 }).toBe(asked * long.length);
  });

  test('that is handed over brings all that was not answered, and all that follows', async () => {
    let rest = '';
    const { socket, heard } = await shortWay(
      () => 'yes ',
      (own) => {
        own.setEncoding('latin1').on('data', (chunk) => {
          rest += chunk;
        });
        own.on('error', () => {}).on('end', () => own.end('bye'));
      },
    );
    const long = 'x'.repeat(1_000_000); // more than a socket keeps unread
    socket.write(`${CHECK}${CHECK}GET /other`);
    await expect.poll(() => rest).toBe('GET /other');
    socket.end(CHECK + long);
    await once(socket, 'close');
    expect(rest).toBe(`GET /other${CHECK}${long}`);
    expect(heard()).toBe('yes yes bye');
  });

  test('that is handed over keeps what it brings, whoever else is heard before it is read', async () => {
    const taken: Socket[] = [];
    const take = (own: Socket) => taken.push(own.on('readable', () => {}));
    for (const text of ['GET /other', 'something else']) {
      const { socket } = await shortWay(never, take);
      socket.write(text);
      await expect.poll(() => taken.at(-1)?.readableLength).toBe(text.length);
    }
    expect(taken.map((own) => String(own.read()))).toEqual(['GET /other', 'something else']);
    for (const own of taken) own.destroy();
  });
});
