/**
 * `etcd({ endpoints })`: one register per key, swapped by quorum; strict even when a member dies.
 *
 *     import { etcd } from 'sluice/etcd';
 *     const backend = etcd({ endpoints: ['http://etcd-0:2379', 'http://etcd-1:2379', 'http://etcd-2:2379'] });
 *     const api = limiter({ name: 'search', limit: { spacing: { every: '6s' } }, backend });
 *
 * Without a quorum every call is refused within its deadline (fail closed), unless `onUnavailable` is `allow`.
 */

import type { Millis } from '../../core/clock.ts';
import { isString } from '../../core/config-helpers.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import type { Policy } from '../../policies/policy.ts';
import { isJoint, specsOf } from '../../policies/rules.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { EtcdBackend } from './backend.ts';
import { type EtcdConnectionOptions, readConnectionOptions } from './endpoints.ts';
import { etcdEntryStore, etcdRegisterStore } from './http-store.ts';
import type { EtcdOnUnavailable } from './operations.ts';
import { REGISTER_KINDS } from './register-rule.ts';
import { SemaphoreBackend } from './semaphore.ts';
import { EtcdHttp } from './transport.ts';

/** Options of `etcd()`. */
export interface EtcdOptions extends EtcdConnectionOptions {
  /** Prefix of all keys in etcd. Default `/sluice/limits/`. */
  readonly prefix?: string | undefined;
  /** The longest time that a call waits for a decision. Default 1 s. */
  readonly deadline?: Duration | undefined;
  /** Spacing and window: how long after it is due a permit may start; permits are further apart by as much. Default: 2 % of `every` or `per`, 5 to 50 ms; from 10 s on 0.5 %, at most `deadline`. */
  readonly startTolerance?: Duration | undefined;
  /** The decision while there is no quorum. Default `deny`. With `allow`, the limit does not hold meanwhile. */
  readonly onUnavailable?: EtcdOnUnavailable | undefined;
}

/** Shares a limit through etcd. @throws {ConfigError} on invalid options. */
export function etcd(options: EtcdOptions, path = 'backend'): RemoteBackendFactory {
  const fields = OptionReader.collecting(path, options);
  const connection = readConnectionOptions(fields);
  const prefix = fields.optional('prefix', isString, 'a string') ?? '/sluice/limits/';
  const deadlineMs = fields.duration('deadline', 1000);
  const isToleranceGiven = fields.has('startTolerance');
  const chosenMs = isToleranceGiven ? fields.duration('startTolerance') : undefined;
  const startToleranceOf = (policy: Policy): Millis =>
    chosenMs ?? defaultStartToleranceMs(policy, deadlineMs);
  const onUnavailable = fields.oneOf('onUnavailable', ['deny', 'allow'] as const, 'deny');
  fields.finish();
  return {
    isRemote: true,
    create(policy, context) {
      requireShareable(policy);
      const { clock } = context;
      // Leaves time to try each remaining server after one that hangs.
      const eachMs = deadlineMs / connection.endpoints.length;
      const http = new EtcdHttp({ ...connection, deadlineMs: eachMs, clock });
      if (policy.traits.concurrencyLimit !== undefined) {
        const chosen = { prefix, deadlineMs, onUnavailable };
        return new SemaphoreBackend(policy, context, etcdEntryStore(http), chosen);
      }
      const chosen = { prefix, deadlineMs, startToleranceOf, onUnavailable };
      return new EtcdBackend(policy, context, etcdRegisterStore(http), chosen);
    },
  };
}

/** The recommended alternative for a rule that cannot be shared. */
const ALTERNATIVES: Readonly<Record<string, string>> = {
  busy: 'a rule that learns from its own calls: keep it in each process',
};

function requireShareable(policy: Policy): void {
  const { kind, traits } = policy;
  const specs = specsOf(policy);
  if (specs && traits.concurrencyLimit !== undefined) {
    if (specs.length === 1) return;
    const expected =
      'alone when it counts calls in flight through etcd: combine limiters with all([...]) instead';
    throw new ConfigError('limit', expected, kind);
  }
  const other = specs?.find((spec) => !REGISTER_KINDS.includes(spec.kind));
  if (!specs || other) {
    const refused = other?.kind ?? kind;
    const why =
      ALTERNATIVES[refused] ?? 'a rule that learns is divided by a pool, or kept by each process';
    const kinds = [...REGISTER_KINDS, 'concurrency'].join(', ');
    const expected = `made of ${kinds} when it is shared through etcd (${why})`;
    throw new ConfigError('limit', expected, refused);
  }
  if (isJoint(policy) && traits.canReserve) {
    const expected =
      'a spacing without `reserve` within `all` when it is shared through etcd: use `acquire`, which waits';
    throw new ConfigError('limit', expected, kind);
  }
}

/** Fraction of a short interval, for late timers. */
const SHORT_FRACTION = 0.02;
const SHORT_MIN_MS: Millis = 5;
const SHORT_MAX_MS: Millis = 50;
/** Fraction of a long interval, for a write that waits for a slow disk. */
const LONG_FRACTION = 0.005;

/** A permit that arrives later is lost, so the tolerance is as long as its cost allows, up to the deadline. */
function defaultStartToleranceMs({ rules }: Policy, deadlineMs: Millis): Millis {
  const intervals = rules.flatMap(({ policy: { chain, traits } }) =>
    chain?.deferTo ? (traits.refillMs ?? []) : [],
  );
  const shortest = intervals.length > 0 ? Math.min(...intervals) : 0;
  const shortMs = Math.min(SHORT_MAX_MS, Math.max(SHORT_MIN_MS, shortest * SHORT_FRACTION));
  return Math.max(shortMs, Math.min(deadlineMs, shortest * LONG_FRACTION));
}
