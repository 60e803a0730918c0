/**
 * What every way of sharing a limit through Redis begins with: what its keys are called there, the pipe
 * that leads there, who decides while Redis is out of reach, and one line for all where that is wanted.
 */

import type { Millis } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER, type OnUnavailable } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { LocalShare } from '../local/backend.ts';
import type { RemoteSetting } from '../remote-backend.ts';
import { Pipe, type Scripts } from './batcher.ts';
import type { Connection, Subscriber } from './client.ts';
import { type FairOptions, FairRoom } from './fair-queue.ts';

export const CHOICES: readonly OnUnavailable[] = ['allow', 'deny', 'local'];

/** What the user chose. */
export interface Own {
  readonly connection: Connection;
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  /** Hears whose turn it is, where those who wait stand in one line. */
  readonly subscriber: Subscriber | undefined;
}

export interface Way {
  readonly pipe: Pipe;
  /** What a key is called in Redis. */
  readonly keyOf: (key: string) => string;
  readonly standIn: StandIn;
  readonly room: FairRoom | undefined;
}

/** What is decided there, and what a place in line is, which only the share knows. */
export type There = Scripts & Pick<FairOptions, 'giveBack' | 'hold'>;

export function wayOf(policy: Policy, setting: RemoteSetting, own: Own, there: There): Way {
  const { clock, onReach } = setting;
  const { connection, deadlineMs, subscriber } = own;
  const heard = (isReachable: boolean, why: unknown): void => {
    onReach(isReachable, why);
    if (isReachable) room?.hurry();
  };
  const pipe = new Pipe(connection, there, { clock, deadlineMs, onReach: heard });
  const keyOf = keysOf(own.prefix, setting, policy);
  const standIn = standInOf(policy, setting, own);
  const { giveBack, hold } = there;
  const room =
    subscriber && new FairRoom({ ...setting, pipe, keyOf, standIn, subscriber, giveBack, hold });
  return { pipe, keyOf, standIn, room };
}

/**
 * `prefix:{name:key}:kind`. In braces, so that whatever else belongs to a key can live beside it; of its
 * kind, because limits of different kinds could not read each other's numbers, and would begin anew
 * each time. A limit that nobody named goes by its figures, lest it share a count with a stranger.
 */
function keysOf(
  prefix: string,
  { name, isNamed }: RemoteSetting,
  { formulas = [] }: Policy,
): (key: string) => string {
  const kind = formulas.map(({ kind }) => kind).join('+');
  const figures = formulas.map(({ kind, numbers }) => `${kind} ${numbers.join(' ')}`).join('+');
  // Where a name ends must be plain: "a:b" and "c" is not "a" and "b:c". Empty braces hold nothing together.
  const start = `${prefix}:{${(isNamed ? name : figures).replace(/[%:{}]/g, encodeURIComponent)}:`;
  const end = `}:${kind}`;
  return (key) => start + key + end;
}

/** What somebody is told who is refused because Redis is out of reach: it may be back by then. */
const UNREACHABLE_RETRY_MS = 500;

/** Decides while Redis is out of reach. */
export interface StandIn {
  ask(key: string, cost: number): Decision;
  /** A call that was let in has ended. Only counted where calls in flight are. */
  settle(key: string, cost: number): void;
}

function standInOf(policy: Policy, { clock, random, keysMax }: RemoteSetting, own: Own): StandIn {
  const settle = (): void => {};
  switch (own.onUnavailable) {
    case 'deny':
      return { ask: () => deny(UNREACHABLE_RETRY_MS), settle };
    case 'allow':
      return { ask: () => allow(0), settle };
    case 'local': {
      const local = new LocalShare(policy, { clock, random, keysMax });
      const flights = policy.formulas?.find(({ kind }) => kind === 'flights');
      const [most = Infinity] = flights?.numbers ?? [];
      return {
        // A part of the limit is the whole limit at a higher price, as far as that can be paid at all.
        ask(key, cost) {
          const priced = local.askNow(key, cost * own.processes, clock.now());
          const isTooDear = priced.verdict === 'deny' && priced.retryAfterMs === NEVER;
          return isTooDear ? local.askNow(key, cost, clock.now()) : priced;
        },
        settle(key, cost) {
          const price = cost * own.processes;
          const paid = price > most ? cost : price;
          local.settle(key, { outcome: 'ok', cost: paid, dueAt: clock.now() });
        },
      };
    }
  }
}
