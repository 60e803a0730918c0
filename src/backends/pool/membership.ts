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

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import { errorMessageOf, UnavailableError } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { Random } from '../../core/random.ts';
import type { AgreementOptions, Claim, SyncResponse } from './agreement.ts';
import { PoolMember } from './member.ts';
import { type CheckpointedLimit, RampCheckpoint } from './ramp-checkpoint.ts';
import type { PoolStore } from './store.ts';

/** What a member does when the store was out of reach for too long. */
export type PoolFallback = 'deny' | 'allow' | 'keep';

export interface ResolvedPoolOptions {
  /** Processes with the same name share their limits. */
  readonly name: string;
  /** This process, and no other. */
  readonly id: string;
  readonly syncMs: Millis;
  readonly memberTimeoutMs: Millis;
  readonly staleForMs: Millis;
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
  readonly checkpointed?: CheckpointedLimit;
  /** Something was heard: it may have another part now. */
  onClaimChanged(): void;
  /** How much of it was used lately. */
  saturation(now: Millis): number;
}

/** What a pool tells of itself, and how it stands then. */
export interface PoolEvent {
  readonly type: 'unavailable' | 'available' | 'size';
  readonly view: PoolView;
}

/** Hears of what should not be silent. */
export type PoolListener = (event: PoolEvent) => void;

/** While members differ, they sync sooner: each step of an agreement takes one. With more than 25, after a ms for each. */
const AGREEMENT_SYNC_MS: Millis = 25;

/** By this part a sync comes sooner or later than it should, so that a thousand members do not beat in step. */
const JITTER = 0.1;

/** Stores have deadlines of their own. One that forgets about it stops neither the heartbeat nor who leaves. */
const MAX_ANSWER_MS: Millis = 5000;

export class Pool {
  readonly onUnavailable: PoolFallback;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #store: PoolStore;
  readonly #options: ResolvedPoolOptions;
  readonly #member: PoolMember;
  readonly #limits = new Set<PooledLimit>();
  readonly #rampCheckpoint: RampCheckpoint;
  readonly #listeners = new Set<PoolListener>();
  #isOpen = false;
  #isPaused = false;
  #cancel = (): void => {};
  /** What is said to the store, one after the other: a leave that overtakes a sync would leave a ghost behind. */
  #storeCallChain: Promise<void> = Promise.resolve();
  #syncs = 0;
  #failures = 0;
  #reason: string | undefined;
  #isOpenedSettled = false;
  #lastReported = { size: 0, isInReach: true };
  #openedDeferred: { done(): void; failed(error: Error): void } | undefined;
  /** Resolves with the first answer of the store; rejects if there is none for `stale`. */
  readonly opened = new Promise<void>((done, failed) => {
    this.#openedDeferred = { done, failed };
  });

  constructor(store: PoolStore, options: ResolvedPoolOptions, clock: Clock, random: Random) {
    this.#store = store;
    this.#options = options;
    this.#clock = clock;
    this.#random = random;
    this.onUnavailable = options.onUnavailable;
    const staleForMs = options.onUnavailable === 'keep' ? Infinity : options.staleForMs;
    this.#member = new PoolMember({ id: options.id, staleForMs });
    this.#rampCheckpoint = new RampCheckpoint(store, options.name);
    this.opened.catch(() => {}); // who does not ask is told by `on`, or warned
  }

  open(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#enqueueSync();
  }

  /** What may be used now. */
  claim(now: Millis): Claim {
    return this.#member.claim(now);
  }

  /** Until when that is so, if nothing is heard. */
  claimValidUntil(now: Millis): Millis {
    return this.#member.claimValidUntil(now);
  }

  /** The next end of a second on the store's clock: from when on it may be over, and when it surely is. */
  nextSecondBoundary(now: Millis): readonly [from: Millis, to: Millis] {
    return this.#member.nextSecondBoundary(now);
  }

  /** How far the store's clock was surely ahead of ours when it was heard last. */
  get clockOffsetMs(): Millis {
    return this.#member.clockOffsetMs;
  }

  /** Whether anything goes: the store is out of reach for too long, and that is what the user wants then. */
  isUnlimited(now: Millis): boolean {
    return this.onUnavailable === 'allow' && this.#isFailing && !this.#isAvailable(now);
  }

  #isAvailable(now: Millis): boolean {
    return this.#isPaused || this.#member.hasRecentResponse(now);
  }

  get #isFailing(): boolean {
    return this.#reason !== undefined;
  }

  /** Divides a limit, until what comes back is called. */
  add(limit: PooledLimit): () => void {
    const { checkpointed } = limit;
    const forget = checkpointed ? this.#rampCheckpoint.add(checkpointed) : () => {};
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
    if (this.#isPaused) return this.#storeCallChain;
    this.#isPaused = true;
    this.#cancel();
    const noted = this.#rampCheckpoint.save(this.#storeNow());
    this.#member.reset();
    this.#notifyChanges();
    await this.#enqueueStoreCall(() => this.#leave());
    await noted.catch(() => {}); // what was noted before counts
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#enqueueSync();
  }

  /** Leaves: the others have its part within a second. The store stays open, as others may use it. */
  async close(): Promise<void> {
    this.#isOpen = false;
    await this.pause();
    this.#openedDeferred?.failed(new UnavailableError(this.#displayName, 'it was closed'));
  }

  get #displayName(): string {
    return `the pool ${this.#options.name}`;
  }

  #enqueueStoreCall(act: () => Promise<void>): Promise<void> {
    this.#storeCallChain = this.#storeCallChain.then(act);
    return this.#storeCallChain;
  }

  #enqueueSync(): void {
    void this.#enqueueStoreCall(() => this.#sync());
  }

  /** As far as it is known. */
  #storeNow(): Millis {
    return this.#clock.now() + this.clockOffsetMs;
  }

  async #leave(): Promise<void> {
    const { name, id } = this.#options;
    try {
      await this.#callStore(() => this.#store.leave(name, id), true);
    } catch {} // it is soon missed
  }

  #callStore<T>(ask: () => Promise<T>, keepAlive: boolean): Promise<T> {
    return withDeadline(this.#clock, MAX_ANSWER_MS, this.#store.name, async () => ask(), keepAlive);
  }

  async #sync(): Promise<void> {
    this.#cancel(); // who was paused and resumed has one heartbeat still
    if (!this.#isOpen || this.#isPaused) return;
    const sentAt = this.#clock.now();
    this.#syncs++;
    try {
      await this.#syncWithStore();
    } catch (error) {
      this.#failures++;
      this.#reason = errorMessageOf(error);
    }
    this.#notifyChanges();
    if (!this.#isOpen || this.#isPaused) return;
    this.#failOpenedOnTimeout(sentAt);
    this.#scheduleSync(sentAt);
  }

  #scheduleSync(sentAt: Millis): void {
    const { syncMs } = this.#options;
    const { isAgreed, active } = this.#member.view(this.#clock.now());
    const soonMs = Math.min(Math.max(AGREEMENT_SYNC_MS, active), syncMs);
    const waitMs = isAgreed || this.#isFailing ? syncMs : soonMs;
    const jitter = 1 + JITTER * (2 * this.#random() - 1);
    const at = Math.max(sentAt + waitMs * jitter, this.#clock.now() + 1);
    // Whoever waits for `opened` is told, even if the process has nothing else to do.
    this.#cancel = schedule(this.#clock, at, () => this.#enqueueSync(), !this.#isOpenedSettled);
  }

  async #syncWithStore(): Promise<void> {
    const keepAlive = !this.#isOpenedSettled;
    if (!this.#rampCheckpoint.hasLoaded)
      await this.#callStore(() => this.#rampCheckpoint.load(), keepAlive); // before there is anything to spend
    const request = this.#member.createRequest(this.#clock.now());
    const { name, id, memberTimeoutMs, staleForMs } = this.#options;
    const agreement: AgreementOptions = {
      memberTimeoutMs,
      isStrict: staleForMs <= memberTimeoutMs,
    };
    const answer = await this.#callStore(
      () => this.#store.sync(name, request, agreement),
      keepAlive,
    );
    // Each of ours comes after the one before it, so a later one is not ours.
    if (!answer) throw new Error(`another member is called ${id}, or was a moment ago`);
    if (this.#isPaused) return;
    this.#applyResponse(request.seq, answer);
    this.#rampCheckpoint.saveIfDue(this.#storeNow()).catch(() => {}); // the next time, then
  }

  #applyResponse(seq: number, answer: SyncResponse): void {
    this.#reason = undefined;
    this.#member.applyResponse(seq, answer, this.#clock.now());
    this.#isOpenedSettled = true;
    this.#openedDeferred?.done();
  }

  #firstSyncAt: Millis | undefined;

  /** Nobody was there from the start: whoever waits for it is told. */
  #failOpenedOnTimeout(sentAt: Millis): void {
    if (this.#isOpenedSettled) return;
    this.#firstSyncAt ??= sentAt;
    if (this.#clock.now() - this.#firstSyncAt < this.#options.memberTimeoutMs) return;
    this.#isOpenedSettled = true;
    this.#openedDeferred?.failed(new UnavailableError(this.#displayName, this.#reason));
  }

  #notifyChanges(): void {
    for (const limit of this.#limits) limit.onClaimChanged();
    const view = this.view();
    const before = this.#lastReported;
    this.#lastReported = { size: view.size, isInReach: !this.#isFailing };
    const { isInReach } = this.#lastReported;
    if (isInReach !== before.isInReach) this.#emit(isInReach ? 'available' : 'unavailable', view);
    if (view.size !== before.size) this.#emit('size', view);
    if (this.#listeners.size === 0 && this.#isFailing && !view.isAvailable) {
      const then = `until it is back, onUnavailable answers: ${this.onUnavailable}`;
      emitProcessWarning(
        'POOL',
        `${this.#displayName} is out of reach: ${this.#reason}; ${then}`,
        view.name,
      );
    }
  }

  /** A listener's own mistake stops no heartbeat. */
  #emit(type: PoolEvent['type'], view: PoolView): void {
    for (const listener of this.#listeners) {
      try {
        listener({ type, view });
      } catch (error) {
        emitProcessWarning(
          'LISTENER',
          `a listener of ${this.#displayName} failed: ${errorMessageOf(error)}`,
          view.name,
        );
      }
    }
  }
}
