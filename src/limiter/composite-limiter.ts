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
 * Whoever has to wait stands in the line of the limiter that holds it back, behind those who were
 * there before, whether they came this way or straight. When its turn has come and another one
 * refuses, it moves to that one's line, and keeps its place in the order of arrival.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { allow, type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { Fields, isRecord, requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import type { News } from '../policies/policy.ts';
import { isRemote } from './async-limiter.ts';
import {
  type Call,
  type Held,
  hasLine,
  holdAll,
  isBefore,
  isRefused,
  look,
  note,
  remainingAfter,
  together,
  usedOf,
  wouldRefuse,
} from './composite-reservation.ts';
import type { Listener } from './events.ts';
import { binding, type Inspection } from './inspection.ts';
import { Permit, type Refusal, type Settled } from './permit.ts';
import { sumOf } from './stats.ts';
import {
  type AcquireOptions,
  type AskOptions,
  Engine,
  type Limiter,
  type Stats,
} from './sync-limiter.ts';
import {
  patienceIn,
  type Result,
  requireAskOptions,
  requireKey,
  requireResult,
} from './validate.ts';
import { ELSEWHERE, type Entry, nextTicket } from './wait-scheduler.ts';

/** One of several limiters, and how a call counts against it. */
export interface PartOptions {
  readonly limiter: Limiter;
  /** Which key: one for all calls, or made from the call's own. Default: the call's own. */
  readonly key?: string | ((key: string) => string);
  /** What it costs: always the same, or made from the call's own cost. Default: the call's own. */
  readonly cost?: number | ((cost: number) => number);
}

/** Of a limiter made of several. */
export interface AllOptions {
  /** What it is called. Default: the parts' names, such as `user+everyone`. */
  readonly name?: string;
}

/** The most limiters in one. */
const PARTS_MAX = 64;

/** Makes one limiter of several. @throws {ConfigError} if the parts make no sense. */
export function all(parts: readonly (Limiter | PartOptions)[], options: AllOptions = {}): Limiter {
  const several = allOf(parts, options);
  const { length } = several.parts;
  if (length > PARTS_MAX) {
    throw new ConfigError('parts', `at most ${PARTS_MAX} limiters`, `${length} of them`);
  }
  return several;
}

/** The same for a surface of ours, which has a bound of its own on how many there are. */
export function allOf(parts: readonly (Limiter | PartOptions)[], options: AllOptions = {}): AllOf {
  if (!Array.isArray(parts) || parts.length === 0) {
    throw new ConfigError('parts', 'a list of at least one limiter', parts);
  }
  const read = parts.flatMap((part, n) => readPart(part, `parts[${n}]`));
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
  requireOwn(part, path);
  const expected = 'a limiter, or an object with a limiter';
  if (!isRecord(part)) throw new ConfigError(path, expected, part);
  const fields = new Fields(path, part, expected);
  const keyOf = readMap<string>(fields, 'key', 'string', 'a text, or a function of the key');
  const costOf = readMap<number>(fields, 'cost', 'number', 'a number, or a function of the cost');
  const inner = fields.raw('limiter');
  fields.done();
  requireOwn(inner, fields.at('limiter'));
  if (!(inner instanceof Engine || inner instanceof AllOf)) fields.fail('limiter', 'a limiter');
  // Limiters within limiters are parts like the others, seen through both.
  return readPart(inner, path).map((own) => ({
    engine: own.engine,
    keyOf: after(own.keyOf, keyOf),
    costOf: after(own.costOf, costOf),
  }));
}

/** All or nothing needs an answer at once: nothing can be looked at and kept that way while others decide. */
function requireOwn(value: unknown, path: string): void {
  if (typeof value !== 'object' || value === null || !isRemote(value)) return;
  const expected =
    'a limiter that decides in this process: spell shared ones as one limit, { all: [...] }, if key and cost are the same; ' +
    "else acquire one after the other, and settle those before as 'ignored' when one refuses";
  throw new ConfigError(path, expected, `shared limiter ${value.name}`);
}

/** One after the other; what changes nothing is left out, and can be told by being `same`. */
function after<T>(outer: (own: T) => T, inner: (own: T) => T): (own: T) => T {
  if (outer === same) return inner;
  return inner === same ? outer : (own) => outer(inner(own));
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

/** A decision, and who refused if somebody did. */
export interface NamedDecision {
  readonly decision: Decision;
  readonly limit?: string;
}

export class AllOf implements Limiter {
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
    return this.askNaming(key, cost, options).decision;
  }

  /** The same, and the name of the limit that refused. */
  askNaming(key: string, cost = 1, options?: AskOptions): NamedDecision {
    const held = holdAll(this.#calls(key, cost, options));
    if (!isRefused(held)) return { decision: this.#noted(held) };
    const decision = deny(held.retryAfterMs);
    note(held.by, decision);
    return { decision, limit: held.by.engine.name };
  }

  pass(key: string, cost = 1): boolean {
    const held = this.#passing(key, cost, undefined);
    if (held) this.#noted(held);
    return held !== undefined;
  }

  passHolding(key: string, cost = 1, options?: AskOptions): Permit | undefined {
    const held = this.#passing(key, cost, options);
    return held && this.#permit(key, cost, held, 0);
  }

  /** What all of them give at once, past nobody who waits. */
  #passing(key: string, cost: number, options?: AskOptions): readonly Held[] | undefined {
    const calls = this.#calls(key, cost, options);
    if (calls.some(hasLine)) return undefined;
    const held = holdAll(calls);
    return isRefused(held) ? undefined : held;
  }

  peek(key: string, cost = 1, options?: AskOptions): Decision {
    const calls = this.#calls(key, cost, options);
    const refused = wouldRefuse(calls);
    if (refused) return deny(refused.retryAfterMs);
    return allow(Math.min(...calls.map((call) => remainingAfter(look(call)))));
  }

  tryAcquire(key: string, cost = 1, options?: AskOptions): Permit | Refusal {
    const held = holdAll(this.#calls(key, cost, options));
    if (!isRefused(held)) return this.#permit(key, cost, held, 0);
    const { by, retryAfterMs } = held;
    const reason = retryAfterMs === NEVER ? 'never' : 'not-now';
    return by.engine.refuse(by.key, by.cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    const calls = this.#calls(key, cost, options);
    const { waitMsMax, ...own } = patienceIn(options);
    const since = this.clock.now();
    const rank = { ticket: nextTicket(), priority: own.priority };
    let held: readonly Held[] | undefined;
    let at = calls.find(hasLine) ?? calls[0];
    let hasWaited = false;

    /** Asks for everything, on behalf of the line it stands in, and past nobody in another. */
    const ask = (): Decision | typeof ELSEWHERE => {
      const earlier = calls.find((call) => call !== at && isBefore(call, rank));
      const tried = earlier ? { by: earlier, retryAfterMs: 0 } : holdAll(calls);
      if (!isRefused(tried)) {
        held = tried;
        return allow(0);
      }
      const isHere = tried.by === at;
      at = tried.by;
      return isHere ? deny(tried.retryAfterMs) : ELSEWHERE;
    };

    for (;;) {
      const { engine, key: ownKey, cost: ownCost, part } = at;
      const leftMs = Math.max(0, waitMsMax - (this.clock.now() - since));
      const want = { key: ownKey, cost: ownCost, part, ask, ticket: rank.ticket };
      const patience = { ...own, waitMsMax: leftMs };
      const entry: Entry = await engine.enter(want, patience, since, engine.clock.now());
      hasWaited ||= 'waitedMs' in entry && (entry.waitedMs ?? 0) > 0;
      const waitedMs = this.clock.now() - since;
      if (held) return this.#permit(key, cost, held, hasWaited ? waitedMs : 0);
      if (entry.verdict === 'deny') return engine.refuse(ownKey, ownCost, entry, waitedMs);
    }
  }

  hasLine(key: string, options?: AskOptions): boolean {
    return this.#calls(key, 1, options).some(hasLine);
  }

  /** What all of them have; what one gave and another had not is given back. */
  take(key: string, most: number): number {
    const calls = this.#countingAlike(key);
    let granted = most;
    const taken: { readonly call: Call; readonly got: number }[] = [];
    for (const call of calls) {
      granted = call.engine.take(call.key, granted);
      taken.push({ call, got: granted });
      if (granted === 0) break;
    }
    for (const { call, got } of taken) {
      if (got > granted) call.engine.give(call.key, got - granted);
    }
    return granted;
  }

  give(key: string, unused: number, takenAt?: Millis): void {
    for (const { engine, key: own } of this.#countingAlike(key)) engine.give(own, unused, takenAt);
  }

  /** A batch is so many of the same; parts that price a call by itself cannot tell how many. */
  #countingAlike(key: string): readonly Call[] {
    const odd = this.parts.find(({ costOf }) => costOf !== same);
    if (odd) throw new ConfigError(odd.engine.name, 'a part without a cost of its own', 'one');
    return this.#calls(key, 1);
  }

  settle(key: string, result: Result = {}): void {
    requireResult(result);
    const { cost = 1, used, partition, ...rest } = result;
    const calls = this.#calls(key, cost, partition === undefined ? undefined : { partition });
    const settlements = calls.map((call) => ({
      ...rest,
      ...usedOf(call, used),
      ...(call.part !== undefined && { partition }),
      cost: call.cost,
    }));
    for (const settlement of settlements) requireResult(settlement);
    for (const [n, { engine, key: own }] of calls.entries()) engine.settle(own, settlements[n]);
  }

  isExpired(dueAt: Millis, at?: Millis): boolean {
    return this.parts.some(({ engine }) => engine.isExpired(dueAt, at));
  }

  hear(key: string, news: News): boolean {
    const heard = this.#calls(key, 1).map((call) => call.engine.hear(call.key, news));
    return heard.includes(true);
  }

  inspect(key: string): Inspection {
    const views = this.#calls(key, 1).map((call) => call.engine.inspect(call.key));
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

  /** The parts' together: a call that passed three of them was allowed three times. Sizes of pools do not add up. */
  stats(): Stats {
    return this.#engines()
      .map((engine) => engine.stats())
      .map(({ poolSize: _, ...counted }): Stats => counted)
      .reduce(sumOf);
  }

  #engines(): Engine[] {
    return [...new Set(this.parts.map(({ engine }) => engine))];
  }

  /**
   * What a call is to each part. The same limiter and key twice is one call of both costs: asked one
   * after the other they would each say that it fits.
   */
  #calls(key: string, cost: number, options?: AskOptions): readonly Call[] {
    requireKey(key);
    requireCost(cost);
    if (options) this.#requireOptions(options);
    const partition = options?.partition;
    const calls: Call[] = [];
    for (const { engine, keyOf, costOf } of this.parts) {
      const own = { engine, key: keyOf(key), cost: costOf(cost), costOf };
      requireKey(own.key);
      requireCost(own.cost);
      const n = calls.findIndex((other) => other.engine === engine && other.key === own.key);
      const part = partition === undefined ? undefined : engine.partNamed(partition);
      if (n < 0) calls.push({ ...own, part });
      else calls[n] = together(calls[n], own);
    }
    return calls;
  }

  /** A partition is for those parts that have it; one that none has is a mistake. */
  #requireOptions(options: AskOptions): void {
    requireAskOptions(options);
    const { partition } = options;
    if (partition === undefined) return;
    if (this.parts.some(({ engine }) => engine.partNamed(partition) !== undefined)) return;
    throw new ConfigError('partition', 'a partition of one of its limits', partition);
  }

  #noted(held: readonly Held[]): Decision {
    for (const { call, remaining } of held) note(call, allow(remaining));
    return allow(Math.min(...held.map(({ remaining }) => remaining)));
  }

  #permit(key: string, cost: number, held: readonly Held[], waitedMs: Millis): Permit {
    const permits = held.map(({ call, at }) =>
      call.engine.admit(call.key, call.cost, at, waitedMs, call.part),
    );
    const [{ dueAt, heldAt }] = permits;
    return new Permit(
      { key, cost, dueAt, heldAt, parts: permits },
      ({ used, ...rest }: Settled) => {
        // All are worked out before any is settled: nonsense in one must not leave the others half done.
        const settlements = held.map(({ call }) => ({ ...rest, ...usedOf(call, used) }));
        for (const settled of settlements) requireResult(settled);
        for (const [n, permit] of permits.entries()) permit.settle(settlements[n]);
      },
    );
  }
}
