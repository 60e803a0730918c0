/**
 * A share around another: it does what that one does, save what whoever extends it does differently.
 *
 * What only a bucket can do (`spare`, `gain`) is not handed on: whoever has it says so itself, as groups look for it.
 */

import type { Millis } from '../core/clock.ts';
import type { Decision } from '../core/decision.ts';
import type { News, Seen, Settlement } from '../policies/policy.ts';
import type { Share, TableCopy } from './backend.ts';

export class ShareAround<Inner extends Share = Share> implements Share {
  protected readonly inner: Inner;

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

  ask(key: string, cost: number, part?: number): Decision {
    return this.inner.ask(key, cost, part);
  }

  askHashed(low: number, high: number, cost: number): Decision {
    return this.inner.askHashed(low, high, cost);
  }

  askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.inner.askNow(key, cost, now, part);
  }

  peek(key: string, cost: number, part?: number): Decision {
    return this.inner.peek(key, cost, part);
  }

  take(key: string, most: number): number {
    return this.inner.take(key, most);
  }

  settle(key: string, settlement: Settlement, now?: Millis): void {
    this.inner.settle(key, settlement, now);
  }

  hear(key: string, news: News): boolean {
    return this.inner.hear(key, news);
  }

  inspect(key: string, now?: Millis): Seen {
    return this.inner.inspect(key, now);
  }

  copy(): TableCopy {
    return this.inner.copy();
  }

  takeOver(copy: TableCopy): void {
    this.inner.takeOver(copy);
  }

  leave(): void {
    this.inner.leave?.();
  }
}
