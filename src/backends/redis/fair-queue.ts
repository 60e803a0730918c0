/**
 * Fair queue: one queue for the whole fleet in Redis, first come first served or fair between flows.
 *
 *     join ──▶ queued ──▶ is first: gets the ms until its turn ──▶ requests ──▶ granted, due in some ms ──▶ starts
 *                │                                                   │
 *                ├── granted by the request of the first waiter ◀────┤
 *                └── deadline, abort: leaves                         └──▶ the next waiter gets its turn ──▶ …
 *
 * Without it each process has its own queue, and the order between processes is random. A waiter requests before its
 * permit opens, by the delay of messages. Each request and each heartbeat also grants the permits that open soon to the
 * waiters at the front, by message, so neither a long round trip nor a slow process loses permits. Where calls in
 * flight are counted, a settled call wakes the first waiter.
 *
 * "Soon" is measured. A permit is lost if the request that grants it arrives after it has opened. So this process
 * measures the lateness of its requests, including round trips and late timers, and requests that much earlier.
 *
 * Messages may be lost, so each process sends heartbeats, whose replies name the first waiter. Redis sets a first
 * waiter aside if its process sends none for some time. Heartbeats also detect a queue that Redis has lost, waiters
 * whose permit was lost on the way (both join again), and queue entries without a waiter.
 *
 * With the order `fair`, a joining waiter may become the first. The previous first waiter gets its turn again later.
 *
 * While Redis is unavailable, the fallback decides; waiters it refuses stay queued.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { DEFAULT_FLOW, type Flow } from '../../core/flow.ts';
import { FlowGroups } from '../../core/flow-groups.ts';
import { LongestQueue } from '../../core/longest-queue.ts';
import { PendingSet } from '../../core/pending.ts';
import type { Random } from '../../core/random.ts';
import { type Waiter, WaiterSet } from '../../core/waiter-set.ts';
import type { Fallback } from '../local/local-fallback.ts';
import { CLOSED_REFUSAL, type FairWaitLimits, type FairWaitResult } from '../remote-backend.ts';
import { randomId } from '../remote-limit.ts';
import type { RttEstimator } from '../rtt-estimator.ts';
import type { CommandText } from './batcher.ts';
import type { Subscriber } from './client.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { PROCESS_TIMEOUT_MS, QUEUE_TTL_MS } from './lua-fair-queue.ts';
import { type GrantReply, grantOf, type ReplyValue, type TimedReply } from './reply.ts';
import type { UnsentCommands } from './unsent-commands.ts';

export const HEARTBEAT_MS: Millis = PROCESS_TIMEOUT_MS / 3;

/** Timers are late by 1 to 2 ms, in a busy process by many more. */
const TIMER_LATENESS_MS: Millis = 25;

/** Half-life of the lateness of a request. */
const LATENESS_HALF_LIFE_MS: Millis = 10_000;

/** The longest time that a permit is granted before it opens. */
const MAX_AHEAD_MS: Millis = 1000;

/** A refusal that names the rule for which the first waiter waits. */
const refusalIn = (
  { rule, fromFallback = false }: Partial<KeyQueue> = {},
  reason: 'too-long' | 'queue-full',
  retryAfterMs: Millis = 0,
): FairWaitResult => ({
  verdict: 'deny',
  retryAfterMs,
  reason,
  ...(rule !== undefined && { rule }),
  ...(fromFallback && { fromFallback }),
});

/** A flow without calls: it displaces a waiter of the longest flow. */
const NO_FLOW: Flow = { ...DEFAULT_FLOW, tenant: '' };

/** A message: the waiter is first, has a permit, or gets none before its deadline. */
interface Announcement {
  readonly kind: 'turn' | 'permit' | 'late';
  /** Time from `at` until the permit opens or is due. */
  readonly ms: Millis;
  /** Time of the message on Redis's clock. */
  readonly at: Millis;
}

interface QueuedWaiter extends Waiter<FairWaitResult> {
  readonly id: string;
  readonly cost: number;
  readonly queue: KeyQueue;
  readonly flow: Flow | undefined;
  /** Whether its request is in flight. */
  isRequesting: boolean;
  /** Whether it has a permit that is not due yet. */
  isGranted: boolean;
  /** A message that arrived while a request was in flight. */
  announced: Announcement | undefined;
  /** When its permit opens, on Redis's clock, if known. */
  opensAt: Millis | undefined;
  cancelTimer: (() => void) | undefined;
}

interface KeyQueue {
  readonly key: string;
  readonly waiters: Set<QueuedWaiter>;
  /** Set for the order `fair`. */
  readonly flows: FlowGroups<QueuedWaiter> | undefined;
  /** Offset of the clock of the Redis node that has the key. */
  readonly clockOffset: ClockOffset;
  /** The rule for which the first waiter waits, from the last reply, in a limit with several rules. */
  rule: string | undefined;
  /** Whether `onUnavailable` made the last decision. */
  fromFallback: boolean;
  /** When the permit of the first waiter of all processes opens, on Redis's clock; NaN: unknown. */
  opensAt: Millis;
}

export type SendCommand = (key: string, command: CommandText) => Promise<TimedReply>;

export interface FairQueueOptions {
  readonly send: SendCommand;
  readonly rtt: Pick<RttEstimator, 'meanMs' | 'upperBoundMs'>;
  /** Converts to Redis's clock; NaN before the first reply. */
  readonly toRedisTime: (key: string, at: Millis) => Millis;
  readonly unsent: UnsentCommands;
  readonly clock: Clock;
  readonly random: Random;
  readonly subscriber: Subscriber;
  readonly maxWaiters: number;
  readonly keepAlive: boolean;
  /** The order. Default `fifo`. */
  readonly order?: FleetOrder | undefined;
  /** Whether Redis grants permits before they open. */
  readonly grantsAhead: boolean;
  /** Decides while Redis is unavailable. */
  readonly fallback: Pick<Fallback, 'check' | 'observe'>;
  /** Names of rules, by the number in a refusal. */
  readonly ruleNames?: readonly string[] | undefined;
  /** Records the lease of a call, where calls in flight are counted. */
  readonly trackLease?: ((id: string, lease: GrantedLease) => void) | undefined;
}

/** Details of a permit that only a reply contains, not a message. */
type GrantDetails = Pick<GrantedLease, 'sentAt' | 'token'> & {
  readonly remaining?: number | undefined;
};

/** The lease of an admitted call. */
export interface GrantedLease {
  readonly key: string;
  readonly cost: number;
  /** Send time of the request that Redis granted; undefined if the fallback granted it. */
  readonly sentAt?: Millis | undefined;
  /** The fencing token, from Redis. */
  readonly token?: number | undefined;
  /** False if Redis cannot know the lease. Default true. */
  readonly wasSent?: boolean;
}

export class FairQueue {
  readonly #options: FairQueueOptions;
  /** Identifies this limiter in this process. */
  readonly #processId: string;
  readonly #queues = new Map<string, KeyQueue>();
  readonly #waitersById = new Map<string, QueuedWaiter>();
  readonly #waiters: WaiterSet<FairWaitResult, QueuedWaiter>;
  readonly #longest = new LongestQueue<KeyQueue>();
  readonly #pending = new PendingSet();
  /** Lateness of a request, and the time of its measurement. */
  #latest = { ms: 0, at: 0 };
  #lastWaiterNumber = 0;
  #cancelHeartbeat: (() => void) | undefined;
  #isSubscribed = false;

  constructor(options: FairQueueOptions) {
    this.#options = options;
    this.#processId = randomId(options.random);
    this.#waiters = new WaiterSet({
      ...options,
      expiredResult: ({ queue }) => this.#tooLong(queue),
      onRemove: (waiter) => this.#removeFromQueue(waiter),
      onAbandon: (waiters) => {
        for (const waiter of waiters) this.#leaveQueue(waiter);
      },
    });
  }

  get size(): number {
    return this.#waiters.size;
  }

  /** Waits for a permit. Rejects only if the signal aborts. */
  async acquire(key: string, cost: number, limits: FairWaitLimits): Promise<FairWaitResult> {
    const { signal, maxWaitMs, flow } = limits;
    signal?.throwIfAborted();
    if (this.#waiters.isFull && !this.#refuseLastOfLongest(key, flow))
      return refusalIn(this.#queues.get(key), 'queue-full');
    this.#subscribe();
    return new Promise((resolve, reject) => {
      const queue = this.#queues.get(key) ?? this.#createQueue(key);
      const deadline = this.#options.clock.now() + maxWaitMs;
      const number = ++this.#lastWaiterNumber;
      const waiter: QueuedWaiter = {
        id: `${this.#processId}/${number}/${this.#redisDeadline(key, deadline)}/${cost}`,
        cost,
        queue,
        flow,
        deadline,
        signal,
        resolve,
        reject,
        isWaiting: true,
        isRequesting: false,
        isGranted: false,
        announced: undefined,
        opensAt: undefined,
        cancelTimer: undefined,
      };
      this.#waiters.add(waiter);
      this.#waitersById.set(waiter.id, waiter);
      queue.waiters.add(waiter);
      queue.flows?.add(waiter);
      this.#longest.onGrowth(queue);
      this.#waiters.reschedule();
      this.#requestPermit(waiter);
      this.#scheduleHeartbeat();
    });
  }

  /** `retryAfterMs` is the least time until the turn of the first waiter; 0: unknown. */
  #tooLong(queue: KeyQueue): FairWaitResult {
    const { toRedisTime, clock } = this.#options;
    const ms = Math.ceil(queue.opensAt - toRedisTime(queue.key, clock.now()));
    return refusalIn(queue, 'too-long', ms > 0 && !queue.fromFallback ? ms : 0);
  }

  /** The deadline on Redis's clock; `-` for none, or while that clock is unknown. */
  #redisDeadline(key: string, deadline: Millis): string {
    const { toRedisTime, rtt } = this.#options;
    const at = toRedisTime(key, deadline) - rtt.meanMs; // at most one round trip too late
    return Number.isFinite(at) ? String(Math.floor(at)) : '-';
  }

  /** Refuses all waiters at once. Resolves when Redis's queue has none of this process. */
  async close(): Promise<void> {
    this.#waiters.close(CLOSED_REFUSAL);
    this.#cancelHeartbeat?.();
    this.#cancelHeartbeat = undefined;
    await this.#pending.drained(); // permits granted meanwhile are given back
    await this.#options.subscriber.stop();
  }

  /** Sends a heartbeat now, for one key or all: Redis is available again, or a call of this process has settled. */
  pollNow(key?: string): void {
    for (const queue of this.#queues.values()) {
      if (key === undefined || queue.key === key) this.#sendHeartbeat(queue);
    }
  }

  /** Frees a slot in a full queue for a key or flow with few waiters; false if no other has more. */
  #refuseLastOfLongest(key: string, flow: Flow | undefined): boolean {
    const queue = this.#queues.get(key);
    const longest = this.#longest.findLongerThan(queue?.waiters.size ?? 0, this.#queues.values());
    const flows = (longest ?? queue)?.flows;
    const waiters = flows ? flows.displacedBy(longest ? NO_FLOW : flow) : longest?.waiters;
    const last = [...(waiters ?? [])].findLast(({ isGranted }) => !isGranted);
    if (!last) return false;
    this.#waiters.resolve(last, refusalIn(last.queue, 'queue-full'));
    this.#leaveQueue(last);
    return true;
  }

  #createQueue(key: string): KeyQueue {
    const flows = this.#options.order === 'fair' ? new FlowGroups<QueuedWaiter>() : undefined;
    const waiters = new Set<QueuedWaiter>();
    const state = { rule: undefined, fromFallback: false, opensAt: Number.NaN };
    const queue = { key, waiters, flows, clockOffset: new ClockOffset(), ...state };
    this.#queues.set(key, queue);
    return queue;
  }

  #removeFromQueue(waiter: QueuedWaiter): void {
    const { id, queue } = waiter;
    waiter.cancelTimer?.();
    this.#waitersById.delete(id);
    queue.waiters.delete(waiter);
    queue.flows?.delete(waiter);
    if (queue.waiters.size === 0) this.#queues.delete(queue.key);
  }

  /** Subscribes to messages. No waiter depends on it: the heartbeat compensates for lost messages. */
  #subscribe(): void {
    if (this.#isSubscribed) return;
    this.#isSubscribed = true;
    const onMessage = (message: string): void => {
      const [id, kind, ms, at] = message.split(' ');
      const waiter = this.#waitersById.get(id);
      const announced = { kind: kind as Announcement['kind'], ms: Number(ms), at: Number(at) };
      if (waiter) this.#onMessage(waiter, announced);
    };
    this.#options.subscriber.subscribe(`sluice:turn:${this.#processId}`, onMessage).then(
      () => {
        this.pollNow();
        for (const waiter of this.#waitersById.values()) this.#requestPermit(waiter); // messages so far are lost
      },
      () => {
        this.#isSubscribed = false; // the next heartbeat subscribes again
      },
    );
  }

  #send({ key }: KeyQueue, command: CommandText): Promise<TimedReply> {
    return this.#pending.add(this.#options.send(key, command));
  }

  #onMessage(waiter: QueuedWaiter, announced: Announcement): void {
    const { kind, ms, at } = announced;
    if (waiter.isRequesting) waiter.announced = announced;
    else if (kind === 'permit') this.#onGrant(waiter, ms, at + ms);
    else if (kind === 'turn') this.#scheduleTurn(waiter, ms, at);
    else this.#waiters.resolve(waiter, this.#tooLong(waiter.queue));
  }

  /**
   * Time before its opening at which a permit is granted. A message and the following request take a round trip; a
   * second one is a margin, or the measured lateness of requests.
   */
  get #aheadMs(): Millis {
    const { grantsAhead, rtt, clock } = this.#options;
    if (!grantsAhead) return 0;
    if (rtt.meanMs === 0) return TIMER_LATENESS_MS;
    const { ms, at } = this.#latest;
    const lateMs = ms * 2 ** ((at - clock.now()) / LATENESS_HALF_LIFE_MS);
    const leastMs = Math.max(2 * rtt.meanMs, rtt.upperBoundMs, lateMs);
    return Math.min(MAX_AHEAD_MS, leastMs + TIMER_LATENESS_MS);
  }

  /** Measures lateness: a request of the first waiter should arrive `aheadMs` before its permit opens. */
  #observeLateness(lateMs: Millis): void {
    const { clock } = this.#options;
    const { ms, at } = this.#latest;
    const now = clock.now();
    const decayedMs = ms * 2 ** ((at - now) / LATENESS_HALF_LIFE_MS);
    if (lateMs > decayedMs) this.#latest = { ms: Math.min(lateMs, MAX_AHEAD_MS), at: now };
  }

  /** The waiter is first, and its permit opens `ms` after `at`: schedules its request. */
  #scheduleTurn(waiter: QueuedWaiter, ms: Millis, at: Millis): void {
    if (!waiter.isWaiting || waiter.isRequesting || waiter.isGranted) return;
    waiter.opensAt = at + ms;
    waiter.queue.opensAt = waiter.opensAt;
    const leadMs = this.#aheadMs + this.#options.rtt.meanMs / 2; // the request takes half a round trip
    this.#startTimer(waiter, Math.max(0, ms - leadMs), () => this.#requestPermit(waiter));
  }

  #startTimer(waiter: QueuedWaiter, ms: Millis, act: () => void): void {
    const { clock, keepAlive } = this.#options;
    waiter.cancelTimer?.();
    const onTimer = (): void => {
      waiter.cancelTimer = undefined;
      act();
    };
    waiter.cancelTimer = schedule(clock, clock.now() + ms, onTimer, keepAlive);
  }

  async #requestPermit(waiter: QueuedWaiter): Promise<void> {
    if (!waiter.isWaiting || waiter.isRequesting || waiter.isGranted) return;
    waiter.isRequesting = true;
    waiter.announced = undefined;
    const { opensAt = Number.NaN } = waiter;
    waiter.opensAt = undefined;
    const { clock, order } = this.#options;
    const flow = order === 'fair' ? encodeFlow(waiter.flow) : '';
    let aheadMs = 0;
    const request = (): string => {
      aheadMs = this.#aheadMs;
      return `f${waiter.id} ${waiter.cost} ${aheadMs}${flow}`;
    };
    const sentAt = clock.now();
    try {
      const { value, at } = await this.#send(waiter.queue, request);
      this.#observeLateness(at - (opensAt - aheadMs));
      waiter.queue.clockOffset.observe({ from: at, to: at }, sentAt, clock.now());
      waiter.isRequesting = false;
      if (waiter.isWaiting) this.#onReply(waiter, value, at, sentAt);
      else this.#leaveQueue(waiter); // a repeated request may have arrived after the leave command
    } catch {
      waiter.isRequesting = false;
      this.#tryFallback(waiter);
    }
  }

  #onReply(waiter: QueuedWaiter, value: ReplyValue, at: Millis, sentAt: Millis): void {
    waiter.queue.fromFallback = false;
    if (value === 'late') {
      this.#waiters.resolve(waiter, this.#tooLong(waiter.queue));
      return;
    }
    const reply: GrantReply | undefined =
      value === '-' ? undefined : grantOf(value, this.#options.ruleNames);
    const { announced, queue, cost } = waiter;
    if (reply?.decision.verdict === 'deny') queue.rule = reply.decision.rule;
    if (reply) this.#options.fallback.observe(queue.key, cost, reply.decision, true);
    if (reply && reply.decision.verdict !== 'deny') {
      const { dueInMs, token, decision } = reply;
      const remaining = decision.verdict === 'allow' ? decision.remaining : undefined;
      this.#onGrant(waiter, dueInMs, at + dueInMs, { sentAt, token, remaining });
    } else if (announced && announced.at >= at) {
      this.#onMessage(waiter, announced); // newer than the reply, or from its call
    } else if (reply?.decision.verdict === 'deny' && !isDeniedUntilSettle(reply.decision)) {
      const { retryAfterMs } = reply.decision;
      if (retryAfterMs === NEVER)
        this.#waiters.resolve(waiter, { ...reply.decision, reason: 'never' });
      else this.#scheduleTurn(waiter, retryAfterMs, at); // the waiter is first and has requested too early
    } // otherwise a message announces its turn
  }

  /** The permit may not be due yet. It is used when Redis's clock has certainly reached its instant, not earlier. */
  #onGrant(waiter: QueuedWaiter, dueInMs: Millis, dueAt: Millis, grant: GrantDetails = {}): void {
    if (!waiter.isWaiting || waiter.isGranted) return;
    waiter.isGranted = true;
    const { surely } = waiter.queue.clockOffset.localTimesOf(dueAt);
    const now = this.#options.clock.now();
    const ms = Math.min(dueInMs, surely - now);
    if (now + ms > waiter.deadline) {
      this.#waiters.resolve(waiter, this.#tooLong(waiter.queue));
      this.#leaveQueue(waiter);
    } else if (ms > 0) {
      const { remaining } = grant;
      this.#startTimer(waiter, ms, () => this.#admit(waiter, dueAt, false, { remaining }));
    } else this.#admit(waiter, dueAt, false, grant);
  }

  /** Redis is unavailable: the fallback decides. Returns false if this waiter stays queued and retries. */
  #tryFallback(waiter: QueuedWaiter): boolean {
    if (!waiter.isWaiting || waiter.isRequesting || waiter.isGranted) return true;
    const { fallback, clock } = this.#options;
    const decision = fallback.check(waiter.queue.key, waiter.cost, true);
    waiter.queue.fromFallback = true;
    if (decision.verdict !== 'deny') {
      this.#leaveQueue(waiter);
      this.#admit(waiter, clock.now(), true);
    } else if (decision.retryAfterMs === NEVER) {
      this.#waiters.resolve(waiter, { ...decision, reason: 'never' });
    } else if (!isDeniedUntilSettle(decision)) {
      const retryMs = Math.min(decision.retryAfterMs, HEARTBEAT_MS);
      this.#startTimer(waiter, retryMs, () => this.#requestPermit(waiter));
    }
    return !waiter.isWaiting;
  }

  #admit(
    waiter: QueuedWaiter,
    dueAt: Millis,
    fromFallback: boolean,
    { remaining, ...lease }: GrantDetails = {},
  ): void {
    const { id, cost, queue } = waiter;
    const { trackLease } = this.#options;
    trackLease?.(id, { key: queue.key, cost, ...lease });
    const leaseId = trackLease && { leaseId: id };
    const grant = { verdict: 'allow', dueAt, fromFallback, remaining } as const;
    this.#waiters.resolve(waiter, { ...grant, ...leaseId });
  }

  /** Leaves Redis's queue and gives back a permit that was granted meanwhile. */
  #leaveQueue({ id, queue }: Pick<QueuedWaiter, 'id' | 'queue'>, mode = ''): void {
    const { unsent, clock } = this.#options;
    this.#pending.add(unsent.send(queue.key, `x${id}${mode}`, clock.now() + QUEUE_TTL_MS));
  }

  /** Sends heartbeats while calls wait: they show that this process is alive, and read the first waiter. */
  #scheduleHeartbeat(): void {
    if (this.#cancelHeartbeat) return;
    const { clock, keepAlive } = this.#options;
    const heartbeat = (): void => {
      this.#cancelHeartbeat = undefined;
      this.#subscribe();
      for (const queue of this.#queues.values()) void this.#sendHeartbeat(queue);
      if (this.size > 0) this.#scheduleHeartbeat();
    };
    this.#cancelHeartbeat = schedule(clock, clock.now() + HEARTBEAT_MS, heartbeat, keepAlive);
  }

  async #sendHeartbeat(queue: KeyQueue): Promise<void> {
    const { waiters } = queue;
    try {
      const heartbeat = () => `b${this.#processId} ${this.#aheadMs} ${queuedWaiterId(queue)}`;
      const { value, at } = await this.#send(queue, heartbeat);
      queue.fromFallback = false;
      if (value === '-') {
        for (const waiter of waiters) this.#requestPermit(waiter); // joins again: a waiter that is still queued there keeps its position
        return;
      }
      const [first, text, rule] = String(value).split(' ');
      const ms = Number(text); // below 0: a call must settle first, and its process sends the message
      queue.rule = this.#options.ruleNames?.[Number(rule) - 1];
      queue.opensAt = ms >= 0 ? at + ms : Number.NaN;
      const waiter = this.#waitersById.get(first);
      if (waiter && ms >= 0) this.#scheduleTurn(waiter, ms, at);
      if (waiter || !first.startsWith(`${this.#processId}/`)) return;
      // It left while Redis was unavailable, or its permit overtook this reply and is in use.
      this.#leaveQueue({ id: first, queue }, ' queued');
      if (waiters.size > 0) await this.#sendHeartbeat(queue);
    } catch {
      for (const waiter of waiters) if (!this.#tryFallback(waiter)) break;
    }
  }
}

/** True if the limit opens when a call settles, which a message announces. */
const isDeniedUntilSettle = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.retryAfterMs === WHEN_SETTLED;

/** The id of a waiter that must be in Redis's queue; a waiter with a request in flight may have been granted. */
function queuedWaiterId({ waiters }: KeyQueue): string {
  for (const { id, isRequesting, isGranted } of waiters) if (!isRequesting && !isGranted) return id;
  return '';
}

/** The end of a request with the order `fair`: names without spaces, slashes and lone surrogates. */
function encodeFlow({ tenant, flow, tenantWeight, flowWeight } = DEFAULT_FLOW): string {
  const names = [tenant, flow].map((name) => encodeURIComponent(Buffer.from(name).toString()));
  return ` ${names.join('/')} ${tenantWeight} ${flowWeight}`;
}
