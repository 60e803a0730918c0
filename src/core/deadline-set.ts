/**
 * Items with one common timeout, oldest first, watched by a single timer for the oldest.
 *
 * Insertion order is expiry order, so adding and removing cost one set operation. The timer does not keep the process
 * alive. `maxAtOnce` bounds how many items expire in one turn of the event loop.
 *
 * An item that is held does not expire: its timeout begins anew. `takeHolder` is called when the item is first due. Its
 * reference is weak, so that a call that can no longer end holds nothing.
 *
 * On Cloudflare Workers timers end with their request: the owner calls `expireOverdue` before it decides, and nothing is held.
 */

import { type Clock, type Millis, schedule, timersEndWithRequest } from './clock.ts';

export interface Issued {
  /** When its timeout began. */
  readonly issuedAt: Millis;
}

/** Time for other events between two turns that expire items. */
const PAUSE_MS: Millis = 2;

export class DeadlineSet<T extends Issued> {
  readonly #clock: Clock;
  readonly #timeoutMs: Millis;
  readonly #onExpired: (item: T) => void;
  readonly #maxAtOnce: number;
  readonly #takeHolder: ((item: T) => WeakRef<object> | undefined) | undefined;
  readonly #items = new Set<T>();
  /** The holders of items that were due, and when their timeout last began anew. Most sets never have one. */
  #renewals: Map<T, { readonly at: Millis; readonly holder: WeakRef<object> }> | undefined;
  #isScheduled = false;

  constructor(
    clock: Clock,
    timeoutMs: Millis,
    onExpired: (item: T) => void,
    maxAtOnce = Infinity,
    takeHolder?: (item: T) => WeakRef<object> | undefined,
  ) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#onExpired = onExpired;
    this.#maxAtOnce = maxAtOnce;
    this.#takeHolder = takeHolder;
  }

  get size(): number {
    return this.#items.size;
  }

  add(item: T): void {
    this.#items.add(item);
    if (!this.#isScheduled && this.#timeoutMs < Infinity && !timersEndWithRequest)
      this.#scheduleExpiry(item.issuedAt + this.#timeoutMs);
  }

  remove(item: T): void {
    this.#items.delete(item);
    this.#renewals?.delete(item);
  }

  /** Expires what is due, where no timer does. */
  expireOverdue(): void {
    const now = this.#clock.now();
    for (const item of this.#items) {
      if (item.issuedAt + this.#timeoutMs > now) return;
      this.#items.delete(item);
      this.#onExpired(item);
    }
  }

  #scheduleExpiry(at: Millis): void {
    this.#isScheduled = true;
    // A weak reference: a timer that is minutes away must not keep an unused limiter in memory.
    const self = new WeakRef(this);
    const expireDue = (): void => {
      const set = self.deref();
      if (set) set.#expireDue();
    };
    schedule(this.#clock, at, expireDue, false);
  }

  #expireDue(): void {
    const now = this.#clock.now();
    let expired = 0;
    for (const item of this.#items) {
      const dueAt = (this.#renewals?.get(item)?.at ?? item.issuedAt) + this.#timeoutMs;
      if (dueAt > now || expired === this.#maxAtOnce) {
        this.#scheduleExpiry(dueAt > now ? dueAt : now + PAUSE_MS);
        return;
      }
      expired++;
      if (this.#renew(item, now)) continue;
      this.remove(item);
      this.#onExpired(item); // may add a new item, which this loop then reaches
    }
    this.#isScheduled = false;
  }

  /** Makes an item that is held the last one. False if nothing holds it. */
  #renew(item: T, now: Millis): boolean {
    const holder = this.#renewals?.get(item)?.holder ?? this.#takeHolder?.(item);
    if (holder?.deref() === undefined) return false;
    this.#items.delete(item);
    this.#items.add(item);
    this.#renewals ??= new Map();
    this.#renewals.set(item, { at: now, holder });
    return true;
  }
}
