/**
 * A process's place in a pool: syncs in the background, and knows at any instant what part of its limits it
 * may spend.
 *
 *     every 100 ms   request ──▶ store ──▶ answer ──▶ claim: size and rank
 *                                                       │
 *     every ask      ─────────────────────────────── divide(limit), here and at once
 *
 * The store is never asked for a decision. While it cannot be reached the last claim is used for a stated
 * time; what happens then, the user has said.
 */

import { alarm, type Clock, type Millis } from '../../clock.ts';
import { reasonOf, UnavailableError } from '../../errors.ts';
import type { Random } from '../../random.ts';
import type { AgreementOptions, Claim, SyncAnswer } from './agreement.ts';
import { PoolMember } from './member.ts';
import type { PoolStore } from './store.ts';

export type PoolFallback = 'deny' | 'allow' | 'keep';

export interface PoolOptions {
  /** Processes with the same name share their limits. */
  readonly name: string;
  /** This process, and no other. */
  readonly id: string;
  readonly syncMs: Millis;
  readonly staleMs: Millis;
  readonly holdMs: Millis;
  readonly onUnavailable: PoolFallback;
}

/** What is known of a pool, for people. */
export interface PoolView {
  readonly name: string;
  readonly store: string;
  readonly id: string;
  /** How many share the limits as far as this one knows, and which of them it is; -1 while they differ. */
  readonly size: number;
  readonly rank: number;
  /** Members the store has heard lately. */
  readonly active: number;
  readonly isAgreed: boolean;
  /** False once the store was out of reach for longer than the last claim may be used. */
  readonly isAvailable: boolean;
  /** How long ago the store was heard; Infinity if never. */
  readonly ageMs: Millis;
  readonly syncs: number;
  readonly failures: number;
  /** Why the last sync failed, if it did. */
  readonly reason?: string;
}

/** Hears of what should not be silent. */
export type PoolListener = (event: {
  readonly type: 'out-of-reach' | 'in-reach' | 'size';
  readonly view: PoolView;
}) => void;

/** While members differ, they sync sooner: each step of an agreement takes one. With more than 25, after a ms for each. */
const AGREEING_MS: Millis = 25;

/** By this part a sync comes sooner or later than it should, so that a thousand members do not beat in step. */
const JITTER = 0.1;

export class Pool {
  readonly onUnavailable: PoolFallback;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #store: PoolStore;
  readonly #options: PoolOptions;
  readonly #member: PoolMember;
  readonly #changed = new Set<() => void>();
  readonly #listeners = new Set<PoolListener>();
  #isOpen = false;
  #isPaused = false;
  #cancel = (): void => {};
  #syncs = 0;
  #failures = 0;
  #reason: string | undefined;
  #isAnswered = false;
  #seen = { size: 0, isInReach: true };
  #settle: { done(): void; failed(error: Error): void } | undefined;
  /** Resolves with the first answer of the store; rejects if there is none for as long as a claim is held. */
  readonly opened = new Promise<void>((done, failed) => {
    this.#settle = { done, failed };
  });

  constructor(store: PoolStore, options: PoolOptions, clock: Clock, random: Random) {
    this.#store = store;
    this.#options = options;
    this.#clock = clock;
    this.#random = random;
    this.onUnavailable = options.onUnavailable;
    const holdMs = options.onUnavailable === 'keep' ? Infinity : options.holdMs;
    this.#member = new PoolMember({ id: options.id, holdMs });
    this.opened.catch(() => {}); // who does not ask is told by `on`
  }

  open(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    void this.#sync();
  }

  /** What may be used now. */
  claim(now: Millis): Claim {
    return this.#member.claim(now);
  }

  /** Until when that is so, if nothing is heard. */
  claimTo(now: Millis): Millis {
    return this.#member.claimTo(now);
  }

  /** The next end of a second on the store's clock: from when on it may be over, and when it surely is. */
  secondEnd(now: Millis): readonly [from: Millis, to: Millis] {
    return this.#member.secondEnd(now);
  }

  /** How far the store's clock was surely ahead of ours when it was heard last. */
  get aheadMs(): Millis {
    return this.#member.aheadMs;
  }

  isAvailable(now: Millis): boolean {
    return this.#member.isHeard(now);
  }

  /** Calls `act` whenever something was heard, until what comes back is called. */
  onChange(act: () => void): () => void {
    this.#changed.add(act);
    return () => this.#changed.delete(act);
  }

  on(listener: PoolListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  view(): PoolView {
    const now = this.#clock.now();
    const { name, id } = this.#options;
    const { claim, active, isAgreed, ageMs } = this.#member.view(now);
    return {
      name,
      store: this.#store.name,
      id,
      size: claim.size,
      rank: claim.rank,
      active,
      isAgreed,
      isAvailable: this.isAvailable(now),
      ageMs,
      syncs: this.#syncs,
      failures: this.#failures,
      ...(this.#reason !== undefined && { reason: this.#reason }),
    };
  }

  /** Spends nothing for a while, and leaves its part to the others. */
  async pause(): Promise<void> {
    this.#isPaused = true;
    this.#cancel();
    this.#member.forget();
    this.#tell();
    await this.#leave();
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    if (this.#isOpen) void this.#sync();
  }

  /** Leaves: the others have its part within a second. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    await this.pause();
    this.#settle?.failed(new UnavailableError(`the pool ${this.#options.name} was closed`));
    await this.#store.close();
  }

  async #leave(): Promise<void> {
    await this.#store.leave(this.#options.name, this.#options.id).catch(() => {}); // it is soon missed
  }

  async #sync(): Promise<void> {
    const sentAt = this.#clock.now();
    const request = this.#member.request(sentAt);
    const { name, staleMs, holdMs } = this.#options;
    const agreement: AgreementOptions = { staleMs, isStrict: holdMs <= staleMs };
    this.#syncs++;
    try {
      const answer = await this.#store.sync(name, request, agreement);
      if (answer && !this.#isPaused) this.#hear(request.seq, answer);
    } catch (error) {
      this.#failures++;
      this.#reason = reasonOf(error);
    }
    this.#tell();
    if (!this.#isOpen || this.#isPaused) return;
    this.#giveUp(sentAt);
    const { isAgreed, active } = this.#member.view(this.#clock.now());
    const everyMs = isAgreed
      ? this.#options.syncMs
      : Math.min(Math.max(AGREEING_MS, active), this.#options.syncMs);
    const waitMs = this.#reason === undefined ? everyMs : this.#options.syncMs;
    const jitter = 1 + JITTER * (2 * this.#random() - 1);
    const at = Math.max(sentAt + waitMs * jitter, this.#clock.now() + 1);
    this.#cancel = alarm(this.#clock, at, () => void this.#sync(), false);
  }

  #hear(seq: number, answer: SyncAnswer): void {
    this.#reason = undefined;
    this.#member.answered(seq, answer, this.#clock.now());
    this.#isAnswered = true;
    this.#settle?.done();
  }

  #openedAt: Millis | undefined;

  /** Nobody was there from the start: whoever waits for it is told. */
  #giveUp(sentAt: Millis): void {
    if (this.#isAnswered) return;
    this.#openedAt ??= sentAt;
    if (this.#clock.now() - this.#openedAt < this.#options.staleMs) return;
    const why = `the pool ${this.#options.name} cannot be reached: ${this.#reason ?? 'no answer'}`;
    this.#settle?.failed(new UnavailableError(why));
  }

  #tell(): void {
    for (const act of this.#changed) act();
    if (this.#listeners.size === 0) return;
    const view = this.view();
    const isInReach = this.#reason === undefined;
    const before = this.#seen;
    this.#seen = { size: view.size, isInReach };
    const say = (type: 'out-of-reach' | 'in-reach' | 'size'): void => {
      for (const listener of this.#listeners) listener({ type, view });
    };
    if (isInReach !== before.isInReach) say(isInReach ? 'in-reach' : 'out-of-reach');
    if (view.size !== before.size) say('size');
  }
}
