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
import { Fields } from '../../core/options.ts';
import type { Policy } from '../../policies/policy.ts';
import type { RemoteShareMaker } from '../remote-backend.ts';
import { type OnNoQuorum, RegisterShare } from './backend.ts';
import { everyMsOf, INSTANT_OF } from './delayed-rule.ts';
import { type EtcdPlace, readPlace } from './endpoints.ts';
import { etcdRegisters } from './http-store.ts';
import { EtcdHttp } from './transport.ts';

/** Where etcd is, and how a limit is kept there. */
export interface EtcdOptions extends EtcdPlace {
  /** What all keys in etcd begin with. Default `/sluice/limits/`. */
  readonly prefix?: string;
  /** How long a call waits for a decision. Default 1 s. */
  readonly deadline?: Duration;
  /** How long after its place opened a permit may begin; places are so much further apart. */
  readonly slack?: Duration;
  /** What a call is told while there is no quorum. Default `deny`: with `allow` the limit is not kept. */
  readonly onUnavailable?: OnNoQuorum;
}

/** Shares a limit through etcd. @throws {ConfigError} if the options make no sense. */
export function etcd(options: EtcdOptions, path = 'share'): RemoteShareMaker {
  const fields = Fields.patient(path, options);
  const place = readPlace(fields);
  const prefix = fields.optional('prefix', isText, 'a text') ?? '/sluice/limits/';
  const deadlineMs = fields.duration('deadline', 1000);
  const slack = fields.has('slack') ? fields.duration('slack') : undefined;
  const onUnavailable = fields.oneOf('onUnavailable', ['deny', 'allow'] as const, 'deny');
  fields.done();
  return {
    isRemote: true,
    make(policy, setting) {
      if (!(policy.kind in INSTANT_OF)) {
        const kinds = 'a bucket or a spacing when it is shared through etcd';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      const { clock } = setting;
      // One that hangs leaves time for each of the others.
      const eachMs = deadlineMs / place.endpoints.length;
      const http = new EtcdHttp({ ...place, deadlineMs: eachMs, clock });
      const slackMs = slack ?? slackOf(policy);
      const chosen = { prefix, deadlineMs, slackMs, onUnavailable };
      return new RegisterShare(policy, setting, etcdRegisters(http), chosen);
    },
  };
}

/** A timer that is late by more than this belongs to a process that was held up. */
const SLACK_MS_MIN: Millis = 5;
const SLACK_MS_MAX: Millis = 50;
/** What part of the distance between two permits it may cost. */
const SLACK_PART = 0.02;

const slackOf = (policy: Policy): Millis =>
  Math.min(SLACK_MS_MAX, Math.max(SLACK_MS_MIN, everyMsOf(policy) * SLACK_PART));

const isText = (value: unknown): value is string => typeof value === 'string';
