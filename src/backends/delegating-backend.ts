/**
 * Base class of backends that wrap another one: delegates every member that a subclass does not override.
 *
 * By default all decisions go by name, so a subclass that overrides `check` and `checkNow` decides every call.
 *
 * `takeSurplus` and `credit`, which only token buckets have, are not delegated: groups detect them by presence.
 */

import type { Millis } from '../core/clock.ts';
import type { Decision } from '../core/decision.ts';
import type { Feedback, KeyStatus, Policy, Settlement } from '../policies/policy.ts';
import type { Backend, CheckWithStatus, TableSnapshot } from './backend.ts';
import type { TableSlices } from './table-slices.ts';

export class DelegatingBackend<Inner extends Backend = Backend> implements Backend {
  protected readonly inner: Inner;
  /** False in a subclass that also overrides `checkHashed` and `checkWithStatus`. */
  readonly needsKeyNames: boolean = true;

  constructor(inner: Inner) {
    this.inner = inner;
  }

  get keys(): number {
    return this.inner.keys;
  }

  get evicted(): number {
    return this.inner.evicted;
  }

  get bytes(): number {
    return this.inner.bytes;
  }

  check(key: string, cost: number, partitionIndex?: number): Decision {
    return this.inner.check(key, cost, partitionIndex);
  }

  checkHashed(low: number, high: number, cost: number): Decision {
    return this.inner.checkHashed(low, high, cost);
  }

  checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    return this.inner.checkWithStatus?.(low, high, cost);
  }

  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    return this.inner.checkNow(key, cost, now, partitionIndex);
  }

  peek(key: string, cost: number, partitionIndex?: number): Decision {
    return this.inner.peek(key, cost, partitionIndex);
  }

  timeToGrantMs(key: string, units: number): Millis {
    return this.inner.timeToGrantMs?.(key, units) ?? 0;
  }

  takeUpTo(key: string, most: number): number {
    return this.inner.takeUpTo(key, most);
  }

  settle(key: string, settlement: Settlement, now?: Millis): void {
    this.inner.settle(key, settlement, now);
  }

  update(key: string, feedback: Feedback): boolean {
    return this.inner.update(key, feedback);
  }

  inspect(key: string, now?: Millis): KeyStatus {
    return this.inner.inspect(key, now);
  }

  forget(key: string): void {
    this.inner.forget(key);
  }

  keySnapshot(key: string): TableSnapshot {
    return this.inner.keySnapshot(key);
  }

  snapshot(): TableSnapshot {
    return this.inner.snapshot();
  }

  slices(): TableSlices {
    return this.inner.slices();
  }

  restore(snapshot: TableSnapshot, from?: Policy, keepsDebt?: boolean): boolean {
    return this.inner.restore(snapshot, from, keepsDebt);
  }

  prepareCopy(): void {
    this.inner.prepareCopy?.();
  }

  copyFrom(source: Backend, isLast?: boolean): boolean | undefined {
    return this.inner.copyFrom?.(source, isLast);
  }

  detach(): void {
    this.inner.detach?.();
  }

  /** Returns the backend that holds the keys, behind all delegating ones. */
  static innermost(backend: Backend): Backend {
    return backend instanceof DelegatingBackend
      ? DelegatingBackend.innermost(backend.inner)
      : backend;
  }
}
