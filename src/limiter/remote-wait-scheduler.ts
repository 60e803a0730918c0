/**
 * Wait queues of a limiter whose backend decides elsewhere.
 *
 * As in `wait-scheduler.ts`, each key has a queue and only its front checks. A check takes a round trip and other
 * processes compete, so the front checks as one batch: as many waiters are granted as fit. The rest sleep until the
 * backend's retry time plus random jitter. Without jitter, processes would retry at the same instant and the same one
 * would win every time. With lookahead, the backend grants the next slots before they open: the rest retry that much
 * earlier, and each granted waiter sleeps until its slot opens.
 *
 * Where slots can be reserved ahead, each waiter of the front reserves its own and sleeps until it is due. A slot
 * used later than `expireMs` after that, or after `usableUntil`, is lost: its waiter goes back to the front.
 *
 * On Cloudflare Workers, a check and a timer end with the request that began them. There each waiter has a queue of its
 * own, served by its own request. A request that ends affects no other waiter, and waiters are served in any order.
 */

import {
  CLOSED_REFUSAL,
  type FairWaitResult,
  maxJitterMs,
  type RemoteBackend,
  type RemoteDecision,
} from '../backends/remote-backend.ts';
import { type Millis, schedule, timersEndWithRequest } from '../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import type { Flow } from '../core/flow.ts';
import { LongestQueue } from '../core/longest-queue.ts';
import { PendingSet } from '../core/pending.ts';
import type { Random } from '../core/random.ts';
import { type Waiter, WaiterSet } from '../core/waiter-set.ts';
import { createWaitQueue } from './fair-wait-queue.ts';
import type { WaitLimits } from './validate.ts';
import { nextArrival, type QueuePosition, type WaiterQueue } from './wait-queue.ts';
import {
  type QueueSettings,
  type WaitRefusal,
  type WaitResult,
  waitRefusal,
} from './wait-scheduler.ts';

export interface RemoteWaitSchedulerOptions extends QueueSettings {
  readonly backend: Pick<RemoteBackend, 'check' | 'checkBatch' | 'settle'>;
  readonly random: Random;
  /** True if the limit reserves slots ahead of time. */
  readonly canReserve: boolean;
  expireMs(): Millis;
  /** The least time from the grant to a waiter until `units` are granted to those behind it. Left out: unknown. */
  drainMs?(units: number): Millis;
  /** Whether the cost exceeds the capacity of any key: its waiter would block those behind it. */
  neverFits?(cost: number): boolean;
  /** The remaining cool-down of the key; 0: none. */
  cooldownMs(key: string): Millis;
}

export type RemoteGrant = Extract<FairWaitResult, { verdict: 'allow' }> & {
  /** A call that begins later than this, on the limiter's clock, has lost its slot. */
  readonly usableUntil?: Millis | undefined;
};

type RemoteWaitResult = RemoteGrant | Extract<WaitResult, { verdict: 'deny' }>;

export interface RemoteWaitLimits extends WaitLimits {
  /** True if the waiter had its turn and could not use it: it goes to the front of the queue. */
  readonly isRequeued: boolean;
}

/** The refusal after the deadline. */
export const TOO_LONG = waitRefusal(0, 'too-long');

interface QueuedWaiter extends QueuePosition, Waiter<RemoteWaitResult> {
  readonly key: string;
  readonly queueId: string;
  readonly cost: number;
  /** False until the waiter is known to have to wait: a call granted at once takes no position in the queue. */
  isQueued: boolean;
  /** Cancels the reserved slot, if there is one. */
  cancelReservation: (() => void) | undefined;
}

interface KeyQueue {
  readonly key: string;
  /** The key; for a queue with one waiter, an id of its own. */
  readonly id: string;
  readonly waiters: WaiterQueue<QueuedWaiter>;
  /** Ends the sleep of the queue, if it sleeps. */
  wake: (() => void) | undefined;
  /** Capacity was released after the last check was sent: its reply may be outdated. */
  isWakePending: boolean;
  /** The limit has changed after the last check was sent: its reply does not count. */
  isOutdated: boolean;
  /** How long to sleep before the next poll. */
  pollMs: Millis;
  /** The earliest time at which `refusedCost` can be granted, while the queue sleeps until then; undefined: unknown. */
  opensAt: Millis | undefined;
  /** The cost that the last check refused; NaN in a cool-down: any cost. */
  refusedCost: number;
  /** The rule that refused the first waiter in the last check, in a limit with several rules. */
  rule: string | undefined;
  /** Whether `onUnavailable` made the last decision. */
  fromFallback: boolean;
}

/** When a refused queue checks again. */
interface RetryHint {
  readonly opensInMs: Millis;
  /** How long before the opening a check can succeed. */
  readonly lookaheadMs: Millis;
}

/** The most waiters in one batch. */
const MAX_BATCH = 64;

/**
 * Poll interval where the backend does not know when the limit opens, because a call must settle. A settled call of
 * this process wakes the queue at once. For calls of other processes the queue polls with exponential back-off.
 */
const INITIAL_POLL_MS = 20;
const MAX_POLL_MS = 250;

/** Times to a retry are whole milliseconds, rounded up. */
const isAfter = (turnInMs: Millis, leftMs: Millis): boolean => turnInMs >= leftMs + 1;

const needsLess = ({ cost }: QueuedWaiter, { refusedCost }: KeyQueue): boolean =>
  cost < refusedCost;

export class RemoteWaitScheduler {
  readonly #options: RemoteWaitSchedulerOptions;
  /** Queues by id. */
  readonly #queues = new Map<string, KeyQueue>();
  /** Whether every waiter has its own queue. */
  readonly #hasOwnQueues: boolean;
  #lastQueueNumber = 0;
  /** Waiters in a queue, and waiters with a reserved slot that is not due yet. */
  readonly #waiters: WaiterSet<RemoteWaitResult, QueuedWaiter>;
  readonly #longest = new LongestQueue<KeyQueue>();
  /** Waiters that are known to have to wait. */
  #queuedCount = 0;
  /** Queues that are being served, and settlements that are on their way to the backend. */
  readonly #pending = new PendingSet();

  constructor(options: RemoteWaitSchedulerOptions) {
    this.#options = options;
    this.#hasOwnQueues = options.hasOwnTimers ?? timersEndWithRequest;
    this.#waiters = new WaiterSet({
      ...options,
      expiredResult: (waiter, now) => this.#refusal(waiter, this.#turnIn(waiter, now), 'too-long'),
      onRemove: (waiter) => {
        this.#queues.get(waiter.queueId)?.waiters.remove(waiter);
        if (this.#hasOwnQueues) this.#queues.delete(waiter.queueId); // its request may have ended
        if (waiter.isQueued) this.#queuedCount--;
        waiter.cancelReservation?.();
      },
      // A waiter behind an aborted one may fit. An expiry costs no extra round trip: the queue checks when it opens.
      onAbandon: (waiters, cause) => {
        if (cause === 'aborted') for (const { key } of waiters) this.wake(key);
      },
    });
  }

  get size(): number {
    return this.#waiters.size;
  }

  hasWaiters(key: string): boolean {
    return this.#queues.has(key);
  }

  /** Capacity came back: the front of the key's queue checks again. */
  wake(key: string): void {
    for (const queue of this.#queuesOf(key)) {
      queue.pollMs = INITIAL_POLL_MS;
      queue.isWakePending = true;
      queue.wake?.();
    }
  }

  #queuesOf(key: string): readonly KeyQueue[] {
    if (this.#hasOwnQueues) return [...this.#queues.values()].filter((queue) => queue.key === key);
    const queue = this.#queues.get(key);
    return queue ? [queue] : [];
  }

  /** The backend is available again, or the limit has changed: all queues check. */
  wakeAll(): void {
    for (const queue of this.#queues.values()) {
      queue.isOutdated = true;
      queue.wake?.();
    }
  }

  /** Waits for a permit. Rejects if the signal aborts or the check fails. */
  waitForPermit(key: string, cost: number, limits: RemoteWaitLimits): Promise<RemoteWaitResult> {
    const { signal, maxWaitMs, priority, flow, isRequeued } = limits;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const queueId = this.#hasOwnQueues ? `${++this.#lastQueueNumber} ${key}` : key;
    const queue = this.#queues.get(queueId);
    if (queue && this.#options.neverFits?.(cost))
      return Promise.resolve(waitRefusal(NEVER, 'never'));
    if (queue && maxWaitMs < Infinity && !isRequeued) {
      const position = { queueId, cost, arrival: Infinity, priority, flow };
      const turnInMs = this.#turnIn(position, this.#options.clock.now());
      if (isAfter(turnInMs, maxWaitMs) || maxWaitMs <= 0)
        return Promise.resolve(this.#refusal({ queueId }, turnInMs, 'too-long'));
    }
    if (
      queue &&
      this.#waiters.isFull &&
      !this.#refuseLastOfLongest(queue.waiters.size, queue, flow)
    )
      return Promise.resolve(this.#refusal({ queueId }, 0, 'queue-full'));
    return new Promise((resolve, reject) => {
      const waiter: QueuedWaiter = {
        key,
        queueId,
        cost,
        arrival: nextArrival(),
        priority,
        flow,
        deadline: this.#options.clock.now() + maxWaitMs,
        signal,
        resolve,
        reject,
        isWaiting: true,
        isQueued: false,
        cancelReservation: undefined,
      };
      this.#waiters.add(waiter);
      if (isRequeued) this.#requeueFirst(waiter);
      else this.#enqueue(waiter);
      this.#waiters.reschedule();
    });
  }

  /** Refuses all waiters at once. Resolves when reserved and pending slots are given back. */
  async close(): Promise<void> {
    this.#waiters.close(CLOSED_REFUSAL);
    this.wakeAll();
    await this.#pending.drained();
  }

  #enqueue(waiter: QueuedWaiter): void {
    const { key, queueId: id } = waiter;
    const queue = this.#queues.get(id);
    if (queue) {
      this.#claimQueueSlot(waiter);
      queue.waiters.add(waiter);
      this.#longest.onGrowth(queue);
      this.#wakeIfLess(queue);
      return;
    }
    const created: KeyQueue = {
      key,
      id,
      waiters: createWaitQueue(this.#options.order),
      wake: undefined,
      isWakePending: false,
      isOutdated: false,
      pollMs: INITIAL_POLL_MS,
      opensAt: undefined,
      refusedCost: Infinity,
      rule: undefined,
      fromFallback: false,
    };
    created.waiters.add(waiter);
    this.#queues.set(id, created);
    const served = this.#serveQueue(created);
    if (!this.#hasOwnQueues) this.#pending.add(served); // in its own queue it never settles if its request ends
  }

  /** Serves a queue until it is empty. */
  async #serveQueue(queue: KeyQueue): Promise<void> {
    for (let { first } = queue.waiters; first; { first } = queue.waiters) {
      try {
        await this.#serveFront(queue);
      } catch (error) {
        this.#fail(first, error);
      }
    }
    this.#queues.delete(queue.id);
  }

  /** Checks for the front of a queue, and sleeps until the next check if a waiter was refused. */
  async #serveFront(queue: KeyQueue): Promise<void> {
    const checkedAt = this.#options.clock.now();
    const { canReserve } = this.#options;
    const cooldownMs = this.#options.cooldownMs(queue.key);
    queue.isWakePending = false;
    queue.isOutdated = false;
    queue.opensAt = undefined;
    queue.refusedCost = cooldownMs > 0 ? Number.NaN : Infinity;
    let refused: RetryHint | undefined = { opensInMs: cooldownMs, lookaheadMs: 0 };
    if (cooldownMs <= 0)
      refused = await (canReserve ? this.#reserveAhead(queue) : this.#checkBatch(queue));
    if (refused === undefined) queue.pollMs = INITIAL_POLL_MS;
    const isSettled = queue.isWakePending && refused?.opensInMs === WHEN_SETTLED;
    if (refused === undefined || isSettled || queue.isOutdated) return;
    if (refused.opensInMs !== WHEN_SETTLED) queue.opensAt = checkedAt + refused.opensInMs;
    const { first } = queue.waiters;
    this.#refuseTooLong(queue);
    this.#refuseOverflow(queue, refused.opensInMs);
    const { first: next } = queue.waiters;
    if (next && next === first && !needsLess(next, queue)) await this.#sleep(queue, refused);
  }

  /** Wakes the queue if its new first waiter costs less than the refused one: it may fit earlier. */
  #wakeIfLess(queue: KeyQueue): void {
    const { first } = queue.waiters;
    if (first && needsLess(first, queue)) queue.wake?.();
  }

  /** Checks for the front of a queue; returns when to check again if a waiter was refused. */
  async #checkBatch(queue: KeyQueue): Promise<RetryHint | undefined> {
    const { key, waiters } = queue;
    const front = waiters.front(MAX_BATCH);
    const batch = await this.#options.backend.checkBatch(
      key,
      front.map(({ cost }) => cost),
    );
    const { granted, decidedAt, dueInMs = [], lookaheadMs = 0, fromFallback = false } = batch;
    queue.fromFallback = fromFallback;
    const dueNow = granted - dueInMs.length;
    for (const [n, waiter] of front.slice(0, granted).entries()) {
      const waitMs = n < dueNow ? 0 : dueInMs[n - dueNow];
      const grant: RemoteGrant = {
        verdict: 'allow',
        dueAt: decidedAt + waitMs,
        usableUntil: batch.usableUntils?.[n],
        fromFallback,
        leaseId: batch.leaseIds?.[n],
        remaining: n === granted - 1 ? batch.remaining : undefined,
      };
      if (waiter.isWaiting) waiters.onServed?.(waiter);
      if (waitMs > 0) this.#reserve(waiter, grant, waitMs);
      else this.#grant(waiter, grant);
    }
    const opensInMs = this.#retryDelayOf(queue, front[granted], batch.refusal);
    return opensInMs === undefined ? undefined : { opensInMs, lookaheadMs };
  }

  /** Each waiter gets its slot as soon as its own reply arrives: after the slowest reply it may be too late. */
  async #reserveAhead(queue: KeyQueue): Promise<RetryHint | undefined> {
    const { key, waiters } = queue;
    const checkOne = async (waiter: QueuedWaiter): Promise<Millis | undefined> => {
      let reply: RemoteDecision;
      try {
        reply = await this.#options.backend.check(key, waiter.cost);
      } catch (error) {
        return this.#fail(waiter, error);
      }
      const { decision, decidedAt, usableUntil, leaseId, fromFallback = false } = reply;
      queue.fromFallback = fromFallback;
      if (decision.verdict === 'deny') return this.#retryDelayOf(queue, waiter, decision);
      const waitMs = decision.verdict === 'wait' ? decision.waitMs : 0;
      const dueAt = decidedAt + waitMs;
      const remaining =
        decision.verdict === 'allow' && !fromFallback ? decision.remaining : undefined;
      const about = { usableUntil, fromFallback, leaseId, remaining };
      const grant: RemoteGrant = { verdict: 'allow', dueAt, ...about };
      if (waiter.isWaiting) waiters.onServed?.(waiter);
      if (decision.verdict === 'wait') this.#reserve(waiter, grant, waitMs);
      else this.#grant(waiter, grant);
      return undefined;
    };
    const delays = await Promise.all(waiters.front(MAX_BATCH).map(checkOne));
    const opensInMs = delays.find((ms) => ms !== undefined);
    return opensInMs === undefined ? undefined : { opensInMs, lookaheadMs: 0 };
  }

  /** Refuses a cost that never fits; else returns how long until the next check. */
  #retryDelayOf(
    queue: KeyQueue,
    waiter: QueuedWaiter | undefined,
    decision: Decision | undefined,
  ): Millis | undefined {
    if (decision?.verdict !== 'deny') return undefined;
    const { retryAfterMs, rule } = decision;
    if (retryAfterMs !== NEVER) {
      queue.rule = rule;
      queue.refusedCost = Math.min(queue.refusedCost, waiter?.cost ?? 0);
      return retryAfterMs;
    }
    if (waiter?.isWaiting)
      this.#waiters.resolve(waiter, { ...waitRefusal(retryAfterMs, 'never'), rule });
    return undefined;
  }

  /** Each failed check ends one waiter, so the queue always makes progress. */
  #fail(waiter: QueuedWaiter, error: unknown): undefined {
    if (waiter.isWaiting) this.#waiters.reject(waiter, error);
  }

  #grant(waiter: QueuedWaiter, grant: RemoteGrant): void {
    if (waiter.isWaiting) this.#waiters.resolve(waiter, grant);
    else if (!grant.fromFallback || grant.leaseId !== undefined) this.#giveBack(waiter, grant);
  }

  #giveBack({ key, cost }: QueuedWaiter, { dueAt, leaseId, fromFallback }: RemoteGrant): void {
    const settlement = { outcome: 'ignored', cost, dueAt, leaseId, fromFallback } as const;
    this.#pending.add(this.#options.backend.settle(key, settlement));
  }

  /** Takes the waiter out of its queue until its slot is due; then the slot is used, given back or lost. */
  #reserve(waiter: QueuedWaiter, grant: RemoteGrant, waitMs: Millis): void {
    const { usableUntil = Infinity, fromFallback, leaseId } = grant;
    const { clock, keepAlive } = this.#options;
    const isTooLong = clock.now() + waitMs > waiter.deadline;
    if (!waiter.isWaiting || isTooLong || !this.#claimQueueSlot(waiter)) {
      this.#giveBack(waiter, grant);
      const reason = isTooLong ? 'too-long' : 'queue-full';
      if (waiter.isWaiting)
        this.#waiters.resolve(waiter, this.#refusal(waiter, Math.ceil(waitMs), reason));
      return;
    }
    this.#queues.get(waiter.queueId)?.waiters.remove(waiter);
    const dueHere = clock.now() + waitMs; // the reply took time to arrive: late rather than early
    const use = (): void => {
      waiter.cancelReservation = undefined;
      const isLate = clock.now() > Math.min(dueHere + this.#options.expireMs(), usableUntil);
      if (!waiter.isWaiting || !isLate) {
        this.#grant(waiter, grant);
      } else {
        if (leaseId !== undefined) this.#giveBack(waiter, grant); // the slot is lost, and its call is not in flight
        this.#requeueFirst(waiter);
      }
    };
    const cancel = schedule(clock, dueHere, use, keepAlive);
    waiter.cancelReservation = () => {
      cancel();
      if (!fromFallback || leaseId !== undefined) this.#giveBack(waiter, grant);
    };
  }

  #requeueFirst(waiter: QueuedWaiter): void {
    const queue = this.#queues.get(waiter.queueId);
    if (queue) {
      queue.waiters.addFirst(waiter);
      this.#wakeIfLess(queue);
    } else this.#enqueue(waiter);
  }

  /** The least time until a waiter at this position has its turn; 0: unknown. */
  #turnIn(one: Pick<QueuedWaiter, 'queueId' | 'cost'> & QueuePosition, now: Millis): Millis {
    const queue = this.#queues.get(one.queueId);
    const first = queue?.waiters.first;
    if (!queue || !first) return 0;
    if (first === one) return this.#turnInMs(queue, one.cost, now);
    if (!queue.waiters.hasEarlier(one)) return 0;
    const unitsAhead = Math.max(first.cost, queue.waiters.costBefore(one));
    return this.#turnInMs(queue, unitsAhead + one.cost, now);
  }

  /** The least time until the next waiters, of `units` in all, are granted; 0: unknown. */
  #turnInMs({ opensAt, refusedCost, fromFallback }: KeyQueue, units: number, now: Millis): Millis {
    if (opensAt === undefined || units < refusedCost) return 0;
    const unitsBehind = units - refusedCost;
    const isPaced = unitsBehind > 0 && !fromFallback; // a server that is back may have more
    const drainMs = isPaced ? (this.#options.drainMs?.(unitsBehind) ?? 0) : 0;
    return Math.max(0, opensAt - now) + drainMs;
  }

  #refusal(
    { queueId }: Pick<QueuedWaiter, 'queueId'>,
    ms: Millis,
    reason: WaitRefusal['reason'],
  ): WaitRefusal {
    const { rule, fromFallback = false } = this.#queues.get(queueId) ?? {};
    return {
      ...waitRefusal(Math.ceil(ms), reason),
      ...(rule !== undefined && { rule }),
      ...(fromFallback && { fromFallback }),
    };
  }

  /** Refuses the waiters whose turn comes after their deadline: the calls before each are served first. */
  #refuseTooLong(queue: KeyQueue): void {
    const { clock, order } = this.#options;
    const now = clock.now();
    const { first } = queue.waiters;
    const isInOrder = order !== 'fair'; // else `front(Infinity)` is in any order
    let unitsAhead = 0;
    const waiters = queue.waiters.front(Infinity);
    for (const waiter of isInOrder || !first ? waiters : new Set([first, ...waiters])) {
      const turnInMs = this.#turnInMs(queue, unitsAhead + waiter.cost, now);
      if (isAfter(turnInMs, waiter.deadline - now) || waiter.deadline <= now)
        this.#waiters.resolve(waiter, this.#refusal(waiter, turnInMs, 'too-long'));
      else if (waiter === first || (isInOrder && first?.isWaiting)) unitsAhead += waiter.cost;
    }
  }

  /** The first waiter of a key checks before it is known to wait, so it may exceed the bound. */
  #refuseOverflow({ waiters }: KeyQueue, retryAfterMs: Millis): void {
    for (const waiter of waiters.front(Infinity)) {
      if (!this.#claimQueueSlot(waiter))
        this.#waiters.resolve(waiter, this.#refusal(waiter, retryAfterMs, 'queue-full'));
    }
  }

  /** False if the queue is full. */
  #claimQueueSlot(waiter: QueuedWaiter): boolean {
    if (waiter.isQueued) return true;
    const isFull = this.#queuedCount >= this.#options.maxWaiters;
    const queue = this.#queues.get(waiter.queueId);
    const others = (queue?.waiters.size ?? 1) - 1;
    if (isFull && !this.#refuseLastOfLongest(others, queue, waiter.flow)) return false;
    waiter.isQueued = true;
    this.#queuedCount++;
    return true;
  }

  /** Frees a slot in a full queue for a key or flow with few waiters; false if no other has more. */
  #refuseLastOfLongest(size: number, queue?: KeyQueue, flow?: Flow): boolean {
    const longest = this.#longest.findLongerThan(size, this.#queues.values());
    const last = longest ? longest.waiters.last : queue?.waiters.displacedBy?.(flow);
    if (!last?.isQueued) return false;
    this.#waiters.resolve(last, this.#refusal(last, 0, 'queue-full'));
    return true;
  }

  #sleep(queue: KeyQueue, { opensInMs, lookaheadMs }: RetryHint): Promise<void> {
    const { clock, random, keepAlive } = this.#options;
    const isPoll = opensInMs === WHEN_SETTLED;
    const ms = isPoll ? queue.pollMs / 2 : Math.max(0, opensInMs - lookaheadMs);
    // Within the lookahead the first check wins, so half of the lookahead is jitter, as half of a poll interval is.
    const jitterMs = isPoll ? queue.pollMs / 2 : Math.max(maxJitterMs(ms), lookaheadMs / 2);
    queue.pollMs = isPoll ? Math.min(MAX_POLL_MS, 2 * queue.pollMs) : INITIAL_POLL_MS;
    return new Promise((awake) => {
      const wake = (): void => {
        queue.wake = undefined;
        cancel();
        awake();
      };
      const cancel = schedule(clock, clock.now() + ms + jitterMs * random(), wake, keepAlive);
      queue.wake = wake;
    });
  }
}
