import type { Clock, Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import type { Policy } from '../../policies/policy.ts';
import type { BackendFactory } from '../backend.ts';
import type { AnyBackendFactory } from '../daemon-backend.ts';
import { LocalBackend } from '../local/backend.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { GroupsBackend } from './backend.ts';
import { type Borrower, createBorrower, type LenderView } from './borrower.ts';
import { type GroupWeight, groupFractions } from './fractions.ts';
import type { GroupBucket, GroupLimit } from './limits.ts';
import { partOf } from './parts.ts';
import { RemoteGroupsBackend } from './remote-backend.ts';
import { type BorrowRequest, type GroupTransport, isBorrowRequest } from './transport.ts';

export interface ResolvedGroupsOptions {
  readonly self: string;
  readonly groups: ReadonlyMap<string, GroupWeight>;
  /** Fraction of its burst that a group reserves for its own calls. */
  readonly reserve: number;
  readonly deadlineMs: Millis;
  /**
   * True in a daemon: its limits have names, a reload replaces a limit by one with an equal name, and errors name
   * fields of its configuration.
   */
  readonly inDaemon?: boolean;
}

/** One process's view of its groups. */
export interface GroupsView {
  /** Name of the process's own group. */
  readonly self: string;
  /** Its fraction of the limits, before borrowing: 0 to 1. */
  readonly fraction: number;
  /** Tokens that other groups borrowed through this process. */
  readonly lent: number;
  readonly others: readonly LenderView[];
}

/** The part of the context that a bucket keeps when the limit gets other numbers. */
type AllotContext = Pick<GroupBucket, 'name' | 'hasExplicitName' | 'onCapacity'>;

export class Group {
  readonly #options: ResolvedGroupsOptions;
  readonly #fraction: number;
  readonly #limits = new Map<string, GroupLimit>();
  readonly #borrowers: readonly Borrower[];
  #lent = 0;
  #isClosed = false;

  /** @throws {ConfigError} if the guaranteed fractions add up to more than 1. */
  constructor(options: ResolvedGroupsOptions, transport: GroupTransport, clock: Clock) {
    const { self, groups, deadlineMs } = options;
    this.#options = options;
    this.#fraction = groupFractions(groups).get(self) ?? 0;
    const lenders = [...groups.keys()].filter((name) => name !== self);
    this.#borrowers = lenders.map((name) => createBorrower(name, transport, clock, deadlineMs));
  }

  /** Creates a factory for limits whose bucket `inner` holds; by default, this process holds it. */
  createFactory(inner?: AnyBackendFactory): AnyBackendFactory {
    return inner?.isRemote ? this.#createRemoteFactory(inner) : this.createLocalFactory(inner);
  }

  createLocalFactory(innerFactory?: BackendFactory): BackendFactory {
    return {
      isRemote: false,
      create: (policy, context) => {
        const bucket = this.allot(policy, context);
        const inner = innerFactory
          ? innerFactory.create(bucket.policy, context)
          : new LocalBackend(bucket.policy, context);
        if (!inner.credit && !bucket.isFixed) throw this.#cannotHoldBucket();
        return new GroupsBackend(inner, bucket, this);
      },
    };
  }

  #createRemoteFactory(innerFactory: RemoteBackendFactory): RemoteBackendFactory {
    return {
      isRemote: true,
      create: (policy, context) => {
        const bucket = this.allot(policy, context);
        return new RemoteGroupsBackend(innerFactory.create(bucket.policy, context), bucket, this);
      },
    };
  }

  /**
   * Grants per request: tokens above the reserve level, taken before the reply. An idle group lends; a busy group has
   * no surplus. A group that becomes busy has its reserve at once, and all later refill. Rejects with a ConfigError if
   * a request is invalid.
   */
  async lend(requests: readonly BorrowRequest[]): Promise<number[]> {
    if (!Array.isArray(requests) || !requests.every(isBorrowRequest)) {
      const expected = 'a list of { limit, key, tokens } with whole tokens';
      throw new ConfigError('requests', expected, requests);
    }
    if (this.#isClosed) return requests.map(() => 0);
    return Promise.all(requests.map((request) => this.#lendOne(request)));
  }

  async #lendOne({ limit, key, tokens }: BorrowRequest): Promise<number> {
    const granted =
      tokens > 0 ? ((await this.#limits.get(limit)?.takeSurplus(key, tokens)) ?? 0) : 0;
    this.#lent += granted;
    return granted;
  }

  view(): GroupsView {
    const others = this.#borrowers.map((borrower) => borrower.view());
    return { self: this.#options.self, fraction: this.#fraction, lent: this.#lent, others };
  }

  /** Stops borrowing and lending. */
  close(): void {
    this.#isClosed = true;
    for (const borrower of this.#borrowers) borrower.close();
  }

  #cannotHoldBucket(): ConfigError {
    const reason = 'a backend that cannot add tokens';
    return this.#options.inDaemon
      ? new ConfigError('groups', `left out beside ${reason}`, true)
      : new ConfigError('bucket', 'redis(client), etcd(...) or peers(...)', reason);
  }

  /** Lets other groups borrow from the limit; the returned function ends this. */
  register(limit: GroupLimit): () => void {
    const { name } = limit;
    if (this.#limits.has(name) && !this.#options.inDaemon) {
      throw new ConfigError('name', 'different for each limit of the groups', name);
    }
    this.#limits.set(name, limit);
    return () => {
      if (this.#limits.get(name) === limit) this.#limits.delete(name);
    };
  }

  /**
   * Records calls for `tokens` that met a low bucket. The demand is divided by the number of lenders with surplus;
   * other lenders get the same request later.
   */
  recordDemand(limit: GroupLimit, key: string, tokens: number): void {
    const withSurplus = this.#borrowers.filter((borrower) => borrower.hasSurplus()).length;
    const each = tokens / Math.max(1, withSurplus);
    for (const borrower of this.#borrowers) borrower.recordDemand(limit, key, each);
  }

  /** The group's part of a limit: a rule of the same kind. */
  allot(policy: Policy, context: AllotContext): GroupBucket {
    const { name, hasExplicitName, onCapacity } = context;
    // The default name is the rule's kind: unnamed limits of two groups would borrow from each other.
    if (hasExplicitName === false && !this.#options.inDaemon)
      throw new ConfigError('name', 'a name that all groups use for the limit', undefined);
    const part = partOf(policy, { ...this.#options, fraction: this.#fraction });
    return { ...part, name, hasExplicitName, onCapacity };
  }
}
