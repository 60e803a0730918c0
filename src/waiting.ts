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

import { alarm, type Clock, type Millis } from './clock.ts';
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
  /** Whether the process stays alive for those who wait. */
  readonly keepAlive: boolean;
  /** Names of the limit's partitions: each has a line of its own, for every key. */
  readonly partitions: readonly string[];
  /** Asks the limit for a permit now or none: it never answers `wait`. */
  askNow(key: string, cost: number, now: Millis, part?: number): Decision;
}

/** It is not this limit that stands in the way, but another one it must also pass. */
export const ELSEWHERE: { readonly verdict: 'elsewhere'; readonly dueAt?: never } = {
  verdict: 'elsewhere',
};

/** What somebody wants in for. */
export interface Want {
  readonly key: string;
  readonly cost: number;
  readonly part?: number | undefined;
  /** Asks in its own way, for more than this limit, when its turn comes. */
  readonly ask?: () => Decision | typeof ELSEWHERE;
  /** Its place in the order of arrival, if it has stood in another line before. */
  readonly ticket?: number;
}

let ticketsGiven = 0;

/** A place in the order of arrival, over all lines there are. */
export const nextTicket = (): number => ++ticketsGiven;

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
  | { readonly verdict: 'deny'; readonly retryAfterMs: Millis; readonly reason: Reason }
  | typeof ELSEWHERE;

export interface Patience {
  readonly maxWaitMs: Millis;
  readonly priority: number;
  readonly signal?: AbortSignal;
}

interface Waiter {
  readonly line: Line;
  readonly want: Want;
  readonly ticket: number;
  readonly priority: number;
  readonly deadline: Millis;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (entry: Entry) => void;
  readonly reject: (reason: unknown) => void;
  isWaiting: boolean;
}

/** Those who wait for one key (and partition), the next one first. */
interface Line {
  readonly id: string;
  readonly waiters: Waiter[];
  /** When the first may ask again; Infinity: when something comes back. */
  openAt: Millis;
  /** The opening that is in the heap for this line; Infinity if none is. */
  watchedAt: Millis;
}

/** By order: true if `a` has its turn before `b`. Who has come from another line keeps its ticket. */
const GOES_BEFORE: Readonly<Record<Order, (a: Waiter, b: Waiter) => boolean>> = {
  fifo: (a, b) => a.ticket < b.ticket,
  lifo: (a, b) => a.ticket > b.ticket,
  priority: (a, b) => a.priority > b.priority || (a.priority === b.priority && a.ticket < b.ticket),
};

/** Heaps may hold this many who have left, beside as many as still wait. */
const LEFT_BEHIND = 64;

export class WaitingRoom {
  readonly #options: WaitingOptions;
  readonly #lines = new Map<string, Line>();
  readonly #openings = new Heap<{ at: Millis; line: Line }>((a, b) => a.at < b.at);
  readonly #deadlines = new Heap<Waiter>((a, b) => a.deadline < b.deadline);
  /** One listener a signal, however many wait on it. */
  readonly #bySignal = new Map<AbortSignal, { waiters: Set<Waiter>; stop: () => void }>();
  #waiting = 0;
  #alarm: { readonly at: Millis; readonly cancel: () => void } | undefined;

  constructor(options: WaitingOptions) {
    this.#options = options;
  }

  /** How many wait. */
  get size(): number {
    return this.#waiting;
  }

  hasLine(key: string, part?: number): boolean {
    return this.#waiting > 0 && this.#lines.has(this.#idOf(key, part));
  }

  #idOf(key: string, part: number | undefined): string {
    return this.#options.partitions.length === 0 ? key : `${part ?? '-'}|${key}`;
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  enter(want: Want, patience: Patience): Promise<Entry> {
    const { signal, maxWaitMs } = patience;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const now = this.#options.clock.now();
    const id = this.#idOf(want.key, want.part);
    let line = this.#lines.get(id);
    let soonest = line ? untilOpen(line, now) : 0;
    if (!line) {
      const decision = this.#ask(want, now);
      if (decision.verdict === 'elsewhere') return Promise.resolve(decision);
      if (decision.verdict !== 'deny') return Promise.resolve({ verdict: 'allow', dueAt: now });
      soonest = decision.retryAfterMs;
      line = { id, waiters: [], openAt: openingAfter(soonest, now), watchedAt: Infinity };
    }
    const refused = this.#refusal(soonest, maxWaitMs);
    return refused ? Promise.resolve(refused) : this.#wait(line, want, now, patience);
  }

  #ask(want: Want, now: Millis): Decision | typeof ELSEWHERE {
    return want.ask ? want.ask() : this.#options.askNow(want.key, want.cost, now, want.part);
  }

  /** Something came back or changed: the first in the key's line may try again. */
  poke(key: string): void {
    if (this.#waiting === 0) return;
    const now = this.#options.clock.now();
    for (const line of this.#linesOf(key)) this.#serve(line, now);
    this.#watch();
  }

  /** The lines of a key, whoever has waited longest first. */
  #linesOf(key: string): Line[] {
    const { partitions } = this.#options;
    const parts = partitions.length === 0 ? [undefined] : [undefined, ...partitions.keys()];
    return parts
      .map((part) => this.#lines.get(this.#idOf(key, part)))
      .filter((line) => line !== undefined)
      .sort((a, b) => a.waiters[0].ticket - b.waiters[0].ticket);
  }

  /** Whether there is no point in waiting, as far as can be known. */
  #refusal(retryAfterMs: Millis, maxWaitMs: Millis): Entry | undefined {
    const deny = (reason: Reason): Entry => ({ verdict: 'deny', retryAfterMs, reason });
    if (retryAfterMs === NEVER) return deny('never');
    if (retryAfterMs > maxWaitMs || maxWaitMs <= 0) return deny('too-long');
    return this.#waiting >= this.#options.waitersMax ? deny('queue-full') : undefined;
  }

  #wait(line: Line, want: Want, now: Millis, patience: Patience): Promise<Entry> {
    return new Promise((resolve, reject) => {
      const { priority, signal, maxWaitMs } = patience;
      const deadline = now + maxWaitMs;
      const ticket = want.ticket ?? nextTicket();
      const about = { line, want, ticket, priority, deadline, signal };
      const waiter = { ...about, resolve, reject, isWaiting: true };
      this.#waiting++;
      if (deadline < Infinity) this.#deadlines.push(waiter);
      if (signal) this.#listen(signal, waiter);
      this.#join(line, waiter, now);
      this.#watch();
    });
  }

  #join(line: Line, waiter: Waiter, now: Millis): void {
    const { waiters } = line;
    this.#lines.set(line.id, line);
    const isBefore = GOES_BEFORE[this.#options.order];
    const isLifo = this.#options.order === 'lifo'; // who comes late stands in front
    let at = isLifo ? 0 : waiters.length;
    if (isLifo) while (at < waiters.length && isBefore(waiters[at], waiter)) at++;
    else while (at > 0 && isBefore(waiter, waiters[at - 1])) at--;
    waiters.splice(at, 0, waiter);
    // Who comes first now may need less than who was first before.
    if (at === 0 && waiters.length > 1) this.#serve(line, now);
    else this.#watchLine(line);
  }

  /** Lets the first of a line ask, and the next, until one is refused. */
  #serve(line: Line, now: Millis): void {
    for (let first = line.waiters[0]; first; first = line.waiters[0]) {
      const decision = this.#ask(first.want, now);
      const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
      if (decision.verdict === 'elsewhere') {
        this.#finish(first, decision);
      } else if (decision.verdict !== 'deny') {
        this.#finish(first, { verdict: 'allow', dueAt: now });
      } else if (retryAfterMs === NEVER) {
        this.#finish(first, { verdict: 'deny', retryAfterMs, reason: 'never' });
      } else {
        line.openAt = openingAfter(retryAfterMs, now);
        this.#watchLine(line);
        return;
      }
    }
  }

  /** Keeps one opening of a line in the heap, the earliest it has. */
  #watchLine(line: Line): void {
    if (line.openAt >= line.watchedAt) return;
    line.watchedAt = line.openAt;
    this.#openings.push({ at: line.openAt, line });
    if (this.#openings.size > 2 * this.#lines.size + LEFT_BEHIND) {
      this.#openings.keep((opening) => opening.at === opening.line.watchedAt);
    }
  }

  #finish(waiter: Waiter, entry: Entry): void {
    this.#leave(waiter);
    waiter.resolve(entry);
  }

  /** No longer waiting, whatever became of it. */
  #leave(waiter: Waiter): void {
    const { line, signal } = waiter;
    waiter.isWaiting = false;
    this.#waiting--;
    line.waiters.splice(line.waiters.indexOf(waiter), 1);
    if (line.waiters.length === 0) {
      this.#lines.delete(line.id);
      line.watchedAt = Infinity; // so that what the heap still holds of it is known to be over
    }
    if (signal) this.#stopListening(signal, waiter);
    if (this.#deadlines.size > 2 * this.#waiting + LEFT_BEHIND) {
      this.#deadlines.keep((other) => other.isWaiting);
    }
  }

  #listen(signal: AbortSignal, waiter: Waiter): void {
    let group = this.#bySignal.get(signal);
    if (!group) {
      const waiters = new Set<Waiter>();
      const onAbort = (): void => this.#abandon([...waiters], signal.reason);
      signal.addEventListener('abort', onAbort, { once: true });
      group = { waiters, stop: () => signal.removeEventListener('abort', onAbort) };
      this.#bySignal.set(signal, group);
    }
    group.waiters.add(waiter);
  }

  #stopListening(signal: AbortSignal, waiter: Waiter): void {
    const group = this.#bySignal.get(signal);
    group?.waiters.delete(waiter);
    if (group?.waiters.size !== 0) return;
    group.stop();
    this.#bySignal.delete(signal);
  }

  /** Whoever was behind those who leave may fit where they did not. */
  #abandon(waiters: readonly Waiter[], reason: unknown): void {
    for (const waiter of waiters) {
      this.#leave(waiter);
      waiter.reject(reason);
    }
    const now = this.#options.clock.now();
    for (const line of new Set(waiters.map((waiter) => waiter.line))) this.#serve(line, now);
    this.#watch();
  }

  /** Everything whose time has come. */
  #wake(): void {
    this.#alarm = undefined;
    const now = this.#options.clock.now();
    this.#openLines(now);
    this.#loseWho(now);
    this.#watch();
  }

  #openLines(now: Millis): void {
    for (let next = this.#openings.peek(); next && next.at <= now; next = this.#openings.peek()) {
      this.#openings.pop();
      const { line, at } = next;
      if (line.watchedAt !== at) continue; // an earlier one has been here
      line.watchedAt = Infinity;
      if (line.openAt <= now) this.#serve(line, now);
      else if (line.waiters.length > 0) this.#watchLine(line);
    }
  }

  #loseWho(now: Millis): void {
    const lines = new Set<Line>();
    for (let next = this.#deadlines.peek(); next && next.deadline <= now; ) {
      this.#deadlines.pop();
      if (next.isWaiting) {
        const retryAfterMs = untilOpen(next.line, now);
        lines.add(next.line);
        this.#finish(next, { verdict: 'deny', retryAfterMs, reason: 'too-long' });
      }
      next = this.#deadlines.peek();
    }
    for (const line of lines) this.#serve(line, now);
  }

  /** One alarm, for whatever comes first. */
  #watch(): void {
    const next = Math.min(
      this.#openings.peek()?.at ?? Infinity,
      this.#deadlines.peek()?.deadline ?? Infinity,
    );
    const at = this.#waiting === 0 ? Infinity : next;
    if (this.#alarm?.at === at) return;
    this.#alarm?.cancel();
    this.#alarm = undefined;
    if (at === Infinity) return;
    const { clock, keepAlive } = this.#options;
    this.#alarm = { at, cancel: alarm(clock, at, () => this.#wake(), keepAlive) };
  }
}

/** When a line that was just refused may try again; Infinity: when something comes back. */
const openingAfter = (retryAfterMs: Millis, now: Millis): Millis =>
  retryAfterMs === WHEN_SETTLED ? Infinity : now + retryAfterMs;

const untilOpen = ({ openAt }: Line, now: Millis): Millis =>
  openAt < Infinity ? Math.max(0, Math.ceil(openAt - now)) : WHEN_SETTLED;
