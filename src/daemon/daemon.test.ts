import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { createTempDir } from '../../test/support/daemon.ts';
import { freePort } from '../../test/support/services.ts';
import type { Log } from '../core/log.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { parseConfigText } from './config/file.ts';
import { Daemon } from './daemon.ts';

const folder = createTempDir();
const cleanups: (() => unknown)[] = [folder.remove];

afterEach(async () => {
  for (const cleanup of cleanups.splice(1).reverse()) await cleanup();
});

const load = (text: string) => parseConfigText('sluice.yaml', text);

/** Starts from the first text; each reload reads the second. */
async function startDaemon(text: string, reloadText: string): Promise<Daemon> {
  const loaded = load(text);
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  const context = { log: () => {}, load: () => load(reloadText), version: '0.0.0' };
  const daemon = await Daemon.start(loaded.config, context);
  cleanups.push(() => daemon.stop());
  return daemon;
}

/** Starts on a clock of the test. */
async function startOnClock(text: string, clock: VirtualClock): Promise<Daemon> {
  const loaded = load(text);
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  const context = { log: () => {}, load: () => load(text), version: '0.0.0', clock };
  const daemon = await Daemon.start(loaded.config, context);
  cleanups.push(async () => {
    let isStopped = false;
    const stopped = daemon.stop().then(() => {
      isStopped = true;
    });
    while (!isStopped) {
      clock.advance(100);
      await new Promise(setImmediate);
    }
    await stopped;
  });
  return daemon;
}

test('daemon with explicit maxKeys beyond its memory: starts, and warns', async () => {
  const limits = Array.from(
    { length: 40 },
    (_, n) => `  l${n}: { bucket: { rate: 1/s, burst: 1 }, match: 'k${n}', maxKeys: 100000000 }\n`,
  );
  const loaded = load(
    `listen: { line: 'off', resp: 'off', http: 127.0.0.1:0 }\nlimits:\n${limits.join('')}`,
  );
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  const warned: unknown[] = [];
  const log: Log = (level, message, fields) => {
    if (level === 'warn' && message.includes('maxKeys')) warned.push(fields?.limit);
  };
  const daemon = await Daemon.start(loaded.config, { log, load: () => loaded, version: '0.0.0' });
  cleanups.push(() => daemon.stop());
  expect(warned).toContain('l39');
});

const listenOn = (name: string): string =>
  `listen: { line: '${join(folder.path, name)}', resp: off, http: off }\n`;

const BUCKET = 'bucket: { rate: 1/s }';
const BROKEN_ETCD = `{ ${BUCKET}, etcd: { endpoints: ['https://127.0.0.1:1'], tls: { ca: /nonexistent/ca.pem } } }`;

const stateOf = ({ addresses, router }: Daemon) => ({
  addresses,
  limits: router.registry.all.map(({ name }) => name),
});

test('reload: a limiter that cannot be created leaves listeners and limiters unchanged', async () => {
  const daemon = await startDaemon(
    `${listenOn('a.sock')}limits: { a: { ${BUCKET} } }`,
    `${listenOn('b.sock')}limits: { a: { ${BUCKET} }, b: ${BROKEN_ETCD} }`,
  );
  const before = stateOf(daemon);
  expect(await daemon.reload()).toEqual({
    ok: false,
    problems: [expect.stringContaining('limits.b.etcd.tls.ca')],
  });
  expect(stateOf(daemon)).toEqual(before);
});

test('reload: an address that cannot be opened leaves listeners and limiters unchanged', async () => {
  const daemon = await startDaemon(
    `${listenOn('a.sock')}limits: { a: { ${BUCKET} } }`,
    `${listenOn('missing/b.sock')}limits: { b: { ${BUCKET} } }`,
  );
  const before = stateOf(daemon);
  expect(await daemon.reload()).toMatchObject({ ok: false });
  expect(stateOf(daemon)).toEqual(before);
});

/** A server that never replies, as the Redis of a limit. `expectClosed` waits for a connection and for its end. */
async function startSilentServer() {
  let accepted = 0;
  const server = createServer((socket) => {
    accepted++;
    socket.on('error', () => {}).resume();
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  return {
    redis: `{ ${BUCKET}, redis: { url: 'redis://127.0.0.1:${port}' } }`,
    async expectClosed() {
      await expect.poll(() => accepted).toBeGreaterThan(0);
      await new Promise((closed) => server.close(closed)); // waits for open connections
    },
  };
}

test('reload: a failure closes the connections that it opened', async () => {
  const { redis, expectClosed } = await startSilentServer();
  const daemon = await startDaemon(
    listenOn('a.sock'),
    `${listenOn('a.sock')}limits: { a: ${redis}, b: ${BROKEN_ETCD} }`,
  );
  expect(await daemon.reload()).toMatchObject({ ok: false });
  await expectClosed();
});

test('start: a failure closes the connections that it opened', async () => {
  const { redis, expectClosed } = await startSilentServer();
  const text = `${listenOn('a.sock')}limits: { a: ${redis}, b: ${BROKEN_ETCD} }`;
  await expect(startDaemon(text, text)).rejects.toThrow('limits.b.etcd.tls.ca');
  await expectClosed();
});

test('listeners: every address with port 0 is opened, also two equal ones', async () => {
  const text = 'listen: { line: ["127.0.0.1:0", "127.0.0.1:0"], resp: off, http: off }';
  const daemon = await startDaemon(text, `${text}\nallow: [bob]`);
  const { addresses } = daemon;
  expect(new Set(addresses.map((address) => JSON.stringify(address))).size).toBe(2);
  expect(await daemon.reload()).toMatchObject({ ok: true });
  expect(daemon.addresses).toEqual(addresses);
});

test('Redis that is dead: its limits are unavailable though no check was sent', async () => {
  const clock = new VirtualClock(1_700_000_000_000);
  const redis = `redis: 'redis://127.0.0.1:${await freePort()}'`;
  const text = `${listenOn('dead.sock')}limits: { api: { ${BUCKET}, ${redis} } }`;
  const daemon = await startOnClock(text, clock);
  const stats = () => daemon.router.registry.get('api')?.limiter.stats();
  expect(stats()).toMatchObject({ isAvailable: true });
  clock.advance(5000);
  await expect.poll(stats).toMatchObject({ isAvailable: false });
});
