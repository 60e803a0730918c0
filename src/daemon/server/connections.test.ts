import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/index.ts';
import { type IsAllowed, lineProtocol } from '../protocols/line/handler.ts';
import { Connections } from './connections.ts';

const SLOW_MS = 30_000;

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** Somebody who is connected to a line protocol that decides so, and does not read yet. */
async function setUp(isAllowed: IsAllowed, isTcp = false) {
  const clock = new VirtualClock();
  const bounds = { maxConnections: 10, slowMs: SLOW_MS, idleMs: Infinity };
  const protocol = lineProtocol(isAllowed, () => 100);
  const streams = new Connections(protocol, () => bounds, clock);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-'));
  const path = join(folder, 'line');
  const server = createServer({ allowHalfOpen: true }, (socket) => streams.accept(socket));
  await new Promise<void>((ready) => server.listen(isTcp ? 0 : path, ready));
  const at = isTcp ? { port: (server.address() as AddressInfo).port } : { path };
  const client = connect({ ...at, allowHalfOpen: true }).pause();
  closing.push(() => {
    client.destroy();
    server.close();
    rmSync(folder, { recursive: true });
  });
  await once(client, 'connect');
  return { clock, streams, client };
}

/** Everything there is to read, up to the other side's goodbye. */
async function readAll(client: Socket): Promise<string> {
  let heard = '';
  client.on('data', (chunk) => {
    heard += chunk;
  });
  client.resume();
  await once(client, 'end');
  client.end();
  return heard;
}

const until = async (isSo: () => boolean): Promise<void> => {
  for (let turns = 0; !isSo() && turns < 100_000; turns++)
    await new Promise((turn) => setImmediate(turn));
  expect(isSo()).toBe(true);
};

/** Answers that are given when somebody says so. */
function deferred() {
  const asked: ((isAllowed: boolean) => void)[] = [];
  const isAllowed = (): Promise<boolean> => new Promise((decide) => asked.push(decide));
  return { asked, isAllowed };
}

describe('a connection', () => {
  test('that is gone before it was answered was not slow', async () => {
    const { asked, isAllowed } = deferred();
    const { clock, streams, client } = await setUp(isAllowed, true);
    client.write('a\nb\n');
    await until(() => asked.length === 2);
    client.resetAndDestroy();
    await until(() => streams.counts.open === 0);
    for (const decide of asked) decide(true);
    await clock.advanceAsync(SLOW_MS);
    expect(streams.counts).toMatchObject({ accepted: 1, slow: 0 });
  });

  test('owes no more than a thousand answers and a few, and gives all of them in the end', async () => {
    const { asked, isAllowed } = deferred();
    const { streams, client } = await setUp(isAllowed);
    client.end('a\n'.repeat(20_000));
    const heard = readAll(client);
    let most = 0;
    let given = 0;
    while (given < 20_000) {
      await until(() => asked.length > given);
      most = Math.max(most, asked.length - given);
      for (; given < asked.length; given++) asked[given](given % 3 === 0);
    }
    expect(most).toBeLessThanOrEqual(1025);
    expect(await heard).toBe('OK\nNO\nNO\n'.repeat(20_000 / 3 + 1).slice(0, 60_000));
    await until(() => streams.counts.open === 0);
  });

  test('that ends with questions still kept gets an answer to each', async () => {
    const { asked, isAllowed } = deferred();
    const { clock, streams, client } = await setUp(isAllowed);
    client.write('a\n'.repeat(5000));
    await until(() => asked.length > 1000);
    const drained = streams.drain(SLOW_MS);
    await clock.advanceAsync(20); // silent for so long: it is not in the middle of asking
    const heard = readAll(client);
    for (let given = 0; given < 5000; given++) {
      await until(() => asked.length > given);
      asked[given](true);
    }
    expect(await heard).toBe('OK\n'.repeat(5000));
    await drained;
  });

  /** Somebody who asks and asks, until no more is heard because nothing is read. */
  async function stuck() {
    let asked = 0;
    const own = await setUp(() => ++asked > 0);
    own.client.write('\n'.repeat(1_000_000));
    for (let before = -1; asked === 0 || before < asked; ) {
      before = asked;
      for (let turns = 0; turns < 20; turns++) await new Promise((turn) => setImmediate(turn));
    }
    expect(asked).toBeLessThan(1_000_000);
    return { ...own, asked };
  }

  test('that ends may take its time to read what it is owed', async () => {
    const { clock, streams, client, asked } = await stuck();
    const drained = streams.drain(SLOW_MS);
    await clock.advanceAsync(3000);
    expect(await readAll(client)).toHaveLength(asked * 3);
    await drained;
  });

  test('that is in the middle of asking is heard to the end of it', async () => {
    let asked = 0;
    const { clock, streams, client } = await setUp(() => ++asked > 0);
    client.write('a\n');
    await until(() => asked === 1);
    const drained = streams.drain(SLOW_MS);
    const heard = readAll(client);
    for (let more = 2; more <= 5; more++) {
      await clock.advanceAsync(15);
      client.write('a\n');
      await until(() => asked === more);
    }
    await clock.advanceAsync(40);
    expect(await heard).toBe('OK\n'.repeat(5));
    await drained;
  });

  test('that ends and never reads is let go', async () => {
    const { clock, streams } = await stuck();
    const drained = streams.drain(2 * SLOW_MS);
    await clock.advanceAsync(SLOW_MS);
    await drained;
    expect(streams.counts).toMatchObject({ open: 0, slow: 1 });
  });
});
