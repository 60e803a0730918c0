import type { PoolStats } from '../backends/backend.ts';
import type { Millis } from '../core/clock.ts';
import type { AttemptOutcome, Decision } from '../core/decision.ts';
import type { Limit } from '../policies/limit.ts';
import type { Feedback } from '../policies/policy.ts';
import type { Listener } from './events.ts';
import type { Inspection } from './inspection.ts';
import type { Permit, Refusal } from './permit.ts';
import type { CounterSnapshot } from './stats.ts';
import type { CallResult, IdOptions, SettleOptions, WaitOptions } from './validate.ts';

/** Options of a check besides key and cost. */
export interface CheckOptions extends IdOptions {
  /** The partition the call counts against. Default: none; it gets the capacity that partitions leave. */
  readonly partition?: string | undefined;
  /** The level of the call, in a limit with `priorities`. Default: the lowest. */
  readonly level?: string | undefined;
}

/** Options of `acquire`: how it waits, and for which partition or level. */
export interface AcquireOptions extends CheckOptions, WaitOptions {}

/** Decides in this process, at once. With a remote backend it is a `RemoteLimiter`. */
export interface Limiter {
  readonly name: string;
  /**
   * May `cost` (default 1) happen for this key now? All or nothing, and counted. @throws {ConfigError} for a limit whose
   * calls must be settled (concurrency, adaptive, busy), without `willSettle`: use `acquire` or `tryAcquire` there.
   */
  check(key: string, cost?: number, options?: CheckOptions & SettleOptions): Decision;
  /** Returns the decision of `tryAcquire`, without counting. */
  peek(key: string, cost?: number, options?: CheckOptions): Decision;
  /** A permit now or a refusal. */
  tryAcquire(key: string, cost?: number, options?: CheckOptions): Permit | Refusal;
  /** A permit, waiting if need be. A refusal is a value here too; only an abort or a failed check rejects. */
  acquire(key: string, cost?: number, options?: AcquireOptions): Promise<Permit | Refusal>;
  /** Takes as many as there are, up to `max` (Infinity: all), and returns how many. */
  takeUpTo(key: string, max: number): number;
  /** Returns `unused` of what `takeUpTo` took, now or at `takenAt`: a ramp drops what is late. */
  giveBack(key: string, unused: number, takenAt?: Millis): void;
  /** Reports how an allowed call went. */
  settle(key: string, result?: CallResult): void;
  /** Feeds in what happened elsewhere; false if this limit has no use for it. */
  update(key: string, feedback: Feedback): boolean;
  /** Lock-out: reports how an attempt of the key ended, such as a login, where it has no permit to settle. */
  report(key: string, attempt: AttemptOutcome, cost?: number): void;
  /** The status of a key: what is left, which rule refuses, until when. Changes nothing. */
  inspect(key: string): Inspection;
  /** Calls `listener` for every decision and every settled call; returns the function that removes it. */
  on(listener: Listener): () => void;
  /** Current sizes, and counters since the limiter was created. */
  stats(): Stats;
  /**
   * Gives the limit other numbers: what was spent stays spent, calls stay in flight, waiting calls are decided anew.
   * A limiter of `all` takes the limits of its parts by name. @throws {ConfigError} for another kind; nothing changes.
   */
  change(limit: Limit | Readonly<Record<string, Limit>>): void;
  /** Refuses waiting and later calls with reason `closed`, and leaves the backend. Permits can still be settled. */
  close(): void;
}

/** Current sizes of a limiter, and its counters. */
export interface Stats extends CounterSnapshot, Partial<PoolStats> {
  /** Keys that have state now. */
  readonly keys: number;
  /** Keys evicted while still in use: above 0, `maxKeys` is too small. */
  readonly evicted: number;
  /** Memory of the key table, in bytes. */
  readonly bytes: number;
  /** Calls in the queue. */
  readonly waiting: number;
  /** Permits issued and not settled. */
  readonly held: number;
  /** HTTP middleware with `maxEventLoopDelay`: the delay of the event loop; 0 while no requests arrive. */
  readonly eventLoopDelayMs?: Millis;
}
