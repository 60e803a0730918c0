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

import { alarm, type Clock, type Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { Heap } from '../core/heap.ts';
import { Line, type Order, type Rank } from './wait-queue.ts';

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
  /** What `askNow` would answer; nothing changes. */
  peek(key: string, cost: number, part?: number): Decision;
}

/** It is not this limit that stands in the way, but another one it must also pass. */
export const ELSEWHERE: {
  readonly verdict: 'elsewhere';
  readonly dueAt?: never;
  readonly waitedMs?: never;
} = {
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
export type Entry =
  | { readonly verdict: 'allow'; readonly dueAt: Millis; readonly waitedMs: Millis }
  | { readonly verdict: 'deny'; readonly retryAfterMs: Millis; readonly reason: Reason }
  | typeof ELSEWHERE;

export interface Patience {
  readonly waitMsMax: Millis;
  readonly priority: number;
  readonly signal?: AbortSignal | undefined;
}

interface Waiter extends Rank {
  readonly line: KeyLine;
  readonly want: Want;
  readonly since: Millis;
  readonly deadline: Millis;
  readonly signal: AbortSignal | undefined;
  readonly resolve: (entry: Entry) => void;
  readonly reject: (reason: unknown) => void;
  isWaiting: boolean;
}

/** Those who wait for one key (and partition). */
interface KeyLine {
  readonly id: string;
  readonly key: string;
  readonly waiters: Line<Waiter>;
  /** When the first may ask again; Infinity: when something comes back. */
  openAt: Millis;
  /** The opening that is in the heap for this line; Infinity if none is. */
  watchedAt: Millis;
}

/** How often to look up while somebody waits for what has no time, to keep the process alive. */
const KEEP_ALIVE_MS = 3_600_000;

/** Heaps may hold this many who have left, beside as many as still wait. */
const LEFT_BEHIND = 64;

export class WaitingRoom {
  readonly #options: WaitingOptions;
  readonly #lines = new Map<string, KeyLine>();
  readonly #openings = new Heap<{ at: Millis; line: KeyLine }>((a, b) => a.at < b.at);
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

  /** Whether somebody who waits for this key has its turn before `rank`. */
  isBefore(key: string, part: number | undefined, rank: Rank): boolean {
    return this.#lines.get(this.#idOf(key, part))?.waiters.isBefore(rank) ?? false;
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  enter(want: Want, patience: Patience, now: Millis): Promise<Entry> {
    const { signal, waitMsMax } = patience;
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = this.#idOf(want.key, want.part);
    const line = this.#lines.get(id);
    const told = line ? this.#behind(line, want, now) : this.#ask(want, now);
    if (told.verdict === 'elsewhere') return Promise.resolve(told);
    if (told.verdict !== 'deny') {
      return Promise.resolve({ verdict: 'allow', dueAt: now, waitedMs: 0 });
    }
    const refused = this.#refusal(told.retryAfterMs, waitMsMax);
    if (refused) return Promise.resolve(refused);
    return this.#wait(
      line ?? this.#newLine(id, want.key, told.retryAfterMs, now),
      want,
      now,
      patience,
    );
  }

  /** What somebody can expect who joins a line: not before it opens, and never what never fits. */
  #behind(line: KeyLine, want: Want, now: Millis): Decision {
    const { verdict, ...own } = this.#options.peek(want.key, want.cost, want.part);
    const isNever = verdict === 'deny' && 'retryAfterMs' in own && own.retryAfterMs === NEVER;
    return deny(isNever ? NEVER : untilOpen(line, now));
  }

  #newLine(id: string, key: string, soonest: Millis, now: Millis): KeyLine {
    const waiters = new Line<Waiter>(this.#options.order);
    return { id, key, waiters, openAt: openingAfter(soonest, now), watchedAt: Infinity };
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
  #linesOf(key: string): KeyLine[] {
    const { partitions } = this.#options;
    const parts = partitions.length === 0 ? [undefined] : [undefined, ...partitions.keys()];
    const ticketOf = ({ waiters }: KeyLine): number => waiters.first?.ticket ?? Infinity;
    return parts
      .map((part) => this.#lines.get(this.#idOf(key, part)))
      .filter((line) => line !== undefined)
      .sort((a, b) => ticketOf(a) - ticketOf(b));
  }

  /** Whether there is no point in waiting, as far as can be known. */
  #refusal(retryAfterMs: Millis, waitMsMax: Millis): Entry | undefined {
    const deny = (reason: Reason): Entry => ({ verdict: 'deny', retryAfterMs, reason });
    if (retryAfterMs === NEVER) return deny('never');
    if (retryAfterMs > waitMsMax || waitMsMax <= 0) return deny('too-long');
    return this.#waiting >= this.#options.waitersMax ? deny('queue-full') : undefined;
  }

  #wait(line: KeyLine, want: Want, now: Millis, patience: Patience): Promise<Entry> {
    return new Promise((resolve, reject) => {
      const { priority, signal, waitMsMax } = patience;
      const waiter: Waiter = {
        line,
        want,
        ticket: want.ticket ?? nextTicket(),
        priority,
        since: now,
        deadline: now + waitMsMax,
        signal,
        resolve,
        reject,
        isWaiting: true,
      };
      this.#waiting++;
      if (waiter.deadline < Infinity) this.#deadlines.push(waiter);
      if (signal) this.#listen(signal, waiter);
      this.#join(line, waiter, now);
      this.#watch();
    });
  }

  #join(line: KeyLine, waiter: Waiter, now: Millis): void {
    this.#lines.set(line.id, line);
    line.waiters.add(waiter);
    // Who comes first now may need less than who was first before.
    if (line.waiters.size > 1 && line.waiters.first === waiter) this.#serve(line, now);
    else this.#watchLine(line);
  }

  /** Lets the first of a line ask, and the next, until one is refused. */
  #serve(line: KeyLine, now: Millis): void {
    for (let { first } = line.waiters; first; { first } = line.waiters) {
      const told = this.#ask(first.want, now);
      const retryAfterMs = told.verdict === 'deny' ? told.retryAfterMs : 0;
      if (told.verdict === 'elsewhere') {
        this.#finish(first, told);
      } else if (told.verdict !== 'deny') {
        this.#finish(first, { verdict: 'allow', dueAt: now, waitedMs: now - first.since });
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
  #watchLine(line: KeyLine): void {
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
    if (!waiter.isWaiting) return;
    const { line, signal } = waiter;
    waiter.isWaiting = false;
    this.#waiting--;
    line.waiters.remove(waiter);
    if (line.waiters.size === 0) {
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
    // Also in other lines of the key: what was kept for those who leave is kept no more.
    for (const key of new Set(waiters.map(({ line }) => line.key))) this.poke(key);
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
      else if (line.waiters.size > 0) this.#watchLine(line);
    }
  }

  #loseWho(now: Millis): void {
    const keys = new Set<string>();
    for (let next = this.#deadlines.peek(); next && next.deadline <= now; ) {
      this.#deadlines.pop();
      if (next.isWaiting) {
        const retryAfterMs = untilOpen(next.line, now);
        keys.add(next.line.key);
        this.#finish(next, { verdict: 'deny', retryAfterMs, reason: 'too-long' });
      }
      next = this.#deadlines.peek();
    }
    for (const key of keys) this.poke(key);
  }

  /** An alarm that is far away already will do. */
  #aliveUntil(next: Millis): Millis {
    if (next < Infinity) return Infinity;
    return this.#alarm?.at ?? this.#options.clock.now() + KEEP_ALIVE_MS;
  }

  /** One alarm, for whatever comes first. */
  #watch(): void {
    const next = Math.min(
      this.#openings.peek()?.at ?? Infinity,
      this.#deadlines.peek()?.deadline ?? Infinity,
    );
    const { clock, keepAlive } = this.#options;
    // Somebody waits for what has no time: only the process needs to hear of it.
    const latest = keepAlive ? this.#aliveUntil(next) : Infinity;
    const at = this.#waiting === 0 ? Infinity : Math.min(next, latest);
    if (this.#alarm?.at === at) return;
    this.#alarm?.cancel();
    this.#alarm = undefined;
    if (at === Infinity) return;
    this.#alarm = { at, cancel: alarm(clock, at, () => this.#wake(), keepAlive) };
  }
}

/** When a line that was just refused may try again; Infinity: when something comes back. */
const openingAfter = (retryAfterMs: Millis, now: Millis): Millis =>
  retryAfterMs === WHEN_SETTLED ? Infinity : now + retryAfterMs;

const untilOpen = ({ openAt }: KeyLine, now: Millis): Millis =>
  openAt < Infinity ? Math.max(0, Math.ceil(openAt - now)) : WHEN_SETTLED;
