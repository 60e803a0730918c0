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

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { within } from '../../core/deadline.ts';
import { reasonOf, UnavailableError } from '../../core/errors.ts';
import { warn } from '../../core/process-warning.ts';
import type { Random } from '../../core/random.ts';
import type { AgreementOptions, Claim, SyncAnswer } from './agreement.ts';
import { PoolMember } from './member.ts';
import { type Climbing, Keeper } from './ramp-checkpoint.ts';
import type { PoolStore } from './store.ts';

/** What a member does when the store was out of reach for too long. */
export type PoolFallback = 'deny' | 'allow' | 'keep';

export interface PoolSetting {
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
  /** The pool's. */
  readonly name: string;
  /** Where its members meet. */
  readonly store: string;
  /** What this member is called. */
  readonly id: string;
  /** How many share the limits as far as this one knows; 0: it has no part. */
  readonly size: number;
  /** Which of them it is, 0 first; -1 while they differ. */
  readonly rank: number;
  /** Members the store has heard lately. */
  readonly active: number;
  /** Whether all of them go by the same size. */
  readonly isAgreed: boolean;
  /** False once the store was out of reach for longer than the last claim may be used. */
  readonly isAvailable: boolean;
  /** How long ago the store was heard; Infinity if never. */
  readonly ageMs: Millis;
  /** Syncs that the store has answered. */
  readonly syncs: number;
  /** And those it has not. */
  readonly failures: number;
  /** By limit, how much of this member's part was used in the last ten seconds: from 0 to 1. */
  readonly saturation: Readonly<Record<string, number>>;
  /** Why the last sync failed, if it did. */
  readonly reason?: string;
}

/** A limit that is divided. */
export interface PooledLimit {
  readonly name: string;
  /** Present if what it has reached is kept for those who come later. */
  readonly climbing?: Climbing;
  /** Something was heard: it may have another part now. */
  partChanged(): void;
  /** How much of it was used lately. */
  saturation(now: Millis): number;
}

/** What a pool tells of itself, and how it stands then. */
export interface PoolEvent {
  readonly type: 'out-of-reach' | 'in-reach' | 'size';
  readonly view: PoolView;
}

/** Hears of what should not be silent. */
export type PoolListener = (event: PoolEvent) => void;

/** While members differ, they sync sooner: each step of an agreement takes one. With more than 25, after a ms for each. */
const AGREEING_MS: Millis = 25;

/** By this part a sync comes sooner or later than it should, so that a thousand members do not beat in step. */
const JITTER = 0.1;

/** Stores have deadlines of their own. One that forgets about it stops neither the heartbeat nor who leaves. */
const ANSWER_MS_MAX: Millis = 5000;

export class Pool {
  readonly onUnavailable: PoolFallback;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #store: PoolStore;
  readonly #options: PoolSetting;
  readonly #member: PoolMember;
  readonly #limits = new Set<PooledLimit>();
  readonly #keeper: Keeper;
  readonly #listeners = new Set<PoolListener>();
  #isOpen = false;
  #isPaused = false;
  #cancel = (): void => {};
  /** What is said to the store, one after the other: a leave that overtakes a sync would leave a ghost behind. */
  #said: Promise<void> = Promise.resolve();
  #syncs = 0;
  #failures = 0;
  #reason: string | undefined;
  #isSettled = false;
  #seen = { size: 0, isInReach: true };
  #settle: { done(): void; failed(error: Error): void } | undefined;
  /** Resolves with the first answer of the store; rejects if there is none for `stale`. */
  readonly opened = new Promise<void>((done, failed) => {
    this.#settle = { done, failed };
  });

  constructor(store: PoolStore, options: PoolSetting, clock: Clock, random: Random) {
    this.#store = store;
    this.#options = options;
    this.#clock = clock;
    this.#random = random;
    this.onUnavailable = options.onUnavailable;
    const holdMs = options.onUnavailable === 'keep' ? Infinity : options.holdMs;
    this.#member = new PoolMember({ id: options.id, holdMs });
    this.#keeper = new Keeper(store, options.name);
    this.opened.catch(() => {}); // who does not ask is told by `on`, or warned
  }

  open(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#syncInTurn();
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

  /** Whether anything goes: the store is out of reach for too long, and that is what the user wants then. */
  isFree(now: Millis): boolean {
    return this.onUnavailable === 'allow' && this.#isFailing && !this.#isAvailable(now);
  }

  #isAvailable(now: Millis): boolean {
    return this.#isPaused || this.#member.isHeard(now);
  }

  get #isFailing(): boolean {
    return this.#reason !== undefined;
  }

  /** Divides a limit, until what comes back is called. */
  add(limit: PooledLimit): () => void {
    const { climbing } = limit;
    const forget = climbing ? this.#keeper.add(climbing) : () => {};
    this.#limits.add(limit);
    return () => {
      this.#limits.delete(limit);
      forget();
    };
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
      isAvailable: this.#isAvailable(now),
      ageMs,
      syncs: this.#syncs,
      failures: this.#failures,
      saturation: Object.fromEntries(
        [...this.#limits].map((limit) => [limit.name, limit.saturation(now)]),
      ),
      ...(this.#reason !== undefined && { reason: this.#reason }),
    };
  }

  /** Spends nothing for a while, and leaves its part to the others. */
  async pause(): Promise<void> {
    if (this.#isPaused) return this.#said;
    this.#isPaused = true;
    this.#cancel();
    const noted = this.#keeper.note(this.#storeNow());
    this.#member.forget();
    this.#tell();
    await this.#inTurn(() => this.#leave());
    await noted.catch(() => {}); // what was noted before counts
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#syncInTurn();
  }

  /** Leaves: the others have its part within a second. The store stays open, as others may use it. */
  async close(): Promise<void> {
    this.#isOpen = false;
    await this.pause();
    this.#settle?.failed(new UnavailableError(this.#called, 'it was closed'));
  }

  get #called(): string {
    return `the pool ${this.#options.name}`;
  }

  #inTurn(act: () => Promise<void>): Promise<void> {
    this.#said = this.#said.then(act);
    return this.#said;
  }

  #syncInTurn(): void {
    void this.#inTurn(() => this.#sync());
  }

  /** As far as it is known. */
  #storeNow(): Millis {
    return this.#clock.now() + this.aheadMs;
  }

  async #leave(): Promise<void> {
    const { name, id } = this.#options;
    try {
      await this.#answer(() => this.#store.leave(name, id), true);
    } catch {} // it is soon missed
  }

  #answer<T>(ask: () => Promise<T>, keepAlive: boolean): Promise<T> {
    return within(this.#clock, ANSWER_MS_MAX, this.#store.name, async () => ask(), keepAlive);
  }

  async #sync(): Promise<void> {
    this.#cancel(); // who was paused and resumed has one heartbeat still
    if (!this.#isOpen || this.#isPaused) return;
    const sentAt = this.#clock.now();
    this.#syncs++;
    try {
      await this.#exchange();
    } catch (error) {
      this.#failures++;
      this.#reason = reasonOf(error);
    }
    this.#tell();
    if (!this.#isOpen || this.#isPaused) return;
    this.#giveUp(sentAt);
    this.#syncLater(sentAt);
  }

  #syncLater(sentAt: Millis): void {
    const { syncMs } = this.#options;
    const { isAgreed, active } = this.#member.view(this.#clock.now());
    const soonMs = Math.min(Math.max(AGREEING_MS, active), syncMs);
    const waitMs = isAgreed || this.#isFailing ? syncMs : soonMs;
    const jitter = 1 + JITTER * (2 * this.#random() - 1);
    const at = Math.max(sentAt + waitMs * jitter, this.#clock.now() + 1);
    // Whoever waits for `opened` is told, even if the process has nothing else to do.
    this.#cancel = alarm(this.#clock, at, () => this.#syncInTurn(), !this.#isSettled);
  }

  async #exchange(): Promise<void> {
    const keepAlive = !this.#isSettled;
    if (!this.#keeper.hasRecalled) await this.#answer(() => this.#keeper.recall(), keepAlive); // before there is anything to spend
    const request = this.#member.request(this.#clock.now());
    const { name, id, staleMs, holdMs } = this.#options;
    const agreement: AgreementOptions = { staleMs, isStrict: holdMs <= staleMs };
    const answer = await this.#answer(() => this.#store.sync(name, request, agreement), keepAlive);
    // Each of ours comes after the one before it, so a later one is not ours.
    if (!answer) throw new Error(`another member is called ${id}, or was a moment ago`);
    if (this.#isPaused) return;
    this.#hear(request.seq, answer);
    this.#keeper.noteInTime(this.#storeNow()).catch(() => {}); // the next time, then
  }

  #hear(seq: number, answer: SyncAnswer): void {
    this.#reason = undefined;
    this.#member.answered(seq, answer, this.#clock.now());
    this.#isSettled = true;
    this.#settle?.done();
  }

  #openedAt: Millis | undefined;

  /** Nobody was there from the start: whoever waits for it is told. */
  #giveUp(sentAt: Millis): void {
    if (this.#isSettled) return;
    this.#openedAt ??= sentAt;
    if (this.#clock.now() - this.#openedAt < this.#options.staleMs) return;
    this.#isSettled = true;
    this.#settle?.failed(new UnavailableError(this.#called, this.#reason));
  }

  #tell(): void {
    for (const limit of this.#limits) limit.partChanged();
    const view = this.view();
    const before = this.#seen;
    this.#seen = { size: view.size, isInReach: !this.#isFailing };
    const { isInReach } = this.#seen;
    if (isInReach !== before.isInReach) this.#say(isInReach ? 'in-reach' : 'out-of-reach', view);
    if (view.size !== before.size) this.#say('size', view);
    if (this.#listeners.size === 0 && this.#isFailing && !view.isAvailable) {
      const then = `until it is back, onUnavailable answers: ${this.onUnavailable}`;
      warn('POOL', `${this.#called} is out of reach: ${this.#reason}; ${then}`, view.name);
    }
  }

  /** A listener's own mistake stops no heartbeat. */
  #say(type: PoolEvent['type'], view: PoolView): void {
    for (const listener of this.#listeners) {
      try {
        listener({ type, view });
      } catch (error) {
        warn('LISTENER', `a listener of ${this.#called} failed: ${reasonOf(error)}`, view.name);
      }
    }
  }
}
