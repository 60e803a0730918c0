/**
 * What a client is told when it is made.
 */

import type { ConnectionOptions } from 'node:tls';
import { type Clock, isClock, type Millis, systemClock } from '../core/clock.ts';
import type { Duration } from '../core/duration.ts';
import { isRecord, OptionReader } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { type DaemonAddress, type Endpoint, endpointOf } from './address.ts';

/** How long a daemon that does not answer is left alone. */
export interface BackoffOptions {
  /** The longest pause after the first failure. Default 100 ms. */
  readonly first?: Duration;
  /** Each pause may be twice as long as the one before, up to this. Default 5 s. */
  readonly max?: Duration;
}

/** What `connect` takes. */
export interface ClientOptions {
  /** Where the daemon is. Default `127.0.0.1:7611`. */
  readonly at?: DaemonAddress;
  /** Talk through TLS, with what `tls.connect` takes if need be. Default false. */
  readonly tls?: boolean | ConnectionOptions;
  /** What the daemon wants to hear first: its `resp.password`, if it has one. */
  readonly password?: string;
  /** The longest that anybody waits for an answer. Default 20 ms. */
  readonly deadline?: Duration;
  /** What holds when there is no answer. Default allow: better too many than none. */
  readonly onUnavailable?: 'allow' | 'deny';
  /** How long nobody is sent after a failure. */
  readonly backoff?: BackoffOptions;
  /** The most questions that may be open at once; more are not asked. Default 10,000. */
  readonly maxPending?: number;
  /** Where time and chance come from. Default: the system's. */
  readonly clock?: Clock;
  readonly random?: Random;
}

export interface ClientSettings {
  readonly endpoint: Endpoint;
  /** Undefined: no TLS. */
  readonly tls: ConnectionOptions | undefined;
  readonly password: string | undefined;
  readonly deadlineMs: Millis;
  readonly onUnavailable: 'allow' | 'deny';
  readonly firstBackoffMs: Millis;
  readonly maxBackoffMs: Millis;
  readonly maxPending: number;
  readonly clock: Clock;
  readonly random: Random;
}

const DEFAULT_DEADLINE_MS: Millis = 20;
const DEFAULT_FIRST_BACKOFF_MS: Millis = 100;
const DEFAULT_MAX_BACKOFF_MS: Millis = 5_000;
const DEFAULT_MAX_PENDING = 10_000;

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';

const isRandom = (value: unknown): value is Random => typeof value === 'function';

/** @throws {ConfigError} if something makes no sense. */
export function readSettings(options: ClientOptions): ClientSettings {
  const fields = new OptionReader('', options);
  const backoff = new OptionReader('backoff', fields.get('backoff') ?? {});
  const settings: ClientSettings = {
    endpoint: endpointOf(fields.get('at')),
    tls: readTls(fields),
    password: fields.optional('password', isNonEmptyString, 'a text of at least one letter'),
    deadlineMs: fields.duration('deadline', DEFAULT_DEADLINE_MS),
    onUnavailable: fields.oneOf('onUnavailable', ['allow', 'deny'], 'allow'),
    firstBackoffMs: backoff.duration('first', DEFAULT_FIRST_BACKOFF_MS),
    maxBackoffMs: backoff.duration('max', DEFAULT_MAX_BACKOFF_MS),
    maxPending: fields.integer('maxPending', 1, DEFAULT_MAX_PENDING),
    clock: fields.optional('clock', isClock, 'a clock: an object with now()') ?? systemClock,
    random: fields.optional('random', isRandom, 'a function') ?? systemRandom,
  };
  backoff.finish();
  fields.finish();
  return settings;
}

function readTls(fields: OptionReader): ConnectionOptions | undefined {
  const tls = fields.get('tls') ?? false;
  if (tls === false) return undefined;
  if (tls === true) return {};
  return isRecord(tls) ? tls : fields.throwFor('tls', 'true, false, or options of tls.connect');
}
