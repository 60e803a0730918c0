import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { groups } from '../../src/backends/groups/options.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import { daemonFixture, EPHEMERAL_PORTS, waitUntil } from '../support/daemon.ts';
import { freePort } from '../support/services.ts';

const KEY = 'a secret of all regions';
const BODY = '{"requests":[["api","alice",1]]}';

const fixture = daemonFixture();
const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
  await fixture.end();
});

/** A connection of the attacker. */
async function open(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  ends.push(() => socket.destroy());
  await once(socket, 'connect');
  return socket.resume();
}

const openMany = async (port: number, count: number): Promise<Socket[]> => {
  const opened: Socket[] = [];
  for (let n = 0; n < count; n++) opened.push(await open(port));
  return opened;
};

/** What another group with the key gets. */
const borrow = async (port: number): Promise<unknown> => {
  const headers = { authorization: `Bearer ${KEY}`, connection: 'close' };
  const signal = AbortSignal.timeout(20_000);
  const options = { method: 'POST', headers, body: BODY, signal };
  const reply = await fetch(`http://127.0.0.1:${port}/borrow`, options);
  return reply.json();
};

/** A group of this process that lends. */
async function lender(): Promise<number> {
  const member = groups({
    self: 'eu',
    groups: { eu: {}, us: { at: 'http://127.0.0.1:1' } },
    key: KEY,
    listen: { port: 0 },
    deadline: '2s',
  });
  limiter({ name: 'api', limit: { bucket: { rate: 1, burst: 40 } }, backend: member });
  ends.push(() => member.close());
  return Number((await member.listening)?.split(':').at(-1));
}

const openCount = (sockets: readonly Socket[]): number =>
  sockets.filter(({ destroyed }) => !destroyed).length;

test('groups port: 300 connections without the key leave at most 256, and a group still borrows', async () => {
  const port = await lender();
  const held = await openMany(port, 300);
  await waitUntil(() => openCount(held) <= 256);
  expect(held[299].destroyed).toBe(false); // the oldest were closed
  expect(await borrow(port)).toEqual({ grants: [1] });
});

test('groups port: a connection that sends nothing, or half a request, is closed after its time', async () => {
  const port = await lender();
  const silent = await open(port);
  const slow = await open(port);
  slow.write('POST /borrow HTTP/1.1\r\nHost: x\r\n');
  await waitUntil(() => silent.destroyed && slow.destroyed);
});

test('groups port: a wrong key gets 401 and ends the connection, whatever the body', async () => {
  const port = await lender();
  const socket = await open(port);
  let received = '';
  socket.on('data', (chunk: Buffer) => {
    received += chunk;
  });
  socket.write(
    'POST /borrow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer no\r\nContent-Length: 900000\r\n\r\n',
  );
  await waitUntil(() => socket.destroyed);
  expect(received).toMatch(/^HTTP\/1\.1 401 /);
});

test('groups port: connections without the key make room for others in a daemon with few connections', async () => {
  const port = await freePort();
  const config = `
    groups: { self: eu, groups: { eu: {}, us: { at: 'http://127.0.0.1:1' } }, key: ${KEY}, listen: ${port}, deadline: 60s }
    bounds: { connections: 10 }
    limits: { api: { bucket: { rate: 1/h, burst: 40 }, groups: true } }`;
  await fixture.start([
    ...EPHEMERAL_PORTS,
    '--config',
    fixture.place().file('sluice.yaml', config),
  ]);
  await openMany(port, 30);
  expect(await borrow(port)).toEqual({ grants: [1] });
});
