/**
 * The waiting calls of one limiter: their number, deadlines, abort signals and end.
 *
 *     add ──▶ waiting ──┬── resolve ───▶ granted or refused by the owner
 *                       ├── deadline ──▶ refused
 *                       ├── reject ────▶ rejected: its check failed
 *                       ├── abort ─────▶ rejected with the signal's reason
 *                       └── close ─────▶ refused
 *
 * The owner decides which waiter is next. One timer serves all deadlines and the owner's next event, and a signal
 * has one listener, so 100,000 waiters cost one timer.
 *
 * On Cloudflare Workers a timer ends with the request that set it. There every waiter has its own timer, set by its own
 * request, which serves all waiters that are due: the end of one request loses no other waiter. A waiter whose own
 * timer has stopped leaves: its request has ended.
 */

import { type Clock, type Millis, schedule, timersEndWithRequest } from './clock.ts';
import { Heap } from './heap.ts';

export interface Waiter<Result> {
  /** Infinity: none. */
  readonly deadline: Millis;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (result: Result) => void;
  readonly reject: (reason: unknown) => void;
  isWaiting: boolean;
}

export type AbandonCause = 'aborted' | 'expired' | 'closed';

export interface WaiterSetSettings {
  readonly clock: Clock;
  /** The most waiters, over all keys. */
  readonly maxWaiters: number;
  /** Whether waiters keep the process alive. */
  readonly keepAlive: boolean;
  /** Whether each waiter has its own timer. Default: where timers end with the request that set them. */
  readonly hasOwnTimers?: boolean;
}

export interface WaiterSetOptions<Result, W extends Waiter<Result>> extends WaiterSetSettings {
  /** The refusal for a waiter whose deadline has passed. */
  expiredResult(waiter: W, now: Millis): Result;
  /** A waiter leaves, with or without a permit. Called before its promise settles. */
  onRemove(waiter: W): void;
  /** Waiters left without a permit: a waiter behind them may fit now. */
  onAbandon(waiters: readonly W[], cause: AbandonCause): void;
  /** When the owner's next event is due; Infinity: none. */
  nextEventAt?(): Millis;
  /** Runs the owner's events that are due, before deadlines expire. */
  onTimer?(now: Millis): void;
}

/** The timer's period while no waiter has a deadline: it only keeps the process alive. */
const KEEP_ALIVE_INTERVAL_MS = 3_600_000;

/** An own timer fires at least this often: the permit of a request that ended without settling may have expired. */
const OWN_TIMER_INTERVAL_MS = 1000;

/** The request of a waiter has ended if its own timer is this late, and later than the timer that finds it. */
const LOST_AFTER_MS = 10_000;

/** A heap or queue may hold this many entries of finished waiters, beside as many as still wait. */
export const MAX_TOMBSTONES = 64;

export class WaiterSet<Result, W extends Waiter<Result>> {
  readonly #options: WaiterSetOptions<Result, W>;
  readonly #waiters = new Set<W>();
  readonly #deadlines = new Heap<W>((a, b) => a.deadline < b.deadline);
  readonly #abortGroups = new Map<AbortSignal, { waiters: Set<W>; stop: () => void }>();
  readonly #hasOwnTimers: boolean;
  /** Waiters whose own timer is not set yet. */
  #withoutTimer: W[] = [];
  /** When the own timer of each waiter was last set, the earliest first. */
  readonly #ownTimerSetAt = new Map<W, Millis>();
  #timer: { readonly at: Millis; readonly cancel: () => void } | undefined;

  constructor(options: WaiterSetOptions<Result, W>) {
    this.#options = options;
    this.#hasOwnTimers = options.hasOwnTimers ?? timersEndWithRequest;
  }

  get size(): number {
    return this.#waiters.size;
  }

  get isFull(): boolean {
    return this.#waiters.size >= this.#options.maxWaiters;
  }

  /** The owner calls `reschedule` once its own bookkeeping is done. */
  add(waiter: W): void {
    this.#waiters.add(waiter);
    if (waiter.deadline < Infinity) this.#deadlines.push(waiter);
    if (waiter.signal) this.#addAbortListener(waiter.signal, waiter);
    if (this.#hasOwnTimers) this.#withoutTimer.push(waiter);
  }

  resolve(waiter: W, result: Result): void {
    this.#remove(waiter);
    waiter.resolve(result);
  }

  reject(waiter: W, reason: unknown): void {
    this.#remove(waiter);
    waiter.reject(reason);
  }

  /** Refuses all waiters, the latest first: only the last reserved slot can be given back. */
  close(result: Result): void {
    const waiters = [...this.#waiters].reverse();
    for (const waiter of waiters) this.resolve(waiter, result);
    this.#options.onAbandon(waiters, 'closed');
  }

  /** Sets the one timer to the next deadline or event. */
  reschedule(): void {
    if (this.#hasOwnTimers) {
      for (const waiter of this.#withoutTimer.splice(0)) this.#setOwnTimer(waiter);
      return;
    }
    const at = this.#nextTimerAt();
    if (this.#timer?.at === at) return;
    this.#timer?.cancel();
    this.#timer = undefined;
    if (at === Infinity) return;
    const { clock, keepAlive } = this.#options;
    this.#timer = { at, cancel: schedule(clock, at, () => this.#onTimer(), keepAlive) };
  }

  /** Called by the waiter's own request only. */
  #setOwnTimer(waiter: W): void {
    if (!waiter.isWaiting) return;
    const { clock, keepAlive, nextEventAt } = this.#options;
    const next = Math.min(waiter.deadline, nextEventAt?.() ?? Infinity);
    const now = clock.now();
    const at = Math.min(next, now + OWN_TIMER_INTERVAL_MS);
    this.#ownTimerSetAt.delete(waiter);
    this.#ownTimerSetAt.set(waiter, now);
    const onTimer = (): void => {
      if (!waiter.isWaiting) return;
      this.#removeLost(at);
      this.#onTimer();
      this.#setOwnTimer(waiter);
    };
    schedule(clock, at, onTimer, keepAlive);
  }

  /** `dueAt` is when the present timer was due: if all timers are late, no request has ended. */
  #removeLost(dueAt: Millis): void {
    const lost: W[] = [];
    for (const [waiter, setAt] of this.#ownTimerSetAt) {
      if (setAt + OWN_TIMER_INTERVAL_MS + LOST_AFTER_MS > dueAt) break;
      lost.push(waiter);
    }
    for (const waiter of lost) this.#remove(waiter);
    if (lost.length > 0) this.#options.onAbandon(lost, 'aborted');
  }

  #nextTimerAt(): Millis {
    if (this.#waiters.size === 0) return Infinity;
    const { clock, keepAlive, nextEventAt } = this.#options;
    const deadline = this.#deadlines.peek()?.deadline ?? Infinity;
    const next = Math.min(nextEventAt?.() ?? Infinity, deadline);
    if (next < Infinity || !keepAlive) return next;
    return this.#timer?.at ?? clock.now() + KEEP_ALIVE_INTERVAL_MS; // a timer far away will do
  }

  #onTimer(): void {
    this.#timer = undefined;
    const now = this.#options.clock.now();
    this.#options.onTimer?.(now);
    this.#expireDeadlines(now);
    this.reschedule();
  }

  #expireDeadlines(now: Millis): void {
    const expired: W[] = [];
    for (let next = this.#deadlines.peek(); next && next.deadline <= now; ) {
      this.#deadlines.pop();
      if (next.isWaiting) {
        expired.push(next);
        this.resolve(next, this.#options.expiredResult(next, now));
      }
      next = this.#deadlines.peek();
    }
    if (expired.length > 0) this.#options.onAbandon(expired, 'expired');
  }

  #remove(waiter: W): void {
    if (!waiter.isWaiting) return;
    waiter.isWaiting = false;
    this.#waiters.delete(waiter);
    this.#ownTimerSetAt.delete(waiter);
    if (waiter.signal) this.#removeAbortListener(waiter.signal, waiter);
    if (this.#deadlines.size > 2 * this.#waiters.size + MAX_TOMBSTONES)
      this.#deadlines.retain((other) => other.isWaiting);
    this.#options.onRemove(waiter);
    if (this.#waiters.size === 0) this.reschedule(); // without a waiter, no timer
  }

  #addAbortListener(signal: AbortSignal, waiter: W): void {
    let group = this.#abortGroups.get(signal);
    if (!group) {
      const waiters = new Set<W>();
      const onAbort = (): void => this.#cancel([...waiters], signal.reason);
      signal.addEventListener('abort', onAbort, { once: true });
      group = { waiters, stop: () => signal.removeEventListener('abort', onAbort) };
      this.#abortGroups.set(signal, group);
    }
    group.waiters.add(waiter);
  }

  #removeAbortListener(signal: AbortSignal, waiter: W): void {
    const group = this.#abortGroups.get(signal);
    group?.waiters.delete(waiter);
    if (group?.waiters.size !== 0) return;
    group.stop();
    this.#abortGroups.delete(signal);
  }

  #cancel(waiters: readonly W[], reason: unknown): void {
    for (const waiter of waiters) this.reject(waiter, reason);
    this.#options.onAbandon(waiters, 'aborted');
    this.reschedule();
  }
}
