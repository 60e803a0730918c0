/**
 * Wait queues of a limiter that decides in this process.
 *
 *     waitForPermit ──▶ allowed at once? ────────────────────────────────▶ granted
 *                         │ no
 *                         ▼              the limit opens, or a call settles
 *                       queue of the key  ● ● ● ● ───────────────────────▶ granted
 *                         └──────▶ deadline, queue full, aborted, closed ▶ refused
 *
 * The bound counts the waiters of all keys. When the queue is full, the key with the most waiters loses its last one to
 * another key, so no key can occupy the whole queue.
 *
 * Each key has a queue, and only its first waiter checks the limit. Nothing polls: one timer is set to the next
 * opening or deadline of all queues.
 *
 * No slot is reserved ahead. A permit is granted when it is due and used at once: slots reserved for the time of
 * an event-loop stall would all be used in one burst after it.
 */

import { CLOSED_REFUSAL } from '../backends/remote-backend.ts';
import type { Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import type { Flow } from '../core/flow.ts';
import { Heap } from '../core/heap.ts';
import { LongestQueue } from '../core/longest-queue.ts';
import {
  MAX_TOMBSTONES,
  type Waiter,
  WaiterSet,
  type WaiterSetSettings,
} from '../core/waiter-set.ts';
import { createWaitQueue } from './fair-wait-queue.ts';
import type { RefusalReason } from './permit.ts';
import type { WaitLimits } from './validate.ts';
import {
  nextArrival,
  type QueueOrder,
  type QueuePosition,
  type WaiterQueue,
} from './wait-queue.ts';

export interface QueueSettings extends WaiterSetSettings {
  readonly order: QueueOrder;
}

export interface WaitSchedulerOptions extends QueueSettings {
  /** Names of the limit's partitions: each has a queue per key. */
  readonly partitions: readonly string[];
  /** Names of the limit's levels, the most important first: each has a queue per key. */
  readonly levels: readonly string[];
  /** Whether a settled call may open the limit before the time that a refusal names. */
  readonly mayOpenEarlier?: boolean;
  /** Checks the limit for a permit now: never decides `wait`. */
  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision;
  /** Returns the decision of `checkNow`, without changing anything. */
  peek(key: string, cost: number, partitionIndex?: number): Decision;
  /** The least time until calls of `units` in all are granted; 0: unknown. */
  timeToGrantMs(key: string, units: number): Millis;
  /** Frees expired permits before the due queues are served, where no timer does. */
  beforeTimer?(): void;
}

/** Another limit refuses the call now: the caller continues in that limit's queue. */
export const MOVED: {
  readonly verdict: 'moved';
  readonly dueAt?: never;
  readonly waitedMs?: never;
} = { verdict: 'moved' };

export interface PermitRequest {
  readonly key: string;
  readonly cost: number;
  readonly partitionIndex?: number | undefined;
  /** Replaces the check of this limit: a composite checks all its limits. */
  readonly check?: () => Decision | typeof MOVED;
  /** Its order of arrival, if it has waited in another queue before. */
  readonly arrival?: number;
}

/** How a wait ended. */
export type WaitResult =
  | { readonly verdict: 'allow'; readonly dueAt: Millis; readonly waitedMs: Millis }
  | WaitRefusal
  | typeof MOVED;

/** The refusal of a call that waited, or would have to. */
export interface WaitRefusal {
  readonly verdict: 'deny';
  readonly retryAfterMs: Millis;
  readonly reason: RefusalReason;
  /** The rule that the call waited for, in a remote limit with several rules. */
  readonly rule?: string | undefined;
  /** True if `onUnavailable` made the last decision, because the server was unavailable. */
  readonly fromFallback?: boolean;
}

export const waitRefusal = (retryAfterMs: Millis, reason: RefusalReason): WaitRefusal => ({
  verdict: 'deny',
  retryAfterMs,
  reason,
});

interface QueuedWaiter extends QueuePosition, Waiter<WaitResult> {
  readonly queue: KeyQueue;
  readonly request: PermitRequest;
  readonly cost: number;
  readonly enqueuedAt: Millis;
}

/** The waiters of one key (and partition or level). */
interface KeyQueue {
  readonly id: string;
  readonly key: string;
  readonly waiters: WaiterQueue<QueuedWaiter>;
  /** When the first waiter may check again; Infinity: when a call settles. */
  opensAt: Millis;
  /** The opening of this queue that is in the heap; Infinity: none. */
  scheduledAt: Millis;
}

export class WaitScheduler {
  readonly #options: WaitSchedulerOptions;
  readonly #queues = new Map<string, KeyQueue>();
  readonly #openings = new Heap<{ at: Millis; queue: KeyQueue }>((a, b) => a.at < b.at);
  readonly #waiters: WaiterSet<WaitResult, QueuedWaiter>;
  readonly #longest = new LongestQueue<KeyQueue>();

  constructor(options: WaitSchedulerOptions) {
    this.#options = options;
    this.#waiters = new WaiterSet({
      ...options,
      expiredResult: (waiter, now) =>
        waitRefusal(this.#turnIn(waiter.queue, waiter, waiter.cost, now), 'too-long'),
      onRemove: (waiter) => this.#removeFromQueue(waiter),
      // Wakes all queues of the key: capacity kept for these waiters is free in every partition.
      onAbandon: (waiters) => {
        for (const key of new Set(waiters.map(({ queue }) => queue.key))) this.wake(key);
      },
      nextEventAt: () => this.#openings.peek()?.at ?? Infinity,
      onTimer: (now) => {
        options.beforeTimer?.();
        this.#drainDueQueues(now);
      },
    });
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Whether a call of this partition, or of this level or a higher one, waits. */
  hasWaiters(key: string, partitionIndex?: number): boolean {
    if (this.#waiters.size === 0) return false;
    const { levels } = this.#options;
    if (levels.length === 0) return this.#queues.has(this.#queueIdOf(key, partitionIndex));
    const isQueued = (level: number): boolean => this.#queues.has(this.#queueIdOf(key, level));
    return levels.some((_, level) => level <= (partitionIndex ?? Infinity) && isQueued(level));
  }

  /** Calls without a level wait in the queue of the lowest level. */
  #queueIdOf(key: string, partitionIndex: number | undefined): string {
    const { partitions, levels } = this.#options;
    if (levels.length > 0) return `${partitionIndex ?? levels.length - 1}|${key}`;
    return partitions.length === 0 ? key : `${partitionIndex ?? '-'}|${key}`;
  }

  /** Whether a waiter of this key is served before `position`. */
  hasEarlierWaiter(
    key: string,
    partitionIndex: number | undefined,
    position: QueuePosition,
  ): boolean {
    const queue = this.#queues.get(this.#queueIdOf(key, partitionIndex));
    return queue?.waiters.hasEarlier(position) ?? false;
  }

  /** Waits for a permit. Rejects if the signal aborts or the check fails. */
  waitForPermit(request: PermitRequest, limits: WaitLimits, now: Millis): Promise<WaitResult> {
    const { signal } = limits;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = this.#queueIdOf(request.key, request.partitionIndex);
    const queue = this.#queues.get(id);
    const decision = queue
      ? this.#estimateQueued(queue, request, limits, now)
      : this.#check(request, now);
    if (decision.verdict === 'moved') return Promise.resolve(decision);
    if (decision.verdict !== 'deny')
      return Promise.resolve({ verdict: 'allow', dueAt: now, waitedMs: 0 });
    const refusal = this.#refusalFor(decision.retryAfterMs, limits, queue, now);
    if (refusal) return Promise.resolve(refusal);
    const joined = queue ?? this.#createQueue(id, request.key, decision.retryAfterMs, now);
    return this.#enqueue(joined, request, now, limits);
  }

  /**
   * Holds the position of a call that waits at another limit: calls that arrived later wait until the returned function is
   * called. In a full queue, or one in another order than that of arrival, no position is held.
   */
  holdPosition(request: PermitRequest & { readonly arrival: number }, now: Millis): () => void {
    if (this.#options.order !== 'fifo' || this.#waiters.isFull) return () => {};
    const { key, cost, partitionIndex, arrival } = request;
    const id = this.#queueIdOf(key, partitionIndex);
    const queue = this.#queues.get(id) ?? this.#createQueue(id, key, WHEN_SETTLED, now);
    const waiter: QueuedWaiter = {
      queue,
      request: { ...request, check: () => deny(WHEN_SETTLED) },
      cost,
      arrival,
      priority: 0,
      enqueuedAt: now,
      deadline: Infinity,
      signal: undefined,
      resolve: () => {},
      reject: () => {},
      isWaiting: true,
    };
    this.#add(waiter);
    return () => {
      if (waiter.isWaiting) this.#waiters.resolve(waiter, MOVED);
    };
  }

  /** Refuses all waiters. */
  close(): void {
    this.#waiters.close(CLOSED_REFUSAL);
  }

  /** Estimates the refusal of a call that joins the queue: it gets no permit before its turn. */
  #estimateQueued(
    queue: KeyQueue,
    { key, cost, partitionIndex, arrival = Infinity }: PermitRequest,
    { maxWaitMs, priority, flow }: WaitLimits,
    now: Millis,
  ): Decision {
    const peeked = this.#options.peek(key, cost, partitionIndex);
    if (peeked.verdict === 'deny' && peeked.retryAfterMs === NEVER) return peeked;
    if (maxWaitMs === Infinity) return deny(msUntilOpen(queue, now)); // the call waits without a deadline
    return deny(this.#turnIn(queue, { arrival, priority, flow }, cost, now));
  }

  /** The least time until a waiter at this position has its turn: the calls before it are served first. */
  #turnIn(queue: KeyQueue, position: QueuePosition, cost: number, now: Millis): Millis {
    const ahead = queue.waiters.costBefore(position);
    const isBehind = queue.waiters.hasEarlier(position) || queue.waiters.first === position;
    const opensInMs = isBehind ? msUntilOpen(queue, now) : 0;
    return Math.max(opensInMs, Math.ceil(this.#options.timeToGrantMs(queue.key, ahead + cost)));
  }

  #createQueue(id: string, key: string, retryAfterMs: Millis, now: Millis): KeyQueue {
    const waiters = createWaitQueue<QueuedWaiter>(this.#options.order);
    return { id, key, waiters, opensAt: opensAtAfter(retryAfterMs, now), scheduledAt: Infinity };
  }

  #check(request: PermitRequest, now: Millis): Decision | typeof MOVED {
    return request.check
      ? request.check()
      : this.#options.checkNow(request.key, request.cost, now, request.partitionIndex);
  }

  /** Capacity came back or changed: the first waiter of the key checks again. */
  wake(key: string): void {
    if (this.#waiters.size === 0) return;
    const now = this.#options.clock.now();
    for (const queue of this.#queuesOf(key)) this.#drainQueue(queue, now);
    this.#waiters.reschedule();
  }

  /** The rule has changed: the first waiter of each key checks again. */
  wakeAll(): void {
    for (const key of new Set([...this.#queues.values()].map((queue) => queue.key))) this.wake(key);
  }

  /** The queues of a key: the most important level first; without levels, the longest wait first. */
  #queuesOf(key: string): KeyQueue[] {
    const { partitions, levels } = this.#options;
    const indexes = levels.length > 0 ? [...levels.keys()] : [undefined, ...partitions.keys()];
    const arrivalOf = ({ waiters }: KeyQueue): number => waiters.first?.arrival ?? Infinity;
    const queues = indexes
      .map((partitionIndex) => this.#queues.get(this.#queueIdOf(key, partitionIndex)))
      .filter((queue) => queue !== undefined);
    return levels.length > 0 ? queues : queues.sort((a, b) => arrivalOf(a) - arrivalOf(b));
  }

  /** The refusal of a wait that cannot succeed; undefined if it can. */
  #refusalFor(
    retryAfterMs: Millis,
    { maxWaitMs, flow }: WaitLimits,
    queue: KeyQueue | undefined,
    now: Millis,
  ): WaitResult | undefined {
    let reason: RefusalReason | undefined;
    if (retryAfterMs === NEVER) reason = 'never';
    else if (maxWaitMs <= 0 || (retryAfterMs > maxWaitMs && !this.#options.mayOpenEarlier))
      reason = 'too-long';
    else if (this.#waiters.isFull && !this.#refuseLastOfLongest(queue, flow, now))
      reason = 'queue-full';
    return reason && waitRefusal(retryAfterMs, reason);
  }

  /** Frees a slot in a full queue for a key or flow with few waiters; false if no other has more. */
  #refuseLastOfLongest(queue: KeyQueue | undefined, flow: Flow | undefined, now: Millis): boolean {
    const longest = this.#longest.findLongerThan(queue?.waiters.size ?? 0, this.#queues.values());
    const last = longest ? longest.waiters.last : queue?.waiters.displacedBy?.(flow);
    if (last) this.#waiters.resolve(last, waitRefusal(msUntilOpen(last.queue, now), 'queue-full'));
    return last !== undefined;
  }

  #enqueue(
    queue: KeyQueue,
    request: PermitRequest,
    now: Millis,
    limits: WaitLimits,
  ): Promise<WaitResult> {
    const { priority, flow, signal, maxWaitMs } = limits;
    return new Promise((resolve, reject) => {
      const waiter: QueuedWaiter = {
        queue,
        request,
        cost: request.cost,
        arrival: request.arrival ?? nextArrival(),
        priority,
        flow,
        enqueuedAt: now,
        deadline: now + maxWaitMs,
        signal,
        resolve,
        reject,
        isWaiting: true,
      };
      this.#add(waiter);
      // The new first waiter may need less than the previous one.
      if (queue.waiters.size > 1 && queue.waiters.first === waiter) this.#drainQueue(queue, now);
      else this.#scheduleOpening(queue);
      this.#waiters.reschedule();
    });
  }

  #add(waiter: QueuedWaiter): void {
    const { queue } = waiter;
    this.#waiters.add(waiter);
    this.#queues.set(queue.id, queue);
    queue.waiters.add(waiter);
    this.#longest.onGrowth(queue);
  }

  /** Grants waiters in order until one is refused. */
  #drainQueue(queue: KeyQueue, now: Millis): void {
    for (let { first } = queue.waiters; first; { first } = queue.waiters) {
      let decision: Decision | typeof MOVED;
      try {
        decision = this.#check(first.request, now);
      } catch (error) {
        this.#waiters.reject(first, error);
        continue;
      }
      if (decision.verdict === 'moved') {
        this.#waiters.resolve(first, decision);
      } else if (decision.verdict !== 'deny') {
        const waitedMs = now - first.enqueuedAt;
        queue.waiters.onServed?.(first);
        this.#waiters.resolve(first, { verdict: 'allow', dueAt: now, waitedMs });
      } else if (decision.retryAfterMs === NEVER) {
        this.#waiters.resolve(first, waitRefusal(NEVER, 'never'));
      } else if (now + decision.retryAfterMs > first.deadline && !this.#options.mayOpenEarlier) {
        this.#waiters.resolve(first, waitRefusal(decision.retryAfterMs, 'too-long'));
      } else {
        queue.opensAt = opensAtAfter(decision.retryAfterMs, now);
        this.#scheduleOpening(queue);
        return;
      }
    }
  }

  /** Keeps the earliest opening of a queue in the heap. */
  #scheduleOpening(queue: KeyQueue): void {
    if (queue.opensAt >= queue.scheduledAt) return;
    queue.scheduledAt = queue.opensAt;
    this.#openings.push({ at: queue.opensAt, queue });
    if (this.#openings.size > 2 * this.#queues.size + MAX_TOMBSTONES)
      this.#openings.retain((opening) => opening.at === opening.queue.scheduledAt);
  }

  #removeFromQueue(waiter: QueuedWaiter): void {
    const { queue } = waiter;
    queue.waiters.remove(waiter);
    if (queue.waiters.size > 0) return;
    this.#queues.delete(queue.id);
    queue.scheduledAt = Infinity; // marks its entries in the heap as tombstones
  }

  #drainDueQueues(now: Millis): void {
    for (let next = this.#openings.peek(); next && next.at <= now; next = this.#openings.peek()) {
      this.#openings.pop();
      const { queue, at } = next;
      if (queue.scheduledAt !== at) continue; // an earlier opening was handled
      queue.scheduledAt = Infinity;
      if (queue.opensAt <= now) this.#drainQueue(queue, now);
      else if (queue.waiters.size > 0) this.#scheduleOpening(queue);
    }
  }
}

/** The time at which a refused queue may check again; Infinity: when a call settles. */
const opensAtAfter = (retryAfterMs: Millis, now: Millis): Millis =>
  retryAfterMs === WHEN_SETTLED ? Infinity : now + retryAfterMs;

const msUntilOpen = ({ opensAt }: KeyQueue, now: Millis): Millis =>
  opensAt < Infinity ? Math.max(0, Math.ceil(opensAt - now)) : WHEN_SETTLED;
