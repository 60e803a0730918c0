/**
 * What a client is told when it is made.
 */

import type { ConnectionOptions } from 'node:tls';
import { type Clock, isClock, type Millis, systemClock } from '../core/clock.ts';
import type { Duration } from '../core/duration.ts';
import { Fields, isRecord } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { type Address, type Place, placeOf } from './address.ts';

/** How long a daemon that does not answer is left alone. */
export interface Backoff {
  /** The longest pause after the first failure. Default 100 ms. */
  readonly first?: Duration;
  /** Each pause may be twice as long as the one before, up to this. Default 5 s. */
  readonly max?: Duration;
}

/** What `connect` takes. */
export interface ClientOptions {
  /** Where the daemon is. Default `127.0.0.1:7611`. */
  readonly at?: Address;
  /** Talk through TLS, with what `tls.connect` takes if need be. Default false. */
  readonly tls?: boolean | ConnectionOptions;
  /** What the daemon wants to hear first: its `resp.password`, if it has one. */
  readonly password?: string;
  /** The longest that anybody waits for an answer. Default 20 ms. */
  readonly deadline?: Duration;
  /** What holds when there is no answer. Default allow: better too many than none. */
  readonly onUnavailable?: 'allow' | 'deny';
  /** How long nobody is sent after a failure. */
  readonly backoff?: Backoff;
  /** The most questions that may be open at once; more are not asked. Default 10,000. */
  readonly asksMax?: number;
  /** Where time and chance come from. Default: the system's. */
  readonly clock?: Clock;
  readonly random?: Random;
}

export interface Settings {
  readonly place: Place;
  /** Undefined: no TLS. */
  readonly tls: ConnectionOptions | undefined;
  readonly password: string | undefined;
  readonly deadlineMs: Millis;
  readonly onUnavailable: 'allow' | 'deny';
  readonly pauseMsFirst: Millis;
  readonly pauseMsMax: Millis;
  readonly asksMax: number;
  readonly clock: Clock;
  readonly random: Random;
}

const DEADLINE_MS: Millis = 20;
const PAUSE_MS_FIRST: Millis = 100;
const PAUSE_MS_MAX: Millis = 5_000;
const ASKS_MAX = 10_000;

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

const isRandom = (value: unknown): value is Random => typeof value === 'function';

/** @throws {ConfigError} if something makes no sense. */
export function readSettings(options: ClientOptions): Settings {
  const fields = new Fields('', options);
  const backoff = new Fields('backoff', fields.raw('backoff') ?? {});
  const settings: Settings = {
    place: placeOf(fields.raw('at')),
    tls: readTls(fields),
    password: fields.optional('password', isText, 'a text of at least one letter'),
    deadlineMs: fields.duration('deadline', DEADLINE_MS),
    onUnavailable: fields.oneOf('onUnavailable', ['allow', 'deny'], 'allow'),
    pauseMsFirst: backoff.duration('first', PAUSE_MS_FIRST),
    pauseMsMax: backoff.duration('max', PAUSE_MS_MAX),
    asksMax: fields.whole('asksMax', 1, ASKS_MAX),
    clock: fields.optional('clock', isClock, 'a clock: an object with now()') ?? systemClock,
    random: fields.optional('random', isRandom, 'a function') ?? systemRandom,
  };
  backoff.done();
  fields.done();
  return settings;
}

function readTls(fields: Fields): ConnectionOptions | undefined {
  const tls = fields.raw('tls') ?? false;
  if (tls === false) return undefined;
  if (tls === true) return {};
  return isRecord(tls) ? tls : fields.fail('tls', 'true, false, or options of tls.connect');
}
