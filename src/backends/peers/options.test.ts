import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { waitUntil } from '../../../test/support/transport-contract.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';
import { type PeersMembership, type PeersOptions, peers } from './options.ts';
import type { Transport } from './transport.ts';
import { udp } from './udp-transport.ts';

const KEY = 'a key for the tests';

/** A free UDP address on loopback. */
async function freeAddress(): Promise<string> {
  const socket = createSocket('udp4');
  await new Promise<void>((ready) => socket.bind(0, '127.0.0.1', ready));
  const { port } = socket.address();
  await new Promise<void>((end) => socket.close(end));
  return `127.0.0.1:${port}`;
}

const quiet = (): Transport => new MemoryHub({ clock: new VirtualClock() }).transport('one');

/** Collects the warnings of this process until `end`. */
function collectWarnings(): { readonly warnings: string[]; end(): void } {
  const warnings: string[] = [];
  const collect = (warning: Error): unknown => warnings.push(warning.message);
  process.on('warning', collect);
  return { warnings, end: () => process.off('warning', collect) };
}

describe('peers: node', () => {
  test('view says whether the transport is open; a slow one causes one warning', async () => {
    const clock = new VirtualClock(0);
    const never = { ...quiet(), name: 'a slow one', open: () => new Promise<void>(() => {}) };
    const { warnings, end } = collectWarnings();
    const slow = peers({ transport: never, key: KEY, clock });
    const fast = peers({ transport: quiet(), key: KEY, clock });
    await fast.opened;
    expect([slow.view().isOpen, fast.view().isOpen]).toEqual([false, true]);
    await clock.advanceAsync(60_000);
    await waitUntil('a warning is emitted', () => warnings.length > 0);
    end();
    expect(warnings).toEqual([expect.stringMatching(/^a slow one has not opened for 5 s; until/)]);
    await Promise.all([slow.close(), fast.close()]);
    expect(fast.view().isOpen).toBe(false);
  });

  test('the id is not predictable, unless `random` is given', async () => {
    const mathRandom = vi.spyOn(Math, 'random').mockReturnValue(0.5);
    const unpredictable = [quiet(), quiet()].map((transport) => peers({ transport, key: KEY }));
    mathRandom.mockRestore();
    expect(unpredictable[0].view().id).not.toBe(unpredictable[1].view().id);
    const random = (): number => 0.5;
    const seeded = [quiet(), quiet()].map((transport) => peers({ transport, key: KEY, random }));
    expect(seeded[0].view().id).toBe(seeded[1].view().id);
    for (const fleet of [...unpredictable, ...seeded]) await fleet.close();
  });
});

describe('peers: options', () => {
  const open: PeersMembership[] = [];
  const join = (transport: Transport, options: Partial<PeersOptions> = {}): PeersMembership => {
    const fleet = peers({ transport, key: KEY, ...options });
    open.push(fleet);
    return fleet;
  };
  afterEach(async () => {
    for (const fleet of open.splice(0)) await fleet.close();
  });

  test('close before the transport is open releases its port', async () => {
    const address = await freeAddress();
    const early = join(udp({ peers: address }));
    await early.close();
    await expect(early.opened).rejects.toThrow(/closed before it was open/);
    await join(udp({ peers: address })).opened; // the port is free
  });

  test('close during a DNS lookup releases the port', async () => {
    const address = await freeAddress();
    const [, port] = address.split(':');
    const lookups: ((hosts: string[]) => void)[] = [];
    const resolve = () => new Promise<string[]>((answer) => lookups.push(answer));
    const early = join(udp({ peers: `fleet.test:${port}`, bind: address }, { resolve }));
    await waitUntil('the name is looked up', () => lookups.length === 1);
    await early.close();
    await join(udp({ peers: address })).opened;
    lookups[0](['127.0.0.1']);
    await early.opened;
  });

  test('a transport can be used again after close, and not before', async () => {
    const transport = udp({ peers: await freeAddress() });
    const first = join(transport);
    await first.opened;
    expect(() => join(transport)).toThrow(/`transport` to be a transport that no other node uses/);
    await first.close();
    await join(transport).opened;
  });

  test('a transport that cannot open causes a warning with the reason, once per transport', async () => {
    const { warnings, end } = collectWarnings();
    const addresses = [await freeAddress(), await freeAddress()];
    for (const address of addresses) await join(udp({ peers: address })).opened;
    for (const address of addresses)
      await expect(join(udp({ peers: address })).opened).rejects.toThrow();
    await waitUntil('two warnings are emitted', () => warnings.length === 2);
    end();
    expect(warnings[1]).toMatch(`peers cannot be reached: udp ${addresses[1]}: bind EADDRINUSE`);
  });

  test('an open fleet does not keep the process alive', async () => {
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

  test('peerTimeout must be at least three intervals', () => {
    expect(() => join(quiet(), { interval: '2s', peerTimeout: '5s' })).toThrow(
      /`peerTimeout` to be at least 3 times `interval`, got "5s"/,
    );
    for (const options of [{ interval: '1m' }, { interval: '1s', peerTimeout: '3s' }] as const)
      join(quiet(), options);
  });

  test.each([
    ['secret', /`key` to be a string of at least 16 characters, got "••••••"/],
    [Buffer.from('a secret of bytes'), /at least 16 characters, got "•••"/],
    [[KEY, 'secret'], /`key\[1\]` to be a string of at least 16 characters, got "••••••"/],
    [[], /`key` to be 1 to 4 secrets, got 0/],
    [[KEY, KEY], /`seed` to be the secret of the key hash, as there are several keys/],
  ])('the error about an invalid key masks it: %j', (key, message) => {
    expect(() => join(quiet(), { key: key as string })).toThrow(message);
  });
});
