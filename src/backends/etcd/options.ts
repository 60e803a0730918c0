/**
 * etcd decides: one register a key, swapped by quorum, strict even when a member dies.
 *
 *     import { etcd } from 'sluice/etcd';
 *     const share = etcd({ endpoints: ['http://etcd-0:2379', 'http://etcd-1:2379', 'http://etcd-2:2379'] });
 *     const api = limiter({ name: 'search', limit: { spacing: { every: '6s' } }, share });
 *
 * Without a quorum every call is refused within its deadline.
 */

import type { Millis } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import type { Policy } from '../../policies/policy.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { EtcdBackend, type OnNoQuorum } from './backend.ts';
import { everyMsOf } from './delayed-rule.ts';
import { type EtcdConnectionOptions, readConnectionOptions } from './endpoints.ts';
import { etcdRegisterStore } from './http-store.ts';
import { EtcdHttp } from './transport.ts';

/** Where etcd is, and how a limit is kept there. */
export interface EtcdOptions extends EtcdConnectionOptions {
  /** What all keys in etcd begin with. Default `/sluice/limits/`. */
  readonly prefix?: string;
  /** How long a call waits for a decision. Default 1 s. */
  readonly deadline?: Duration;
  /** How long after its place opened a permit may begin; places are so much further apart. */
  readonly startTolerance?: Duration;
  /** What a call is told while there is no quorum. Default `deny`: with `allow` the limit is not kept. */
  readonly onUnavailable?: OnNoQuorum;
}

/** Shares a limit through etcd. @throws {ConfigError} if the options make no sense. */
export function etcd(options: EtcdOptions, path = 'backend'): RemoteBackendFactory {
  const fields = OptionReader.collecting(path, options);
  const connection = readConnectionOptions(fields);
  const prefix = fields.optional('prefix', isString, 'a text') ?? '/sluice/limits/';
  const deadlineMs = fields.duration('deadline', 1000);
  const startTolerance = fields.has('startTolerance')
    ? fields.duration('startTolerance')
    : undefined;
  const onUnavailable = fields.oneOf('onUnavailable', ['deny', 'allow'] as const, 'deny');
  fields.finish();
  return {
    isRemote: true,
    create(policy, context) {
      if (policy.instantIndex === undefined) {
        const kinds = 'a bucket or a spacing when it is shared through etcd';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      const { clock } = context;
      // One that hangs leaves time for each of the others.
      const eachMs = deadlineMs / connection.endpoints.length;
      const http = new EtcdHttp({ ...connection, deadlineMs: eachMs, clock });
      const startToleranceMs = startTolerance ?? defaultStartToleranceMs(policy);
      const chosen = { prefix, deadlineMs, startToleranceMs, onUnavailable };
      return new EtcdBackend(policy, context, etcdRegisterStore(http), chosen);
    },
  };
}

/** A timer that is late by more than this belongs to a process that was held up. */
const MIN_START_TOLERANCE_MS: Millis = 5;
const MAX_START_TOLERANCE_MS: Millis = 50;
/** What part of the distance between two permits it may cost. */
const START_TOLERANCE_FRACTION = 0.02;

const defaultStartToleranceMs = (policy: Policy): Millis =>
  Math.min(
    MAX_START_TOLERANCE_MS,
    Math.max(MIN_START_TOLERANCE_MS, everyMsOf(policy) * START_TOLERANCE_FRACTION),
  );

const isString = (value: unknown): value is string => typeof value === 'string';
