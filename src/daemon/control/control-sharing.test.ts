import { expect, test } from 'vitest';
import { createTestPeer } from '../../../test/support/fleet.ts';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { MemoryHub } from '../../backends/peers/memory-transport.ts';
import { type Clock, schedule } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/index.ts';
import { operatorKeyOf } from './control-auth.ts';
import type { ControlRecord } from './control-record.ts';
import { ControlSharing } from './control-sharing.ts';

const KEY = operatorKeyOf('the-token-of-the-operator');
const RULES = { operator: () => KEY, sharedLimits: () => new Set<string>() };

const ban = (n: number, more: Partial<ControlRecord> = {}): ControlRecord => ({
  kind: 'ban',
  key: `user:${n}`,
  until: 1_700_086_400_000,
  setAt: 1_700_000_000_000 + Math.floor(n / 3), // some at the same time
  by: KEY.id,
  ...more,
});

const controlsOf = (known: Map<string, ControlRecord>) => ({
  get records() {
    return [...known.values()];
  },
  merge: (merged: readonly unknown[]) => {
    for (const record of merged as ControlRecord[])
      known.set(record.key, { ...record, by: KEY.id });
  },
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
        expect(Buffer.byteLength(text)).toBeLessThanOrEqual(1140); // a datagram
        for (const other of channel.peers())
          if (to === undefined || to === other) deliver(other, text);
      },
    };
    const sharing = new ControlSharing(clock, controlsOf(known), [channel], RULES);
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

const START = 1_700_000_000_000;

/** Daemons with nodes of a real fleet, on a network in memory. */
async function fleetOfNodes(count: number, loss = 0) {
  const clock = new VirtualClock(START);
  const hub = new MemoryHub({ clock, seed: 3, loss, delayMs: [1, 5], isLoopback: false });
  const limit = { bucket: { rate: 1, burst: 1 } };
  const start = async (name: string) => {
    const own = new StallableClock(clock);
    const setup = { clock: own as Clock, key: 'a key for the tests', limit };
    const { node, transport } = await createTestPeer(hub.transport(name), setup);
    const known = new Map<string, ControlRecord>();
    const sharing = new ControlSharing(own, controlsOf(known), [node.channel], RULES);
    await clock.advanceAsync(500);
    return { clock: own, node, transport, sharing, known };
  };
  const daemons: Awaited<ReturnType<typeof start>>[] = [];
  for (let n = 0; n < count; n++) daemons.push(await start(`${n}`));
  await clock.advanceAsync(10_000);
  /** Sets bans on a daemon, which sends them at once. */
  const setBans = (daemon: (typeof daemons)[number], name: string, numberOf: number): void => {
    const setAt = clock.now();
    const set = bans(numberOf).map((one, n) => ({ ...one, key: `${name}:${n}`, setAt: setAt + n }));
    for (const record of set) daemon.known.set(record.key, record);
    daemon.sharing.send(set);
  };
  /** Time until all daemons have this number of controls. */
  const msUntilAllHave = async (controls: number): Promise<number> => {
    const startedAt = clock.now();
    while (daemons.some(({ known }) => known.size < controls)) {
      await clock.advanceAsync(100);
      if (clock.now() - startedAt > 600_000) return Infinity;
    }
    return clock.now() - startedAt;
  };
  return { clock, daemons, setBans, msUntilAllHave };
}

test.each([0, 0.2])(
  'controls: daemons that were cut off for minutes exchange what was set meanwhile, loss %d',
  async (loss) => {
    const { clock, daemons, setBans, msUntilAllHave } = await fleetOfNodes(3, loss);
    const [one, , cut] = daemons;
    cut.transport.isPartitioned = true;
    await clock.advanceAsync(90_000);
    setBans(one, 'one', 4000);
    setBans(cut, 'cut', 1000);
    await clock.advanceAsync(90_000);
    expect(cut.known.size).toBe(1000);
    cut.transport.isPartitioned = false;
    expect(await msUntilAllHave(5000)).toBeLessThan(loss === 0 ? 5000 : 20_000);
  },
);

test('controls: a daemon that was suspended gets what was set meanwhile', async () => {
  const { clock, daemons, setBans, msUntilAllHave } = await fleetOfNodes(2);
  const [one, suspended] = daemons;
  suspended.clock.stall();
  suspended.transport.isPartitioned = true;
  await clock.advanceAsync(60_000);
  setBans(one, 'one', 3000);
  await clock.advanceAsync(120_000);
  suspended.transport.isPartitioned = false;
  suspended.clock.resume();
  suspended.clock.fireOverdue();
  expect(await msUntilAllHave(3000)).toBeLessThan(5000);
});

test('controls: a daemon that goes on after a suspension decides once it has what was set meanwhile', async () => {
  const { clock, daemons, setBans } = await fleetOfNodes(3);
  const [one, , suspended] = daemons;
  suspended.clock.stall();
  suspended.transport.isPartitioned = true;
  await clock.advanceAsync(400_000);
  setBans(one, 'one', 50);
  await clock.advanceAsync(400_000);
  suspended.transport.isPartitioned = false;
  suspended.clock.resume();
  suspended.clock.fireOverdue();
  const resumedAt = clock.now();
  expect(suspended.known.size).toBe(0);
  while (suspended.node.isCatchingUp()) await clock.advanceAsync(1);
  expect(suspended.known.size).toBe(50);
  expect(clock.now() - resumedAt).toBeLessThan(500);
});

test('controls: a daemon that is back requests what was set since, and no more', async () => {
  const { clock, daemons, setBans, msUntilAllHave } = await fleetOfNodes(2);
  const [one, cut] = daemons;
  setBans(one, 'before', 3000);
  await msUntilAllHave(3000);
  await clock.advanceAsync(300_000);
  cut.transport.isPartitioned = true;
  await clock.advanceAsync(90_000);
  setBans(one, 'meanwhile', 10);
  const { length: sentBefore } = one.transport.sentDatagrams;
  cut.transport.isPartitioned = false;
  await msUntilAllHave(3010);
  const inTurn = 8 * 5; // each second
  expect(one.transport.sentDatagrams.length - sentBefore).toBeLessThan(100 + inTurn);
});
