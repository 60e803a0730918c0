/**
 * A process's place in its group: the group's part of each limit, what others may steal of it, and what it steals itself.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { bucket } from '../../policies/bucket.ts';
import type { Policy } from '../../policies/policy.ts';
import type { BackendFactory } from '../backend.ts';
import { LocalBackend } from '../local/backend.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { type GroupWeight, groupFractions } from './allotments.ts';
import { type GroupBucket, type GroupHandle, GroupsBackend } from './backend.ts';
import { Borrower, type LenderView } from './borrower.ts';
import { LocalLender } from './lender.ts';
import type { GroupLimit } from './limits.ts';
import { RemoteGroupsBackend } from './remote-backend.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

export interface ResolvedGroupsOptions {
  readonly self: string;
  readonly groups: ReadonlyMap<string, GroupWeight>;
  /** What part of its burst a group keeps for its own calls. */
  readonly reserve: number;
  readonly deadlineMs: Millis;
  /** Whether a limit takes the place of one of the same name, as when it is made anew. Default: that is a mistake. */
  readonly replaces?: boolean;
}

/** What a process knows of its groups. */
export interface GroupsView {
  readonly own: string;
  /** What part of the limits it has before anybody steals. */
  readonly part: number;
  /** Units that others stole from here, through this process. */
  readonly lent: number;
  readonly others: readonly LenderView[];
}

export class Group {
  readonly #self: string;
  readonly #fraction: number;
  readonly #canReplace: boolean;
  readonly #reserve: number;
  readonly #limits = new Map<string, GroupLimit>();
  readonly #lender: LocalLender;
  readonly #borrower: Borrower;
  readonly #handle: GroupHandle = {
    register: (limit) => this.#register(limit),
    recordDemand: (limit, key, units) => this.#borrower.recordDemand(limit, key, units),
  };

  /** @throws {ConfigError} if more is guaranteed to groups than there is. */
  constructor(options: ResolvedGroupsOptions, transport: GroupTransport, clock: Clock) {
    const { self, groups, reserve, deadlineMs, replaces = false } = options;
    this.#self = self;
    this.#canReplace = replaces;
    this.#fraction = groupFractions(groups).get(self) ?? 0;
    this.#reserve = reserve;
    this.#lender = new LocalLender(this.#limits);
    const others = [...groups.keys()].filter((name) => name !== self);
    this.#borrower = new Borrower(transport, clock, { lenders: others, deadlineMs });
  }

  /** Limits whose bucket is kept as `within` says: by the group's processes, or by somebody else. */
  createFactory(
    within?: RemoteBackendFactory | BackendFactory,
  ): RemoteBackendFactory | BackendFactory {
    return within?.isRemote ? this.createRemoteFactory(within) : this.createLocalFactory(within);
  }

  /** Limits whose bucket the group's processes keep: this one alone, or as `within` says. */
  createLocalFactory(within?: BackendFactory): BackendFactory {
    return {
      isRemote: false,
      create: (policy, made) => {
        const own = this.#groupBucketOf(policy);
        const inner = within ? within.create(own.policy, made) : new LocalBackend(own.policy, made);
        if (!inner.credit) throw new ConfigError('bucket', 'redis(client) or peers(...)', within);
        return new GroupsBackend(inner, { ...made, ...own }, this.#handle);
      },
    };
  }

  /** Limits whose bucket somebody else keeps for the group. */
  createRemoteFactory(within: RemoteBackendFactory): RemoteBackendFactory {
    return {
      isRemote: true,
      create: (policy, made) => {
        const own = this.#groupBucketOf(policy);
        const inner = within.create(own.policy, made);
        return new RemoteGroupsBackend(inner, own.policy, { ...made, ...own }, this.#handle);
      },
    };
  }

  /** What others get of what they want. */
  lend(wants: readonly BorrowRequest[]): Promise<number[]> {
    return this.#lender.lend(wants);
  }

  view(): GroupsView {
    const others = this.#borrower.view();
    return { own: this.#self, part: this.#fraction, lent: this.#lender.lent, others };
  }

  /** Steals no more. */
  close(): void {
    this.#borrower.close();
  }

  #register(limit: GroupLimit): () => void {
    const { name } = limit;
    if (this.#limits.has(name) && !this.#canReplace) {
      throw new ConfigError('name', 'different for each limit of the groups', name);
    }
    this.#limits.set(name, limit);
    return () => {
      if (this.#limits.get(name) === limit) this.#limits.delete(name);
    };
  }

  /** A bucket with the group's part of the rate and of the burst. */
  #groupBucketOf(
    policy: Policy,
  ): { policy: Policy } & Pick<GroupBucket, 'perMs' | 'burst' | 'reserveLevel'> {
    const [terms, ...others] = policy.buckets ?? [];
    if (!terms || others.length > 0) {
      const expected = 'a bucket: only its tokens can be stored and borrowed';
      throw new ConfigError('limit', expected, policy.kind);
    }
    const { perMs, burst: wholeBurst, maxDebt } = terms;
    const part = this.#fraction;
    const burst = wholeBurst * part;
    if (part === 0) {
      const least = 'above 0, or a `min`: what it borrows needs a bucket, too';
      throw new ConfigError(`groups.${this.#self}.weight`, least, 0);
    }
    if (burst < 1) {
      const least = `at least ${Math.ceil(1 / part)}, so that group ${this.#self} has one token of it`;
      throw new ConfigError('limit.bucket.burst', least, wholeBurst);
    }
    const debt = maxDebt === Infinity ? {} : { maxDebt: maxDebt * part };
    const own = bucket({ rate: perMs * 1000 * part, burst, ...debt });
    return { policy: own, perMs: perMs * part, burst, reserveLevel: burst * this.#reserve };
  }
}
