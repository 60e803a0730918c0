/**
 * The waiting room of a limit that somebody else decides.
 *
 * As in `wait-scheduler.ts` each key has a line and only its front asks; but an answer takes a while, and
 * others far away ask too. So the front of a line asks together, in one trip: as many get in as fit,
 * and the rest sleep until the decider said it would open, and a random moment longer, so that lines
 * in many processes do not all come at the same instant and lose to the same one every time. Where the
 * decider hands out the next place a moment before it opens, they come that much earlier, and whoever
 * gets it sleeps the rest.
 *
 * Where places can be reserved ahead, each in front reserves its own and sleeps until it is due. Who
 * oversleeps by more than `expireMs`, or until after `latest`, has wasted its place and stands in front again.
 */

import { CLOSED_REFUSAL, maxJitterMs, type RemoteBackend } from '../backends/remote-backend.ts';
import { type Clock, type Millis, schedule } from '../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { PendingSet } from '../core/pending.ts';
import type { Random } from '../core/random.ts';
import type { QueueOrder } from './wait-queue.ts';
import type { RefusalReason } from './wait-scheduler.ts';

export interface RemoteWaitSchedulerOptions {
  readonly backend: RemoteBackend;
  readonly clock: Clock;
  readonly random: Random;
  readonly order: QueueOrder;
  readonly maxWaiters: number;
  readonly keepAlive: boolean;
  /** True if the limit hands out places ahead of time. */
  readonly canReserve: boolean;
  readonly expireMs: Millis;
  /** How long the key is paused; 0 if it is not. */
  cooldownMs(key: string): Millis;
}

export interface RemoteGrant {
  readonly verdict: 'allow';
  /** When it was good, on the decider's clock. */
  readonly dueAt: Millis;
  /** What begins later than this, on the limiter's clock, has lost its place. */
  readonly usableUntil?: Millis | undefined;
  readonly fromFallback: boolean;
  /** By what name its place is held, where the decider counts who is in flight. */
  readonly leaseId?: string | undefined;
}

export interface RemoteRefusal {
  readonly verdict: 'deny';
  readonly retryAfterMs: Millis;
  readonly reason: RefusalReason;
}

export interface RemoteWaitLimits {
  readonly maxWaitMs: Millis;
  readonly priority: number;
  /** True if it has had its turn and could not use it: nobody who came later is before it. */
  readonly isRequeued: boolean;
  readonly signal?: AbortSignal | undefined;
}

/** What somebody is told whose time is over. */
export const TOO_LONG = { verdict: 'deny', retryAfterMs: 0, reason: 'too-long' } as const;

interface Waiter {
  readonly cost: number;
  readonly priority: number;
  readonly deadline: Millis;
  readonly resolve: (result: RemoteGrant | RemoteRefusal) => void;
  isWaiting: boolean;
  /** False until it is known that it has to wait: whoever gets in at once takes no room. */
  isQueued: boolean;
  /** Gives up the place it has reserved, if it has. */
  cancelReservation: (() => void) | undefined;
}

interface KeyQueue {
  readonly key: string;
  readonly waiters: Waiter[];
  /** Ends the sleep of the line, if it sleeps. */
  wake: (() => void) | undefined;
  /** Something came back since it asked last: what it is about to hear may be older than that. */
  isWakePending: boolean;
  /** How long it sleeps when it can only look again. */
  pollMs: Millis;
}

/** What a line is told that has to sleep: when it opens, and how long before it is worth asking. */
interface RetryHint {
  readonly opensInMs: Millis;
  readonly lookaheadMs: Millis;
}

/** A place that opens in a while, as whoever decides told of it. */
interface Reservation {
  readonly decidedAt: Millis;
  readonly usableUntil?: Millis | undefined;
  readonly fromFallback?: boolean;
}

/** How many ask together. */
const MAX_BATCH = 64;

/**
 * How long to sleep where nobody can say when it opens, at first and at most: a call must settle. One of this
 * process wakes the line at once; for those elsewhere it looks again, twice as late each time.
 */
const INITIAL_POLL_MS = 20;
const MAX_POLL_MS = 250;

export class RemoteWaitScheduler {
  readonly #options: RemoteWaitSchedulerOptions;
  readonly #queues = new Map<string, KeyQueue>();
  /** In a line, or out of it with a place that is not due yet. */
  readonly #waiters = new Set<Waiter>();
  /** How many of them know that they have to wait. */
  #queuedCount = 0;
  /** Lines that are served, and what is on its way back to the decider. */
  readonly #pending = new PendingSet();

  constructor(options: RemoteWaitSchedulerOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#waiters.size;
  }

  hasWaiters(key: string): boolean {
    return this.#queues.has(key);
  }

  /** Something came back: the front of the key's line may try again. */
  wake(key: string): void {
    const queue = this.#queues.get(key);
    if (queue === undefined) return;
    queue.pollMs = INITIAL_POLL_MS;
    queue.isWakePending = true;
    queue.wake?.();
  }

  /** Whoever decides is back: all lines may try again. */
  wakeAll(): void {
    for (const { wake } of this.#queues.values()) wake?.();
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  waitForPermit(
    key: string,
    cost: number,
    limits: RemoteWaitLimits,
  ): Promise<RemoteGrant | RemoteRefusal> {
    const { signal, maxWaitMs, priority, isRequeued } = limits;
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.#queues.has(key)) {
      const isFull = this.#waiters.size >= this.#options.maxWaiters;
      const reason = isFull ? 'queue-full' : 'too-long';
      if (isFull || maxWaitMs <= 0) {
        return Promise.resolve({ verdict: 'deny', retryAfterMs: 0, reason });
      }
    }
    return new Promise((resolve, reject) => {
      const { clock, keepAlive } = this.#options;
      const deadline = clock.now() + maxWaitMs;
      let stop = (): void => {};
      const leave = (): void => {
        waiter.isWaiting = false;
        this.#waiters.delete(waiter);
        if (waiter.isQueued) this.#queuedCount--;
        waiter.cancelReservation?.();
        stop();
        signal?.removeEventListener('abort', onAbort);
      };
      const waiter: Waiter = {
        cost,
        priority,
        deadline,
        isWaiting: true,
        isQueued: false,
        cancelReservation: undefined,
        resolve: (result) => {
          leave();
          resolve(result);
        },
      };
      const onAbort = (): void => {
        leave();
        this.wake(key); // whoever stands behind may fit where it did not
        reject(signal?.reason);
      };
      const giveUp = (): void => {
        if (waiter.isWaiting) waiter.resolve(TOO_LONG);
      };
      if (deadline < Infinity && maxWaitMs > 0) stop = schedule(clock, deadline, giveUp, keepAlive);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.add(waiter);
      if (isRequeued) this.#requeueFirst(key, waiter);
      else this.#enqueue(key, waiter);
    });
  }

  /** Refuses all who wait, at once; what they had or are about to get has been given back when it is over. */
  async close(): Promise<void> {
    // The latest first: of places reserved only the last there is can be taken back.
    for (const waiter of [...this.#waiters].reverse()) waiter.resolve(CLOSED_REFUSAL);
    this.wakeAll();
    await this.#pending.drained();
  }

  #enqueue(key: string, waiter: Waiter): void {
    const queue = this.#queues.get(key);
    if (queue) {
      this.#claimQueueSlot(waiter);
      this.#insert(queue.waiters, waiter);
      return;
    }
    const own: KeyQueue = {
      key,
      waiters: [waiter],
      wake: undefined,
      isWakePending: false,
      pollMs: INITIAL_POLL_MS,
    };
    this.#queues.set(key, own);
    this.#pending.add(this.#serveQueue(own));
  }

  #insert(waiters: Waiter[], waiter: Waiter): void {
    const { order } = this.#options;
    let at = order === 'lifo' ? 0 : waiters.length;
    if (order === 'priority') {
      while (at > 0 && waiters[at - 1].priority < waiter.priority) at--;
    }
    waiters.splice(at, 0, waiter);
  }

  /** Serves a line until nobody stands in it. */
  async #serveQueue(queue: KeyQueue): Promise<void> {
    for (;;) {
      this.#pruneFinished(queue);
      if (queue.waiters.length === 0) break;
      const cooldownMs = this.#options.cooldownMs(queue.key);
      queue.isWakePending = false;
      const refused =
        cooldownMs > 0 ? { opensInMs: cooldownMs, lookaheadMs: 0 } : await this.#checkFront(queue);
      this.#pruneFinished(queue);
      if (refused === undefined) queue.pollMs = INITIAL_POLL_MS;
      if (refused === undefined || (queue.isWakePending && refused.opensInMs === WHEN_SETTLED))
        continue;
      this.#refuseTooLong(queue, refused.opensInMs);
      this.#refuseOverflow(queue, refused.opensInMs);
      if (queue.waiters.length > 0) await this.#sleep(queue, refused);
    }
    this.#queues.delete(queue.key);
  }

  /** Forgets those who have left. */
  #pruneFinished({ waiters }: KeyQueue): void {
    for (let n = waiters.length - 1; n >= 0; n--) if (!waiters[n].isWaiting) waiters.splice(n, 1);
  }

  /** Lets the front ask; says how long until it is worth asking again, if somebody was refused. */
  #checkFront(queue: KeyQueue): Promise<RetryHint | undefined> {
    return this.#options.canReserve ? this.#reserveAhead(queue) : this.#checkBatch(queue);
  }

  async #checkBatch({ key, waiters }: KeyQueue): Promise<RetryHint | undefined> {
    const { backend } = this.#options;
    const front = waiters.slice(0, MAX_BATCH);
    const told = await backend.checkBatch(
      key,
      front.map(({ cost }) => cost),
    );
    const fromFallback = told.fromFallback === true;
    const { granted, lastDueInMs = 0, lookaheadMs = 0 } = told;
    const last = lastDueInMs > 0 ? front[granted - 1] : undefined;
    for (const [n, waiter] of front.slice(0, granted).entries()) {
      const [leaseId, usableUntil] = [told.leaseIds?.[n], told.usableUntils?.[n]];
      const { decidedAt } = told;
      if (waiter === last)
        this.#reserve(key, waiter, { decidedAt, fromFallback, usableUntil }, lastDueInMs);
      else
        this.#grant(key, waiter, {
          verdict: 'allow',
          dueAt: decidedAt,
          usableUntil,
          fromFallback,
          leaseId,
        });
    }
    const lostMs = this.#retryDelayOf(front[granted], told.refusal);
    return lostMs === undefined ? undefined : { opensInMs: lostMs, lookaheadMs };
  }

  /** Each has its place as soon as it is told of it: when all the others are, it may be too late for that. */
  async #reserveAhead({ key, waiters }: KeyQueue): Promise<RetryHint | undefined> {
    const { backend } = this.#options;
    const askFor = async (waiter: Waiter): Promise<Millis | undefined> => {
      const answer = await backend.check(key, waiter.cost);
      const { decision, decidedAt, usableUntil, fromFallback = false } = answer;
      if (decision.verdict === 'deny') return this.#retryDelayOf(waiter, decision);
      if (decision.verdict === 'wait') this.#reserve(key, waiter, answer, decision.waitMs);
      else
        this.#grant(key, waiter, { verdict: 'allow', dueAt: decidedAt, usableUntil, fromFallback });
      return undefined;
    };
    const lost = await Promise.all(waiters.slice(0, MAX_BATCH).map(askFor));
    const opensInMs = lost.find((ms) => ms !== undefined);
    return opensInMs === undefined ? undefined : { opensInMs, lookaheadMs: 0 };
  }

  /** What never fits is told so; for the others, how long until it is worth asking again. */
  #retryDelayOf(waiter: Waiter | undefined, decision: Decision | undefined): Millis | undefined {
    if (decision?.verdict !== 'deny') return undefined;
    const { retryAfterMs } = decision;
    if (retryAfterMs !== NEVER) return retryAfterMs;
    if (waiter?.isWaiting) waiter.resolve({ verdict: 'deny', retryAfterMs, reason: 'never' });
    return undefined;
  }

  #grant(key: string, waiter: Waiter, result: RemoteGrant): void {
    if (waiter.isWaiting) waiter.resolve(result);
    else if (!result.fromFallback || result.leaseId !== undefined)
      this.#giveBack(key, waiter.cost, result.dueAt, result.leaseId);
  }

  #giveBack(key: string, cost: number, dueAt: Millis, leaseId?: string): void {
    const settlement = { outcome: 'ignored', cost, dueAt, leaseId } as const;
    this.#pending.add(this.#options.backend.settle(key, settlement));
  }

  /** Keeps a place until it is due, out of the line; it is used then, or given back, or wasted. */
  #reserve(
    key: string,
    waiter: Waiter,
    { decidedAt, usableUntil = Infinity, fromFallback = false }: Reservation,
    waitMs: Millis,
  ): void {
    const { clock, keepAlive, expireMs } = this.#options;
    const queue = this.#queues.get(key);
    const isTooLong = clock.now() + waitMs > waiter.deadline;
    if (!waiter.isWaiting || isTooLong || !this.#claimQueueSlot(waiter)) {
      this.#giveBack(key, waiter.cost, decidedAt + waitMs);
      const retryAfterMs = Math.ceil(waitMs);
      const reason = isTooLong ? 'too-long' : 'queue-full';
      if (waiter.isWaiting) waiter.resolve({ verdict: 'deny', retryAfterMs, reason });
      return;
    }
    queue?.waiters.splice(queue.waiters.indexOf(waiter), 1);
    const dueHere = clock.now() + waitMs; // an answer travels, so this is late rather than early
    const use = (): void => {
      waiter.cancelReservation = undefined;
      const isLate = clock.now() > Math.min(dueHere + expireMs, usableUntil);
      if (waiter.isWaiting && isLate) this.#requeueFirst(key, waiter);
      else
        this.#grant(key, waiter, {
          verdict: 'allow',
          dueAt: decidedAt + waitMs,
          usableUntil,
          fromFallback,
        });
    };
    const cancel = schedule(clock, dueHere, use, keepAlive);
    waiter.cancelReservation = () => {
      cancel();
      if (!fromFallback) this.#giveBack(key, waiter.cost, decidedAt + waitMs);
    };
  }

  /** In front of everybody: it had its turn, and overslept or was held up. */
  #requeueFirst(key: string, waiter: Waiter): void {
    const queue = this.#queues.get(key);
    if (queue) queue.waiters.unshift(waiter);
    else this.#enqueue(key, waiter);
  }

  #refuseTooLong(queue: KeyQueue, retryAfterMs: Millis): void {
    const openAt = this.#options.clock.now() + retryAfterMs;
    for (const waiter of [...queue.waiters]) {
      if (openAt > waiter.deadline || waiter.deadline <= this.#options.clock.now()) {
        waiter.resolve({ verdict: 'deny', retryAfterMs, reason: 'too-long' });
      }
    }
    this.#pruneFinished(queue);
  }

  /** Whoever came first for its key has asked before it was known whether it has to wait. */
  #refuseOverflow(queue: KeyQueue, retryAfterMs: Millis): void {
    for (const waiter of [...queue.waiters]) {
      if (!this.#claimQueueSlot(waiter))
        waiter.resolve({ verdict: 'deny', retryAfterMs, reason: 'queue-full' });
    }
    this.#pruneFinished(queue);
  }

  /** False if there is no room for it. */
  #claimQueueSlot(waiter: Waiter): boolean {
    if (waiter.isQueued) return true;
    if (this.#queuedCount >= this.#options.maxWaiters) return false;
    waiter.isQueued = true;
    this.#queuedCount++;
    return true;
  }

  #sleep(queue: KeyQueue, { opensInMs, lookaheadMs }: RetryHint): Promise<void> {
    const { clock, random, keepAlive } = this.#options;
    const isLook = opensInMs === WHEN_SETTLED;
    const ms = isLook ? queue.pollMs / 2 : Math.max(0, opensInMs - lookaheadMs);
    // Who is handed a place ahead is whoever comes first: half of that time is left to chance, as of a look.
    const chanceMs = isLook ? queue.pollMs / 2 : Math.max(maxJitterMs(ms), lookaheadMs / 2);
    const jitter = chanceMs * random();
    queue.pollMs = isLook ? Math.min(MAX_POLL_MS, 2 * queue.pollMs) : INITIAL_POLL_MS;
    return new Promise((awake) => {
      const wake = (): void => {
        queue.wake = undefined;
        cancel();
        awake();
      };
      const cancel = schedule(clock, clock.now() + ms + jitter, wake, keepAlive);
      queue.wake = wake;
    });
  }
}
