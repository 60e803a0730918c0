/**
 * Makes limiters, of what people write.
 *
 *     const api = limiter({ limit: { bucket: { rate: '100/s', burst: 20 } } });
 *     if (api.ask(userId).verdict === 'allow') serve();
 *
 * Whoever would rather wait than be refused takes `acquire` instead.
 */

import type { ShareMaker } from '../backends/backend.ts';
import { LocalShare } from '../backends/local/backend.ts';
import { KEYS_MAX_DEFAULT, KEYS_MAX_MAX } from '../backends/local/table.ts';
import type { RemoteShareMaker } from '../backends/remote-backend.ts';
import { type Clock, isClock, type Millis, systemClock, turnClock } from '../core/clock.ts';
import type { Duration } from '../core/duration.ts';
import type { Hasher } from '../core/hash.ts';
import { Fields, isRecord } from '../core/options.ts';
import { type Random, systemRandom } from '../core/random.ts';
import { type Limit, policyOf } from '../policies/limit.ts';
import { RemoteEngine, type RemoteLimiter } from './async-limiter.ts';
import { Engine, type Limiter } from './sync-limiter.ts';
import { ORDERS, type Order } from './wait-queue.ts';

/** What `limiter` takes. */
export interface LimiterOptions {
  /** The rule, spelled with one key: `{ bucket: { rate: '100/s' } }`. */
  readonly limit: Limit;
  /** What it is called in events, metrics, log lines and headers. Default: the rule's name. */
  readonly name?: string;
  /** How `acquire` lets people wait. */
  readonly queue?: QueueOptions;
  /** Who else spends from the limit. Default: nobody, this process decides alone. */
  readonly share?: RemoteShareMaker | ShareMaker;
  /** A permit held longer than this counts as lost: its place is given back. Default 10 minutes; Infinity: never. */
  readonly holdMax?: Duration;
  /** The longest anybody is kept out because the other side asked for it. Default 5 minutes. */
  readonly pauseMax?: Duration;
  /** The most keys to remember at once. Default 1,048,576. */
  readonly keysMax?: number;
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
  readonly order?: Order;
  /** False lets the process end while somebody waits. Default true. */
  readonly keepAlive?: boolean;
}

const WAITERS_MAX_DEFAULT = 10_000;
const HOLD_MS_DEFAULT: Millis = 600_000;
const PAUSE_MS_DEFAULT: Millis = 300_000;

/** A limiter whose decisions are made elsewhere. */
export interface RemoteLimiterOptions extends LimiterOptions {
  /** Who else spends from the limit, and who decides: `redis(client)`. */
  readonly share: RemoteShareMaker;
}

/** Makes a limiter. @throws {ConfigError} if the limit makes no sense. */
export function limiter(options: RemoteLimiterOptions): RemoteLimiter;
export function limiter(options: LimiterOptions & { readonly share?: ShareMaker }): Limiter;
export function limiter(options: LimiterOptions): Limiter | RemoteLimiter;
export function limiter(options: LimiterOptions): Limiter | RemoteLimiter {
  return engineOf(options);
}

/** What a surface of ours says besides. */
interface Within {
  /** It hashes keys itself, with this. */
  readonly hasher?: Hasher;
  /** It knows best how often to look at the clock, where the rule can bear that. */
  readonly clock?: Clock | undefined;
  /** Where the limit stands in what people wrote. Default `limit`. */
  readonly path?: string;
}

/** The same for a surface of ours. */
export function engineOf(options: LimiterOptions, within: Within = {}): Engine | RemoteEngine {
  const fields = new Fields('', options, 'an object with a limit');
  const limit = fields.raw('limit');
  const queue = readQueue(new Fields('queue', fields.raw('queue') ?? {}));
  const range = { min: 1, max: KEYS_MAX_MAX, whole: true };
  const keysMax = fields.number('keysMax', range, KEYS_MAX_DEFAULT);
  const given = fields.optional('clock', isClock, 'a clock: an object with now()');
  const random = fields.optional('random', isFunction, 'a function') ?? systemRandom;
  const name = fields.optional('name', isName, 'a text of at least one letter');
  const isEndless = fields.raw('holdMax') === Infinity;
  const holdMaxMs = isEndless ? Infinity : fields.duration('holdMax', HOLD_MS_DEFAULT);
  const pauseMaxMs = fields.duration('pauseMax', PAUSE_MS_DEFAULT);
  const maker = fields.optional('share', isMaker, 'a share, such as redis(client) or peers(...)');
  fields.done();

  const policy = policyOf(limit, random, within.path);
  const own = { name: name ?? policy.kind, random, queue, holdMaxMs, pauseMaxMs };
  if (maker?.isRemote) {
    const isNamed = name !== undefined;
    const settings = { ...own, isNamed, keysMax, clock: given ?? systemClock };
    return new RemoteEngine(policy, maker, settings);
  }
  const clock = given ?? (policy.exactTime ? systemClock : (within.clock ?? turnClock()));
  const { hasher } = within;
  const setting = { clock, random, keysMax, ...(hasher && { hasher }) };
  let engine: Engine | undefined;
  const onRoom = (key: string): void => engine?.poke(key);
  const share = maker
    ? maker.make(policy, { name: own.name, onRoom, ...setting })
    : new LocalShare(policy, setting);
  engine = new Engine(policy, share, { ...own, clock });
  return engine;
}

function readQueue(fields: Fields): Required<QueueOptions> {
  const queue = {
    max: fields.number('max', { min: 0, whole: true }, WAITERS_MAX_DEFAULT),
    order: fields.oneOf('order', ORDERS, 'fifo'),
    keepAlive: fields.flag('keepAlive', true),
  };
  fields.done();
  return queue;
}

const isFunction = (value: unknown): value is Random => typeof value === 'function';

const isMaker = (value: unknown): value is RemoteShareMaker | ShareMaker =>
  isRecord(value) && typeof value.isRemote === 'boolean' && isFunction(value.make);

const isName = (value: unknown): value is string => typeof value === 'string' && value !== '';

export { LIMIT_KINDS } from '../policies/limit.ts';
