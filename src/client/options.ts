import type { ConnectionOptions } from 'node:tls';
import { type Clock, isClock, type Millis, systemClock } from '../core/clock.ts';
import { isNonEmptyString } from '../core/config-helpers.ts';
import type { Duration } from '../core/duration.ts';
import { isFunction, isRecord, OptionReader } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { type DaemonAddress, endpointOf } from './address.ts';

/** Exponential backoff of reconnects, with jitter. */
export interface BackoffOptions {
  /** The longest delay after the first failure. Default 100 ms. */
  readonly initialDelay?: Duration | undefined;
  /** The delay doubles with each failure, up to this. Default 5 s. */
  readonly maxDelay?: Duration | undefined;
}

/** The options of `connect`. */
export interface ClientOptions {
  /** The address of the daemon. Default `127.0.0.1:7611`. */
  readonly at?: DaemonAddress | undefined;
  /** Use TLS, optionally with options of `tls.connect`. Default false. */
  readonly tls?: boolean | ConnectionOptions | undefined;
  /** The daemon's `resp.password`, if it has one. */
  readonly password?: string | undefined;
  /** How long a request waits for a reply after it was sent. Default 100 ms. */
  readonly deadline?: Duration | undefined;
  /** The decision without a reply: allow (fail open, the default) or deny (fail closed). */
  readonly onUnavailable?: 'allow' | 'deny' | undefined;
  /** How long no request is sent after a failure. */
  readonly backoff?: BackoffOptions | undefined;
  /** How many requests may be pending; further ones are denied. Default 10,000. */
  readonly maxPending?: number | undefined;
  /** How many calls of `acquire` may wait at once, each with a connection; further ones are denied. Default 1,000. */
  readonly maxWaiting?: number | undefined;
  /** The source of time. Default: the system's. */
  readonly clock?: Clock | undefined;
  /** The source of jitter. Default: the system's. */
  readonly random?: Random | undefined;
}

export type ClientSettings = ReturnType<typeof readSettings>;

const DEFAULT_DEADLINE_MS: Millis = 100;
const DEFAULT_INITIAL_DELAY_MS: Millis = 100;
const DEFAULT_MAX_DELAY_MS: Millis = 5_000;
const DEFAULT_MAX_PENDING = 10_000;
const DEFAULT_MAX_WAITING = 1_000;

/** @throws {ConfigError} if an option is invalid. */
export function readSettings(options: ClientOptions) {
  const reader = new OptionReader('', options);
  const backoff = new OptionReader('backoff', reader.get('backoff') ?? {});
  const settings = {
    endpoint: endpointOf(reader.get('at')),
    tls: readTls(reader),
    password: reader.optional('password', isNonEmptyString, 'a non-empty string'),
    deadlineMs: reader.duration('deadline', DEFAULT_DEADLINE_MS),
    onUnavailable: reader.oneOf('onUnavailable', ['allow', 'deny'] as const, 'allow'),
    initialDelayMs: backoff.duration('initialDelay', DEFAULT_INITIAL_DELAY_MS),
    maxDelayMs: backoff.duration('maxDelay', DEFAULT_MAX_DELAY_MS),
    maxPending: reader.integer('maxPending', 1, DEFAULT_MAX_PENDING),
    maxWaiting: reader.integer('maxWaiting', 1, DEFAULT_MAX_WAITING),
    clock: reader.optional('clock', isClock, 'a clock: an object with now()') ?? systemClock,
    random: reader.optional('random', isFunction<Random>, 'a function') ?? systemRandom,
  };
  backoff.finish();
  reader.finish();
  return settings;
}

/** Undefined: no TLS. */
function readTls(reader: OptionReader): ConnectionOptions | undefined {
  const tls = reader.get('tls') ?? false;
  if (tls === false) return undefined;
  if (tls === true) return {};
  return isRecord(tls) ? tls : reader.throwFor('tls', 'true, false, or options of tls.connect');
}
