import { describe, expect, test } from 'vitest';
import { transportContract } from '../../../test/support/transport-contract.ts';
import { systemClock } from '../../core/clock.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub, type MemoryHubOptions } from './memory-transport.ts';

transportContract('a hub in memory', { isAddressed: true, isLoopback: true }, () => {
  const hub = new MemoryHub({ clock: systemClock });
  return { node: (n) => hub.transport(`${n}`), stop: () => {} };
});

transportContract('a bad hub in memory', { isAddressed: true, isLoopback: true }, () => {
  const bad = { loss: 0.3, duplication: 0.3, delayMs: [0, 5] } as const;
  const hub = new MemoryHub({ clock: systemClock, ...bad });
  return { node: (n) => hub.transport(`${n}`), stop: () => {} };
});

describe('a hub in memory', () => {
  /** What one hears of a thousand numbered datagrams. */
  async function heardOf(options: Omit<MemoryHubOptions, 'clock'>): Promise<number[]> {
    const clock = new VirtualClock();
    const hub = new MemoryHub({ clock, ...options });
    const [one, other] = [hub.transport('one'), hub.transport('other')];
    const heard: number[] = [];
    await one.open(() => {});
    await other.open((bytes) => heard.push(new DataView(bytes.buffer).getUint16(0)));
    for (let n = 0; n < 1000; n++) {
      one.broadcast(new Uint8Array([n >> 8, n]));
      clock.advance(1);
    }
    clock.advance(1000);
    return heard;
  }

  test('delivers everything in order, unless told otherwise', async () => {
    expect(await heardOf({})).toEqual(Array.from({ length: 1000 }, (_, n) => n));
  });

  test('loses, doubles and reorders as it is told, and the same way each time', async () => {
    const lossy = await heardOf({ seed: 3, loss: 0.2 });
    expect(lossy.length).toBeGreaterThan(740);
    expect(lossy.length).toBeLessThan(860);
    expect(await heardOf({ seed: 3, loss: 0.2 })).toEqual(lossy);
    expect(await heardOf({ seed: 4, loss: 0.2 })).not.toEqual(lossy);
    expect((await heardOf({ duplication: 1 })).length).toBe(2000);
    const shuffled = await heardOf({ delayMs: [0, 20] });
    expect(shuffled.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 1000 }, (_, n) => n));
    expect(shuffled).not.toEqual(shuffled.toSorted((a, b) => a - b));
  });
});
