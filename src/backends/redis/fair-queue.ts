/**
 * Waiting fairly: one line for all processes, first come first served, kept by Redis.
 *
 *     join ──▶ in line ──▶ told that it is first, and when it may ask ──▶ asks ──▶ in
 *                │                                                         │
 *                └── gives up: leaves                whoever is next is told ──▶ …
 *
 * Without it each process has a line of its own, and whose asks first is luck. Here a permit costs one
 * call: whoever gets in wakes the next, by a message that says in how many milliseconds its turn comes;
 * where calls in flight are counted, whoever settles wakes the first.
 *
 * Messages may be lost, so each process also asks once a second who is first; the same call says that
 * it is alive, and whoever stands first and belongs to a process that has gone silent is skipped. It also
 * finds out that Redis has forgotten the line, or skipped somebody who is still there (who then joins
 * again), and places in line that nobody here waits for any more.
 *
 * While Redis is out of reach, what stands in for it lets in whom it may; the others stay.
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
  /** Whether it is asking right now. */
  isRequesting: boolean;
  /** What it was told meanwhile: the answer that is under way may be older than that. */
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
  /** What a key is called in Redis. */
  readonly redisKeyOf: (key: string) => string;
  /** Decides while Redis is out of reach. */
  readonly fallback: { check(key: string, cost: number): Decision };
  /** How to say that whoever got in by this name, at that time, does not need it. */
  readonly releaseCommand: (id: string, cost: number, at: Millis) => string;
  /** Takes note that a place is held by this name until its call settles, where those in flight are counted. */
  readonly trackLease?: ((id: string, lease: ActiveLease) => void) | undefined;
}

/** A place that is held while its call is in flight. */
export interface ActiveLease {
  readonly key: string;
  readonly cost: number;
  /** True if it was let in here, while Redis was out of reach. */
  readonly fromFallback: boolean;
}

export class FairQueue {
  readonly #options: FairQueueOptions;
  /** Of this process, in this limiter: nobody else's. */
  readonly #processId: string;
  readonly #queues = new Map<string, KeyQueue>();
  /** All of them, by id. */
  readonly #waiters = new Map<string, Waiter>();
  /** What was sent for those who wait, and is not answered. */
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

  /** Waits for a permit; rejects only if the signal aborts. */
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

  /** Refuses all who wait, at once; nobody of this process stands in Redis's line when it is over. */
  async close(): Promise<void> {
    for (const waiter of [...this.#waiters.values()]) {
      this.#leaveQueue(waiter);
      waiter.finish(CLOSED_REFUSAL);
    }
    this.#cancelHeartbeat?.();
    this.#cancelHeartbeat = undefined;
    await this.#pending.drained(); // whoever is let in now gives it back
    await this.#options.subscriber.stop();
  }

  /** Asks at once who is first, for this key or for all: Redis is back or can be heard, or a place is free here. */
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

  /** Hears whose turn it is, from whoever had its turn before. Nobody waits for that: the beat makes up for it. */
  #subscribe(): void {
    if (this.#isSubscribed) return;
    this.#isSubscribed = true;
    const hear = (message: string): void => {
      const [id, ms] = message.split(' ');
      this.#scheduleTurn(this.#waiters.get(id), Number(ms));
    };
    this.#options.subscriber.subscribe(`sluice:turn:${this.#processId}`, hear).then(
      () => this.pollNow(), // whoever was told before anybody listened
      () => {
        this.#isSubscribed = false; // the next beat tries again
      },
    );
  }

  #send({ key }: KeyQueue, text: string): Promise<TimedReply> {
    const { batcher, redisKeyOf } = this.#options;
    return this.#pending.add(batcher.send(redisKeyOf(key), text));
  }

  /** Its turn has come, and it may ask in so long. */
  #scheduleTurn(waiter: Waiter | undefined, ms: Millis): void {
    if (!waiter?.isWaiting) return;
    if (waiter.isRequesting) {
      waiter.pendingTurnMs = ms;
      return;
    }
    const { clock, keepAlive } = this.#options;
    waiter.cancelTurn?.();
    const ask = (): void => {
      waiter.cancelTurn = undefined;
      this.#requestPermit(waiter);
    };
    waiter.cancelTurn = schedule(clock, clock.now() + ms, ask, keepAlive);
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

  /** Undefined: it stands in line, and not first. */
  #onReply(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    if (decision === undefined || isDeniedUntilSettle(decision)) {
      // It will be told when its turn comes, unless it has been.
      if (waiter.pendingTurnMs !== undefined) this.#scheduleTurn(waiter, waiter.pendingTurnMs);
    } else if (decision.verdict !== 'deny') {
      this.#admit(waiter, at, false);
    } else if (decision.retryAfterMs === NEVER) {
      waiter.finish({ ...decision, reason: 'never' });
    } else {
      this.#scheduleTurn(waiter, decision.retryAfterMs); // it is first, and came too early
    }
  }

  /** It gave up while the answer was under way; if it was asked twice, it may have joined after it had left. */
  #releaseAbandoned(waiter: Waiter, decision: Decision | undefined, at: Millis): void {
    const { id, queue, cost } = waiter;
    if (decision === undefined || decision.verdict === 'deny') this.#leaveQueue(waiter);
    else this.#send(queue, this.#options.releaseCommand(id, cost, at)).catch(() => {});
  }

  /** Redis is out of reach: true if those behind may try, too. Else it stays, and asks again before long. */
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
    this.#send(queue, `x${id}`).catch(() => {}); // a beat finds what is left there
  }

  /** While somebody waits: says that this process is alive, and asks who is first. */
  #scheduleHeartbeat(): void {
    if (this.#cancelHeartbeat) return;
    const { clock, keepAlive } = this.#options;
    const beat = async (): Promise<void> => {
      this.#cancelHeartbeat = undefined;
      this.#subscribe();
      await Promise.all([...this.#queues.values()].map((queue) => this.#sendHeartbeat(queue)));
      if (this.size > 0) this.#scheduleHeartbeat();
    };
    this.#cancelHeartbeat = schedule(clock, clock.now() + HEARTBEAT_MS, beat, keepAlive);
  }

  async #sendHeartbeat(queue: KeyQueue): Promise<void> {
    const { waiters } = queue;
    try {
      const { value } = await this.#send(queue, `b${this.#processId} ${queuedWaiterId(queue)}`);
      if (value === '-') {
        for (const waiter of waiters.values()) this.#requestPermit(waiter); // join again: who still stands there keeps its place
        return;
      }
      const [first, text] = String(value).split(' ');
      const ms = Number(text); // less than 0 if a call must settle first: then whoever settles it tells
      const waiter = waiters.get(first);
      if (waiter && !waiter.cancelTurn && ms >= 0) this.#scheduleTurn(waiter, ms);
      if (waiter || !first.startsWith(`${this.#processId}/`)) return;
      this.#leaveQueue({ id: first, queue }); // it left, and Redis could not be told
      if (waiters.size > 0) await this.#sendHeartbeat(queue);
    } catch {
      for (const waiter of waiters.values()) if (!this.#tryFallback(waiter)) break;
    }
  }
}

/** True if nobody can say how long it takes: whoever settles a call tells. */
const isDeniedUntilSettle = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.retryAfterMs === WHEN_SETTLED;

/** Somebody who should be found in line; whoever is asking may have got in just now. */
function queuedWaiterId({ waiters }: KeyQueue): string {
  for (const { id, isRequesting } of waiters.values()) if (!isRequesting) return id;
  return '';
}
