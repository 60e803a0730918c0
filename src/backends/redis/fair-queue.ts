/**
 * Fair queue: one queue for the whole fleet, kept by Redis, first come first served.
 *
 *     join ──▶ queued ──▶ turn message: at the head, may request in n ms ──▶ request ──▶ admitted
 *                │                                                             │
 *                └── timeout or abort: leave                  turn message to the next waiter ──▶ …
 *
 * Without it each process has its own queue, and the order between processes is random. Here a permit costs one call: an
 * admission sends the next waiter a message with the time until its turn. With a limit on calls in flight, a settlement
 * does that.
 *
 * Messages may be lost, so each process also sends a heartbeat once a second, which reads the head of the queue. Redis
 * skips a head whose process sends no heartbeats. A heartbeat also finds out that Redis lost the queue or skipped a live
 * waiter (which then joins again), and entries of waiters that have left.
 *
 * While Redis is unavailable, the fallback admits what it may; the remaining waiters stay queued.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { PendingSet } from '../../core/pending.ts';
import type { Random } from '../../core/random.ts';
import { CLOSED_REFUSAL, type FairWaitLimits, type FairWaitResult } from '../remote-backend.ts';
import { randomId } from '../remote-limit.ts';
import type { ScriptBatcher, TimedReply } from './batcher.ts';
import type { Subscriber } from './client.ts';
import { PROCESS_TIMEOUT_MS } from './lua-script.ts';
import { decisionOf } from './reply.ts';

const HEARTBEAT_MS: Millis = PROCESS_TIMEOUT_MS / 3;

interface Waiter {
  readonly id: string;
  readonly cost: number;
  readonly queue: KeyQueue;
  readonly finish: (entry: FairWaitResult) => void;
  /** True while its request is in flight. */
  isRequesting: boolean;
  /** A turn message that came meanwhile: the reply in flight may be older than it. */
  pendingTurnMs: Millis | undefined;
  isWaiting: boolean;
  cancelTurn: (() => void) | undefined;
}

interface KeyQueue {
  readonly key: string;
  readonly waiters: Map<string, Waiter>;
}

export interface FairQueueOptions {
  readonly batcher: ScriptBatcher;
  readonly clock: Clock;
  readonly random: Random;
  readonly subscriber: Subscriber;
  readonly maxWaiters: number;
  readonly keepAlive: boolean;
  /** The name of a key in Redis. */
  readonly redisKeyOf: (key: string) => string;
  /** Decides while Redis is unavailable. */
  readonly fallback: { check(key: string, cost: number): Decision };
  /** The command that returns the unused permit of this waiter, granted at that time. */
  readonly releaseCommand: (id: string, cost: number, at: Millis) => string;
  /** Tracks the lease of an admitted waiter until its call settles; only for a limit on calls in flight. */
  readonly trackLease?: ((id: string, lease: ActiveLease) => void) | undefined;
}

/** Capacity in use while a call is in flight. */
export interface ActiveLease {
  readonly key: string;
  readonly cost: number;
  /** True if the fallback admitted it while Redis was unavailable. */
  readonly fromFallback: boolean;
}

export class FairQueue {
  readonly #options: FairQueueOptions;
  /** Unique to this limiter in this process. */
  readonly #processId: string;
  readonly #queues = new Map<string, KeyQueue>();
  /** All waiters of this process, by id. */
  readonly #waiters = new Map<string, Waiter>();
  /** Commands without a reply. */
  readonly #pending = new PendingSet();
  #lastWaiterNumber = 0;
  #cancelHeartbeat: (() => void) | undefined;
  #isSubscribed = false;

  constructor(options: FairQueueOptions) {
    this.#options = options;
    this.#processId = randomId(options.random);
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Resolves with a permit or a refusal; rejects only if the signal aborts. */
  async acquire(key: string, cost: number, limits: FairWaitLimits): Promise<FairWaitResult> {
    const { signal, maxWaitMs } = limits;
    signal?.throwIfAborted();
    if (this.size >= this.#options.maxWaiters) {
      return { verdict: 'deny', retryAfterMs: 0, reason: 'queue-full' };
    }
    this.#subscribe();
    return new Promise((resolve, reject) => {
      const { clock, keepAlive } = this.#options;
      const queue = this.#queues.get(key) ?? this.#createQueue(key);
      let stop = (): void => {};
      const leave = (): void => {
        waiter.isWaiting = false;
        waiter.cancelTurn?.();
        stop();
        signal?.removeEventListener('abort', onAbort);
        this.#removeWaiter(waiter);
      };
      const waiter: Waiter = {
        id: `${this.#processId}/${++this.#lastWaiterNumber}/${cost}`,
        cost,
        queue,
        isRequesting: false,
        pendingTurnMs: undefined,
        isWaiting: true,
        cancelTurn: undefined,
        finish: (entry) => {
          leave();
          resolve(entry);
        },
      };
      const giveUp = (): void => {
        this.#leaveQueue(waiter);
        waiter.finish({ verdict: 'deny', retryAfterMs: 0, reason: 'too-long' });
      };
      const onAbort = (): void => {
        this.#leaveQueue(waiter);
        leave();
        reject(signal?.reason);
      };
      if (maxWaitMs < Infinity) stop = schedule(clock, clock.now() + maxWaitMs, giveUp, keepAlive);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.set(waiter.id, waiter);
      queue.waiters.set(waiter.id, waiter);
      this.#requestPermit(waiter);
      this.#scheduleHeartbeat();
    });
  }

  /** Refuses all waiters at once; when it resolves, Redis's queue holds no waiter of this process. */
  async close(): Promise<void> {
    for (const waiter of [...this.#waiters.values()]) {
      this.#leaveQueue(waiter);
      waiter.finish(CLOSED_REFUSAL);
    }
    this.#cancelHeartbeat?.();
    this.#cancelHeartbeat = undefined;
    await this.#pending.drained(); // a permit granted meanwhile is returned
    await this.#options.subscriber.stop();
  }

  /** Sends heartbeats now, for one key or all: Redis or its messages are available again, or capacity was freed here. */
  pollNow(key?: string): void {
    for (const queue of this.#queues.values()) {
      if (key === undefined || queue.key === key) this.#sendHeartbeat(queue);
    }
  }

  #createQueue(key: string): KeyQueue {
    const queue: KeyQueue = { key, waiters: new Map() };
    this.#queues.set(key, queue);
    return queue;
  }

  #removeWaiter({ id, queue }: Waiter): void {
    this.#waiters.delete(id);
    queue.waiters.delete(id);
    if (queue.waiters.size === 0) this.#queues.delete(queue.key);
  }

  /** Receives turn messages. No waiter depends on them: heartbeats find out the same. */
  #subscribe(): void {
    if (this.#isSubscribed) return;
    this.#isSubscribed = true;
    const onTurn = (message: string): void => {
      const [id, ms] = message.split(' ');
      this.#scheduleTurn(this.#waiters.get(id), Number(ms));
    };
    this.#options.subscriber.subscribe(`sluice:turn:${this.#processId}`, onTurn).then(
      () => this.pollNow(), // a turn message may have been sent before the subscription
      () => {
        this.#isSubscribed = false; // the next heartbeat tries again
      },
    );
  }

  #send({ key }: KeyQueue, command: string): Promise<TimedReply> {
    const { batcher, redisKeyOf } = this.#options;
    return this.#pending.add(batcher.send(redisKeyOf(key), command));
  }

  /** The waiter is at the head and may request its permit in `ms`. */
  #scheduleTurn(waiter: Waiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting) return;
    if (waiter.isRequesting) {
      waiter.pendingTurnMs = ms;
      return;
    }
    const { clock, keepAlive } = this.#options;
    waiter.cancelTurn?.();
    const request = (): void => {
      waiter.cancelTurn = undefined;
      this.#requestPermit(waiter);
    };
    waiter.cancelTurn = schedule(clock, clock.now() + ms, request, keepAlive);
  }

  async #requestPermit(waiter: Waiter): Promise<void> {
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

  /** Undefined: queued, but not at the head. */
  #onReply(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    if (decision === undefined || isDeniedUntilSettle(decision)) {
      // A turn message will come, unless it came while the request was in flight.
      if (waiter.pendingTurnMs !== undefined) this.#scheduleTurn(waiter, waiter.pendingTurnMs);
    } else if (decision.verdict !== 'deny') {
      this.#admit(waiter, at, false);
    } else if (decision.retryAfterMs === NEVER) {
      waiter.finish({ ...decision, reason: 'never' });
    } else {
      this.#scheduleTurn(waiter, decision.retryAfterMs); // at the head, but too early
    }
  }

  /** The waiter left while its request was in flight. A resent request may have joined the queue after it left. */
  #releaseAbandoned(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    const { id, queue, cost } = waiter;
    if (decision === undefined || decision.verdict === 'deny') this.#leaveQueue(waiter);
    else this.#send(queue, this.#options.releaseCommand(id, cost, at)).catch(() => {});
  }

  /** Redis is unavailable: true if the waiters behind it may try, too. Otherwise it stays and retries soon. */
  #tryFallback(waiter: Waiter): boolean {
    if (!waiter.isWaiting || waiter.isRequesting) return true;
    const { fallback, clock } = this.#options;
    const decision = fallback.check(waiter.queue.key, waiter.cost);
    if (decision.verdict !== 'deny') this.#admit(waiter, clock.now(), true);
    else if (decision.retryAfterMs === NEVER) waiter.finish({ ...decision, reason: 'never' });
    else if (!isDeniedUntilSettle(decision))
      this.#scheduleTurn(waiter, Math.min(decision.retryAfterMs, HEARTBEAT_MS));
    return !waiter.isWaiting;
  }

  #admit(waiter: Waiter, dueAt: Millis, fromFallback: boolean): void {
    const { id, cost, queue } = waiter;
    const { trackLease } = this.#options;
    trackLease?.(id, { key: queue.key, cost, fromFallback });
    waiter.finish({ verdict: 'allow', dueAt, fromFallback, ...(trackLease && { leaseId: id }) });
  }

  #leaveQueue({ id, queue }: Pick<Waiter, 'id' | 'queue'>): void {
    this.#send(queue, `x${id}`).catch(() => {}); // a later heartbeat removes it
  }

  /** While calls wait: keeps this process alive in the queue and reads the head. */
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
        for (const waiter of waiters.values()) this.#requestPermit(waiter); // join again: waiters still queued keep their position
        return;
      }
      const [head, text] = String(value).split(' ');
      const ms = Number(text); // below 0 if a call must settle first: its settlement sends the turn message
      const waiter = waiters.get(head);
      if (waiter && !waiter.cancelTurn && ms >= 0) this.#scheduleTurn(waiter, ms);
      if (waiter || !head.startsWith(`${this.#processId}/`)) return;
      this.#leaveQueue({ id: head, queue }); // it left while Redis was unavailable
      if (waiters.size > 0) await this.#sendHeartbeat(queue);
    } catch {
      for (const waiter of waiters.values()) if (!this.#tryFallback(waiter)) break;
    }
  }
}

/** True if the wait is unknown: it ends when a call settles. */
const isDeniedUntilSettle = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.retryAfterMs === WHEN_SETTLED;

/** A waiter that Redis should have in its queue; one with a request in flight may have been admitted just now. */
function queuedWaiterId({ waiters }: KeyQueue): string {
  for (const { id, isRequesting } of waiters.values()) if (!isRequesting) return id;
  return '';
}
