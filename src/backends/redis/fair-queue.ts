/**
 * Fair queue: one queue for the whole fleet, first come first served, kept by Redis.
 *
 *     join ──▶ queued ──▶ is first: gets the ms until it may check ──▶ checks ──▶ granted
 *                │                                                        │
 *                └── deadline, abort: leaves          wakes the next waiter ──▶ …
 *
 * Without it each process has its own queue, and which process is served first is random. Here a permit costs one
 * call: a granted waiter wakes the next one by a message that carries the delay of its turn. Where calls in flight
 * are counted, a settled call wakes the first waiter.
 *
 * Messages may be lost, so each process sends a heartbeat once a second, which also returns the first waiter. Redis
 * skips a first waiter whose process has sent none for a while. The heartbeat also finds a queue that Redis has lost,
 * waiters that Redis has skipped (both join again), and queue entries without a waiter.
 *
 * While Redis is unavailable, the fallback decides; waiters it refuses stay queued.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { PendingSet } from '../../core/pending.ts';
import type { Random } from '../../core/random.ts';
import { type Waiter, WaiterSet } from '../../core/waiter-set.ts';
import { CLOSED_REFUSAL, type FairWaitLimits, type FairWaitResult } from '../remote-backend.ts';
import { randomId } from '../remote-limit.ts';
import type { TimedReply } from './batcher.ts';
import type { Subscriber } from './client.ts';
import { PROCESS_TIMEOUT_MS } from './lua-script.ts';
import { decisionOf } from './reply.ts';

const HEARTBEAT_MS: Millis = PROCESS_TIMEOUT_MS / 3;

interface QueuedWaiter extends Waiter<FairWaitResult> {
  readonly id: string;
  readonly cost: number;
  readonly queue: KeyQueue;
  /** Whether its check is on the way. */
  isRequesting: boolean;
  /** The turn announced meanwhile: the answer on the way may be older than that. */
  pendingTurnMs: Millis | undefined;
  cancelTurn: (() => void) | undefined;
}

interface KeyQueue {
  readonly key: string;
  readonly waiters: Set<QueuedWaiter>;
}

export type SendCommand = (key: string, command: string) => Promise<TimedReply>;

export interface FairQueueOptions {
  readonly send: SendCommand;
  readonly clock: Clock;
  readonly random: Random;
  readonly subscriber: Subscriber;
  readonly maxWaiters: number;
  readonly keepAlive: boolean;
  /** Decides while Redis is unavailable. */
  readonly fallback: { check(key: string, cost: number): Decision };
  /** The command that gives back a permit granted to this waiter at that time. */
  readonly releaseCommand: (id: string, cost: number, at: Millis) => string;
  /** Records the lease of a call in flight, where these are counted. */
  readonly trackLease?: ((id: string, lease: ActiveLease) => void) | undefined;
}

/** The lease of a call in flight. */
export interface ActiveLease {
  readonly key: string;
  readonly cost: number;
  /** True if the fallback granted it while Redis was unavailable. */
  readonly fromFallback: boolean;
}

export class FairQueue {
  readonly #options: FairQueueOptions;
  /** Identifies this limiter in this process. */
  readonly #processId: string;
  readonly #queues = new Map<string, KeyQueue>();
  readonly #waitersById = new Map<string, QueuedWaiter>();
  readonly #waiters: WaiterSet<FairWaitResult, QueuedWaiter>;
  readonly #pending = new PendingSet();
  #lastWaiterNumber = 0;
  #cancelHeartbeat: (() => void) | undefined;
  #isSubscribed = false;

  constructor(options: FairQueueOptions) {
    this.#options = options;
    this.#processId = randomId(options.random);
    this.#waiters = new WaiterSet({
      ...options,
      expiredResult: () => ({ verdict: 'deny', retryAfterMs: 0, reason: 'too-long' }),
      onRemove: (waiter) => this.#removeFromQueue(waiter),
      onAbandon: (waiters) => {
        for (const waiter of waiters) this.#leaveQueue(waiter);
      },
    });
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  async acquire(key: string, cost: number, limits: FairWaitLimits): Promise<FairWaitResult> {
    const { signal, maxWaitMs } = limits;
    signal?.throwIfAborted();
    if (this.#waiters.isFull) return { verdict: 'deny', retryAfterMs: 0, reason: 'queue-full' };
    this.#subscribe();
    return new Promise((resolve, reject) => {
      const queue = this.#queues.get(key) ?? this.#createQueue(key);
      const waiter: QueuedWaiter = {
        id: `${this.#processId}/${++this.#lastWaiterNumber}/${cost}`,
        cost,
        queue,
        deadline: this.#options.clock.now() + maxWaitMs,
        signal,
        resolve,
        reject,
        isWaiting: true,
        isRequesting: false,
        pendingTurnMs: undefined,
        cancelTurn: undefined,
      };
      this.#waiters.add(waiter);
      this.#waitersById.set(waiter.id, waiter);
      queue.waiters.add(waiter);
      this.#waiters.reschedule();
      this.#requestPermit(waiter);
      this.#scheduleHeartbeat();
    });
  }

  /** Refuses all waiters at once; resolves when none of this process is left in Redis's queue. */
  async close(): Promise<void> {
    this.#waiters.close(CLOSED_REFUSAL);
    this.#cancelHeartbeat?.();
    this.#cancelHeartbeat = undefined;
    await this.#pending.drained(); // a permit granted now is given back
    await this.#options.subscriber.stop();
  }

  /** Sends a heartbeat at once, for this key or for all: Redis is available again, or a call of this process settled. */
  pollNow(key?: string): void {
    for (const queue of this.#queues.values()) {
      if (key === undefined || queue.key === key) this.#sendHeartbeat(queue);
    }
  }

  #createQueue(key: string): KeyQueue {
    const queue: KeyQueue = { key, waiters: new Set() };
    this.#queues.set(key, queue);
    return queue;
  }

  #removeFromQueue(waiter: QueuedWaiter): void {
    const { id, queue } = waiter;
    waiter.cancelTurn?.();
    this.#waitersById.delete(id);
    queue.waiters.delete(waiter);
    if (queue.waiters.size === 0) this.#queues.delete(queue.key);
  }

  /** Subscribes to turn messages. No waiter depends on it: the heartbeat makes up for lost messages. */
  #subscribe(): void {
    if (this.#isSubscribed) return;
    this.#isSubscribed = true;
    const onMessage = (message: string): void => {
      const [id, ms] = message.split(' ');
      this.#scheduleTurn(this.#waitersById.get(id), Number(ms));
    };
    this.#options.subscriber.subscribe(`sluice:turn:${this.#processId}`, onMessage).then(
      () => this.pollNow(), // messages sent before the subscription are lost
      () => {
        this.#isSubscribed = false; // the next heartbeat subscribes again
      },
    );
  }

  #send({ key }: KeyQueue, text: string): Promise<TimedReply> {
    return this.#pending.add(this.#options.send(key, text));
  }

  /** The waiter is first and may check in `ms`. */
  #scheduleTurn(waiter: QueuedWaiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting) return;
    if (waiter.isRequesting) {
      waiter.pendingTurnMs = ms;
      return;
    }
    const { clock, keepAlive } = this.#options;
    waiter.cancelTurn?.();
    const check = (): void => {
      waiter.cancelTurn = undefined;
      this.#requestPermit(waiter);
    };
    waiter.cancelTurn = schedule(clock, clock.now() + ms, check, keepAlive);
  }

  async #requestPermit(waiter: QueuedWaiter): Promise<void> {
    if (!waiter.isWaiting || waiter.isRequesting) return;
    waiter.isRequesting = true;
    waiter.pendingTurnMs = undefined;
    try {
      const { value, at } = await this.#send(waiter.queue, `f${waiter.id} ${waiter.cost}`);
      waiter.isRequesting = false;
      const decision = value === '-' ? undefined : decisionOf(value);
      if (waiter.isWaiting) this.#onReply(waiter, decision, at);
      else this.#releaseAbandoned(waiter, decision, at);
    } catch {
      waiter.isRequesting = false;
      this.#tryFallback(waiter);
    }
  }

  /** `decision` is undefined for a waiter that is queued, but not first. */
  #onReply(waiter: QueuedWaiter, decision: Decision | undefined, at: Millis): void {
    if (decision === undefined || isDeniedUntilSettle(decision)) {
      // A message announces its turn, unless one already has.
      if (waiter.pendingTurnMs !== undefined) this.#scheduleTurn(waiter, waiter.pendingTurnMs);
    } else if (decision.verdict !== 'deny') {
      this.#admit(waiter, at, false);
    } else if (decision.retryAfterMs === NEVER) {
      this.#waiters.resolve(waiter, { ...decision, reason: 'never' });
    } else {
      this.#scheduleTurn(waiter, decision.retryAfterMs); // it is first, and checked too early
    }
  }

  /** The waiter left while its check was on the way. A check that was sent again may have joined after the leave command. */
  #releaseAbandoned(waiter: QueuedWaiter, decision: Decision | undefined, at: Millis): void {
    const { id, queue, cost } = waiter;
    if (decision === undefined || decision.verdict === 'deny') this.#leaveQueue(waiter);
    else this.#send(queue, this.#options.releaseCommand(id, cost, at)).catch(() => {});
  }

  /** Redis is unavailable. True if the next waiter may try too; else this one stays queued and tries again. */
  #tryFallback(waiter: QueuedWaiter): boolean {
    if (!waiter.isWaiting || waiter.isRequesting) return true;
    const { fallback, clock } = this.#options;
    const decision = fallback.check(waiter.queue.key, waiter.cost);
    if (decision.verdict !== 'deny') this.#admit(waiter, clock.now(), true);
    else if (decision.retryAfterMs === NEVER)
      this.#waiters.resolve(waiter, { ...decision, reason: 'never' });
    else if (!isDeniedUntilSettle(decision))
      this.#scheduleTurn(waiter, Math.min(decision.retryAfterMs, HEARTBEAT_MS));
    return !waiter.isWaiting;
  }

  #admit(waiter: QueuedWaiter, dueAt: Millis, fromFallback: boolean): void {
    const { id, cost, queue } = waiter;
    const { trackLease } = this.#options;
    trackLease?.(id, { key: queue.key, cost, fromFallback });
    const lease = trackLease && { leaseId: id };
    this.#waiters.resolve(waiter, { verdict: 'allow', dueAt, fromFallback, ...lease });
  }

  #leaveQueue({ id, queue }: Pick<QueuedWaiter, 'id' | 'queue'>): void {
    this.#send(queue, `x${id}`).catch(() => {}); // a heartbeat finds an entry left behind
  }

  /** While calls wait: shows that this process is alive, and reads the first waiter. */
  #scheduleHeartbeat(): void {
    if (this.#cancelHeartbeat) return;
    const { clock, keepAlive } = this.#options;
    const heartbeat = async (): Promise<void> => {
      this.#cancelHeartbeat = undefined;
      this.#subscribe();
      await Promise.all([...this.#queues.values()].map((queue) => this.#sendHeartbeat(queue)));
      if (this.size > 0) this.#scheduleHeartbeat();
    };
    this.#cancelHeartbeat = schedule(clock, clock.now() + HEARTBEAT_MS, heartbeat, keepAlive);
  }

  async #sendHeartbeat(queue: KeyQueue): Promise<void> {
    const { waiters } = queue;
    try {
      const { value } = await this.#send(queue, `b${this.#processId} ${queuedWaiterId(queue)}`);
      if (value === '-') {
        for (const waiter of waiters) this.#requestPermit(waiter); // join again: a waiter still queued there keeps its place
        return;
      }
      const [first, text] = String(value).split(' ');
      const ms = Number(text); // below 0: a call must settle first, and its process sends the message
      const waiter = this.#waitersById.get(first);
      if (waiter && !waiter.cancelTurn && ms >= 0) this.#scheduleTurn(waiter, ms);
      if (waiter || !first.startsWith(`${this.#processId}/`)) return;
      this.#leaveQueue({ id: first, queue }); // it left while Redis was unavailable
      if (waiters.size > 0) await this.#sendHeartbeat(queue);
    } catch {
      for (const waiter of waiters) if (!this.#tryFallback(waiter)) break;
    }
  }
}

/** True if the limit opens when a call settles: a message announces it. */
const isDeniedUntilSettle = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.retryAfterMs === WHEN_SETTLED;

/** A waiter that Redis must have in its queue; one whose check is on the way may have been granted. */
function queuedWaiterId({ waiters }: KeyQueue): string {
  for (const { id, isRequesting } of waiters) if (!isRequesting) return id;
  return '';
}
