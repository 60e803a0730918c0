import { describe, expect, test } from 'vitest';
import { transportContract } from '../../../test/support/transport-contract.ts';
import { systemClock } from '../../core/clock.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub, type MemoryHubOptions } from './memory-transport.ts';

transportContract('memory', { isAddressed: true, isLoopback: true }, () => {
  const hub = new MemoryHub({ clock: systemClock });
  return { node: (n) => hub.transport(`${n}`), stop: () => {} };
});

transportContract('memory with loss', { isAddressed: true, isLoopback: true }, () => {
  const faults = { loss: 0.3, duplication: 0.3, delayMs: [0, 5] } as const;
  const hub = new MemoryHub({ clock: systemClock, ...faults });
  return { node: (n) => hub.transport(`${n}`), stop: () => {} };
});

describe('memory transport', () => {
  /** Sends a thousand numbered datagrams and returns those that arrive. */
  async function receivedWith(options: Omit<MemoryHubOptions, 'clock'>): Promise<number[]> {
    const clock = new VirtualClock();
    const hub = new MemoryHub({ clock, ...options });
    const [one, other] = [hub.transport('one'), hub.transport('other')];
    const received: number[] = [];
    await one.open(() => {});
    await other.open((bytes) => received.push(new DataView(bytes.buffer).getUint16(0)));
    for (let n = 0; n < 1000; n++) {
      one.broadcast(new Uint8Array([n >> 8, n]));
      clock.advance(1);
    }
    clock.advance(1000);
    return received;
  }

  test('by default, delivers everything in order', async () => {
    expect(await receivedWith({})).toEqual(Array.from({ length: 1000 }, (_, n) => n));
  });

  test('loses, duplicates and reorders datagrams, reproducibly by seed', async () => {
    const lossy = await receivedWith({ seed: 3, loss: 0.2 });
    expect(lossy.length).toBeGreaterThan(740);
    expect(lossy.length).toBeLessThan(860);
    expect(await receivedWith({ seed: 3, loss: 0.2 })).toEqual(lossy);
    expect(await receivedWith({ seed: 4, loss: 0.2 })).not.toEqual(lossy);
    expect((await receivedWith({ duplication: 1 })).length).toBe(2000);
    const shuffled = await receivedWith({ delayMs: [0, 20] });
    expect(shuffled.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 1000 }, (_, n) => n));
    expect(shuffled).not.toEqual(shuffled.toSorted((a, b) => a - b));
  });
});
