/**
 * A remote share around another: it does what that one does, save what whoever extends it does differently.
 *
 * What not every remote share has is not handed on: whoever wants it to be, says so itself.
 */

import type { Settlement } from '../policies/policy.ts';
import type { Answer, LineAnswer, RemoteShare } from './remote-backend.ts';

export class RemoteShareAround<Inner extends RemoteShare = RemoteShare> implements RemoteShare {
  protected readonly inner: Inner;

  constructor(inner: Inner) {
    this.inner = inner;
  }

  get isReachable(): boolean {
    return this.inner.isReachable;
  }

  get onUnavailable(): RemoteShare['onUnavailable'] {
    return this.inner.onUnavailable;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.inner.ask(key, cost);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.inner.askNow(key, cost);
  }

  askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    return this.inner.askLine(key, costs);
  }

  take(key: string, most: number): Promise<number> {
    return this.inner.take(key, most);
  }

  settle(key: string, settlement: Settlement): Promise<void> {
    return this.inner.settle(key, settlement);
  }

  hits(key: string, count: number): Promise<void> {
    return this.inner.hits(key, count);
  }

  look(key: string): ReturnType<RemoteShare['look']> {
    return this.inner.look(key);
  }

  close(): Promise<void> {
    return this.inner.close();
  }
}
