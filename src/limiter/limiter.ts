import type { BackendFactory, SharedMemory } from '../backends/backend.ts';
import { LocalBackend } from '../backends/local/backend.ts';
import { DEFAULT_MAX_KEYS, MAX_KEYS_CEILING } from '../backends/local/table.ts';
import type { RemoteBackendFactory } from '../backends/remote-backend.ts';
import {
  batchClock,
  type Clock,
  coarseClock,
  isClock,
  type Millis,
  systemClock,
} from '../core/clock.ts';
import { isNonEmptyString } from '../core/config-helpers.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import type { Hasher } from '../core/hash.ts';
import { isFunction, isRecord, OptionReader } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import {
  createPolicy,
  hintForRule,
  LIMIT_KINDS,
  type Limit,
  RULE_OF_OPTION,
} from '../policies/limit.ts';
import { AsyncLimiter, type RemoteLimiter } from './async-limiter.ts';
import { warnOfBareDurations } from './bare-durations.ts';
import { DEFAULT_ID_FOR_MS } from './idempotent-calls.ts';
import type { Limiter } from './limiter-interface.ts';
import { SyncLimiter } from './sync-limiter.ts';
import { QUEUE_ORDERS, type QueueOrder } from './wait-queue.ts';
import type { QueueSettings } from './wait-scheduler.ts';

/** Options of `limiter`. */
export interface LimiterOptions {
  /** The rule, an object with one key: `{ bucket: { rate: '100/s' } }`. */
  readonly limit: Limit;
  /** Its name in events, metrics, log lines and headers. Default: the rule's kind. */
  readonly name?: string | undefined;
  /** The queue of `acquire`. */
  readonly queue?: QueueOptions | undefined;
  /** Where the limit's state lives: `redis(client)`, `peers(…)`. Default: in this process. */
  readonly backend?: RemoteBackendFactory | BackendFactory | undefined;
  /** A permit not settled within this time expires, unless a call runs with it. Default 10 minutes; Infinity: never. */
  readonly permitTimeout?: Duration | undefined;
  /** The longest Retry-After cool-down of a key. Default 5 minutes; Infinity: no bound. */
  readonly maxCooldown?: Duration | undefined;
  /** How long the `id` of an allowed call is remembered: its repeats are charged once. Default 1 minute. */
  readonly idFor?: Duration | undefined;
  /** The most keys that have state at once. Default 1,048,576. */
  readonly maxKeys?: number | undefined;
  /** The clock. Default: the system's, read as often as the rule needs. */
  readonly clock?: Clock | undefined;
  /** The random number generator. Default: the system's. */
  readonly random?: Random | undefined;
}

/** The queue of `acquire`: its bound and its order. */
export interface QueueOptions {
  /** The most waiting calls, over all keys. Default 10,000. */
  readonly max?: number | undefined;
  /** Which call is next: fifo (default), lifo, priority, or fair between flows. */
  readonly order?: QueueOrder | undefined;
  /** Whether waiting calls keep the process alive. Default true. */
  readonly keepAlive?: boolean | undefined;
}

const DEFAULT_MAX_WAITERS = 10_000;
const DEFAULT_PERMIT_TIMEOUT_MS: Millis = 600_000;
const DEFAULT_MAX_COOLDOWN_MS: Millis = 300_000;

/** Options of a limiter whose backend decides elsewhere. */
export interface RemoteLimiterOptions extends LimiterOptions {
  /** The backend that decides: `redis(client)`. */
  readonly backend: RemoteBackendFactory;
}

/** A backend of either kind, or none. */
export type AnyBackend = RemoteBackendFactory | BackendFactory | undefined;

/** Options with one kind of backend. Declared as an interface: compiler errors then name the property directly. */
export interface OptionsWith<B extends AnyBackend> extends LimiterOptions {
  readonly backend?: B | undefined;
}

/** The limiter that `limiter` creates: with a remote backend, its methods return promises. */
export type LimiterOf<B extends AnyBackend> = B extends RemoteBackendFactory
  ? RemoteLimiter
  : Limiter;

/** Creates a limiter. @throws {ConfigError} for invalid options. */
export function limiter<B extends AnyBackend = BackendFactory>(
  options: OptionsWith<B>,
): LimiterOf<B> {
  return createLimiter(options) as Limiter | RemoteLimiter as LimiterOf<B>;
}

/** Options for this package's own callers. */
interface InternalOptions {
  /** The hasher of a caller that hashes keys itself. */
  readonly hasher?: Hasher;
  /** The caller's clock, used where the rule does not need exact time. */
  readonly clock?: Clock | undefined;
  /** Bounds the memory of the keys where `maxKeys` is not given. */
  readonly memory?: SharedMemory | undefined;
  /** The path of the limit in error messages. Default `limit`. */
  readonly path?: string;
  /** Options of the caller itself, for the error that lists the known ones. */
  readonly alsoKnown?: readonly string[];
}

/** Creates a limiter for this package's own callers. */
export function createLimiter(
  options: LimiterOptions,
  internal: InternalOptions = {},
): SyncLimiter | AsyncLimiter {
  const reader = new OptionReader('', options, 'an object with a limit');
  const limit = reader.get('limit');
  if (limit === undefined) throwIfMisplaced(reader);
  const queue = readQueue(
    new OptionReader('queue', reader.has('queue') ? reader.get('queue') : {}),
  );
  const range = { min: 1, max: MAX_KEYS_CEILING, integer: true };
  const { memory = DEFAULT_MAX_KEYS } = internal;
  const maxKeys = reader.has('maxKeys') ? reader.number('maxKeys', range) : memory;
  const givenClock = reader.optional(
    'clock',
    isClock,
    'a clock: an object whose now() returns a number',
  );
  const random = reader.optional('random', isFunction<Random>, 'a function') ?? systemRandom;
  const name = reader.optional('name', isNonEmptyString, 'a string of at least one character');
  const permitTimeoutMs = reader.durationOrInfinity('permitTimeout', DEFAULT_PERMIT_TIMEOUT_MS);
  const maxCooldownMs = reader.durationOrInfinity('maxCooldown', DEFAULT_MAX_COOLDOWN_MS);
  const idForMs = reader.duration('idFor', DEFAULT_ID_FOR_MS);
  const factory = reader.optional(
    'backend',
    isBackendFactory,
    'a backend, such as redis(client) or peers(...)',
  );
  reader.finish(internal.alsoKnown);

  const policy = createPolicy(limit, random, internal.path);
  if (internal.path === undefined) warnOfBareDurations(options);
  const common = {
    name: name ?? policy.kind,
    random,
    ...queue,
    permitTimeoutMs,
    maxCooldownMs,
    idForMs,
  };
  const hasExplicitName = name !== undefined;
  if (factory?.isRemote) {
    if (policy.classes) {
      const option = policy.classes.kind === 'partition' ? 'partitions' : 'priorities';
      const expected = `without ${option} when its backend decides elsewhere: its calls cannot name one; write one limit for each`;
      throw new ConfigError(internal.path ?? 'limit', expected, policy.classes.names);
    }
    const clock = givenClock ?? systemClock;
    const settings = { ...common, hasExplicitName, maxKeys, clock };
    return new AsyncLimiter(policy, factory, settings);
  }
  const inexactClock = (): Clock => internal.clock ?? coarseClock();
  const source = givenClock ?? (policy.traits.needsExactTime ? systemClock : inexactClock());
  const reservationClock = policy.traits.canReserve ? batchClock(source) : undefined;
  const clock = reservationClock ?? source;
  const { hasher } = internal;
  const context = { clock, random, maxKeys, ...(hasher && { hasher }) };
  let created: SyncLimiter | undefined;
  const onCapacity = (key: string): void => created?.scheduler.wake(key);
  const backend = factory
    ? factory.create(policy, { name: common.name, hasExplicitName, onCapacity, ...context })
    : new LocalBackend(policy, context);
  created = new SyncLimiter(policy, backend, { ...common, clock, batchClock: reservationClock });
  return created;
}

/** Throws for a rule beside the options instead of in `limit`. */
function throwIfMisplaced(reader: OptionReader): void {
  const kind = LIMIT_KINDS.find((name) => reader.names().includes(name));
  if (kind === undefined) return;
  reader.throwFor(kind, `inside \`limit\` (did you mean \`{ limit: { ${kind}: … } }\`?)`);
}

function readQueue(reader: OptionReader): Omit<QueueSettings, 'clock'> {
  const queue = {
    maxWaiters: reader.number('max', { min: 0, integer: true }, DEFAULT_MAX_WAITERS),
    order: reader.oneOf('order', QUEUE_ORDERS, 'fifo'),
    keepAlive: reader.boolean('keepAlive', true),
  };
  reader.finish();
  return queue;
}

const isBackendFactory = (value: unknown): value is RemoteBackendFactory | BackendFactory =>
  isRecord(value) && typeof value.isRemote === 'boolean' && isFunction(value.create);

// For the daemon and the CLI, which import no policies.
export { hintForRule, LIMIT_KINDS, RULE_OF_OPTION };
