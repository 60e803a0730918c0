/**
 * The waiting room: who was refused and would rather wait than give up.
 *
 *     enter ──▶ allowed at once? ─────────────────────────────────────▶ in
 *                 │ no
 *                 ▼                    it opens, or something comes back
 *               the key's line  ● ● ● ● ──────────────────────────────▶ in
 *                 └──────▶ too long, too many, aborted ───────────────▶ out
 *
 * Each key has a line, and only its first asks; nobody polls. Whatever happens next in the whole
 * room, an opening or somebody's patience running out, is watched by one alarm.
 *
 * Nobody reserves ahead from here. A permit is granted when it is due and used there and then: after
 * a stall of the event loop, places reserved for the time of the stall would all be used at once.
 */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { type Decision, deny, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { Heap } from '../core/heap.ts';
import { type QueueOrder, type QueuePosition, WaitQueue } from './wait-queue.ts';

export interface WaitSchedulerOptions {
  readonly clock: Clock;
  readonly order: QueueOrder;
  /** The most that may wait, over all keys. */
  readonly maxWaiters: number;
  /** Whether the process stays alive for those who wait. */
  readonly keepAlive: boolean;
  /** Names of the limit's partitions: each has a line of its own, for every key. */
  readonly partitions: readonly string[];
  /** Asks the limit for a permit now or none: it never answers `wait`. */
  checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision;
  /** What `askNow` would answer; nothing changes. */
  peek(key: string, cost: number, partitionIndex?: number): Decision;
}

/** It is not this limit that stands in the way, but another one it must also pass. */
export const MOVED: {
  readonly verdict: 'moved';
  readonly dueAt?: never;
  readonly waitedMs?: never;
} = {
  verdict: 'moved',
};

/** What somebody wants in for. */
export interface PermitRequest {
  readonly key: string;
  readonly cost: number;
  readonly partitionIndex?: number | undefined;
  /** Asks in its own way, for more than this limit, when its turn comes. */
  readonly check?: () => Decision | typeof MOVED;
  /** Its place in the order of arrival, if it has stood in another line before. */
  readonly arrival?: number;
}

let lastArrival = 0;

/** A place in the order of arrival, over all lines there are. */
export const nextArrival = (): number => ++lastArrival;

/** Why somebody did not get in. */
export type RefusalReason =
  /** It does not fit now, and nobody wanted to wait. */
  | 'not-now'
  /** It can never fit. */
  | 'never'
  /** It would have to wait longer than it wants to. */
  | 'too-long'
  /** Too many wait already. */
  | 'queue-full'
  /** Nobody could decide: whoever does is out of reach, and `onUnavailable` says deny. */
  | 'unavailable'
  /** The limiter was closed, before it came or while it waited. */
  | 'closed';

/** What became of a wait: when the permit was good, or why there is none. */
export type WaitResult =
  | { readonly verdict: 'allow'; readonly dueAt: Millis; readonly waitedMs: Millis }
  | { readonly verdict: 'deny'; readonly retryAfterMs: Millis; readonly reason: RefusalReason }
  | typeof MOVED;

export interface WaitLimits {
  readonly maxWaitMs: Millis;
  readonly priority: number;
  readonly signal?: AbortSignal | undefined;
}

interface Waiter extends QueuePosition {
  readonly queue: KeyQueue;
  readonly request: PermitRequest;
  readonly enqueuedAt: Millis;
  readonly deadline: Millis;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (result: WaitResult) => void;
  readonly reject: (reason: unknown) => void;
  isWaiting: boolean;
}

/** Those who wait for one key (and partition). */
interface KeyQueue {
  readonly id: string;
  readonly key: string;
  readonly waiters: WaitQueue<Waiter>;
  /** When the first may ask again; Infinity: when something comes back. */
  opensAt: Millis;
  /** The opening that is in the heap for this line; Infinity if none is. */
  scheduledAt: Millis;
}

/** How often to look up while somebody waits for what has no time, to keep the process alive. */
const KEEP_ALIVE_INTERVAL_MS = 3_600_000;

/** Heaps may hold this many who have left, beside as many as still wait. */
const MAX_TOMBSTONES = 64;

export class WaitScheduler {
  readonly #options: WaitSchedulerOptions;
  readonly #queues = new Map<string, KeyQueue>();
  readonly #openings = new Heap<{ at: Millis; queue: KeyQueue }>((a, b) => a.at < b.at);
  readonly #deadlines = new Heap<Waiter>((a, b) => a.deadline < b.deadline);
  /** One listener a signal, however many wait on it. */
  readonly #abortGroups = new Map<AbortSignal, { waiters: Set<Waiter>; stop: () => void }>();
  #waiterCount = 0;
  #timer: { readonly at: Millis; readonly cancel: () => void } | undefined;

  constructor(options: WaitSchedulerOptions) {
    this.#options = options;
  }

  /** How many wait. */
  get size(): number {
    return this.#waiterCount;
  }

  hasWaiters(key: string, partitionIndex?: number): boolean {
    return this.#waiterCount > 0 && this.#queues.has(this.#queueIdOf(key, partitionIndex));
  }

  #queueIdOf(key: string, partitionIndex: number | undefined): string {
    return this.#options.partitions.length === 0 ? key : `${partitionIndex ?? '-'}|${key}`;
  }

  /** Whether somebody who waits for this key has its turn before `rank`. */
  hasEarlierWaiter(
    key: string,
    partitionIndex: number | undefined,
    position: QueuePosition,
  ): boolean {
    return (
      this.#queues.get(this.#queueIdOf(key, partitionIndex))?.waiters.hasEarlier(position) ?? false
    );
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  waitForPermit(request: PermitRequest, limits: WaitLimits, now: Millis): Promise<WaitResult> {
    const { signal, maxWaitMs } = limits;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = this.#queueIdOf(request.key, request.partitionIndex);
    const queue = this.#queues.get(id);
    const told = queue ? this.#estimateQueued(queue, request, now) : this.#check(request, now);
    if (told.verdict === 'moved') return Promise.resolve(told);
    if (told.verdict !== 'deny') {
      return Promise.resolve({ verdict: 'allow', dueAt: now, waitedMs: 0 });
    }
    const refused = this.#refusalFor(told.retryAfterMs, maxWaitMs);
    if (refused) return Promise.resolve(refused);
    return this.#enqueue(
      queue ?? this.#createQueue(id, request.key, told.retryAfterMs, now),
      request,
      now,
      limits,
    );
  }

  /** What somebody can expect who joins a line: not before it opens, and never what never fits. */
  #estimateQueued(queue: KeyQueue, request: PermitRequest, now: Millis): Decision {
    const { verdict, ...own } = this.#options.peek(
      request.key,
      request.cost,
      request.partitionIndex,
    );
    const isNever = verdict === 'deny' && 'retryAfterMs' in own && own.retryAfterMs === NEVER;
    return deny(isNever ? NEVER : msUntilOpen(queue, now));
  }

  #createQueue(id: string, key: string, soonest: Millis, now: Millis): KeyQueue {
    const waiters = new WaitQueue<Waiter>(this.#options.order);
    return { id, key, waiters, opensAt: opensAtAfter(soonest, now), scheduledAt: Infinity };
  }

  #check(request: PermitRequest, now: Millis): Decision | typeof MOVED {
    return request.check
      ? request.check()
      : this.#options.checkNow(request.key, request.cost, now, request.partitionIndex);
  }

  /** Something came back or changed: the first in the key's line may try again. */
  wake(key: string): void {
    if (this.#waiterCount === 0) return;
    const now = this.#options.clock.now();
    for (const queue of this.#queuesOf(key)) this.#drainQueue(queue, now);
    this.#rescheduleTimer();
  }

  /** The lines of a key, whoever has waited longest first. */
  #queuesOf(key: string): KeyQueue[] {
    const { partitions } = this.#options;
    const parts = partitions.length === 0 ? [undefined] : [undefined, ...partitions.keys()];
    const ticketOf = ({ waiters }: KeyQueue): number => waiters.first?.arrival ?? Infinity;
    return parts
      .map((partitionIndex) => this.#queues.get(this.#queueIdOf(key, partitionIndex)))
      .filter((queue) => queue !== undefined)
      .sort((a, b) => ticketOf(a) - ticketOf(b));
  }

  /** Whether there is no point in waiting, as far as can be known. */
  #refusalFor(retryAfterMs: Millis, maxWaitMs: Millis): WaitResult | undefined {
    const deny = (reason: RefusalReason): WaitResult => ({ verdict: 'deny', retryAfterMs, reason });
    if (retryAfterMs === NEVER) return deny('never');
    if (retryAfterMs > maxWaitMs || maxWaitMs <= 0) return deny('too-long');
    return this.#waiterCount >= this.#options.maxWaiters ? deny('queue-full') : undefined;
  }

  #enqueue(
    queue: KeyQueue,
    request: PermitRequest,
    now: Millis,
    limits: WaitLimits,
  ): Promise<WaitResult> {
    return new Promise((resolve, reject) => {
      const { priority, signal, maxWaitMs } = limits;
      const waiter: Waiter = {
        queue,
        request,
        arrival: request.arrival ?? nextArrival(),
        priority,
        enqueuedAt: now,
        deadline: now + maxWaitMs,
        signal,
        resolve,
        reject,
        isWaiting: true,
      };
      this.#waiterCount++;
      if (waiter.deadline < Infinity) this.#deadlines.push(waiter);
      if (signal) this.#addAbortListener(signal, waiter);
      this.#insert(queue, waiter, now);
      this.#rescheduleTimer();
    });
  }

  #insert(queue: KeyQueue, waiter: Waiter, now: Millis): void {
    this.#queues.set(queue.id, queue);
    queue.waiters.add(waiter);
    // Who comes first now may need less than who was first before.
    if (queue.waiters.size > 1 && queue.waiters.first === waiter) this.#drainQueue(queue, now);
    else this.#scheduleOpening(queue);
  }

  /** Lets the first of a line ask, and the next, until one is refused. */
  #drainQueue(queue: KeyQueue, now: Millis): void {
    for (let { first } = queue.waiters; first; { first } = queue.waiters) {
      const told = this.#check(first.request, now);
      const retryAfterMs = told.verdict === 'deny' ? told.retryAfterMs : 0;
      if (told.verdict === 'moved') {
        this.#resolveWaiter(first, told);
      } else if (told.verdict !== 'deny') {
        this.#resolveWaiter(first, {
          verdict: 'allow',
          dueAt: now,
          waitedMs: now - first.enqueuedAt,
        });
      } else if (retryAfterMs === NEVER) {
        this.#resolveWaiter(first, { verdict: 'deny', retryAfterMs, reason: 'never' });
      } else {
        queue.opensAt = opensAtAfter(retryAfterMs, now);
        this.#scheduleOpening(queue);
        return;
      }
    }
  }

  /** Keeps one opening of a line in the heap, the earliest it has. */
  #scheduleOpening(queue: KeyQueue): void {
    if (queue.opensAt >= queue.scheduledAt) return;
    queue.scheduledAt = queue.opensAt;
    this.#openings.push({ at: queue.opensAt, queue: queue });
    if (this.#openings.size > 2 * this.#queues.size + MAX_TOMBSTONES) {
      this.#openings.retain((opening) => opening.at === opening.queue.scheduledAt);
    }
  }

  #resolveWaiter(waiter: Waiter, result: WaitResult): void {
    this.#removeWaiter(waiter);
    waiter.resolve(result);
  }

  /** No longer waiting, whatever became of it. */
  #removeWaiter(waiter: Waiter): void {
    if (!waiter.isWaiting) return;
    const { queue, signal } = waiter;
    waiter.isWaiting = false;
    this.#waiterCount--;
    queue.waiters.remove(waiter);
    if (queue.waiters.size === 0) {
      this.#queues.delete(queue.id);
      queue.scheduledAt = Infinity; // so that what the heap still holds of it is known to be over
    }
    if (signal) this.#removeAbortListener(signal, waiter);
    if (this.#deadlines.size > 2 * this.#waiterCount + MAX_TOMBSTONES) {
      this.#deadlines.retain((other) => other.isWaiting);
    }
  }

  #addAbortListener(signal: AbortSignal, waiter: Waiter): void {
    let group = this.#abortGroups.get(signal);
    if (!group) {
      const waiters = new Set<Waiter>();
      const onAbort = (): void => this.#cancel([...waiters], signal.reason);
      signal.addEventListener('abort', onAbort, { once: true });
      group = { waiters, stop: () => signal.removeEventListener('abort', onAbort) };
      this.#abortGroups.set(signal, group);
    }
    group.waiters.add(waiter);
  }

  #removeAbortListener(signal: AbortSignal, waiter: Waiter): void {
    const group = this.#abortGroups.get(signal);
    group?.waiters.delete(waiter);
    if (group?.waiters.size !== 0) return;
    group.stop();
    this.#abortGroups.delete(signal);
  }

  /** Whoever was behind those who leave may fit where they did not. */
  #cancel(waiters: readonly Waiter[], reason: unknown): void {
    for (const waiter of waiters) {
      this.#removeWaiter(waiter);
      waiter.reject(reason);
    }
    // Also in other lines of the key: what was kept for those who leave is kept no more.
    for (const key of new Set(waiters.map(({ queue }) => queue.key))) this.wake(key);
    this.#rescheduleTimer();
  }

  /** Everything whose time has come. */
  #onTimer(): void {
    this.#timer = undefined;
    const now = this.#options.clock.now();
    this.#drainDueQueues(now);
    this.#expireDeadlines(now);
    this.#rescheduleTimer();
  }

  #drainDueQueues(now: Millis): void {
    for (let next = this.#openings.peek(); next && next.at <= now; next = this.#openings.peek()) {
      this.#openings.pop();
      const { queue, at } = next;
      if (queue.scheduledAt !== at) continue; // an earlier one has been here
      queue.scheduledAt = Infinity;
      if (queue.opensAt <= now) this.#drainQueue(queue, now);
      else if (queue.waiters.size > 0) this.#scheduleOpening(queue);
    }
  }

  #expireDeadlines(now: Millis): void {
    const keys = new Set<string>();
    for (let next = this.#deadlines.peek(); next && next.deadline <= now; ) {
      this.#deadlines.pop();
      if (next.isWaiting) {
        const retryAfterMs = msUntilOpen(next.queue, now);
        keys.add(next.queue.key);
        this.#resolveWaiter(next, { verdict: 'deny', retryAfterMs, reason: 'too-long' });
      }
      next = this.#deadlines.peek();
    }
    for (const key of keys) this.wake(key);
  }

  /** An alarm that is far away already will do. */
  #keepAliveAt(next: Millis): Millis {
    if (next < Infinity) return Infinity;
    return this.#timer?.at ?? this.#options.clock.now() + KEEP_ALIVE_INTERVAL_MS;
  }

  /** One alarm, for whatever comes first. */
  #rescheduleTimer(): void {
    const next = Math.min(
      this.#openings.peek()?.at ?? Infinity,
      this.#deadlines.peek()?.deadline ?? Infinity,
    );
    const { clock, keepAlive } = this.#options;
    // Somebody waits for what has no time: only the process needs to hear of it.
    const latest = keepAlive ? this.#keepAliveAt(next) : Infinity;
    const at = this.#waiterCount === 0 ? Infinity : Math.min(next, latest);
    if (this.#timer?.at === at) return;
    this.#timer?.cancel();
    this.#timer = undefined;
    if (at === Infinity) return;
    this.#timer = { at, cancel: schedule(clock, at, () => this.#onTimer(), keepAlive) };
  }
}

/** When a line that was just refused may try again; Infinity: when something comes back. */
const opensAtAfter = (retryAfterMs: Millis, now: Millis): Millis =>
  retryAfterMs === WHEN_SETTLED ? Infinity : now + retryAfterMs;

const msUntilOpen = ({ opensAt }: KeyQueue, now: Millis): Millis =>
  opensAt < Infinity ? Math.max(0, Math.ceil(opensAt - now)) : WHEN_SETTLED;
