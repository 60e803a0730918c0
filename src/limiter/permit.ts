/**
 * A permit: held from allow to settle.
 *
 *     const entry = await api.acquire('sink');
 *     if (entry.verdict === 'deny') return later(entry.retryAfterMs);
 *     try { await send(); entry.settle(); } catch (error) { entry.settle({ outcome: 'failed' }); }
 *
 * or, with `using entry = await api.acquire('sink')`, settled as ok when the block ends, unless it was
 * settled otherwise before. A refusal can stand in the same place: it has nothing to settle.
 */

// For whoever compiles without it: a library of the compiler's own, where `Disposable` is.
/// <reference lib="esnext.disposable" preserve="true" />

import type { Millis } from '../core/clock.ts';
import { type CallResult, requireResult } from './validate.ts';
import type { RefusalReason } from './wait-scheduler.ts';

/** How a permit was settled: what it was for is known already. */
export type PermitResult = Omit<CallResult, 'cost' | 'dueAt' | 'partition'>;

interface PermitInit {
  readonly key: string;
  readonly cost: number;
  readonly dueAt: Millis;
  readonly issuedAt: Millis;
  /** Those it stands for, where several limiters gave it together. */
  readonly children?: readonly Permit[];
}

/** A yes that is held until the work is done, and then settled. */
export class Permit implements Disposable {
  readonly verdict = 'allow';
  readonly key: string;
  readonly cost: number;
  /** When it was good. */
  readonly dueAt: Millis;
  /** Since when it is out. */
  readonly issuedAt: Millis;
  readonly #children: readonly Permit[] | undefined;
  #onSettle: ((settled: PermitResult) => void) | undefined;

  constructor(
    { key, cost, dueAt, issuedAt, children }: PermitInit,
    settle: (settled: PermitResult) => void,
  ) {
    this.key = key;
    this.cost = cost;
    this.dueAt = dueAt;
    this.issuedAt = issuedAt;
    this.#children = children;
    this.#onSettle = settle;
  }

  /** True also if it was held for too long, and nobody counts on it any more. */
  get isSettled(): boolean {
    if (this.#onSettle === undefined) return true;
    return this.#children?.every((part) => part.isSettled) ?? false;
  }

  /** Says how it went, `ok` if nothing else is said. Settled twice counts once. */
  settle(settled: PermitResult = {}): void {
    requireResult(settled); // nonsense leaves it unsettled, and so not lost
    const settle = this.#onSettle;
    this.#onSettle = undefined; // before anybody hears of it, who might settle it again
    try {
      settle?.(settled);
    } catch (error) {
      this.#onSettle = settle;
      throw error;
    }
  }

  [Symbol.dispose](): void {
    this.settle();
  }
}

/** A no, as `tryAcquire` and `acquire` give it. Nothing is held; it may be disposed of all the same. */
export class Refusal implements Disposable {
  readonly verdict = 'deny';
  /** The name of the limit that refused. */
  readonly limit: string;
  readonly retryAfterMs: Millis;
  readonly reason: RefusalReason;

  constructor({ limit, retryAfterMs, reason }: Omit<Refusal, 'verdict' | typeof Symbol.dispose>) {
    this.limit = limit;
    this.retryAfterMs = retryAfterMs;
    this.reason = reason;
  }

  [Symbol.dispose](): void {}
}
