/**
 * A process's place in its group: the group's part of each limit, what others may steal of it, and what it steals itself.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { bucket } from '../../policies/bucket.ts';
import type { Policy } from '../../policies/policy.ts';
import type { ShareMaker } from '../backend.ts';
import { LocalShare } from '../local/backend.ts';
import type { RemoteShareMaker } from '../remote-backend.ts';
import { type Claimed, partsOf } from './allotments.ts';
import { type GroupBucket, GroupShare, type OwnGroup } from './backend.ts';
import { type DonorView, Thief } from './borrower.ts';
import { Giver } from './lender.ts';
import type { GroupLimit } from './limits.ts';
import { RemoteGroupShare } from './remote-backend.ts';
import type { Door, Want } from './transport.ts';

export interface GroupSetting {
  readonly own: string;
  readonly groups: ReadonlyMap<string, Claimed>;
  /** What part of its burst a group keeps for its own calls. */
  readonly keep: number;
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
  readonly given: number;
  readonly others: readonly DonorView[];
}

export class Group {
  readonly #own: string;
  readonly #part: number;
  readonly #replaces: boolean;
  readonly #keep: number;
  readonly #limits = new Map<string, GroupLimit>();
  readonly #giver: Giver;
  readonly #thief: Thief;
  readonly #forShares: OwnGroup = {
    add: (limit) => this.#add(limit),
    want: (limit, key, units) => this.#thief.want(limit, key, units),
  };

  /** @throws {ConfigError} if more is guaranteed to groups than there is. */
  constructor(options: GroupSetting, door: Door, clock: Clock) {
    const { own, groups, keep, deadlineMs, replaces = false } = options;
    this.#own = own;
    this.#replaces = replaces;
    this.#part = partsOf(groups).get(own) ?? 0;
    this.#keep = keep;
    this.#giver = new Giver(this.#limits);
    const others = [...groups.keys()].filter((name) => name !== own);
    this.#thief = new Thief(door, clock, { groups: others, deadlineMs });
  }

  /** Limits whose bucket is kept as `within` says: by the group's processes, or by somebody else. */
  maker(within?: RemoteShareMaker | ShareMaker): RemoteShareMaker | ShareMaker {
    return within?.isRemote ? this.remoteMaker(within) : this.ownMaker(within);
  }

  /** Limits whose bucket the group's processes keep: this one alone, or as `within` says. */
  ownMaker(within?: ShareMaker): ShareMaker {
    return {
      isRemote: false,
      make: (policy, made) => {
        const own = this.#partOf(policy);
        const inner = within ? within.make(own.policy, made) : new LocalShare(own.policy, made);
        if (!inner.gain) throw new ConfigError('bucket', 'redis(client) or peers(...)', within);
        return new GroupShare(inner, { ...made, ...own }, this.#forShares);
      },
    };
  }

  /** Limits whose bucket somebody else keeps for the group. */
  remoteMaker(within: RemoteShareMaker): RemoteShareMaker {
    return {
      isRemote: true,
      make: (policy, made) => {
        const own = this.#partOf(policy);
        const inner = within.make(own.policy, made);
        return new RemoteGroupShare(inner, own.policy, { ...made, ...own }, this.#forShares);
      },
    };
  }

  /** What others get of what they want. */
  give(wants: readonly Want[]): Promise<number[]> {
    return this.#giver.give(wants);
  }

  view(): GroupsView {
    const others = this.#thief.view();
    return { own: this.#own, part: this.#part, given: this.#giver.given, others };
  }

  /** Steals no more. */
  close(): void {
    this.#thief.close();
  }

  #add(limit: GroupLimit): () => void {
    const { name } = limit;
    if (this.#limits.has(name) && !this.#replaces) {
      throw new ConfigError('name', 'different for each limit of the groups', name);
    }
    this.#limits.set(name, limit);
    return () => {
      if (this.#limits.get(name) === limit) this.#limits.delete(name);
    };
  }

  /** A bucket with the group's part of the rate and of the burst. */
  #partOf(policy: Policy): { policy: Policy } & Pick<GroupBucket, 'perMs' | 'burst' | 'line'> {
    const [formula] = policy.formulas ?? [];
    if (policy.kind !== 'bucket' || !formula) {
      const expected = 'a bucket: only its tokens can be stored and stolen';
      throw new ConfigError('limit', expected, policy.kind);
    }
    const [perMs, wholeBurst, debtMax] = formula.numbers;
    const part = this.#part;
    const burst = wholeBurst * part;
    if (part === 0) {
      const least = 'above 0, or a `min`: what it steals needs a bucket, too';
      throw new ConfigError(`groups.${this.#own}.weight`, least, 0);
    }
    if (burst < 1) {
      const least = `at least ${Math.ceil(1 / part)}, so that group ${this.#own} has one token of it`;
      throw new ConfigError('limit.bucket.burst', least, wholeBurst);
    }
    const debt = debtMax === Infinity ? {} : { debtMax: debtMax * part };
    const own = bucket({ rate: perMs * 1000 * part, burst, ...debt });
    return { policy: own, perMs: perMs * part, burst, line: burst * this.#keep };
  }
}
