/**
 * Calls that wait until their limits admit them, with one bound for all of them.
 *
 *     acquire ──▶ waits, and takes from all its limits (`waiting-call.ts`) ──▶ admitted
 *        │                └──▶ time is over, the client leaves, the daemon stops: refused
 *        └──▶ the queue is full: one attempt without waiting
 *
 * The queues are those of the limiters: for each key and limit first come first served, or fair between flows. Nothing is
 * charged while a call waits.
 */

import { UNAVAILABLE_RETRY_MS } from '../../backends/remote-limit.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { deny } from '../../core/decision.ts';
import { type FlowOptions, MAX_FLOW_CHARS } from '../../core/flow.ts';
import { LongestQueue } from '../../core/longest-queue.ts';
import { admittingMsOf } from '../config/drain-time.ts';
import { type Bounds, DEFAULT_BOUNDS } from '../config/read.ts';
import type { CheckResult } from './request.ts';
import {
  clockOf,
  hasSameLimits,
  isCounted,
  isFree,
  refusalNow,
  takeWaiting,
  type WaitingCall,
} from './waiting-call.ts';

export type WaitBounds = Pick<Bounds, 'maxWaiting' | 'maxWaitMs'>;

/** How a call waits. */
export interface WaitLimits {
  readonly waitMs: Millis;
  /** Aborts when the client leaves: the promise rejects with its reason. */
  readonly signal: AbortSignal | undefined;
  /** For limits with `queue: fair`. Default: the key is the flow. */
  readonly flow?: FlowOptions | undefined;
}

/** Why the daemon ends a wait. */
type EndCause = 'queue-full' | 'stopping' | 'rerouted';

interface Waiter {
  readonly flow: FlowOptions | undefined;
  readonly queue: KeyQueue;
  call: WaitingCall;
  abort: AbortController;
}

/** The waiting calls of one key, flow or tenant with the same limits. */
interface KeyQueue {
  readonly id: string;
  readonly waiters: Set<Waiter>;
}

export class Waiting {
  bounds: WaitBounds = DEFAULT_BOUNDS;
  /** Calls refused because the queue was full. */
  refused = 0;
  /** In order of arrival. */
  readonly #waiters = new Set<Waiter>();
  readonly #queues = new Map<string, KeyQueue>();
  readonly #longest = new LongestQueue<KeyQueue>();
  #isStopping = false;

  /** Decides as a check does, after a wait if need be. Rejects only if the signal aborts. */
  async acquire(call: WaitingCall, limits: WaitLimits): Promise<CheckResult> {
    const { signal, waitMs } = limits;
    signal?.throwIfAborted();
    if (!isCounted(call)) return call.decideUncounted();
    const now = clockOf(call).now();
    const waiter = this.#join(call, limits);
    if (!waiter) return this.#attemptOnce(call, now);
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
      const next = waiter.call.reroute();
      if (!next || !hasSameLimits(next, waiter.call)) end(waiter, 'rerouted');
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
  #join(call: WaitingCall, { flow }: WaitLimits): Waiter | undefined {
    if (this.#isStopping) return undefined;
    const client = flow ? `\n${flow.tenant ?? flow.flow}` : call.key;
    const id = `${call.limiters[0].name} ${client}`;
    const queue = this.#queues.get(id) ?? { id, waiters: new Set() };
    const isFull = this.#waiters.size >= this.bounds.maxWaiting;
    if (isFull && (isFree(call) || !this.#dropLastOfLongest(queue))) return undefined;
    const waiter: Waiter = { flow, queue, call, abort: new AbortController() };
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
  async #attemptOnce(call: WaitingCall, now: Millis): Promise<CheckResult> {
    const result = await takeWaiting(call, now, { ...flowOf(call), signal: NEVER_ABORTED });
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
      const { call, abort, flow = flowOf(call) } = waiter;
      try {
        return await takeWaiting(call, until, { ...flow, signal: abort.signal });
      } catch (error) {
        signal?.throwIfAborted();
        if (error !== abort.signal.reason) throw error;
      }
      const cause: EndCause = abort.signal.reason;
      if (cause === 'queue-full') this.refused++;
      if (cause !== 'rerouted') {
        const reason = cause === 'stopping' ? 'unavailable' : cause;
        return { ...(await refusalNow(call)), reason };
      }
      const next = call.reroute();
      if (!next) {
        const limit = call.limiters[0].name; // a reload has removed it
        return { decision: deny(UNAVAILABLE_RETRY_MS), limit, reason: 'unavailable' };
      }
      if (!isCounted(next)) return next.decideUncounted();
      waiter.call = next;
      waiter.abort = new AbortController();
    }
  }
}

const flowOf = ({ key }: WaitingCall): FlowOptions => ({ flow: key.slice(0, MAX_FLOW_CHARS) });

const NEVER_ABORTED = new AbortController().signal;

const end = ({ abort }: Waiter, cause: EndCause): void => abort.abort(cause);
