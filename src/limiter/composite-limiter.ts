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
import { isRecord, OptionReader, requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import type { Feedback } from '../policies/policy.ts';
import { isRemote } from './async-limiter.ts';
import {
  type ComponentCall,
  type ComponentReservation,
  findRefusal,
  hasEarlierWaiter,
  hasWaiters,
  isRefused,
  mergeCalls,
  peekCall,
  recordDecision,
  remainingOf,
  reserveAll,
  usedFieldOf,
} from './composite-reservation.ts';
import type { Listener } from './events.ts';
import { bindingRule, type Inspection } from './inspection.ts';
import { Permit, type PermitResult, type Refusal } from './permit.ts';
import { mergeSnapshots } from './stats.ts';
import {
  type AcquireOptions,
  type CheckOptions,
  type Limiter,
  type Stats,
  SyncLimiter,
} from './sync-limiter.ts';
import {
  type CallResult,
  readWaitLimits,
  requireCheckOptions,
  requireKey,
  requireResult,
} from './validate.ts';
import { MOVED, nextArrival, type WaitResult } from './wait-scheduler.ts';

/** One of several limiters, and how a call counts against it. */
export interface ComponentOptions {
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
const MAX_COMPONENTS = 64;

/** Makes one limiter of several. @throws {ConfigError} if the parts make no sense. */
export function all(
  components: readonly (Limiter | ComponentOptions)[],
  options: AllOptions = {},
): Limiter {
  const several = createComposite(components, options);
  const { length } = several.components;
  if (length > MAX_COMPONENTS) {
    throw new ConfigError('parts', `at most ${MAX_COMPONENTS} limiters`, `${length} of them`);
  }
  return several;
}

/** The same for a surface of ours, which has a bound of its own on how many there are. */
export function createComposite(
  components: readonly (Limiter | ComponentOptions)[],
  options: AllOptions = {},
): CompositeLimiter {
  if (!Array.isArray(components) || components.length === 0) {
    throw new ConfigError('parts', 'a list of at least one limiter', components);
  }
  const read = components.flatMap((part, n) => readComponent(part, `parts[${n}]`));
  const reader = new OptionReader('', options);
  const given = reader.get('name');
  if (given !== undefined && typeof given !== 'string') reader.throwFor('name', 'a text');
  reader.finish();
  return new CompositeLimiter(
    read,
    (given as string) ?? read.map(({ limiter }) => limiter.name).join('+'),
  );
}

interface Component {
  readonly limiter: SyncLimiter;
  readonly keyOf: (key: string) => string;
  readonly costOf: (cost: number) => number;
}

const identity = <T>(value: T): T => value;

function readComponent(part: unknown, path: string): readonly Component[] {
  if (part instanceof SyncLimiter) return [{ limiter: part, keyOf: identity, costOf: identity }];
  if (part instanceof CompositeLimiter) return part.components;
  requireLocal(part, path);
  const expected = 'a limiter, or an object with a limiter';
  if (!isRecord(part)) throw new ConfigError(path, expected, part);
  const reader = new OptionReader(path, part, expected);
  const keyOf = readMapping<string>(reader, 'key', 'string', 'a text, or a function of the key');
  const costOf = readMapping<number>(
    reader,
    'cost',
    'number',
    'a number, or a function of the cost',
  );
  const inner = reader.get('limiter');
  reader.finish();
  requireLocal(inner, reader.pathOf('limiter'));
  if (!(inner instanceof SyncLimiter || inner instanceof CompositeLimiter))
    reader.throwFor('limiter', 'a limiter');
  // Limiters within limiters are parts like the others, seen through both.
  return readComponent(inner, path).map((own) => ({
    limiter: own.limiter,
    keyOf: compose(own.keyOf, keyOf),
    costOf: compose(own.costOf, costOf),
  }));
}

/** All or nothing needs an answer at once: nothing can be looked at and kept that way while others decide. */
function requireLocal(value: unknown, path: string): void {
  if (typeof value !== 'object' || value === null || !isRemote(value)) return;
  const expected =
    'a limiter that decides in this process: spell shared ones as one limit, { all: [...] }, if key and cost are the same; ' +
    "else acquire one after the other, and settle those before as 'ignored' when one refuses";
  throw new ConfigError(path, expected, `shared limiter ${value.name}`);
}

/** One after the other; what changes nothing is left out, and can be told by being `same`. */
function compose<T>(outer: (own: T) => T, inner: (own: T) => T): (own: T) => T {
  if (outer === identity) return inner;
  return inner === identity ? outer : (own) => outer(inner(own));
}

/** A value that is always the same, or a function of the call's own. */
function readMapping<T>(
  reader: OptionReader,
  name: string,
  type: 'string' | 'number',
  expected: string,
): (own: T) => T {
  const value = reader.get(name);
  if (value === undefined) return identity;
  if (typeof value === 'function') return value as (own: T) => T;
  if (typeof value !== type) reader.throwFor(name, expected);
  if (type === 'number') requireNumber(reader.pathOf(name), value, { min: 0 });
  return () => value as T;
}

/** A decision, and who refused if somebody did. */
export interface NamedDecision {
  readonly decision: Decision;
  readonly limit?: string;
}

export class CompositeLimiter implements Limiter {
  readonly components: readonly Component[];
  readonly name: string;
  readonly isCheckOnly: boolean;
  readonly clock: Clock;
  readonly random: Random;

  constructor(components: readonly Component[], name: string) {
    this.components = components;
    this.name = name;
    this.isCheckOnly = components.every(({ limiter }) => limiter.isCheckOnly);
    this.clock = components[0].limiter.clock;
    this.random = components[0].limiter.random;
  }

  /** For those who settle by key. A place is never reserved: allow or deny. */
  check(key: string, cost = 1, options?: CheckOptions): Decision {
    return this.checkNamed(key, cost, options).decision;
  }

  /** The same, and the name of the limit that refused. */
  checkNamed(key: string, cost = 1, options?: CheckOptions): NamedDecision {
    const held = reserveAll(this.#componentCalls(key, cost, options));
    if (!isRefused(held)) return { decision: this.#recordAllowed(held) };
    const decision = deny(held.retryAfterMs);
    recordDecision(held.by, decision);
    return { decision, limit: held.by.limiter.name };
  }

  tryPass(key: string, cost = 1): boolean {
    const held = this.#reserveIfNoWaiters(key, cost, undefined);
    if (held) this.#recordAllowed(held);
    return held !== undefined;
  }

  tryPassWithPermit(key: string, cost = 1, options?: CheckOptions): Permit | undefined {
    const held = this.#reserveIfNoWaiters(key, cost, options);
    return held && this.#issuePermit(key, cost, held, 0);
  }

  /** What all of them give at once, past nobody who waits. */
  #reserveIfNoWaiters(
    key: string,
    cost: number,
    options?: CheckOptions,
  ): readonly ComponentReservation[] | undefined {
    const calls = this.#componentCalls(key, cost, options);
    if (calls.some(hasWaiters)) return undefined;
    const held = reserveAll(calls);
    return isRefused(held) ? undefined : held;
  }

  peek(key: string, cost = 1, options?: CheckOptions): Decision {
    const calls = this.#componentCalls(key, cost, options);
    const refused = findRefusal(calls);
    if (refused) return deny(refused.retryAfterMs);
    return allow(Math.min(...calls.map((call) => remainingOf(peekCall(call)))));
  }

  tryAcquire(key: string, cost = 1, options?: CheckOptions): Permit | Refusal {
    const held = reserveAll(this.#componentCalls(key, cost, options));
    if (!isRefused(held)) return this.#issuePermit(key, cost, held, 0);
    const { by, retryAfterMs } = held;
    const reason = retryAfterMs === NEVER ? 'never' : 'not-now';
    return by.limiter.refuse(by.key, by.cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    const calls = this.#componentCalls(key, cost, options);
    const { maxWaitMs, ...own } = readWaitLimits(options);
    const since = this.clock.now();
    const position = { arrival: nextArrival(), priority: own.priority };
    let held: readonly ComponentReservation[] | undefined;
    let at = calls.find(hasWaiters) ?? calls[0];
    let hasWaited = false;

    /** Asks for everything, on behalf of the line it stands in, and past nobody in another. */
    const check = (): Decision | typeof MOVED => {
      const earlier = calls.find((call) => call !== at && hasEarlierWaiter(call, position));
      const tried = earlier ? { by: earlier, retryAfterMs: 0 } : reserveAll(calls);
      if (!isRefused(tried)) {
        held = tried;
        return allow(0);
      }
      const isHere = tried.by === at;
      at = tried.by;
      return isHere ? deny(tried.retryAfterMs) : MOVED;
    };

    for (;;) {
      const { limiter, key: ownKey, cost: ownCost, partitionIndex } = at;
      const leftMs = Math.max(0, maxWaitMs - (this.clock.now() - since));
      const request = {
        key: ownKey,
        cost: ownCost,
        partitionIndex,
        check,
        arrival: position.arrival,
      };
      const limits = { ...own, maxWaitMs: leftMs };
      const result: WaitResult = await limiter.waitForPermit(
        request,
        limits,
        since,
        limiter.clock.now(),
      );
      hasWaited ||= 'waitedMs' in result && (result.waitedMs ?? 0) > 0;
      const waitedMs = this.clock.now() - since;
      if (held) return this.#issuePermit(key, cost, held, hasWaited ? waitedMs : 0);
      if (result.verdict === 'deny') return limiter.refuse(ownKey, ownCost, result, waitedMs);
    }
  }

  hasWaiters(key: string, options?: CheckOptions): boolean {
    return this.#componentCalls(key, 1, options).some(hasWaiters);
  }

  /** What all of them have; what one gave and another had not is given back. */
  takeUpTo(key: string, most: number): number {
    const calls = this.#unitCostCalls(key);
    let granted = most;
    const taken: { readonly call: ComponentCall; readonly got: number }[] = [];
    for (const call of calls) {
      granted = call.limiter.takeUpTo(call.key, granted);
      taken.push({ call, got: granted });
      if (granted === 0) break;
    }
    for (const { call, got } of taken) {
      if (got > granted) call.limiter.giveBack(call.key, got - granted);
    }
    return granted;
  }

  giveBack(key: string, unused: number, takenAt?: Millis): void {
    for (const { limiter, key: own } of this.#unitCostCalls(key))
      limiter.giveBack(own, unused, takenAt);
  }

  /** A batch is so many of the same; parts that price a call by itself cannot tell how many. */
  #unitCostCalls(key: string): readonly ComponentCall[] {
    const odd = this.components.find(({ costOf }) => costOf !== identity);
    if (odd) throw new ConfigError(odd.limiter.name, 'a part without a cost of its own', 'one');
    return this.#componentCalls(key, 1);
  }

  settle(key: string, result: CallResult = {}): void {
    requireResult(result);
    const { cost = 1, used, partition, ...rest } = result;
    const calls = this.#componentCalls(
      key,
      cost,
      partition === undefined ? undefined : { partition },
    );
    const settlements = calls.map((call) => ({
      ...rest,
      ...usedFieldOf(call, used),
      ...(call.partitionIndex !== undefined && { partition }),
      cost: call.cost,
    }));
    for (const settlement of settlements) requireResult(settlement);
    for (const [n, { limiter, key: own }] of calls.entries()) limiter.settle(own, settlements[n]);
  }

  isExpired(dueAt: Millis, at?: Millis): boolean {
    return this.components.some(({ limiter }) => limiter.isExpired(dueAt, at));
  }

  update(key: string, feedback: Feedback): boolean {
    const heard = this.#componentCalls(key, 1).map((call) =>
      call.limiter.update(call.key, feedback),
    );
    return heard.includes(true);
  }

  inspect(key: string): Inspection {
    const views = this.#componentCalls(key, 1).map((call) => call.limiter.inspect(call.key));
    const rules = views.flatMap((view) => view.rules);
    const cooldownMs = Math.max(
      ...views.map((view) => (view.by === 'cooldown' ? (view.opensInMs ?? 0) : 0)),
    );
    const remaining = Math.min(...views.map((view) => view.remaining));
    return { remaining, name: this.name, ...bindingRule(rules, cooldownMs), rules };
  }

  /** Each part tells of what it decided itself. */
  on(listener: Listener): () => void {
    const stops = this.#limiters().map((limiter) => limiter.on(listener));
    return () => {
      for (const stop of stops) stop();
    };
  }

  /** The parts' together: a call that passed three of them was allowed three times. Sizes of pools do not add up. */
  stats(): Stats {
    return this.#limiters()
      .map((limiter) => limiter.stats())
      .map(({ poolSize: _, ...counted }): Stats => counted)
      .reduce(mergeSnapshots);
  }

  #limiters(): SyncLimiter[] {
    return [...new Set(this.components.map(({ limiter }) => limiter))];
  }

  /**
   * What a call is to each part. The same limiter and key twice is one call of both costs: asked one
   * after the other they would each say that it fits.
   */
  #componentCalls(key: string, cost: number, options?: CheckOptions): readonly ComponentCall[] {
    requireKey(key);
    requireCost(cost);
    if (options) this.#requireCheckOptions(options);
    const partition = options?.partition;
    const calls: ComponentCall[] = [];
    for (const { limiter, keyOf, costOf } of this.components) {
      const own = { limiter, key: keyOf(key), cost: costOf(cost), costOf };
      requireKey(own.key);
      requireCost(own.cost);
      const n = calls.findIndex((other) => other.limiter === limiter && other.key === own.key);
      const partitionIndex =
        partition === undefined ? undefined : limiter.findPartitionIndex(partition);
      if (n < 0) calls.push({ ...own, partitionIndex });
      else calls[n] = mergeCalls(calls[n], own);
    }
    return calls;
  }

  /** A partition is for those parts that have it; one that none has is a mistake. */
  #requireCheckOptions(options: CheckOptions): void {
    requireCheckOptions(options);
    const { partition } = options;
    if (partition === undefined) return;
    if (this.components.some(({ limiter }) => limiter.findPartitionIndex(partition) !== undefined))
      return;
    throw new ConfigError('partition', 'a partition of one of its limits', partition);
  }

  #recordAllowed(held: readonly ComponentReservation[]): Decision {
    for (const { call, remaining } of held) recordDecision(call, allow(remaining));
    return allow(Math.min(...held.map(({ remaining }) => remaining)));
  }

  #issuePermit(
    key: string,
    cost: number,
    held: readonly ComponentReservation[],
    waitedMs: Millis,
  ): Permit {
    const permits = held.map(({ call, reservedAt }) =>
      call.limiter.issuePermit(call.key, call.cost, reservedAt, waitedMs, call.partitionIndex),
    );
    const [{ dueAt, issuedAt }] = permits;
    return new Permit(
      { key, cost, dueAt, issuedAt, children: permits },
      ({ used, ...rest }: PermitResult) => {
        // All are worked out before any is settled: nonsense in one must not leave the others half done.
        const settlements = held.map(({ call }) => ({ ...rest, ...usedFieldOf(call, used) }));
        for (const settled of settlements) requireResult(settled);
        for (const [n, permit] of permits.entries()) permit.settle(settlements[n]);
      },
    );
  }
}
