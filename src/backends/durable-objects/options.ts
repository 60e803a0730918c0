/**
 * `durableObjects(namespace)`: one count for all isolates of a Worker, decided by Durable Objects.
 *
 *     import { env, waitUntil } from 'cloudflare:workers';
 *     import { durableObjects } from 'sluice/durable-objects';
 *     const api = limiter({ name: 'api', limit: { bucket: { rate: '10/s' } }, backend: durableObjects(env.LIMITS, { waitUntil }) });
 *
 * While an object is unavailable, `onUnavailable` decides at once: fail closed (`deny`), fail open (`allow`), or the
 * isolate's local fallback (`local`).
 */

import { timersEndWithRequest } from '../../core/clock.ts';
import { isString } from '../../core/config-helpers.ts';
import type { OnUnavailable } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { isFunction, OptionReader } from '../../core/options.ts';
import { limitOf } from '../../policies/limit.ts';
import type { Policy } from '../../policies/policy.ts';
import { hasInterval } from '../../policies/rules.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { DurableObjectBackend } from './backend.ts';
import type { ObjectNamespace } from './platform.ts';
import { MAX_LEASES } from './stored-key.ts';

/** Options of `durableObjects()`. */
export interface DurableObjectsOptions {
  /** The longest time that a call waits for its object. Default 1 s. */
  readonly deadline?: Duration | undefined;
  /** The decision while an object is unavailable. Default: `deny` for spacing and concurrency limits, else `local`. */
  readonly onUnavailable?: OnUnavailable | undefined;
  /** The number of isolates that share the limit: `local` gives each its part. Default 1. */
  readonly processes?: number | undefined;
  /** The number of objects over which the keys of the limit are spread. Default: one object per key. */
  readonly shards?: number | undefined;
  /** How long a call in flight counts without renewal, such as after its request has ended. Default 30 s. */
  readonly leaseTimeout?: Duration | undefined;
  /** Objects write changes together after this time; a crash loses unwritten ones. Default: before each reply. */
  readonly writeDelay?: Duration | undefined;
  /** The region where objects are created, such as `weur`. Default: near the first request. */
  readonly locationHint?: string | undefined;
  /** `waitUntil` of `cloudflare:workers`: settlements and probes may outlive their request. Required on Workers. */
  readonly waitUntil?: ((work: Promise<unknown>) => void) | undefined;
}

const ON_UNAVAILABLE_VALUES: readonly OnUnavailable[] = ['allow', 'deny', 'local'];

/** The most objects of one limit; each replies to about 1,000 requests per second. */
const MAX_SHARDS = 10_000;

/** Shares a limit through a Durable Object namespace, which is bound to the class `SluiceObject`. @throws {ConfigError} on invalid options. */
export function durableObjects(
  namespace: ObjectNamespace,
  options: DurableObjectsOptions = {},
  path = 'backend',
): RemoteBackendFactory {
  if (!isNamespace(namespace)) {
    const expected = 'a binding to a Durable Object class, such as env.LIMITS';
    throw new ConfigError('namespace', expected, namespace);
  }
  const fields = OptionReader.collecting(path, options);
  const deadlineMs = fields.duration('deadline', 1000);
  const isGiven = fields.has('onUnavailable');
  const given = isGiven ? fields.oneOf('onUnavailable', ON_UNAVAILABLE_VALUES) : undefined;
  const processes = fields.integer('processes', 1, 1);
  const shards = fields.has('shards')
    ? fields.number('shards', { min: 1, max: MAX_SHARDS, integer: true })
    : undefined;
  const leaseMs = fields.duration('leaseTimeout', 30_000);
  const writeDelayMs = fields.has('writeDelay') ? fields.duration('writeDelay') : 0;
  const locationHint = fields.optional('locationHint', isString, 'a string');
  const waitUntil = fields.optional(
    'waitUntil',
    isFunction<(work: Promise<unknown>) => void>,
    'a function',
  );
  if (timersEndWithRequest && !waitUntil)
    fields.report('waitUntil', 'waitUntil of cloudflare:workers: without it, settlements are lost');
  fields.finish();
  return {
    isRemote: true,
    create(policy, context) {
      requireShareable(policy);
      if (given === 'local' && policy.traits.needsOutcome) {
        const expected = 'deny or allow for a limit on calls in flight';
        throw new ConfigError(fields.pathOf('onUnavailable'), expected, given);
      }
      const isStrict = policy.traits.needsOutcome || hasInterval(policy);
      const onUnavailable = given ?? (isStrict ? 'deny' : 'local');
      const chosen = { namespace, deadlineMs, onUnavailable, processes, shards };
      const rest = { leaseMs, writeDelayMs, locationHint, waitUntil };
      return new DurableObjectBackend(policy, context, { ...chosen, ...rest });
    },
  };
}

const isNamespace = (value: unknown): value is ObjectNamespace =>
  isFunction((value as ObjectNamespace | null)?.idFromName) &&
  isFunction((value as ObjectNamespace | null)?.get);

function requireShareable(policy: Policy): void {
  const { concurrencyLimit = 0 } = policy.traits;
  if (concurrencyLimit > MAX_LEASES) {
    const expected = `at most ${MAX_LEASES} calls in flight of a key when a Durable Object counts them`;
    throw new ConfigError('limit', expected, concurrencyLimit);
  }
  if (limitOf(policy) === undefined) {
    const expected = 'a whole limit when Durable Objects decide it, not the part of a group';
    throw new ConfigError('limit', expected, policy.kind);
  }
}
