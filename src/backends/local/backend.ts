/**
 * Local: this process decides, alone and at once.
 *
 * The least a share can be: a clock, a table of keys and the rule.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type Decision, deny } from '../../core/decision.ts';
import { type Hasher, hasher, hashSeed } from '../../core/hash.ts';
import type { Random } from '../../core/random.ts';
import {
  type News,
  type Policy,
  type Seen,
  type Settlement,
  type State,
  seenIn,
  takeUpTo,
  type View,
} from '../../policies/policy.ts';
import type { Share, TableCopy } from '../backend.ts';
import { KeyTable } from './table.ts';

export interface LocalOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly keysMax: number;
  /** Default: one of its own, different from any other's. */
  readonly hasher?: Hasher;
}

/** Looks at how a key stands, or changes it. */
type Touch<T> = (state: State, i: number, now: Millis) => T;

/** A part of what is known. */
interface Page {
  readonly numbers: readonly number[];
  readonly next: number;
}

/** What a stranger is told when every key in sight holds calls in flight and none can make room. */
const CROWDED_RETRY_MS: Millis = 1000;

/** Places looked at for each key of a sample: a table may be all but empty. */
const SAMPLE_LOOKS = 64;

export class LocalShare implements Share {
  readonly #policy: Policy;
  readonly #clock: Clock;
  readonly #table: KeyTable;
  /** Looked at, spoilt and used again: a fresh one for every look would cost more than the look. */
  readonly #copy: State;

  constructor(policy: Policy, { clock, random, keysMax, ...own }: LocalOptions) {
    this.#policy = policy;
    this.#clock = clock;
    this.#copy = new Float64Array(policy.width);
    this.#table = new KeyTable(policy, own.hasher ?? hasher(hashSeed(random)), keysMax);
  }

  get keys(): number {
    return this.#table.size;
  }

  get evicted(): number {
    return this.#table.evicted;
  }

  get bytes(): number {
    return this.#table.bytes;
  }

  ask(key: string, cost: number, part?: number): Decision {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    if (i < 0) return deny(CROWDED_RETRY_MS);
    return this.#policy.ask(this.#table.cells, i, cost, now, part);
  }

  askHashed(low: number, high: number, cost: number): Decision {
    const now = this.#clock.now();
    const i = this.#table.placeHashed(low, high, now);
    if (i < 0) return deny(CROWDED_RETRY_MS);
    return this.#policy.ask(this.#table.cells, i, cost, now);
  }

  askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    const i = this.#table.place(key, now);
    if (i < 0) return deny(CROWDED_RETRY_MS);
    const { cells } = this.#table;
    const before = this.#policy.reserves ? cells.slice(i, i + this.#policy.width) : undefined;
    const decision = this.#policy.ask(cells, i, cost, now, part);
    if (decision.verdict === 'wait' && before) cells.set(before, i); // what it took, it took for later
    return nowOrNot(decision);
  }

  take(key: string, most: number): number {
    return this.spare(key, most, 0);
  }

  spare(key: string, most: number, leave: number): number {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    return i < 0 ? 0 : takeUpTo(this.#policy, this.#table.cells, i, most, now, leave);
  }

  gain(key: string, units: number, upTo: number): void {
    const i = this.#table.find(key); // one that is not known is full
    if (i >= 0) this.#policy.gain?.(this.#table.cells, i, units, upTo, this.#clock.now());
  }

  settle(key: string, settlement: Settlement, now = this.#clock.now()): void {
    const i = this.#table.find(key);
    if (i >= 0) this.#policy.settle(this.#table.cells, i, settlement, now);
  }

  hear(key: string, news: News): boolean {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    return i >= 0 && this.#policy.hear(this.#table.cells, i, news, now);
  }

  peek(key: string, cost: number, part?: number): Decision {
    const now = this.#clock.now();
    return nowOrNot(this.#policy.ask(this.#copyOf(key, now), 0, cost, now, part));
  }

  inspect(key: string, now = this.#clock.now()): Seen {
    return seenIn(this.#policy, this.#copyOf(key, now), now);
  }

  /** Only what its state looks like. */
  view(key: string): View {
    const now = this.#clock.now();
    return this.#policy.view(this.#copyOf(key, now), 0, now);
  }

  /**
   * Takes in news, so old, of a key that this share's hasher has hashed. They count as of then: whatever has
   * flowed back in since has. If the key was touched since, they count as of that.
   */
  hearHashed(low: number, high: number, news: News, agoMs: Millis): boolean {
    const then = this.#clock.now() - agoMs;
    const i = this.#table.placeHashed(low, high, then);
    return i >= 0 && this.#policy.hear(this.#table.cells, i, news, then);
  }

  /** Settles for a key that this share's hasher has hashed. */
  settleHashed(low: number, high: number, settlement: Settlement): void {
    const i = this.#table.findHashed(low, high);
    if (i >= 0) this.#policy.settle(this.#table.cells, i, settlement, this.#clock.now());
  }

  /** Reads something of how such a key stands; 0 if it is not known. */
  readHashed(low: number, high: number, read: Touch<number>): number {
    const i = this.#table.findHashed(low, high);
    return i < 0 ? 0 : read(this.#table.cells, i, this.#clock.now());
  }

  /** Changes how such a key stands, begun now if it is not known; nothing if there is no room for it. */
  changeHashed(low: number, high: number, change: Touch<void>): void {
    const now = this.#clock.now();
    const i = this.#table.placeHashed(low, high, now);
    if (i >= 0) change(this.#table.cells, i, now);
  }

  /** What is read of a few keys, any of them: of no more than so many, and only as far as they are easily found. */
  sample(most: number, read: Touch<number>): number[] {
    const now = this.#clock.now();
    const { cells } = this.#table;
    const found: number[] = [];
    const note = (_low: number, _high: number, i: number): unknown =>
      found.push(read(cells, i, now));
    this.#table.each(0, most, now, note, most * SAMPLE_LOOKS);
    return found;
  }

  /** Hash and whatever is read of each key from a place on, at most so many; and where to go on, 0: nowhere. */
  page(cursor: number, most: number, read: Touch<readonly number[]>): Page {
    const now = this.#clock.now();
    const numbers: number[] = [];
    const next = this.#table.each(cursor, most, now, (low, high, i) =>
      numbers.push(low, high, ...read(this.#table.cells, i, now)),
    );
    return { numbers, next };
  }

  /** Counts everything as spent, of whatever key, as if it were to be as good as new only then. */
  raiseAll(freshAt: Millis): void {
    this.#table.raiseAll(freshAt, this.#clock.now());
  }

  copy(): TableCopy {
    return this.#table.copy(this.#clock.now());
  }

  takeOver(copy: TableCopy): void {
    this.#table.takeOver(copy, this.#clock.now());
  }

  /** The key's numbers to look at and to spoil; those of a new key if it has none. */
  #copyOf(key: string, now: Millis): State {
    const i = this.#table.find(key);
    const copy = this.#copy;
    if (i >= 0) {
      const { cells } = this.#table;
      for (let n = 0; n < copy.length; n++) copy[n] = cells[i + n];
      return copy;
    }
    copy.fill(0);
    this.#table.startOutside(key, copy, now);
    return copy;
  }
}

/** Who cannot use a place later is refused until then. */
const nowOrNot = (decision: Decision): Decision =>
  decision.verdict === 'wait' ? deny(Math.ceil(decision.waitMs)) : decision;
