/**
 * Makes limiters, of what people write.
 *
 *     const api = limiter({ limit: { bucket: { rate: '100/s', burst: 20 } } });
 *     if (api.ask(userId).verdict === 'allow') serve();
 *
 * Whoever would rather wait than be refused takes `acquire` instead.
 */

import type { BackendFactory } from '../backends/backend.ts';
import { LocalBackend } from '../backends/local/backend.ts';
import { DEFAULT_MAX_KEYS, MAX_KEYS_CEILING } from '../backends/local/table.ts';
import type { RemoteBackendFactory } from '../backends/remote-backend.ts';
import { type Clock, coarseClock, isClock, type Millis, systemClock } from '../core/clock.ts';
import type { Duration } from '../core/duration.ts';
import type { Hasher } from '../core/hash.ts';
import { isRecord, OptionReader } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { createPolicy, type Limit } from '../policies/limit.ts';
import { AsyncLimiter, type RemoteLimiter } from './async-limiter.ts';
import { type Limiter, SyncLimiter } from './sync-limiter.ts';
import { QUEUE_ORDERS, type QueueOrder } from './wait-queue.ts';

/** What `limiter` takes. */
export interface LimiterOptions {
  /** The rule, spelled with one key: `{ bucket: { rate: '100/s' } }`. */
  readonly limit: Limit;
  /** What it is called in events, metrics, log lines and headers. Default: the rule's name. */
  readonly name?: string;
  /** How `acquire` lets people wait. */
  readonly queue?: QueueOptions;
  /** Who else spends from the limit. Default: nobody, this process decides alone. */
  readonly backend?: RemoteBackendFactory | BackendFactory;
  /** A permit held longer than this counts as lost: its place is given back. Default 10 minutes; Infinity: never. */
  readonly permitTimeout?: Duration;
  /** The longest anybody is kept out because the other side asked for it. Default 5 minutes. */
  readonly maxCooldown?: Duration;
  /** The most keys to remember at once. Default 1,048,576. */
  readonly maxKeys?: number;
  /** Where time comes from. Default: the system's, looked at as often as the rule needs. */
  readonly clock?: Clock;
  /** Where chance comes from. Default: the system's. */
  readonly random?: Random;
}

/** Who may wait in `acquire`, and who is next. */
export interface QueueOptions {
  /** The most that may wait, over all keys. Default 10,000. */
  readonly max?: number;
  /** Who is next: fifo (default), lifo, or priority. */
  readonly order?: QueueOrder;
  /** False lets the process end while somebody waits. Default true. */
  readonly keepAlive?: boolean;
}

const DEFAULT_MAX_WAITERS = 10_000;
const DEFAULT_PERMIT_TIMEOUT_MS: Millis = 600_000;
const DEFAULT_MAX_COOLDOWN_MS: Millis = 300_000;

/** A limiter whose decisions are made elsewhere. */
export interface RemoteLimiterOptions extends LimiterOptions {
  /** Who else spends from the limit, and who decides: `redis(client)`. */
  readonly backend: RemoteBackendFactory;
}

/** Makes a limiter. @throws {ConfigError} if the limit makes no sense. */
export function limiter(options: RemoteLimiterOptions): RemoteLimiter;
export function limiter(options: LimiterOptions & { readonly backend?: BackendFactory }): Limiter;
export function limiter(options: LimiterOptions): Limiter | RemoteLimiter;
export function limiter(options: LimiterOptions): Limiter | RemoteLimiter {
  return createLimiter(options);
}

/** What a surface of ours says besides. */
interface InternalOptions {
  /** It hashes keys itself, with this. */
  readonly hasher?: Hasher;
  /** It knows best how often to look at the clock, where the rule can bear that. */
  readonly clock?: Clock | undefined;
  /** Where the limit stands in what people wrote. Default `limit`. */
  readonly path?: string;
}

/** The same for a surface of ours. */
export function createLimiter(
  options: LimiterOptions,
  within: InternalOptions = {},
): SyncLimiter | AsyncLimiter {
  const reader = new OptionReader('', options, 'an object with a limit');
  const limit = reader.get('limit');
  const queue = readQueue(new OptionReader('queue', reader.get('queue') ?? {}));
  const range = { min: 1, max: MAX_KEYS_CEILING, integer: true };
  const maxKeys = reader.number('maxKeys', range, DEFAULT_MAX_KEYS);
  const given = reader.optional('clock', isClock, 'a clock: an object with now()');
  const random = reader.optional('random', isFunction, 'a function') ?? systemRandom;
  const name = reader.optional('name', isNonEmptyString, 'a text of at least one letter');
  const isEndless = reader.get('permitTimeout') === Infinity;
  const permitTimeoutMs = isEndless
    ? Infinity
    : reader.duration('permitTimeout', DEFAULT_PERMIT_TIMEOUT_MS);
  const maxCooldownMs = reader.duration('maxCooldown', DEFAULT_MAX_COOLDOWN_MS);
  const factory = reader.optional(
    'backend',
    isBackendFactory,
    'a backend, such as redis(client) or peers(...)',
  );
  reader.finish();

  const policy = createPolicy(limit, random, within.path);
  const own = { name: name ?? policy.kind, random, queue, permitTimeoutMs, maxCooldownMs };
  if (factory?.isRemote) {
    const hasExplicitName = name !== undefined;
    const settings = { ...own, hasExplicitName, maxKeys, clock: given ?? systemClock };
    return new AsyncLimiter(policy, factory, settings);
  }
  const clock = given ?? (policy.needsExactTime ? systemClock : (within.clock ?? coarseClock()));
  const { hasher } = within;
  const setting = { clock, random, maxKeys, ...(hasher && { hasher }) };
  let created: SyncLimiter | undefined;
  const onCapacity = (key: string): void => created?.wake(key);
  const backend = factory
    ? factory.create(policy, { name: own.name, onCapacity, ...setting })
    : new LocalBackend(policy, setting);
  created = new SyncLimiter(policy, backend, { ...own, clock });
  return created;
}

function readQueue(reader: OptionReader): Required<QueueOptions> {
  const queue = {
    max: reader.number('max', { min: 0, integer: true }, DEFAULT_MAX_WAITERS),
    order: reader.oneOf('order', QUEUE_ORDERS, 'fifo'),
    keepAlive: reader.boolean('keepAlive', true),
  };
  reader.finish();
  return queue;
}

const isFunction = (value: unknown): value is Random => typeof value === 'function';

const isBackendFactory = (value: unknown): value is RemoteBackendFactory | BackendFactory =>
  isRecord(value) && typeof value.isRemote === 'boolean' && isFunction(value.create);

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';

export { LIMIT_KINDS } from '../policies/limit.ts';
