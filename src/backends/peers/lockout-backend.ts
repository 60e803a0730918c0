/**
 * Peers with a lock-out: besides hits, they report every event that changes a lock-out.
 *
 *     check, settle, update ──▶ numbers before and after ──▶ what changed ──▶ channels (`lockout-channels.ts`)
 *
 * Events of peers change the numbers here likewise, so failures of all nodes add up, and a success clears them on all
 * nodes.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import type { Hasher } from '../../core/hash.ts';
import type { Feedback, Policy, Settlement } from '../../policies/policy.ts';
import type { BackendContext, CheckWithStatus } from '../backend.ts';
import { limitId, type PeerNetwork, PeersBackend } from './backend.ts';
import { type LockoutChannels, openLockoutChannels } from './lockout-channels.ts';

export class LockoutPeersBackend extends PeersBackend {
  readonly #name: string;
  readonly #network: PeerNetwork;
  readonly #hasher: Hasher;
  /** The channels of each lock-out of the limit; empty after `detach`. */
  #channels: readonly LockoutChannels[];

  /** @throws {ConfigError} if peers cannot share the policy. */
  constructor(policy: Policy, context: BackendContext, network: PeerNetwork) {
    super(policy, context, network);
    this.#name = context.name;
    this.#network = network;
    this.#hasher = network.hasher;
    this.#channels = this.#openChannels(policy);
  }

  #openChannels(policy: Policy): LockoutChannels[] {
    return policy.rules.flatMap(({ policy: { share, width }, offset }) => {
      const events = share?.events;
      if (!events) return [];
      const idOf = (channel: string): number =>
        limitId(this.#name, policy, `${channel} of ${offset}`);
      return openLockoutChannels({
        ...{ events, width, offset, idOf, local: this.inner, network: this.#network },
      });
    });
  }

  #closeChannels(): void {
    for (const channels of this.#channels) channels.close();
    this.#channels = [];
  }

  override prepareChange(policy: Policy): (() => void) | undefined {
    const change = super.prepareChange(policy);
    if (!change) return undefined;
    return () => {
      const isDetached = this.#channels.length === 0;
      this.#closeChannels();
      change();
      if (!isDetached) this.#channels = this.#openChannels(policy);
    };
  }

  override detach(): void {
    super.detach();
    this.#closeChannels();
  }

  override check(key: string, cost: number): Decision {
    this.#hasher.hash(key);
    return this.checkHashed(this.#hasher.low, this.#hasher.high, cost);
  }

  override checkHashed(low: number, high: number, cost: number): Decision {
    return this.#track(low, high, () => super.checkHashed(low, high, cost));
  }

  override checkWithStatus(low: number, high: number, cost: number): CheckWithStatus | undefined {
    return this.#track(low, high, () => super.checkWithStatus(low, high, cost));
  }

  override checkNow(key: string, cost: number, now: Millis): Decision {
    return this.#trackKey(key, () => super.checkNow(key, cost, now));
  }

  override takeUpTo(key: string, most: number): number {
    return this.#trackKey(key, () => super.takeUpTo(key, most));
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    this.#trackKey(key, () => super.settle(key, settlement, now));
  }

  /** Hits that were served elsewhere are not reported: peers know them. */
  override update(key: string, feedback: Feedback): boolean {
    if ('hits' in feedback) return super.update(key, feedback);
    return this.#trackKey(key, () => super.update(key, feedback));
  }

  #trackKey<T>(key: string, act: () => T): T {
    this.#hasher.hash(key);
    return this.#track(this.#hasher.low, this.#hasher.high, act);
  }

  /** Runs `act` and reports the change. A key that does not fit into the table has no numbers to compare. */
  #track<T>(low: number, high: number, act: () => T): T {
    let isKnown = false;
    this.inner.changeHashed(low, high, (state, i, now) => {
      isKnown = true;
      for (const channels of this.#channels) channels.capture(low, high, state, i, now);
    });
    const result = act();
    if (isKnown)
      this.inner.changeHashed(low, high, (state, i, now) => {
        for (const channels of this.#channels) channels.reportChange(low, high, state, i, now);
      });
    return result;
  }
}
