/**
 * All of several limiters: a call goes ahead only if every one of them lets it.
 *
 *     const perUser = limiter({ name: 'user', limit: { bucket: { rate: '1/s', burst: 10 } } });
 *     const everyone = limiter({ name: 'everyone', limit: { bucket: { rate: '500/s' } } });
 *     const api = all([perUser, { limiter: everyone, key: '*' }]);
 *
 * A limit spelled `{ all: [...] }` has one key and one cost for all its rules. Here each part counts
 * in its own way: per user and for everybody, requests and tokens. What comes back is a limiter like
 * any other.
 *
 * All or nothing: first everybody is looked at, and only if nobody would refuse is anything taken.
 * Should one refuse all the same, what the others gave is given back.
 *
 * Whoever has to wait stands in the line of the limiter that holds it back, behind those who were
 * there before, whether they came this way or straight. When its turn has come and another one
 * refuses, it moves to that one's line, and keeps its place in the order of arrival.
 */

import { type Result, requireKey, requirePatience } from './arguments.ts';
import type { Clock, Millis } from './clock.ts';
import type { Counted, Histogram } from './counts.ts';
import { allow, type Decision, deny, NEVER, type Outcome, WHEN_SETTLED } from './decision.ts';
import { ConfigError } from './errors.ts';
import type { Listener } from './events.ts';
import { binding, type Inspection } from './inspection.ts';
import {
  type AcquireOptions,
  type AskOptions,
  Engine,
  type Limiter,
  type Stats,
} from './limiter.ts';
import { Fields, isRecord, requireNumber } from './options.ts';
import { Permit, type Refusal, type Settled } from './permit.ts';
import { requireCost } from './policy/cost.ts';
import type { News } from './policy/policy.ts';
import type { Random } from './random.ts';
import { ELSEWHERE, type Entry, nextTicket } from './waiting.ts';

/** One of several limiters, and how a call counts against it. */
export interface PartOptions {
  readonly limiter: Limiter;
  /** Which key: one for all calls, or made from the call's own. Default: the call's own. */
  readonly key?: string | ((key: string) => string);
  /** What it costs: always the same, or made from the call's own cost. Default: the call's own. */
  readonly cost?: number | ((cost: number) => number);
}

export interface AllOptions {
  /** What it is called. Default: the parts' names, such as `user+everyone`. */
  readonly name?: string;
}

/** The most limiters in one. */
const PARTS_MAX = 64;

/** Makes one limiter of several. @throws {ConfigError} if the parts make no sense. */
export function all(parts: readonly (Limiter | PartOptions)[], options: AllOptions = {}): Limiter {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new ConfigError('parts', 'a list of at least one limiter', parts);
  }
  const read = parts.flatMap((part, n) => readPart(part, `parts[${n}]`));
  if (read.length > PARTS_MAX) {
    throw new ConfigError('parts', `at most ${PARTS_MAX} limiters`, `${read.length} of them`);
  }
  const fields = new Fields('', options);
  const given = fields.raw('name');
  if (given !== undefined && typeof given !== 'string') fields.fail('name', 'a text');
  fields.done();
  return new AllOf(read, (given as string) ?? read.map(({ engine }) => engine.name).join('+'));
}

interface Part {
  readonly engine: Engine;
  readonly keyOf: (key: string) => string;
  readonly costOf: (cost: number) => number;
}

const same = <T>(value: T): T => value;

function readPart(part: unknown, path: string): readonly Part[] {
  if (part instanceof Engine) return [{ engine: part, keyOf: same, costOf: same }];
  if (part instanceof AllOf) return part.parts;
  const expected = 'a limiter, or an object with a limiter';
  if (!isRecord(part)) throw new ConfigError(path, expected, part);
  const fields = new Fields(path, part, expected);
  const keyOf = readMap<string>(fields, 'key', 'string', 'a text, or a function of the key');
  const costOf = readMap<number>(fields, 'cost', 'number', 'a number, or a function of the cost');
  const inner = fields.raw('limiter');
  fields.done();
  if (!(inner instanceof Engine || inner instanceof AllOf)) fields.fail('limiter', 'a limiter');
  // Limiters within limiters are parts like the others, seen through both.
  return readPart(inner, path).map((own) => ({
    engine: own.engine,
    keyOf: (key) => own.keyOf(keyOf(key)),
    costOf: (cost) => own.costOf(costOf(cost)),
  }));
}

/** A value that is always the same, or a function of the call's own. */
function readMap<T>(
  fields: Fields,
  name: string,
  type: 'string' | 'number',
  expected: string,
): (own: T) => T {
  const value = fields.raw(name);
  if (value === undefined) return same;
  if (typeof value === 'function') return value as (own: T) => T;
  if (typeof value !== type) fields.fail(name, expected);
  if (type === 'number') requireNumber(fields.at(name), value, { min: 0 });
  return () => value as T;
}

/** What a part gave, before anybody knows of it. */
interface Held {
  readonly holder: Part;
  readonly at: Millis;
  readonly decision: Extract<Decision, { verdict: 'allow' }>;
}

/** A refusal, and whose. */
interface Refused {
  readonly part: Part;
  readonly retryAfterMs: Millis;
}

class AllOf implements Limiter {
  readonly parts: readonly Part[];
  readonly name: string;
  readonly isSimple: boolean;
  readonly clock: Clock;
  readonly random: Random;

  constructor(parts: readonly Part[], name: string) {
    this.parts = parts;
    this.name = name;
    this.isSimple = parts.every(({ engine }) => engine.isSimple);
    this.clock = parts[0].engine.clock;
    this.random = parts[0].engine.random;
  }

  /** For those who settle by key. A place is never reserved: allow or deny. */
  ask(key: string, cost = 1, options?: AskOptions): Decision {
    const held = this.#holdAll(key, cost, options);
    if ('part' in held) {
      this.#note(held.part, key, cost, deny(held.retryAfterMs));
      return deny(held.retryAfterMs);
    }
    for (const { holder, decision } of held) this.#note(holder, key, cost, decision);
    return allow(Math.min(...held.map(({ decision }) => decision.remaining)));
  }

  peek(key: string, cost = 1, options?: AskOptions): Decision {
    const refused = this.#wouldRefuse(key, cost, options);
    return refused ? deny(refused.retryAfterMs) : allow(Math.max(0, this.inspect(key).remaining));
  }

  tryAcquire(key: string, cost = 1, options?: AskOptions): Permit | Refusal {
    const held = this.#holdAll(key, cost, options);
    if (!('part' in held)) return this.#permit(key, cost, held, options, 0);
    const { part, retryAfterMs } = held;
    const reason = retryAfterMs === NEVER ? 'never' : 'too-long';
    return part.engine.refuse(part.keyOf(key), part.costOf(cost), { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    requirePatience(options);
    const { signal, maxWaitMs = Infinity, priority = 0 } = options;
    const since = this.clock.now();
    const ticket = nextTicket();
    let held: readonly Held[] | undefined;
    let at = this.#partWithLine(key, options) ?? this.parts[0];

    /** Asks for everything, on behalf of the line it stands in. */
    const ask = (): Decision | typeof ELSEWHERE => {
      const tried = this.#holdAll(key, cost, options);
      if (!('part' in tried)) {
        held = tried;
        return allow(0);
      }
      const isHere = tried.part === at;
      at = tried.part;
      return isHere ? deny(tried.retryAfterMs) : ELSEWHERE;
    };

    for (;;) {
      const { engine, keyOf, costOf } = at;
      const leftMs = Math.max(0, maxWaitMs - (this.clock.now() - since));
      const want = { key: keyOf(key), cost: costOf(cost), ask, ticket };
      const patience = { maxWaitMs: leftMs, priority, ...(signal && { signal }) };
      const entry: Entry = await engine.enter(want, patience, engine.known(options));
      if (held) return this.#permit(key, cost, held, options, held[0].at - since);
      if (entry.verdict === 'deny') {
        return engine.refuse(want.key, want.cost, entry, this.clock.now() - since);
      }
    }
  }

  pass(key: string, cost = 1): boolean {
    if (this.hasLine(key)) return false;
    const held = this.#holdAll(key, cost);
    if ('part' in held) return false;
    for (const { holder, decision } of held) this.#note(holder, key, cost, decision);
    return true;
  }

  hasLine(key: string, options?: AskOptions): boolean {
    return this.#partWithLine(key, options) !== undefined;
  }

  /** What all of them have; what one gave and another had not is given back. */
  take(key: string, most: number): number {
    requireKey(key);
    let granted = most;
    const taken: { part: Part; got: number }[] = [];
    for (const part of this.parts) {
      granted = part.engine.take(part.keyOf(key), granted);
      taken.push({ part, got: granted });
      if (granted === 0) break;
    }
    for (const { part, got } of taken) {
      if (got > granted) part.engine.give(part.keyOf(key), got - granted);
    }
    return granted;
  }

  give(key: string, unused: number, takenAt?: Millis): void {
    for (const { engine, keyOf } of this.parts) engine.give(keyOf(key), unused, takenAt);
  }

  settle(key: string, result: Result = {}): void {
    const { cost = 1, used, ...rest } = result;
    for (const part of this.parts) {
      const own = { ...rest, ...this.#usedOf(part, used), cost: part.costOf(cost) };
      part.engine.settle(part.keyOf(key), own);
    }
  }

  isExpired(dueAt: Millis, at?: Millis): boolean {
    return this.parts.some(({ engine }) => engine.isExpired(dueAt, at));
  }

  hear(key: string, news: News): boolean {
    return this.parts
      .map(({ engine, keyOf }) => engine.hear(keyOf(key), news))
      .some((heard) => heard);
  }

  inspect(key: string): Inspection {
    const views = this.parts.map(({ engine, keyOf }) => engine.inspect(keyOf(key)));
    const rules = views.flatMap((view) => view.rules);
    const pausedMs = Math.max(
      ...views.map((view) => (view.by === 'pause' ? (view.opensInMs ?? 0) : 0)),
    );
    const remaining = Math.min(...views.map((view) => view.remaining));
    return { remaining, name: this.name, ...binding(rules, pausedMs), rules };
  }

  /** Each part tells of what it decided itself. */
  on(listener: Listener): () => void {
    const stops = this.#engines().map((engine) => engine.on(listener));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** The parts' together: a call that passed three of them was allowed three times. */
  stats(): Stats {
    return this.#engines()
      .map((engine) => engine.stats())
      .reduce(sumOf);
  }

  #engines(): Engine[] {
    return [...new Set(this.parts.map(({ engine }) => engine))];
  }

  #partWithLine(key: string, options?: AskOptions): Part | undefined {
    return this.parts.find(({ engine, keyOf }) =>
      engine.hasLine(keyOf(key), engine.known(options)),
    );
  }

  /** Holds what it wants of every part, or nothing: then says who refuses longest. */
  #holdAll(key: string, cost: number, options?: AskOptions): readonly Held[] | Refused {
    const refused = this.#wouldRefuse(key, cost, options);
    if (refused) {
      // It is asked all the same: whoever is refused has been here, and some rules take note of it.
      const own = this.#hold(refused.part, key, cost, options);
      if ('part' in own) return own;
      this.#release(own, key, cost, options); // it has opened since
    }
    const held: Held[] = [];
    for (const part of this.parts) {
      const own = this.#hold(part, key, cost, options);
      if ('decision' in own) {
        held.push(own);
        continue;
      }
      for (const other of held) this.#release(other, key, cost, options);
      return own;
    }
    return held;
  }

  #hold(part: Part, key: string, cost: number, options?: AskOptions): Held | Refused {
    const { engine, keyOf, costOf } = part;
    const at = engine.clock.now();
    const decision = engine.hold(keyOf(key), costOf(cost), at, engine.known(options));
    if (decision.verdict === 'deny') return { part, retryAfterMs: decision.retryAfterMs };
    const remaining = decision.verdict === 'allow' ? decision.remaining : 0;
    return { holder: part, at, decision: { verdict: 'allow', remaining } };
  }

  #release({ holder, at }: Held, key: string, cost: number, options?: AskOptions): void {
    const { engine, keyOf, costOf } = holder;
    engine.release(keyOf(key), costOf(cost), at, engine.known(options));
  }

  #note({ engine, keyOf, costOf }: Part, key: string, cost: number, decision: Decision): void {
    engine.note(keyOf(key), costOf(cost), decision, 0);
  }

  #wouldRefuse(key: string, cost: number, options?: AskOptions): Refused | undefined {
    requireKey(key);
    requireCost(cost);
    this.#requirePartition(options);
    let worst: Refused | undefined;
    for (const part of this.parts) {
      const { engine, keyOf, costOf } = part;
      const decision = engine.peek(keyOf(key), costOf(cost), engine.known(options));
      if (decision.verdict !== 'deny') continue;
      const { retryAfterMs } = decision;
      if (!worst || isLonger(retryAfterMs, worst.retryAfterMs)) worst = { part, retryAfterMs };
    }
    return worst;
  }

  /** A partition is for those parts that have it; one that none has is a mistake. */
  #requirePartition(options: AskOptions | undefined): void {
    if (options?.partition === undefined) return;
    if (this.parts.some(({ engine }) => engine.known(options))) return;
    const expected = 'a partition of one of its limits';
    throw new ConfigError('partition', expected, options.partition);
  }

  #permit(
    key: string,
    cost: number,
    held: readonly Held[],
    options: AskOptions | undefined,
    waitedMs: Millis,
  ): Permit {
    const permits = held.map(({ holder: { engine, keyOf, costOf }, at }) => {
      const partition = engine.known(options)?.partition;
      return engine.admit(keyOf(key), costOf(cost), at, waitedMs, partition);
    });
    const [{ dueAt, heldAt }] = permits;
    return new Permit({ key, cost, dueAt, heldAt }, ({ used, ...rest }: Settled) => {
      for (const [n, permit] of permits.entries()) {
        permit.settle({ ...rest, ...this.#usedOf(this.parts[n], used) });
      }
    });
  }

  #usedOf({ costOf }: Part, used: number | undefined): Pick<Result, 'used'> {
    return used === undefined ? {} : { used: costOf(used) };
  }
}

/** A wait of known length is worth more to know than one for a call to settle. */
const isLonger = (a: Millis, b: Millis): boolean =>
  b === WHEN_SETTLED ? a !== WHEN_SETTLED : a > b;

function sumOf(a: Stats, b: Stats): Stats {
  const sum: Record<string, unknown> = {};
  for (const name of Object.keys(a) as (keyof Stats)[]) sum[name] = added(a[name], b[name]);
  return sum as unknown as Stats;
}

function added(a: Stats[keyof Stats], b: typeof a): unknown {
  if (typeof a === 'number') return a + (b as number);
  if ('boundsMs' in a) return addedSpans(a, b as Histogram);
  const [one, other] = [a, b as Counted['settled']];
  return Object.fromEntries(
    Object.entries(one).map(([name, n]) => [name, n + other[name as Outcome]]),
  );
}

const addedSpans = (a: Histogram, b: Histogram): Histogram => ({
  boundsMs: a.boundsMs,
  counts: a.counts.map((count, n) => count + b.counts[n]),
  count: a.count + b.count,
  sumMs: a.sumMs + b.sumMs,
});
