/**
 * Base class of remote backends that wrap another one: delegates every member that a subclass does not override.
 *
 * Optional members are not delegated, because callers detect them by presence.
 */

import type { Settlement } from '../policies/policy.ts';
import type { BatchDecision, RemoteBackend, RemoteDecision } from './remote-backend.ts';

export class DelegatingRemoteBackend<Inner extends RemoteBackend = RemoteBackend>
  implements RemoteBackend
{
  protected readonly inner: Inner;

  constructor(inner: Inner) {
    this.inner = inner;
  }

  get isAvailable(): boolean {
    return this.inner.isAvailable;
  }

  get onUnavailable(): RemoteBackend['onUnavailable'] {
    return this.inner.onUnavailable;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.inner.check(key, cost);
  }

  checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.inner.checkNow(key, cost, isWaiting);
  }

  checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    return this.inner.checkBatch(key, costs);
  }

  takeUpTo(key: string, most: number): Promise<number> {
    return this.inner.takeUpTo(key, most);
  }

  settle(key: string, settlement: Settlement): Promise<void> {
    return this.inner.settle(key, settlement);
  }

  addHits(key: string, count: number): Promise<void> {
    return this.inner.addHits(key, count);
  }

  readState(key: string): ReturnType<RemoteBackend['readState']> {
    return this.inner.readState(key);
  }

  close(): Promise<void> {
    return this.inner.close();
  }
}
