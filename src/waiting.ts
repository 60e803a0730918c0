/**
 * The waiting room: who was refused and would rather wait than give up.
 *
 *     enter ──▶ allowed at once? ──────────────────────────────▶ in
 *                 │ no
 *                 ▼                       opens, or a call settles
 *               the key's line  ● ● ● ●  ──────────────────────▶ in
 *                 │   │                       a place was reserved, and is due
 *                 │   └──▶ reserved ───────────────────────────▶ in
 *                 └──────▶ too long, too many, aborted ────────▶ out
 *
 * Each key has a line, and only its first asks; nobody polls. Whatever happens next in the whole
 * room, an opening, a place that is due, somebody's patience running out, is watched by one alarm.
 * A permit is used when it is due and not a moment before: the clock is looked at again on waking.
 */

import type { Clock, Millis } from './clock.ts';
import { sleepUntil } from './clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from './decision.ts';
import { Heap } from './heap.ts';

export const ORDERS = ['fifo', 'lifo', 'priority'] as const;

/** Who is next in a line: first come, last come, or whoever matters most. */
export type Order = (typeof ORDERS)[number];

export interface WaitingOptions {
  readonly clock: Clock;
  readonly order: Order;
  /** The most that may wait, over all keys. */
  readonly waitersMax: number;
  readonly expireMs: Millis;
  /** Whether the process stays alive for those who wait. */
  readonly keepAlive: boolean;
  /** Asks the limit on behalf of a waiter. */
  ask(key: string, cost: number, now: Millis): Decision;
  /** Gives a reserved place back that nobody will use. */
  giveBack(key: string, cost: number, dueAt: Millis): void;
}

/** Why somebody did not get in. */
export type Reason =
  /** It can never fit. */
  | 'never'
  /** It would have to wait longer than it wants to. */
  | 'too-long'
  /** Too many wait already. */
  | 'queue-full';

/** What became of a wait: when the permit was good, or why there is none. */
export type Entry =
  | { readonly verdict: 'allow'; readonly dueAt: Millis }
  | { readonly verdict: 'deny'; readonly retryAfterMs: Millis; readonly reason: Reason };

export interface Patience {
  readonly maxWaitMs: Millis;
  readonly priority: number;
  readonly signal?: AbortSignal;
}

interface Waiter {
  readonly key: string;
  readonly cost: number;
  readonly priority: number;
  readonly order: number;
  readonly deadline: Millis;
  /** When the reserved place is due; Infinity while it has none. */
  dueAt: Millis;
  isWaiting: boolean;
  readonly finish: (entry: Entry) => void;
}

/** Those who wait for one key, the next one first. */
interface Line {
  readonly key: string;
  readonly waiters: Waiter[];
  openAt: Millis;
}

export class WaitingRoom {
  readonly #options: WaitingOptions;
  readonly #lines = new Map<string, Line>();
  readonly #openings = new Heap<{ at: Millis; line: Line }>((a, b) => a.at < b.at);
  readonly #reserved = new Heap<Waiter>((a, b) => a.dueAt < b.dueAt);
  readonly #deadlines = new Heap<Waiter>((a, b) => a.deadline < b.deadline);
  #waiting = 0;
  #order = 0;
  #alarm: { readonly at: Millis; readonly cancel: () => void } | undefined;

  constructor(options: WaitingOptions) {
    this.#options = options;
  }

  /** How many wait. */
  get size(): number {
    return this.#waiting;
  }

  hasLine(key: string): boolean {
    return this.#waiting > 0 && this.#lines.has(key);
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  enter(key: string, cost: number, patience: Patience): Promise<Entry> {
    patience.signal?.throwIfAborted();
    const now = this.#options.clock.now();
    const line = this.#lines.get(key);
    const decision = line ? undefined : this.#options.ask(key, cost, now);
    if (decision?.verdict === 'allow') return Promise.resolve({ verdict: 'allow', dueAt: now });

    const refused = this.#refusal(decision, patience.maxWaitMs);
    if (decision?.verdict === 'wait' && refused) {
      this.#options.giveBack(key, cost, now + decision.waitMs);
    }
    return refused ? Promise.resolve(refused) : this.#wait(key, cost, now, decision, patience);
  }

  /** Something was given back or settled: the first in the key's line may try again. */
  poke(key: string): void {
    const line = this.#lines.get(key);
    if (!line) return;
    this.#serve(line, this.#options.clock.now());
    this.#watch();
  }

  /** Whether there is no point in waiting, as far as can be known. */
  #refusal(decision: Decision | undefined, maxWaitMs: Millis): Entry | undefined {
    const deny = (reason: Reason, retryAfterMs: Millis): Entry => ({
      verdict: 'deny',
      retryAfterMs,
      reason,
    });
    const soonest = waitOf(decision);
    if (soonest === NEVER) return deny('never', NEVER);
    if (soonest > maxWaitMs || maxWaitMs <= 0) return deny('too-long', soonest);
    return this.#waiting >= this.#options.waitersMax ? deny('queue-full', soonest) : undefined;
  }

  #wait(
    key: string,
    cost: number,
    now: Millis,
    decision: Decision | undefined,
    { maxWaitMs, priority, signal }: Patience,
  ): Promise<Entry> {
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        key,
        cost,
        priority,
        order: this.#order++,
        deadline: now + maxWaitMs,
        dueAt: Infinity,
        isWaiting: true,
        finish: (entry) => {
          this.#leave(waiter);
          signal?.removeEventListener('abort', onAbort);
          resolve(entry);
        },
      };
      const onAbort = (): void => {
        this.#abandon(waiter);
        reject(signal?.reason);
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiting++;
      if (waiter.deadline < Infinity) this.#deadlines.push(waiter);
      if (decision?.verdict === 'wait') this.#reserve(waiter, now + decision.waitMs);
      else this.#join(waiter, decision ? openingAfter(decision, now) : undefined);
      this.#watch();
    });
  }

  #join(waiter: Waiter, openAt: Millis | undefined): void {
    let line = this.#lines.get(waiter.key);
    if (!line) {
      line = { key: waiter.key, waiters: [], openAt: Infinity };
      this.#lines.set(waiter.key, line);
    }
    const after = line.waiters.findIndex((other) => this.#goesBefore(waiter, other));
    line.waiters.splice(after < 0 ? line.waiters.length : after, 0, waiter);
    if (openAt !== undefined) this.#openAt(line, openAt);
  }

  #goesBefore(a: Waiter, b: Waiter): boolean {
    const { order } = this.#options;
    if (order === 'priority' && a.priority !== b.priority) return a.priority > b.priority;
    return order === 'lifo' ? a.order > b.order : a.order < b.order;
  }

  #openAt(line: Line, at: Millis): void {
    line.openAt = at;
    if (at < Infinity) this.#openings.push({ at, line });
  }

  #reserve(waiter: Waiter, dueAt: Millis): void {
    waiter.dueAt = dueAt;
    this.#reserved.push(waiter);
  }

  /** Lets the first of a line ask, and the next, until one is refused. */
  #serve(line: Line, now: Millis): void {
    for (let first = line.waiters[0]; first; first = line.waiters[0]) {
      const decision = this.#options.ask(first.key, first.cost, now);
      if (decision.verdict === 'deny' && decision.retryAfterMs !== NEVER) {
        this.#openAt(line, openingAfter(decision, now));
        return;
      }
      this.#takeFromLine(first);
      if (decision.verdict === 'allow') first.finish({ verdict: 'allow', dueAt: now });
      else if (decision.verdict === 'wait') this.#reserve(first, now + decision.waitMs);
      else first.finish({ verdict: 'deny', retryAfterMs: NEVER, reason: 'never' });
    }
  }

  #takeFromLine(waiter: Waiter): void {
    const line = this.#lines.get(waiter.key);
    const at = line ? line.waiters.indexOf(waiter) : -1;
    if (!line || at < 0) return;
    line.waiters.splice(at, 1);
    if (line.waiters.length === 0) {
      this.#lines.delete(line.key);
      line.openAt = Infinity; // so that an opening still in the heap is known to be over
    }
  }

  /** No longer waiting, whatever became of it. */
  #leave(waiter: Waiter): void {
    if (!waiter.isWaiting) return;
    waiter.isWaiting = false;
    this.#waiting--;
    this.#takeFromLine(waiter);
    this.#tidy();
  }

  /** Leaves without having used anything: a reserved place is free again. */
  #abandon(waiter: Waiter): void {
    if (!waiter.isWaiting) return;
    const { key, cost, dueAt } = waiter;
    this.#leave(waiter);
    if (dueAt < Infinity) this.#options.giveBack(key, cost, dueAt);
    this.poke(key);
    this.#watch();
  }

  /** Heaps hold who has left until their time comes; never more of them than of those who wait. */
  #tidy(): void {
    const most = 2 * this.#waiting + 64;
    if (this.#deadlines.size > most) this.#deadlines.keep((waiter) => waiter.isWaiting);
    if (this.#reserved.size > most) this.#reserved.keep((waiter) => waiter.isWaiting);
    if (this.#openings.size > most) this.#openings.keep(({ at, line }) => line.openAt === at);
  }

  /** Everything whose time has come. */
  #wake(): void {
    this.#alarm = undefined;
    const now = this.#options.clock.now();
    this.#useReserved(now);
    this.#openLines(now);
    this.#loseWho(now);
    this.#watch();
  }

  #useReserved(now: Millis): void {
    for (let first = this.#reserved.peek(); first && first.dueAt <= now; ) {
      this.#reserved.pop();
      if (first.isWaiting) this.#use(first, now);
      first = this.#reserved.peek();
    }
  }

  #use(waiter: Waiter, now: Millis): void {
    const { dueAt } = waiter;
    if (now <= dueAt + this.#options.expireMs) {
      waiter.finish({ verdict: 'allow', dueAt });
      return;
    }
    waiter.dueAt = Infinity; // overslept: the place is wasted, and it asks again, first in line
    this.#join(waiter, now);
  }

  #openLines(now: Millis): void {
    for (let first = this.#openings.peek(); first && first.at <= now; ) {
      this.#openings.pop();
      if (first.line.openAt === first.at) this.#serve(first.line, now);
      first = this.#openings.peek();
    }
  }

  #loseWho(now: Millis): void {
    for (let first = this.#deadlines.peek(); first && first.deadline <= now; ) {
      this.#deadlines.pop();
      if (first.isWaiting) this.#lose(first, now);
      first = this.#deadlines.peek();
    }
  }

  #lose(waiter: Waiter, now: Millis): void {
    const openAt = this.#lines.get(waiter.key)?.openAt ?? now;
    const retryAfterMs = openAt < Infinity ? Math.max(0, Math.ceil(openAt - now)) : WHEN_SETTLED;
    const { key, cost, dueAt } = waiter;
    waiter.finish({ verdict: 'deny', retryAfterMs, reason: 'too-long' });
    if (dueAt < Infinity) this.#options.giveBack(key, cost, dueAt);
  }

  /** One alarm, for whatever comes first. */
  #watch(): void {
    const next = Math.min(
      this.#reserved.peek()?.dueAt ?? Infinity,
      this.#openings.peek()?.at ?? Infinity,
      this.#deadlines.peek()?.deadline ?? Infinity,
    );
    const at = this.#waiting === 0 ? Infinity : next;
    if (this.#alarm?.at === at) return;
    this.#alarm?.cancel();
    this.#alarm = undefined;
    if (at === Infinity) return;
    const { clock, keepAlive } = this.#options;
    const wake = (): void => this.#wake();
    const cancel = clock.wakeAt?.(at, wake, keepAlive) ?? sleepUntil(clock, at, wake, keepAlive);
    this.#alarm = { at, cancel };
  }
}

/** The least a caller has to wait, as far as the limit can tell. */
function waitOf(decision: Decision | undefined): Millis {
  if (decision?.verdict === 'wait') return decision.waitMs;
  return decision?.verdict === 'deny' ? decision.retryAfterMs : 0;
}

/** When a line that was just refused may try again; Infinity: when a call settles. */
function openingAfter(decision: Decision, now: Millis): Millis {
  if (decision.verdict !== 'deny') return now;
  return decision.retryAfterMs === WHEN_SETTLED ? Infinity : now + decision.retryAfterMs;
}
