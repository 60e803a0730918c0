import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/index.ts';
import { type IsAllowed, lineProtocol } from '../protocols/line/handler.ts';
import { Connections } from './connections.ts';
import { CHUNK_BYTES } from './read-buffer.ts';
import { Turns } from './turns.ts';

const SLOW_MS = 30_000;

const closing: (() => void)[] = [];
afterEach(() => {
  for (const close of closing.splice(0)) close();
});

/** A client of the line protocol that does not read yet. */
async function setUp(isAllowed: IsAllowed, isTcp = false, turns = new Turns(), idleMs = Infinity) {
  const clock = new VirtualClock();
  const bounds = { maxConnections: 10, slowMs: SLOW_MS, idleMs };
  const protocol = lineProtocol(isAllowed, () => 100);
  const connections = new Connections(protocol, () => bounds, clock, turns);
  const folder = mkdtempSync(join(tmpdir(), 'sluice-'));
  const path = join(folder, 'line');
  const server = createServer({ allowHalfOpen: true }, (socket) => connections.accept(socket));
  await new Promise<void>((ready) => server.listen(isTcp ? 0 : path, ready));
  const at = isTcp ? { port: (server.address() as AddressInfo).port } : { path };
  const client = connect({ ...at, allowHalfOpen: true }).pause();
  closing.push(() => {
    client.destroy();
    server.close();
    rmSync(folder, { recursive: true });
  });
  await once(client, 'connect');
  return { clock, connections, client };
}

/** Reads until the server ends the connection. */
async function readAll(client: Socket): Promise<string> {
  let received = '';
  client.on('data', (chunk) => {
    received += chunk;
  });
  client.resume();
  await once(client, 'end');
  client.end();
  return received;
}

const until = async (holds: () => boolean): Promise<void> => {
  for (let turns = 0; !holds() && turns < 100_000; turns++)
    await new Promise((turn) => setImmediate(turn));
  expect(holds()).toBe(true);
};

/** Decisions that the test makes later. */
function deferred() {
  const checks: ((isAllowed: boolean) => void)[] = [];
  const isAllowed = (): Promise<boolean> => new Promise((decide) => checks.push(decide));
  return { checks, isAllowed };
}

describe('connection', () => {
  test('closed before its responses: does not count as slow', async () => {
    const { checks, isAllowed } = deferred();
    const { clock, connections, client } = await setUp(isAllowed, true);
    client.write('a\nb\n');
    await until(() => checks.length === 2);
    client.resetAndDestroy();
    await until(() => connections.counts.open === 0);
    for (const decide of checks) decide(true);
    await clock.advanceAsync(SLOW_MS);
    expect(connections.counts).toMatchObject({ accepted: 1, slow: 0 });
  });

  test('idle: closed that long after its last request or response, and not while a response is missing', async () => {
    const { checks, isAllowed } = deferred();
    const { clock, connections, client } = await setUp(isAllowed, false, undefined, 1000);
    await until(() => connections.counts.open === 1);
    await clock.advanceAsync(900);
    client.write('a\n');
    await until(() => checks.length === 1);
    await clock.advanceAsync(5000); // the response is missing
    const replied = once(client.resume(), 'data');
    checks[0](true);
    await replied;
    await clock.advanceAsync(999);
    client.write('b\n');
    await until(() => checks.length === 2);
    checks[1](true);
    await once(client, 'data');
    await clock.advanceAsync(999);
    expect(client.readableEnded).toBe(false);
    await clock.advanceAsync(1);
    await until(() => client.readableEnded);
    client.end();
    await until(() => connections.counts.open === 0);
  });

  test('pending remote decisions: at most 1025 at once, and all are answered in order', async () => {
    const { checks, isAllowed } = deferred();
    const { connections, client } = await setUp(isAllowed);
    client.end('a\n'.repeat(20_000));
    const received = readAll(client);
    let most = 0;
    let decided = 0;
    while (decided < 20_000) {
      await until(() => checks.length > decided);
      most = Math.max(most, checks.length - decided);
      for (; decided < checks.length; decided++) checks[decided](decided % 3 === 0);
    }
    expect(most).toBeLessThanOrEqual(1025);
    expect(await received).toBe('OK\nNO\nNO\n'.repeat(20_000 / 3 + 1).slice(0, 60_000));
    await until(() => connections.counts.open === 0);
  });

  test('drain with a backlog: answers every received request', async () => {
    const { checks, isAllowed } = deferred();
    const { clock, connections, client } = await setUp(isAllowed);
    client.write('a\n'.repeat(5000));
    await until(() => checks.length > 1000);
    const drained = connections.drain(SLOW_MS);
    await clock.advanceAsync(20); // idle for this long: no request is in transit
    const received = readAll(client);
    for (let decided = 0; decided < 5000; decided++) {
      await until(() => checks.length > decided);
      checks[decided](true);
    }
    await clock.advanceAsync(20);
    expect(await received).toBe('OK\n'.repeat(5000));
    await drained;
  });

  test('drain after a stall of the process: reads what has arrived meanwhile', async () => {
    let checks = 0;
    const { clock, connections, client } = await setUp(() => ++checks > 0);
    client.write('a\n');
    await until(() => checks === 1);
    client.write('a\n'.repeat(100)); // in the buffer of the system
    const drained = connections.drain(SLOW_MS);
    clock.advance(500);
    const received = readAll(client);
    await until(() => checks === 101);
    await clock.advanceAsync(40);
    expect(await received).toBe('OK\n'.repeat(101));
    await drained;
  });

  /** A client that sends without reading, until the daemon stops reading from it. */
  async function blockedClient() {
    let checks = 0;
    const setup = await setUp(() => ++checks > 0);
    setup.client.write('\n'.repeat(1_000_000));
    for (let before = -1; checks === 0 || before < checks; ) {
      before = checks;
      for (let turns = 0; turns < 20; turns++) await new Promise((turn) => setImmediate(turn));
    }
    expect(checks).toBeLessThan(1_000_000);
    return { ...setup, checks: () => checks };
  }

  test('drain while a connection waits for its turn: answers what it has not read yet', async () => {
    const waiting: (() => void)[] = [];
    class HeldTurns extends Turns {
      override wait(resume: () => void): void {
        waiting.push(resume);
      }
    }
    const { clock, connections, client } = await setUp(() => true, false, new HeldTurns());
    const requests = CHUNK_BYTES; // two chunks of two bytes a request
    client.write('a\n'.repeat(requests));
    await until(() => waiting.length > 0);
    const drained = connections.drain(SLOW_MS);
    await clock.advanceAsync(500); // long enough for a client that sends nothing
    let isRead = false;
    const received = readAll(client).finally(() => {
      isRead = true;
    });
    await until(() => {
      for (const resume of waiting.splice(0)) resume();
      clock.advance(1);
      return isRead;
    });
    expect((await received).length).toBe(3 * requests);
    await drained;
  });

  test('drain with unread responses: waits while the client reads them', async () => {
    const { clock, connections, client, checks } = await blockedClient();
    const drained = connections.drain(SLOW_MS);
    await clock.advanceAsync(3000);
    expect(await readAll(client)).toHaveLength(checks() * 3);
    await drained;
  });

  test('drain while the client sends: reads until it pauses', async () => {
    let checks = 0;
    const { clock, connections, client } = await setUp(() => ++checks > 0);
    client.write('a\n');
    await until(() => checks === 1);
    const drained = connections.drain(SLOW_MS);
    const received = readAll(client);
    for (let more = 2; more <= 5; more++) {
      await clock.advanceAsync(15);
      client.write('a\n');
      await until(() => checks === more);
    }
    await clock.advanceAsync(40);
    expect(await received).toBe('OK\n'.repeat(5));
    await drained;
  });

  test('drain with a client that never reads: disconnects it as slow', async () => {
    const { clock, connections } = await blockedClient();
    const drained = connections.drain(2 * SLOW_MS);
    await clock.advanceAsync(SLOW_MS);
    await drained;
    expect(connections.counts).toMatchObject({ open: 0, slow: 1 });
  });
});
