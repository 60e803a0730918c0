/**
 * The channels of one lock-out: the events that a node reports, as entries of ordinary reports.
 *
 *     count +, count −, pending +, pending −      sums of all nodes, in any order
 *     lock          level and remaining time      a key that was locked here
 *     unlock        level                         a lock that a success ended here
 *
 * Each channel has an id of its own, like a limit. So entries are counted once, retransmitted if they are lost, and
 * ignored by a node without the limit, in any build.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import type { LockoutChange, LockoutEvents, State } from '../../policies/policy.ts';
import type { LocalBackend } from '../local/backend.ts';
import type { PeerNetwork } from './backend.ts';
import type { PeerLimit } from './limits.ts';
import { MarkedKeys } from './marked-keys.ts';

/** A lock is sent as one amount: milliseconds × this + level. More than the steps of a lock-out. */
const LEVELS = 64;

/** Longer than a report can be late: it is retransmitted for one minute. */
const LOCK_KNOWN_MS: Millis = 120_000;

/** A lost report is retransmitted within this time, unless most datagrams are lost. */
const LATE_MS: Millis = 5000;

interface SharedLockout {
  readonly events: LockoutEvents;
  readonly width: number;
  /** Where its numbers begin in the state of a key. */
  readonly offset: number;
  readonly local: LocalBackend;
  readonly network: PeerNetwork;
  idOf(channel: string): number;
}

/** Applies the amount of one entry. */
type Apply = (key: ReportedKey, amount: number) => void;

interface ReportedKey {
  readonly low: number;
  readonly high: number;
  readonly state: State;
  readonly i: number;
  /** Time of the reported event. */
  readonly at: Millis;
}

export type LockoutChannels = ReturnType<typeof openLockoutChannels>;

export function openLockoutChannels(shared: SharedLockout) {
  const { events, width, offset, local, network, idOf } = shared;
  /** Keys whose lock a success has ended: a late message about the lock must not lock them again. */
  const ended = new MarkedKeys(LOCK_KNOWN_MS);
  /** Keys whose lock this node has reported: it also reports the end of the lock, whichever node caused it. */
  const reported = new MarkedKeys(LOCK_KNOWN_MS);
  /** Keys for which more was subtracted than counted, recently: attempts may be late. */
  const short = new MarkedKeys(LATE_MS);
  const before: State = new Float64Array(width);
  const opened: PeerLimit[] = [];

  const open = (name: string, apply: Apply): PeerLimit => {
    const channel: PeerLimit = {
      id: idOf(name),
      ...WITHOUT_STATE,
      applyRemoteHits: (low, high, amount, agoMs) =>
        local.changeHashed(
          low,
          high,
          (state, i, at) => apply({ low, high, state, i: i + offset, at }, amount),
          agoMs,
        ),
    };
    network.addLimit(channel);
    opened.push(channel);
    return channel;
  };

  /** If hits are still missing after `LATE_MS`, they were subtracted twice. */
  const settleShort = ({ low, high, state, i, at }: ReportedKey): void => {
    events.settleShort(state, i, short.has(low, high, at));
  };

  const add = (key: ReportedKey, count: number, pending: number): void => {
    const { low, high, state, i, at } = key;
    settleShort(key);
    const levelLeft = events.add(state, i, count, pending, at);
    const isShort = events.settleShort(state, i, true);
    if (isShort && !short.has(low, high, at)) short.add(low, high, at);
    if (levelLeft !== undefined && reported.has(low, high, at))
      reportUnlock(low, high, levelLeft, at);
  };
  const countUp = open('count +', (key, n) => add(key, n, 0));
  const countDown = open('count -', (key, n) => add(key, -n, 0));
  const pendingUp = open('pending +', (key, n) => add(key, 0, n));
  const pendingDown = open('pending -', (key, n) => add(key, 0, -n));
  const lock = open('lock', ({ low, high, state, i, at }, amount) => {
    const ms = Math.floor(amount / LEVELS);
    if (ms > 0 && !ended.has(low, high, at)) events.setLock(state, i, amount % LEVELS, ms, at);
  });
  const unlock = open('unlock', ({ low, high, state, i, at }, amount) => {
    ended.add(low, high, at);
    reported.remove(low, high);
    network.retractHits(unlock, low, high, Infinity); // the node that ended the lock knows its step
    events.setLock(state, i, amount - 1, 0, at);
  });

  const record = (channel: PeerLimit, low: number, high: number, amount: number): void => {
    if (amount > 0) network.recordHits(channel, low, high, amount);
  };

  /** Recorded amounts of a key add up until they are sent; this replaces them by the last one. */
  const recordLast = (channel: PeerLimit, low: number, high: number, amount: number): void => {
    network.retractHits(channel, low, high, Infinity);
    network.recordHits(channel, low, high, amount);
  };

  const reportUnlock = (low: number, high: number, level: number, now: Millis): void => {
    ended.add(low, high, now);
    reported.remove(low, high);
    recordLast(unlock, low, high, level + 1);
  };

  return {
    /** Must be called with a key's state before an event that may change it. */
    capture(low: number, high: number, state: State, i: number, now: Millis): void {
      settleShort({ low, high, state, i: i + offset, at: now });
      for (let n = 0; n < before.length; n++) before[n] = state[i + offset + n];
    },

    /** Reports the changes since `capture`. */
    reportChange(low: number, high: number, state: State, i: number, now: Millis): void {
      const change = events.changeSince(before, state, i + offset, now);
      if (!change) return;
      // In this order the count is never below pending, even between two entries.
      record(countUp, low, high, change.count);
      record(pendingUp, low, high, change.pending);
      record(pendingDown, low, high, -change.pending);
      record(countDown, low, high, -change.count);
      if (change.lock) {
        ended.remove(low, high);
        reported.add(low, high, now);
        recordLast(lock, low, high, lockAmount(change.lock));
      }
      if (change.levelLeft !== undefined) reportUnlock(low, high, change.levelLeft, now);
    },

    close(): void {
      for (const channel of opened) network.removeLimit(channel);
    },
  };
}

function lockAmount({ level, ms }: NonNullable<LockoutChange['lock']>): number {
  const longestMs = Math.floor(MAX_AMOUNT / LEVELS) - 1;
  return Math.min(Math.ceil(ms), longestMs) * LEVELS + level;
}

/** A lock-out's state is transferred with its limit, not by its channels. */
const WITHOUT_STATE = {
  isAdditive: false,
  isCompared: false,
  buckets: 0,
  readPage: () => ({ refillTimes: [], next: 0 }),
  raiseLevel() {},
  level: () => 0,
  adjustLevel() {},
} satisfies Partial<PeerLimit>;
