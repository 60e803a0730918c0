/** The parts that all Redis backends share: key names, the script batcher, the fallback, the fair queue. */

import type { Millis } from '../../core/clock.ts';
import { type Decision, NEVER, type OnUnavailable } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { LocalBackend } from '../local/backend.ts';
import type { RemoteBackendContext } from '../remote-backend.ts';
import { decideUnavailable, limitIdOf } from '../remote-limit.ts';
import { ScriptBatcher, type Scripts } from './batcher.ts';
import type { RedisConnection, Subscriber } from './client.ts';
import { FairQueue, type FairQueueOptions, type SendCommand } from './fair-queue.ts';

export const ON_UNAVAILABLE_VALUES: readonly OnUnavailable[] = ['allow', 'deny', 'local'];

/** The options of `redis()`, read and completed. */
export interface RedisConfig {
  readonly connection: RedisConnection;
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  /** Receives turn messages; only with `fairQueue`. */
  readonly subscriber: Subscriber | undefined;
}

export interface RedisContext {
  readonly batcher: ScriptBatcher;
  /** Sends a command for a key. Rejects with an UnavailableError if there is no reply in time. */
  readonly send: SendCommand;
  readonly fallback: Fallback;
  readonly fairQueue: FairQueue | undefined;
}

/** The scripts of a backend, and how its fair queue returns and tracks permits. */
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
  const batching = { clock, deadlineMs, onAvailability: onChange };
  const batcher = new ScriptBatcher(connection, scripts, batching);
  const redisKeyOf = createRedisKeyMapper(config.prefix, context, policy);
  const send: SendCommand = (key, command) => batcher.send(redisKeyOf(key), command);
  const { check, settle } = createFallback(policy, context, config);
  const fallback: Fallback = {
    check: (key, cost) => (batcher.isClosed ? decideUnavailable('deny') : check(key, cost)),
    settle,
  };
  const { releaseCommand, trackLease } = scripts;
  const fairQueue =
    subscriber &&
    new FairQueue({ ...context, send, fallback, subscriber, releaseCommand, trackLease });
  return { batcher, send, fallback, fairQueue };
}

/**
 * `prefix:{limit:key}:kind`. The braces are a hash tag: everything that belongs to a key lives in one cluster slot. The
 * kind is part of the name because limits of different kinds cannot read each other's state.
 */
function createRedisKeyMapper(
  prefix: string,
  context: RemoteBackendContext,
  policy: Policy,
): (key: string) => string {
  // The end of the limit's id must be unambiguous: "a:b" and "c" differ from "a" and "b:c". Empty braces are no hash tag.
  const id = limitIdOf(context, policy).replace(/[%:{}]/g, encodeURIComponent);
  const start = `${prefix}:{${id}:`;
  const end = `}:${(policy.specs ?? []).map(({ kind }) => kind).join('+')}`;
  return (key) => start + key + end;
}

/** Decides while Redis is unavailable. */
export interface Fallback {
  check(key: string, cost: number): Decision;
  /** A call that the fallback allowed has ended; only a limit on calls in flight counts it. */
  settle(key: string, cost: number): void;
}

function createFallback(
  policy: Policy,
  { clock, random, maxKeys }: RemoteBackendContext,
  config: RedisConfig,
): Fallback {
  const { onUnavailable, processes } = config;
  if (onUnavailable !== 'local')
    return { check: () => decideUnavailable(onUnavailable), settle: () => {} };
  const local = new LocalBackend(policy, { clock, random, maxKeys });
  const { concurrencyLimit: most = Infinity } = policy;
  return {
    // This process's part of the limit: the whole limit with every cost multiplied by the number of processes. A cost
    // that could then never fit is charged once.
    check(key, cost) {
      const scaled = local.checkNow(key, cost * processes, clock.now());
      const isTooLarge = scaled.verdict === 'deny' && scaled.retryAfterMs === NEVER;
      return isTooLarge ? local.checkNow(key, cost, clock.now()) : scaled;
    },
    settle(key, cost) {
      const scaled = cost * processes;
      const charged = scaled > most ? cost : scaled;
      local.settle(key, { outcome: 'ok', cost: charged, dueAt: clock.now() });
    },
  };
}
