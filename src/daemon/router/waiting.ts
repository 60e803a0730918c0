/**
 * Calls that wait until their limits admit them, with one bound for all of them.
 *
 *     acquire ──▶ waits in the queue of one limit, holding nothing ──▶ takes from the other limits ──▶ admitted
 *        │                │                      ▲                         │ one refuses: everything is given
 *        │                │                      └─────────────────────────┘ back, and the call waits there
 *        │                └──▶ time is over, the client leaves, the daemon stops: refused
 *        └──▶ the queue is full: one attempt without waiting
 *
 * The queues are those of the limiters: for each key and limit first come first served, or fair between flows. All local limits of a route are
 * one queue position; each remote limit is another one. Nothing is charged while a call waits.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Decision, deny, WHEN_SETTLED } from '../../core/decision.ts';
import { type FlowOptions, MAX_FLOW_CHARS } from '../../core/flow.ts';
import { LongestQueue } from '../../core/longest-queue.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { internalsOf } from '../../limiter/internals.ts';
import { type Permit, Refusal } from '../../limiter/permit.ts';
import type { AcquireOptions } from '../../limiter/sync-limiter.ts';
import { admittingMsOf } from '../config/drain-time.ts';
import { type Bounds, DEFAULT_BOUNDS } from '../config/read.ts';
import type { CheckRequest, CheckResult, RoutedRequest } from './request.ts';
import { type AppliedLimit, limiterKeyOf, type Route } from './route.ts';

export type WaitBounds = Pick<Bounds, 'maxWaiting' | 'maxWaitMs'>;

type SentRequest = Pick<CheckRequest, 'limit' | 'key'>;

/** How a call waits. */
export interface WaitLimits {
  readonly waitMs: Millis;
  /** The limit and the key as they were sent, to find the route again after a reload. */
  readonly sent: SentRequest;
  /** Aborts when the client leaves: the promise rejects with its reason. */
  readonly signal: AbortSignal | undefined;
  /** For limits with `queue: fair`. Default: the key is the flow. */
  readonly flow?: FlowOptions | undefined;
}

/** What the router does for waiting calls. */
interface WaitingHost {
  /** Decides a call on whose route no limit counts. */
  decideUncounted(request: RoutedRequest): CheckResult | Promise<CheckResult>;
  /** Completes a call that all limits have admitted. */
  admit(request: RoutedRequest, remaining: number, permits: readonly Permit[]): CheckResult;
  /** The request with its route as of now; undefined if its limit is no longer configured. */
  reroute(request: RoutedRequest, sent: SentRequest): RoutedRequest | undefined;
}

/** What one limit, or all local limits together, have granted. */
interface Grant {
  readonly remaining: number;
  readonly permits: readonly Permit[];
  giveBack(): void;
}

type Part = (options: AcquireOptions) => Promise<Grant | Refusal>;

/** Why the daemon ends a wait. */
type EndCause = 'queue-full' | 'stopping' | 'rerouted';

interface Waiter {
  readonly sent: SentRequest;
  readonly flow: FlowOptions | undefined;
  readonly queue: KeyQueue;
  request: RoutedRequest;
  abort: AbortController;
}

/** The waiting calls of one key, flow or tenant with the same limits. */
interface KeyQueue {
  readonly id: string;
  readonly waiters: Set<Waiter>;
}

/** The retry time while a backend is unavailable. */
const UNAVAILABLE_RETRY_MS: Millis = 1000;

export class Waiting {
  bounds: WaitBounds = DEFAULT_BOUNDS;
  /** Calls refused because the queue was full. */
  refused = 0;
  readonly #host: WaitingHost;
  /** In order of arrival. */
  readonly #waiters = new Set<Waiter>();
  readonly #queues = new Map<string, KeyQueue>();
  readonly #longest = new LongestQueue<KeyQueue>();
  #isStopping = false;

  constructor(host: WaitingHost) {
    this.#host = host;
  }

  /** Decides as a check does, after a wait if need be. Rejects only if the signal aborts. */
  async acquire(request: RoutedRequest, limits: WaitLimits): Promise<CheckResult> {
    const { signal, waitMs } = limits;
    signal?.throwIfAborted();
    if (!isCounted(request.route)) return this.#host.decideUncounted(request);
    const now = clockOf(request).now();
    const waiter = this.#join(request, limits);
    if (!waiter) return this.#attemptOnce(request, now);
    const onAbort = (): void => waiter.abort.abort(signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      return await this.#waitUntil(now + waitMs, waiter, signal);
    } finally {
      signal?.removeEventListener('abort', onAbort);
      this.#leave(waiter);
    }
  }

  /** After a reload: calls whose limits have changed wait at the new ones, in their order. */
  reroute(): void {
    for (const waiter of this.#waiters) {
      const next = this.#host.reroute(waiter.request, waiter.sent);
      if (!next || !hasSameLimits(next.route, waiter.request.route)) end(waiter, 'rerouted');
    }
  }

  /** No call waits from now on, and calls that wait are refused in time to be answered `withinMs`. */
  stop(clock: Clock, withinMs: Millis): void {
    this.#isStopping = true;
    const refuseAll = (): void => {
      for (const waiter of this.#waiters) end(waiter, 'stopping');
    };
    schedule(clock, clock.now() + admittingMsOf(withinMs), refuseAll, false);
  }

  /** Undefined if the call may not wait. */
  #join(request: RoutedRequest, { sent, flow }: WaitLimits): Waiter | undefined {
    if (this.#isStopping) return undefined;
    const client = flow ? `\n${flow.tenant ?? flow.flow}` : request.key;
    const id = `${request.route.applied[0].name} ${client}`;
    const queue = this.#queues.get(id) ?? { id, waiters: new Set() };
    const isFull = this.#waiters.size >= this.bounds.maxWaiting;
    if (isFull && (isFree(request) || !this.#dropLastOfLongest(queue))) return undefined;
    const waiter: Waiter = { sent, flow, queue, request, abort: new AbortController() };
    this.#waiters.add(waiter);
    this.#queues.set(id, queue);
    queue.waiters.add(waiter);
    this.#longest.onGrowth(queue);
    return waiter;
  }

  #leave(waiter: Waiter): void {
    const { queue } = waiter;
    if (!this.#waiters.delete(waiter)) return; // dropped already
    queue.waiters.delete(waiter);
    if (queue.waiters.size === 0) this.#queues.delete(queue.id);
  }

  /** Frees a place for a key with few waiters; false if no key has more. */
  #dropLastOfLongest({ waiters: { size } }: KeyQueue): boolean {
    const longest = this.#longest.findLongerThan(size, this.#queues.values());
    const last = longest && [...longest.waiters].at(-1);
    if (!last) return false;
    this.#leave(last);
    end(last, 'queue-full');
    return true;
  }

  /** The queue is full, or the daemon stops. */
  async #attemptOnce(request: RoutedRequest, now: Millis): Promise<CheckResult> {
    const result = await this.#acquireAll(request, undefined, now, NEVER_ABORTED);
    if (result.decision.verdict !== 'deny') return result;
    if (this.#isStopping) return { ...result, reason: 'unavailable' };
    if (result.reason === 'unavailable') return result;
    this.refused++;
    return { ...result, reason: 'queue-full' };
  }

  async #waitUntil(
    until: Millis,
    waiter: Waiter,
    signal: AbortSignal | undefined,
  ): Promise<CheckResult> {
    for (;;) {
      const { request, abort } = waiter;
      try {
        return await this.#acquireAll(request, waiter.flow, until, abort.signal);
      } catch (error) {
        signal?.throwIfAborted();
        if (error !== abort.signal.reason) throw error;
      }
      const cause: EndCause = abort.signal.reason;
      if (cause === 'queue-full') this.refused++;
      if (cause !== 'rerouted') {
        const reason = cause === 'stopping' ? 'unavailable' : cause;
        return { ...(await refusalNow(request)), reason };
      }
      const next = this.#host.reroute(request, waiter.sent);
      if (!next) {
        const limit = request.route.applied[0].name; // a reload has removed it
        return { decision: deny(UNAVAILABLE_RETRY_MS), limit, reason: 'unavailable' };
      }
      if (!isCounted(next.route)) return this.#host.decideUncounted(next);
      waiter.request = next;
      waiter.abort = new AbortController();
    }
  }

  /** Takes from all limits or from none. Rejects if the signal aborts. */
  async #acquireAll(
    request: RoutedRequest,
    flow: FlowOptions = { flow: request.key.slice(0, MAX_FLOW_CHARS) },
    until: Millis,
    signal: AbortSignal,
  ): Promise<CheckResult> {
    const clock = clockOf(request);
    const parts = partsOf(request);
    for (let at = firstPart(request); ; ) {
      const waitMs = Math.max(0, until - clock.now());
      const taken = await takeAll(parts, at, { ...flow, wait: waitMs, signal });
      if ('grants' in taken) {
        const remaining = Math.min(...taken.grants.map((grant) => grant.remaining));
        const permits = taken.grants.flatMap((grant) => grant.permits);
        return this.#host.admit(request, remaining, permits);
      }
      const { refusal, part } = taken;
      const isFinal = part === at || refusal.reason === 'never' || clock.now() >= until;
      if (isFinal) return refusalResult(refusal, request);
      at = part;
    }
  }
}

/** Where a call waits first: at the local limits if they refuse it, else at a remote one, which may have a queue. */
const firstPart = ({ route, key, cost }: RoutedRequest): number => {
  const { localWithPermits: local, remote } = route;
  const isHeldBack = local && (local.hasWaiters(key) || local.peek(key, cost).verdict === 'deny');
  return local && !isHeldBack && remote.length > 0 ? 1 : 0;
};

const NEVER_ABORTED = new AbortController().signal;

const end = ({ abort }: Waiter, cause: EndCause): void => abort.abort(cause);

/** False if the configuration decides, or limits in shadow mode only count. */
const isCounted = ({ localWithPermits, remote }: Route): boolean =>
  localWithPermits !== undefined || remote.length > 0;

const clockOf = ({ route }: RoutedRequest): Clock => internalsOf(route.applied[0].limiter).clock;

/** True if the call would not wait, as far as this process knows. */
const isFree = ({ route: { localWithPermits, remote }, key, cost }: RoutedRequest): boolean =>
  remote.length === 0 &&
  localWithPermits?.hasWaiters(key) === false &&
  localWithPermits.peek(key, cost).verdict === 'allow';

const hasSameLimits = (one: Route, other: Route): boolean =>
  one.applied.length === other.applied.length &&
  one.applied.every(({ limiter }, n) => limiter === other.applied[n].limiter);

/** Waits at the part `at`, then takes from the others without waiting; else gives everything back. */
async function takeAll(
  parts: readonly Part[],
  at: number,
  options: AcquireOptions & { readonly signal: AbortSignal },
): Promise<{ grants: readonly Grant[] } | { refusal: Refusal; part: number }> {
  const grants: Grant[] = [];
  const giveBack = (): void => {
    for (const grant of grants) grant.giveBack();
  };
  const order = [at, ...parts.keys()].filter((part, n) => n === 0 || part !== at);
  try {
    for (const part of order) {
      const grant = await parts[part](part === at ? options : { ...options, wait: false });
      if (grant instanceof Refusal) {
        giveBack();
        return { refusal: grant, part };
      }
      grants.push(grant);
    }
    options.signal.throwIfAborted(); // the client has left since the last grant
  } catch (error) {
    giveBack();
    throw error;
  }
  return { grants };
}

/** All local limits as one, then each remote one. */
function partsOf(request: RoutedRequest): readonly Part[] {
  const { route } = request;
  const remote = route.remote.map((applied) => remotePart(applied, request));
  return route.localWithPermits ? [localPart(request), ...remote] : remote;
}

function localPart({ route, key, cost, wantsPermit }: RoutedRequest): Part {
  const { local, localWithPermits } = route;
  return async (options) => {
    if (wantsPermit) return toGrant(await localWithPermits?.acquire(key, cost, options));
    const result = await localWithPermits?.checkWaiting(key, cost, options);
    if (result instanceof Refusal) return result;
    const giveBack = (): void => local?.settle(key, { outcome: 'ignored', cost });
    return { remaining: remainingOf(result), permits: [], giveBack };
  };
}

const remotePart =
  (applied: AppliedLimit, { key, cost }: RoutedRequest): Part =>
  async (options) =>
    toGrant(
      await (applied.limiter as RemoteLimiter).acquire(limiterKeyOf(applied, key), cost, options),
    );

const remainingOf = (decision: Decision | undefined): number =>
  decision?.verdict === 'allow' ? decision.remaining : UNKNOWN;

const UNKNOWN = Number.MAX_SAFE_INTEGER;

function toGrant(permit: Permit | Refusal | undefined): Grant | Refusal {
  if (permit instanceof Refusal) return permit;
  const permits = permit ? [permit] : [];
  return {
    remaining: permit?.remaining ?? UNKNOWN,
    permits,
    giveBack: () => permit?.settle({ outcome: 'ignored' }),
  };
}

/** A remote queue does not know when the limit opens: its refusals say 0. */
async function refusalResult(refusal: Refusal, request: RoutedRequest): Promise<CheckResult> {
  const { limit, retryAfterMs, reason, rule } = refusal;
  const applied = request.route.remote.find(({ name }) => name === limit);
  if (applied && reason === 'too-long' && retryAfterMs === WHEN_SETTLED)
    return remoteRefusal(applied, request);
  const decision = rule === undefined ? deny(retryAfterMs) : { ...deny(retryAfterMs), rule };
  if (reason === 'queue-full') return { decision, limit, reason };
  const isUnavailable = reason === 'unavailable' || reason === 'closed';
  return { decision, limit, ...(isUnavailable && { reason: 'unavailable' as const }) };
}

async function remoteRefusal(
  applied: AppliedLimit,
  { key, cost }: RoutedRequest,
): Promise<CheckResult> {
  const { name: limit, limiter } = applied;
  const peeked = await limiter.peek(limiterKeyOf(applied, key), cost);
  if (peeked === undefined)
    return { decision: deny(UNAVAILABLE_RETRY_MS), limit, reason: 'unavailable' };
  return { decision: peeked.verdict === 'deny' ? peeked : deny(0), limit };
}

/** A refusal with the time after which the call may fit. */
async function refusalNow(request: RoutedRequest): Promise<CheckResult> {
  const { route, key, cost } = request;
  const local = route.localWithPermits?.peek(key, cost);
  if (local?.verdict === 'deny' || route.remote.length === 0) {
    const limit = route.localWithPermits?.refusingLimit(key, cost) ?? '';
    return { decision: local?.verdict === 'deny' ? local : deny(0), limit };
  }
  return remoteRefusal(route.remote[0], request);
}
