/**
 * Membership of a process in a pool: it syncs in the background and determines at any instant the part of its limits
 * that it may spend.
 *
 *     every 100 ms   request ──▶ store ──▶ response ──▶ claim: size and rank
 *                                                         │
 *     every check    ───────────────────── divide.ofPool(claim), local and synchronous
 *
 * The store decides no calls. While it is unavailable, the last claim is used for `staleFor`; after that
 * `onUnavailable` decides.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import { errorMessageOf, UnavailableError } from '../../core/errors.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { Random } from '../../core/random.ts';
import type { AgreementOptions, Claim, SyncResponse } from './agreement.ts';
import { PoolMember } from './member.ts';
import { type CheckpointedLimit, RampCheckpoint } from './ramp-checkpoint.ts';
import type { PoolMemberRecord, PoolStore } from './store.ts';

/** The decision of a member when the store was unavailable for longer than `staleFor`. */
export type PoolOnUnavailable = 'deny' | 'allow' | 'keep';

export interface ResolvedPoolOptions {
  /** Processes with an equal name divide their limits. */
  readonly name: string;
  /** Name of the member, for display. */
  readonly id: string;
  readonly syncMs: Millis;
  readonly memberTimeoutMs: Millis;
  readonly staleForMs: Millis;
  readonly onUnavailable: PoolOnUnavailable;
}

/** The status of a pool as this member knows it. */
export interface PoolView {
  /** Name of the pool. */
  readonly name: string;
  /** Name of the store. */
  readonly store: string;
  /** Id of this member. */
  readonly id: string;
  /** Number of members that divide the limits, as this one knows it; 0: it has no part. */
  readonly size: number;
  /** Rank of this member, 0 first; -1 until all agree. */
  readonly rank: number;
  /** Members that synced recently. */
  readonly active: number;
  /** True if all of them use one size. */
  readonly isAgreed: boolean;
  /** False if the store was unavailable for longer than the last claim may be used. */
  readonly isAvailable: boolean;
  /** Time since the store's last response; Infinity without one. */
  readonly ageMs: Millis;
  /** Syncs sent. */
  readonly syncs: number;
  /** Syncs that failed. */
  readonly failures: number;
  /** The used fraction of this member's part in the last 10 s, by limit: 0 to 1. */
  readonly saturation: Readonly<Record<string, number>>;
  /** Error of the last sync, if it failed. */
  readonly reason?: string;
}

/** A divided limit. */
export interface PooledLimit {
  readonly name: string;
  /** Present if its ramp levels are saved in the store. */
  readonly checkpointed?: CheckpointedLimit;
  /** Called after every sync: the part may have changed. */
  onClaimChanged(): void;
  /** The used fraction of its part. */
  saturation(now: Millis): number;
}

/** A change of the pool, with its status. */
export interface PoolEvent {
  readonly type: 'unavailable' | 'available' | 'size';
  readonly view: PoolView;
}

/** The argument of `on`. */
export type PoolListener = (event: PoolEvent) => void;

/** Sync interval while members disagree, as each step of the agreement takes one sync. Above 25 members, 1 ms each. */
const AGREEMENT_SYNC_MS: Millis = 25;

/** Jitter of the sync interval, so that a thousand members do not sync at the same time. */
const JITTER = 0.1;

/** Deadline for stores that exceed their own, so that neither syncs nor `close` hang. */
const MAX_RESPONSE_MS: Millis = 5000;

/** Twelve random hexadecimal digits. */
export const randomHex = (random: Random): string =>
  Math.floor(random() * 2 ** 48)
    .toString(16)
    .padStart(12, '0');

/** The suffix that makes a member's key unique. */
const NONCE = /#[0-9a-f]{12}$/;

export class Pool {
  readonly onUnavailable: PoolOnUnavailable;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #store: PoolStore;
  readonly #options: ResolvedPoolOptions;
  /** The id in the store, unique per process: two processes with one configured id never use one part twice. */
  readonly #memberKey: string;
  readonly #member: PoolMember;
  readonly #limits = new Set<PooledLimit>();
  readonly #rampCheckpoint: RampCheckpoint;
  readonly #listeners = new Set<PoolListener>();
  #isOpen = false;
  #isPaused = false;
  #cancel = (): void => {};
  /** Calls to the store run one after the other, because a sync after a leave would register the member again. */
  #storeCallChain: Promise<void> = Promise.resolve();
  #syncs = 0;
  #failures = 0;
  #reason: string | undefined;
  #isOpenedSettled = false;
  #lastReported = { size: 0, isAvailable: true };
  #openedDeferred: { done(): void; failed(error: Error): void } | undefined;
  /** Resolves with the store's first response; rejects without one within `memberTimeout` or before `pause`. */
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
    const memberTimeoutMs = store.isStatic ? Infinity : options.memberTimeoutMs;
    this.#memberKey = `${options.id}#${randomHex(random)}`;
    this.#member = new PoolMember({ id: this.#memberKey, staleForMs, memberTimeoutMs });
    this.#rampCheckpoint = new RampCheckpoint(store, options.name);
    this.opened.catch(() => {}); // `on` or a process warning reports it
  }

  open(): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#enqueueSync();
  }

  claim(now: Millis): Claim {
    return this.#member.claim(now);
  }

  claimValidUntil(now: Millis): Millis {
    return this.#member.claimValidUntil(now);
  }

  nextSecondBoundary(now: Millis): readonly [from: Millis, to: Millis] {
    return this.#member.nextSecondBoundary(now);
  }

  get clockOffsetMs(): Millis {
    return this.#member.clockOffsetMs;
  }

  /** True if the store was unavailable for too long and `onUnavailable` is `allow`. */
  isUnlimited(now: Millis): boolean {
    return this.onUnavailable === 'allow' && this.#isFailing && !this.#isAvailable(now);
  }

  #isAvailable(now: Millis): boolean {
    return this.#isPaused || this.#member.hasRecentResponse(now);
  }

  get #isFailing(): boolean {
    return this.#reason !== undefined;
  }

  /** Divides a limit until the returned function is called. */
  add(limit: PooledLimit): () => void {
    const { checkpointed } = limit;
    const removeCheckpoint = checkpointed ? this.#rampCheckpoint.add(checkpointed) : () => {};
    this.#limits.add(limit);
    return () => {
      this.#limits.delete(limit);
      removeCheckpoint();
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

  async members(): Promise<readonly PoolMemberRecord[]> {
    const records = await this.#store.members(this.#options.name);
    return records.map((record) => ({ ...record, id: record.id.replace(NONCE, '') }));
  }

  /** Stops spending until `resume`, and releases its part. */
  async pause(reason = 'it was paused'): Promise<void> {
    if (this.#isPaused) return this.#storeCallChain;
    this.#isPaused = true;
    this.#failOpened(reason);
    this.#cancel();
    const exchanged = this.#rampCheckpoint.exchange(this.#storeNow());
    this.#member.reset();
    this.#notifyChanges();
    await this.#enqueueStoreCall(() => this.#leave());
    await this.#callStore(() => exchanged, MAX_RESPONSE_MS, true).catch(() => {}); // the previous checkpoint counts
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#enqueueSync();
  }

  /** Leaves: other members receive its part within 1 s. The store stays open, because other pools may use it. */
  async close(): Promise<void> {
    this.#isOpen = false;
    await this.pause('it was closed');
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

  #storeNow(): Millis {
    return this.#clock.now() + this.clockOffsetMs;
  }

  async #leave(): Promise<void> {
    try {
      const leave = () => this.#store.leave(this.#options.name, this.#memberKey);
      await this.#callStore(leave, MAX_RESPONSE_MS, true);
    } catch {} // the store drops this member after `memberTimeout`
  }

  #callStore<T>(call: () => Promise<T>, deadlineMs: Millis, keepAlive: boolean): Promise<T> {
    return withDeadline(this.#clock, deadlineMs, this.#store.name, async () => call(), keepAlive);
  }

  async #sync(): Promise<void> {
    this.#cancel(); // after pause and resume, a sync may still be scheduled
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
    // Keeps the process alive until `opened` has settled.
    this.#cancel = schedule(this.#clock, at, () => this.#enqueueSync(), !this.#isOpenedSettled);
  }

  async #syncWithStore(): Promise<void> {
    const keepAlive = !this.#isOpenedSettled;
    if (!this.#rampCheckpoint.hasLoaded)
      await this.#callStore(() => this.#rampCheckpoint.load(), MAX_RESPONSE_MS, keepAlive); // before the first claim
    const request = this.#member.createRequest(this.#clock.now());
    const { name, memberTimeoutMs, staleForMs } = this.#options;
    const agreement: AgreementOptions = {
      memberTimeoutMs,
      isStrict: staleForMs <= memberTimeoutMs,
    };
    // A member with a part syncs often enough to distinguish an outage of the store from its own suspension.
    const deadlineMs = request.using.size > 0 ? memberTimeoutMs / 2 : MAX_RESPONSE_MS;
    const response = await this.#callStore(
      () => this.#store.sync(name, request, agreement),
      Math.min(deadlineMs, MAX_RESPONSE_MS),
      keepAlive,
    );
    if (!response) throw new Error('a later sync of this member was applied before');
    if (this.#isPaused) return;
    this.#applyResponse(request.seq, response);
    this.#rampCheckpoint.exchangeIfDue(this.#storeNow()).catch(() => {}); // retried soon
  }

  #applyResponse(seq: number, response: SyncResponse): void {
    this.#reason = undefined;
    this.#member.applyResponse(seq, response, this.#clock.now());
    this.#isOpenedSettled = true;
    this.#openedDeferred?.done();
  }

  #firstSyncAt: Millis | undefined;

  /** Rejects `opened` if the store has not responded since the start. */
  #failOpenedOnTimeout(sentAt: Millis): void {
    if (this.#isOpenedSettled) return;
    this.#firstSyncAt ??= sentAt;
    if (this.#clock.now() - this.#firstSyncAt < this.#options.memberTimeoutMs) return;
    this.#failOpened(this.#reason);
  }

  #failOpened(reason: string | undefined): void {
    this.#isOpenedSettled = true;
    this.#openedDeferred?.failed(new UnavailableError(this.#displayName, reason));
  }

  #notifyChanges(): void {
    for (const limit of this.#limits) limit.onClaimChanged();
    const view = this.view();
    const before = this.#lastReported;
    this.#lastReported = { size: view.size, isAvailable: !this.#isFailing };
    const { isAvailable } = this.#lastReported;
    if (isAvailable !== before.isAvailable)
      this.#emit(isAvailable ? 'available' : 'unavailable', view);
    if (view.size !== before.size) this.#emit('size', view);
    if (this.#listeners.size === 0 && this.#isFailing && !view.isAvailable) {
      const then = `until it is available, onUnavailable decides: ${this.onUnavailable}`;
      emitProcessWarning(
        'POOL',
        `${this.#displayName} is unavailable: ${this.#reason}; ${then}`,
        view.name,
      );
    }
  }

  /** Notifies all listeners. An error of a listener does not stop the syncs. */
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
