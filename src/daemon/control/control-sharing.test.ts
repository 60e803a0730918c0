/** Sharing of controls between daemons on virtual time: transfer to one that joins, lost messages, long records. */

import { expect, test } from 'vitest';
import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { schedule } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/index.ts';
import type { ControlRecord } from './control-record.ts';
import { ControlSharing } from './control-sharing.ts';

const ban = (n: number, more: Partial<ControlRecord> = {}): ControlRecord => ({
  kind: 'ban',
  key: `user:${n}`,
  until: 1_700_086_400_000,
  setAt: 1_700_000_000_000 + Math.floor(n / 3), // some at the same time
  ...more,
});

/** Daemons with numbers as ids, the oldest first; those in `silent` never reply. */
function fleet({ loss = 0, silent = [] as number[] } = {}) {
  const clock = new VirtualClock(0);
  const random = seededRandom(7);
  const channels = new Map<number, FleetChannel>();
  let sent = 0;
  const join = (records: readonly ControlRecord[]) => {
    const id = channels.size;
    const known = new Map(records.map((record) => [record.key, record]));
    const deliver = (to: number, text: string): void => {
      sent++;
      if (silent.includes(to) || random() < loss) return;
      schedule(clock, clock.now() + 1, () => channels.get(to)?.onText?.(text, id), false);
    };
    const channel: FleetChannel = {
      onText: undefined,
      peers: () => [...channels.keys()].filter((other) => other !== id),
      send: (text, to) => {
        expect(Buffer.byteLength(text)).toBeLessThanOrEqual(1100); // a datagram
        for (const other of channel.peers())
          if (to === undefined || to === other) deliver(other, text);
      },
    };
    const controls = {
      get records() {
        return [...known.values()];
      },
      merge: (merged: readonly unknown[]) => {
        for (const record of merged as ControlRecord[]) known.set(record.key, record);
      },
    };
    const sharing = new ControlSharing(clock, controls, [channel]);
    channels.set(id, channel);
    return { sharing, known };
  };
  /** Runs until the promise resolves; returns its value and the time it took. */
  const settle = async <T>(promise: Promise<T>): Promise<[T, number]> => {
    let result: { readonly value: T } | undefined;
    const startedAt = clock.now();
    void promise.then((value) => {
      result = { value };
    });
    while (!result) {
      for (let n = 0; n < 5; n++) await Promise.resolve();
      if (!result) clock.advance(1);
    }
    return [result.value, clock.now() - startedAt];
  };
  return { join, settle, clock, sent: () => sent };
}

const bans = (count: number): ControlRecord[] => Array.from({ length: count }, (_, n) => ban(n));

test('controls: a daemon that joins gets 10,000 of them before its start goes on', async () => {
  const { join, settle, sent } = fleet();
  const first = join(bans(10_000));
  expect((await settle(first.sharing.join()))[0]).toBe(true);
  const second = join([]);
  const [isComplete, ms] = await settle(second.sharing.join());
  expect(isComplete).toBe(true);
  expect(second.known.size).toBe(10_000);
  expect(ms).toBeLessThan(1000);
  expect(sent()).toBeLessThan(1500);
});

test('controls: a transfer survives lost messages', async () => {
  const { join, settle } = fleet({ loss: 0.05 });
  await settle(join(bans(2000)).sharing.join());
  const second = join([]);
  expect((await settle(second.sharing.join()))[0]).toBe(true);
  expect(second.known.size).toBe(2000);
});

test('controls: a transfer skips a peer without a reply, and one that has just started does not end it', async () => {
  const { join, settle } = fleet({ silent: [0] });
  join([]);
  join([ban(1)]); // joining: it may have less than others
  const complete = join(bans(50));
  await settle(complete.sharing.join());
  const last = join([]);
  expect((await settle(last.sharing.join()))[0]).toBe(true);
  expect(last.known.size).toBe(50);
});

test('controls: a start without a reply of the peers goes on in time and says so', async () => {
  const { join, settle } = fleet({ silent: [0] });
  join(bans(5));
  const [isComplete, ms] = await settle(join([]).sharing.join());
  expect(isComplete).toBe(false);
  expect(ms).toBeLessThanOrEqual(5000);
});

test('controls: peers that are found after the start are asked too', async () => {
  const { join, settle, clock } = fleet();
  const alone = join([]);
  await settle(alone.sharing.join());
  const other = join(bans(1000));
  await settle(other.sharing.join());
  clock.advance(1500);
  for (let n = 0; n < 100; n++) clock.advance(1);
  expect(alone.known.size).toBe(1000);
});

test('controls: a record that is too long for a datagram is reported, and does not stop others', async () => {
  const { join, settle } = fleet();
  const long = ban(3, { key: 'é'.repeat(600) });
  const first = join([...bans(3), long, ban(9, { rule: 'x'.repeat(1000) })]);
  expect(first.sharing.problemOf(ban(1))).toBeUndefined();
  expect(first.sharing.problemOf(long)).toContain('at most 1000: shorten the key');
  await settle(first.sharing.join());
  const second = join([]);
  expect((await settle(second.sharing.join()))[0]).toBe(true);
  expect(second.known.size).toBe(3);
});
