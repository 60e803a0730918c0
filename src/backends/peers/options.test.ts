import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { waitUntil } from '../../../test/support/transport-contract.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';
import { type Peers, type PeersOptions, peers } from './options.ts';
import type { Transport } from './transport.ts';
import { udp } from './udp-transport.ts';

const KEY = 'a key for the tests';

/** An address on loopback that nobody has at the moment. */
async function freeAddress(): Promise<string> {
  const socket = createSocket('udp4');
  await new Promise<void>((ready) => socket.bind(0, '127.0.0.1', ready));
  const { port } = socket.address();
  await new Promise<void>((end) => socket.close(end));
  return `127.0.0.1:${port}`;
}

const quiet = (): Transport => new MemoryHub({ clock: new VirtualClock() }).transport('one');

/** What this process was warned of meanwhile. */
function listen(): { readonly heard: string[]; end(): void } {
  const heard: string[] = [];
  const hear = (warning: Error): unknown => heard.push(warning.message);
  process.on('warning', hear);
  return { heard, end: () => process.off('warning', hear) };
}

describe('a node', () => {
  test('says whether it is open, and warns once if it takes too long', async () => {
    const clock = new VirtualClock(0);
    const never = { ...quiet(), name: 'a slow one', open: () => new Promise<void>(() => {}) };
    const { heard, end } = listen();
    const slow = peers({ transport: never, key: KEY, clock });
    const fast = peers({ transport: quiet(), key: KEY, clock });
    await fast.opened;
    expect([slow.view().isOpen, fast.view().isOpen]).toEqual([false, true]);
    await clock.advanceAsync(60_000);
    await waitUntil('it is told', () => heard.length > 0);
    end();
    expect(heard).toEqual([expect.stringMatching(/^a slow one has not opened for 5 s; until/)]);
    await Promise.all([slow.close(), fast.close()]);
    expect(fast.view().isOpen).toBe(false);
  });

  test('has a name that nobody can guess, unless chance is handed in', async () => {
    const chance = vi.spyOn(Math, 'random').mockReturnValue(0.5);
    const own = [quiet(), quiet()].map((transport) => peers({ transport, key: KEY }));
    chance.mockRestore();
    expect(own[0].view().id).not.toBe(own[1].view().id);
    const random = (): number => 0.5;
    const told = [quiet(), quiet()].map((transport) => peers({ transport, key: KEY, random }));
    expect(told[0].view().id).toBe(told[1].view().id);
    for (const one of [...own, ...told]) await one.close();
  });
});

describe('a fleet', () => {
  const open: Peers[] = [];
  const made = (transport: Transport, others: Partial<PeersOptions> = {}): Peers => {
    const own = peers({ transport, key: KEY, ...others });
    open.push(own);
    return own;
  };
  afterEach(async () => {
    for (const own of open.splice(0)) await own.close();
  });

  test('is left for good, also by one that was not open yet', async () => {
    const address = await freeAddress();
    const early = made(udp({ peers: address }));
    await early.close();
    await expect(early.opened).rejects.toThrow(/closed before it was open/);
    await made(udp({ peers: address })).opened; // so nobody is there any more
  });

  test('is left while names are looked up', async () => {
    const address = await freeAddress();
    const [, port] = address.split(':');
    const asked: ((hosts: string[]) => void)[] = [];
    const resolve = () => new Promise<string[]>((answer) => asked.push(answer));
    const early = made(udp({ peers: `fleet.test:${port}`, bind: address }, { resolve }));
    await waitUntil('it asks for them', () => asked.length === 1);
    await early.close();
    await made(udp({ peers: address })).opened;
    asked[0](['127.0.0.1']);
    await early.opened;
  });

  test('can be joined again by the same way, once it was left', async () => {
    const transport = udp({ peers: await freeAddress() });
    const first = made(transport);
    await first.opened;
    expect(() => made(transport)).toThrow(/`transport` to be one that no other fleet uses/);
    await first.close();
    await made(transport).opened;
  });

  test('says what kept it from listening, for each way there is', async () => {
    const { heard, end } = listen();
    const addresses = [await freeAddress(), await freeAddress()];
    for (const own of addresses) await made(udp({ peers: own })).opened;
    for (const own of addresses) await expect(made(udp({ peers: own })).opened).rejects.toThrow();
    await waitUntil('it is told', () => heard.length === 2);
    end();
    expect(heard[1]).toMatch(`peers cannot be reached: udp ${addresses[1]}: bind EADDRINUSE`);
  });

  test('keeps no process from ending', async () => {
    const script = `
      import { limiter } from 'sluice';
      import { peers, udp } from 'sluice/peers';
      const backend = peers({ transport: udp({ peers: '${await freeAddress()}' }), key: '${KEY}' });
      await backend.opened;
      limiter({ name: 'api', limit: { bucket: { rate: 1 } }, backend }).check('alice');
      process.exitCode = 7;`;
    const args = ['--input-type=module', '-e', script];
    expect(spawnSync(process.execPath, args, { timeout: 20_000 }).status).toBe(7);
  });

  test('waits for signs of life that come as seldom as it asks for', () => {
    expect(() => made(quiet(), { interval: '2s', peerTimeout: '5s' })).toThrow(
      /`peerTimeout` to be at least 3 times `interval`, got "5s"/,
    );
    for (const own of [{ interval: '1m' }, { interval: '1s', peerTimeout: '3s' }])
      made(quiet(), own);
  });

  test.each([
    ['secret', /`key` to be a text of at least 16 characters, got "••••••"/],
    [Buffer.from('a secret of bytes'), /at least 16 characters, got "•••"/],
  ])('tells nobody its key, not even one it cannot use: %j', (key, complaint) => {
    expect(() => made(quiet(), { key: key as string })).toThrow(complaint);
  });
});
