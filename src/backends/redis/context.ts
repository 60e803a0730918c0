/**
 * What every way of sharing a limit through Redis begins with: what its keys are called there, the pipe
 * that leads there, who decides while Redis is out of reach, and one line for all where that is wanted.
 */

import type { Millis } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER, type OnUnavailable } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { LocalBackend } from '../local/backend.ts';
import type { RemoteBackendContext } from '../remote-backend.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import type { RedisConnection, Subscriber } from './client.ts';
import { FairQueue, type FairQueueOptions } from './fair-queue.ts';

export const ON_UNAVAILABLE_VALUES: readonly OnUnavailable[] = ['allow', 'deny', 'local'];

/** What the user chose. */
export interface RedisConfig {
  readonly connection: RedisConnection;
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  /** Hears whose turn it is, where those who wait stand in one line. */
  readonly subscriber: Subscriber | undefined;
}

export interface RedisContext {
  readonly batcher: ScriptBatcher;
  /** What a key is called in Redis. */
  readonly redisKeyOf: (key: string) => string;
  readonly fallback: Fallback;
  readonly fairQueue: FairQueue | undefined;
}

/** What is decided there, and what a place in line is, which only the share knows. */
export type BackendScripts = Scripts & Pick<FairQueueOptions, 'releaseCommand' | 'trackLease'>;

export function createRedisContext(
  policy: Policy,
  context: RemoteBackendContext,
  config: RedisConfig,
  scripts: BackendScripts,
): RedisContext {
  const { clock, onAvailability } = context;
  const { connection, deadlineMs, subscriber } = config;
  const onChange = (isAvailable: boolean, why: unknown): void => {
    onAvailability(isAvailable, why);
    if (isAvailable) fairQueue?.pollNow();
  };
  const batcher = new ScriptBatcher(connection, scripts, {
    clock,
    deadlineMs,
    onAvailability: onChange,
  });
  const redisKeyOf = createRedisKeyMapper(config.prefix, context, policy);
  const fallback = createFallback(policy, context, config);
  const { releaseCommand, trackLease } = scripts;
  const fairQueue =
    subscriber &&
    new FairQueue({
      ...context,
      batcher,
      redisKeyOf,
      fallback,
      subscriber,
      releaseCommand,
      trackLease,
    });
  return { batcher, redisKeyOf, fallback, fairQueue };
}

/**
 * `prefix:{name:key}:kind`. In braces, so that whatever else belongs to a key can live beside it; of its
 * kind, because limits of different kinds could not read each other's numbers, and would begin anew
 * each time. A limit that nobody named goes by its figures, lest it share a count with a stranger.
 */
function createRedisKeyMapper(
  prefix: string,
  { name, hasExplicitName }: RemoteBackendContext,
  { specs = [] }: Policy,
): (key: string) => string {
  const kind = specs.map(({ kind }) => kind).join('+');
  const figures = specs.map(({ kind, params }) => `${kind} ${params.join(' ')}`).join('+');
  // Where a name ends must be plain: "a:b" and "c" is not "a" and "b:c". Empty braces hold nothing together.
  const start = `${prefix}:{${(hasExplicitName ? name : figures).replace(/[%:{}]/g, encodeURIComponent)}:`;
  const end = `}:${kind}`;
  return (key) => start + key + end;
}

/** What somebody is told who is refused because Redis is out of reach: it may be back by then. */
const UNAVAILABLE_RETRY_MS = 500;

/** Decides while Redis is out of reach. */
export interface Fallback {
  check(key: string, cost: number): Decision;
  /** A call that was let in has ended. Only counted where calls in flight are. */
  settle(key: string, cost: number): void;
}

function createFallback(
  policy: Policy,
  { clock, random, maxKeys }: RemoteBackendContext,
  config: RedisConfig,
): Fallback {
  const settle = (): void => {};
  switch (config.onUnavailable) {
    case 'deny':
      return { check: () => deny(UNAVAILABLE_RETRY_MS), settle };
    case 'allow':
      return { check: () => allow(0), settle };
    case 'local': {
      const local = new LocalBackend(policy, { clock, random, maxKeys });
      const { concurrencyLimit: most = Infinity } = policy;
      return {
        // A part of the limit is the whole limit at a higher price, as far as that can be paid at all.
        check(key, cost) {
          const priced = local.checkNow(key, cost * config.processes, clock.now());
          const isTooDear = priced.verdict === 'deny' && priced.retryAfterMs === NEVER;
          return isTooDear ? local.checkNow(key, cost, clock.now()) : priced;
        },
        settle(key, cost) {
          const price = cost * config.processes;
          const paid = price > most ? cost : price;
          local.settle(key, { outcome: 'ok', cost: paid, dueAt: clock.now() });
        },
      };
    }
  }
}
