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

import { CLOSED, jitterMsMax, type RemoteShare } from '../backends/remote-backend.ts';
import { alarm, type Clock, type Millis } from '../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { Underway } from '../core/pending.ts';
import type { Random } from '../core/random.ts';
import type { Order } from './wait-queue.ts';
import type { Reason } from './wait-scheduler.ts';

export interface RemoteWaitingOptions {
  readonly share: RemoteShare;
  readonly clock: Clock;
  readonly random: Random;
  readonly order: Order;
  readonly waitersMax: number;
  readonly keepAlive: boolean;
  /** True if the limit hands out places ahead of time. */
  readonly reserves: boolean;
  readonly expireMs: Millis;
  /** How long the key is paused; 0 if it is not. */
  pausedMs(key: string): Millis;
}

export interface RemoteEntry {
  readonly verdict: 'allow';
  /** When it was good, on the decider's clock. */
  readonly dueAt: Millis;
  /** What begins later than this, on the limiter's clock, has lost its place. */
  readonly latest?: Millis | undefined;
  readonly isMakeshift: boolean;
  /** By what name its place is held, where the decider counts who is in flight. */
  readonly holder?: string | undefined;
}

export interface RemoteRefusal {
  readonly verdict: 'deny';
  readonly retryAfterMs: Millis;
  readonly reason: Reason;
}

export interface RemotePatience {
  readonly waitMsMax: Millis;
  readonly priority: number;
  /** True if it has had its turn and could not use it: nobody who came later is before it. */
  readonly hadTurn: boolean;
  readonly signal?: AbortSignal | undefined;
}

/** What somebody is told whose time is over. */
export const TOO_LONG = { verdict: 'deny', retryAfterMs: 0, reason: 'too-long' } as const;

interface Waiter {
  readonly cost: number;
  readonly priority: number;
  readonly deadline: Millis;
  readonly finish: (entry: RemoteEntry | RemoteRefusal) => void;
  isWaiting: boolean;
  /** False until it is known that it has to wait: whoever gets in at once takes no room. */
  isSeated: boolean;
  /** Gives up the place it has reserved, if it has. */
  release: (() => void) | undefined;
}

interface Line {
  readonly key: string;
  readonly waiters: Waiter[];
  /** Ends the sleep of the line, if it sleeps. */
  wake: (() => void) | undefined;
  /** Something came back since it asked last: what it is about to hear may be older than that. */
  isPoked: boolean;
  /** How long it sleeps when it can only look again. */
  lookMs: Millis;
}

/** What a line is told that has to sleep: when it opens, and how long before it is worth asking. */
interface Refused {
  readonly opensInMs: Millis;
  readonly aheadMs: Millis;
}

/** A place that opens in a while, as whoever decides told of it. */
interface Place {
  readonly at: Millis;
  readonly latest?: Millis | undefined;
  readonly isMakeshift?: boolean;
}

/** How many ask together. */
const FRONT_MAX = 64;

/**
 * How long to sleep where nobody can say when it opens, at first and at most: a call must settle. One of this
 * process wakes the line at once; for those elsewhere it looks again, twice as late each time.
 */
const LOOK_MS_FIRST = 20;
const LOOK_MS_MAX = 250;

export class RemoteWaitingRoom {
  readonly #options: RemoteWaitingOptions;
  readonly #lines = new Map<string, Line>();
  /** In a line, or out of it with a place that is not due yet. */
  readonly #waiters = new Set<Waiter>();
  /** How many of them know that they have to wait. */
  #seated = 0;
  /** Lines that are served, and what is on its way back to the decider. */
  readonly #underway = new Underway();

  constructor(options: RemoteWaitingOptions) {
    this.#options = options;
  }

  get size(): number {
    return this.#waiters.size;
  }

  hasLine(key: string): boolean {
    return this.#lines.has(key);
  }

  /** Something came back: the front of the key's line may try again. */
  poke(key: string): void {
    const line = this.#lines.get(key);
    if (line === undefined) return;
    line.lookMs = LOOK_MS_FIRST;
    line.isPoked = true;
    line.wake?.();
  }

  /** Whoever decides is back: all lines may try again. */
  pokeAll(): void {
    for (const { wake } of this.#lines.values()) wake?.();
  }

  /** Waits for a permit; rejects only if the signal aborts. */
  enter(key: string, cost: number, patience: RemotePatience): Promise<RemoteEntry | RemoteRefusal> {
    const { signal, waitMsMax, priority, hadTurn } = patience;
    if (signal?.aborted) return Promise.reject(signal.reason);
    if (this.#lines.has(key)) {
      const isFull = this.#waiters.size >= this.#options.waitersMax;
      const reason = isFull ? 'queue-full' : 'too-long';
      if (isFull || waitMsMax <= 0) {
        return Promise.resolve({ verdict: 'deny', retryAfterMs: 0, reason });
      }
    }
    return new Promise((resolve, reject) => {
      const { clock, keepAlive } = this.#options;
      const deadline = clock.now() + waitMsMax;
      let stop = (): void => {};
      const leave = (): void => {
        waiter.isWaiting = false;
        this.#waiters.delete(waiter);
        if (waiter.isSeated) this.#seated--;
        waiter.release?.();
        stop();
        signal?.removeEventListener('abort', onAbort);
      };
      const waiter: Waiter = {
        cost,
        priority,
        deadline,
        isWaiting: true,
        isSeated: false,
        release: undefined,
        finish: (entry) => {
          leave();
          resolve(entry);
        },
      };
      const onAbort = (): void => {
        leave();
        this.poke(key); // whoever stands behind may fit where it did not
        reject(signal?.reason);
      };
      const giveUp = (): void => {
        if (waiter.isWaiting) waiter.finish(TOO_LONG);
      };
      if (deadline < Infinity && waitMsMax > 0) stop = alarm(clock, deadline, giveUp, keepAlive);
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.add(waiter);
      if (hadTurn) this.#rejoin(key, waiter);
      else this.#join(key, waiter);
    });
  }

  /** Refuses all who wait, at once; what they had or are about to get has been given back when it is over. */
  async close(): Promise<void> {
    // The latest first: of places reserved only the last there is can be taken back.
    for (const waiter of [...this.#waiters].reverse()) waiter.finish(CLOSED);
    this.pokeAll();
    await this.#underway.ended();
  }

  #join(key: string, waiter: Waiter): void {
    const line = this.#lines.get(key);
    if (line) {
      this.#seat(waiter);
      this.#insert(line.waiters, waiter);
      return;
    }
    const own: Line = {
      key,
      waiters: [waiter],
      wake: undefined,
      isPoked: false,
      lookMs: LOOK_MS_FIRST,
    };
    this.#lines.set(key, own);
    this.#underway.add(this.#serve(own));
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
  async #serve(line: Line): Promise<void> {
    for (;;) {
      this.#drop(line);
      if (line.waiters.length === 0) break;
      const pausedMs = this.#options.pausedMs(line.key);
      line.isPoked = false;
      const refused = pausedMs > 0 ? { opensInMs: pausedMs, aheadMs: 0 } : await this.#ask(line);
      this.#drop(line);
      if (refused === undefined) line.lookMs = LOOK_MS_FIRST;
      if (refused === undefined || (line.isPoked && refused.opensInMs === WHEN_SETTLED)) continue;
      this.#refuseWhoCannotWait(line, refused.opensInMs);
      this.#refuseWhoFindsNoRoom(line, refused.opensInMs);
      if (line.waiters.length > 0) await this.#sleep(line, refused);
    }
    this.#lines.delete(line.key);
  }

  /** Forgets those who have left. */
  #drop({ waiters }: Line): void {
    for (let n = waiters.length - 1; n >= 0; n--) if (!waiters[n].isWaiting) waiters.splice(n, 1);
  }

  /** Lets the front ask; says how long until it is worth asking again, if somebody was refused. */
  #ask(line: Line): Promise<Refused | undefined> {
    return this.#options.reserves ? this.#askAhead(line) : this.#askNow(line);
  }

  async #askNow({ key, waiters }: Line): Promise<Refused | undefined> {
    const { share } = this.#options;
    const front = waiters.slice(0, FRONT_MAX);
    const told = await share.askLine(
      key,
      front.map(({ cost }) => cost),
    );
    const isMakeshift = told.isMakeshift === true;
    const { granted, dueInMs = 0, aheadMs = 0 } = told;
    const last = dueInMs > 0 ? front[granted - 1] : undefined;
    for (const [n, waiter] of front.slice(0, granted).entries()) {
      const [holder, latest] = [told.holders?.[n], told.latests?.[n]];
      const { at } = told;
      if (waiter === last) this.#reserve(key, waiter, { at, isMakeshift, latest }, dueInMs);
      else this.#grant(key, waiter, { verdict: 'allow', dueAt: at, latest, isMakeshift, holder });
    }
    const lostMs = this.#lost(front[granted], told.refused);
    return lostMs === undefined ? undefined : { opensInMs: lostMs, aheadMs };
  }

  /** Each has its place as soon as it is told of it: when all the others are, it may be too late for that. */
  async #askAhead({ key, waiters }: Line): Promise<Refused | undefined> {
    const { share } = this.#options;
    const askFor = async (waiter: Waiter): Promise<Millis | undefined> => {
      const answer = await share.ask(key, waiter.cost);
      const { decision, at, latest, isMakeshift = false } = answer;
      if (decision.verdict === 'deny') return this.#lost(waiter, decision);
      if (decision.verdict === 'wait') this.#reserve(key, waiter, answer, decision.waitMs);
      else this.#grant(key, waiter, { verdict: 'allow', dueAt: at, latest, isMakeshift });
      return undefined;
    };
    const lost = await Promise.all(waiters.slice(0, FRONT_MAX).map(askFor));
    const opensInMs = lost.find((ms) => ms !== undefined);
    return opensInMs === undefined ? undefined : { opensInMs, aheadMs: 0 };
  }

  /** What never fits is told so; for the others, how long until it is worth asking again. */
  #lost(waiter: Waiter | undefined, decision: Decision | undefined): Millis | undefined {
    if (decision?.verdict !== 'deny') return undefined;
    const { retryAfterMs } = decision;
    if (retryAfterMs !== NEVER) return retryAfterMs;
    if (waiter?.isWaiting) waiter.finish({ verdict: 'deny', retryAfterMs, reason: 'never' });
    return undefined;
  }

  #grant(key: string, waiter: Waiter, entry: RemoteEntry): void {
    if (waiter.isWaiting) waiter.finish(entry);
    else if (!entry.isMakeshift || entry.holder !== undefined)
      this.#giveBack(key, waiter.cost, entry.dueAt, entry.holder);
  }

  #giveBack(key: string, cost: number, dueAt: Millis, holder?: string): void {
    const settlement = { outcome: 'ignored', cost, dueAt, holder } as const;
    this.#underway.add(this.#options.share.settle(key, settlement));
  }

  /** Keeps a place until it is due, out of the line; it is used then, or given back, or wasted. */
  #reserve(
    key: string,
    waiter: Waiter,
    { at, latest = Infinity, isMakeshift = false }: Place,
    waitMs: Millis,
  ): void {
    const { clock, keepAlive, expireMs } = this.#options;
    const line = this.#lines.get(key);
    const isTooLong = clock.now() + waitMs > waiter.deadline;
    if (!waiter.isWaiting || isTooLong || !this.#seat(waiter)) {
      this.#giveBack(key, waiter.cost, at + waitMs);
      const retryAfterMs = Math.ceil(waitMs);
      const reason = isTooLong ? 'too-long' : 'queue-full';
      if (waiter.isWaiting) waiter.finish({ verdict: 'deny', retryAfterMs, reason });
      return;
    }
    line?.waiters.splice(line.waiters.indexOf(waiter), 1);
    const dueHere = clock.now() + waitMs; // an answer travels, so this is late rather than early
    const use = (): void => {
      waiter.release = undefined;
      const isLate = clock.now() > Math.min(dueHere + expireMs, latest);
      if (waiter.isWaiting && isLate) this.#rejoin(key, waiter);
      else this.#grant(key, waiter, { verdict: 'allow', dueAt: at + waitMs, latest, isMakeshift });
    };
    const cancel = alarm(clock, dueHere, use, keepAlive);
    waiter.release = () => {
      cancel();
      if (!isMakeshift) this.#giveBack(key, waiter.cost, at + waitMs);
    };
  }

  /** In front of everybody: it had its turn, and overslept or was held up. */
  #rejoin(key: string, waiter: Waiter): void {
    const line = this.#lines.get(key);
    if (line) line.waiters.unshift(waiter);
    else this.#join(key, waiter);
  }

  #refuseWhoCannotWait(line: Line, retryAfterMs: Millis): void {
    const openAt = this.#options.clock.now() + retryAfterMs;
    for (const waiter of [...line.waiters]) {
      if (openAt > waiter.deadline || waiter.deadline <= this.#options.clock.now()) {
        waiter.finish({ verdict: 'deny', retryAfterMs, reason: 'too-long' });
      }
    }
    this.#drop(line);
  }

  /** Whoever came first for its key has asked before it was known whether it has to wait. */
  #refuseWhoFindsNoRoom(line: Line, retryAfterMs: Millis): void {
    for (const waiter of [...line.waiters]) {
      if (!this.#seat(waiter))
        waiter.finish({ verdict: 'deny', retryAfterMs, reason: 'queue-full' });
    }
    this.#drop(line);
  }

  /** False if there is no room for it. */
  #seat(waiter: Waiter): boolean {
    if (waiter.isSeated) return true;
    if (this.#seated >= this.#options.waitersMax) return false;
    waiter.isSeated = true;
    this.#seated++;
    return true;
  }

  #sleep(line: Line, { opensInMs, aheadMs }: Refused): Promise<void> {
    const { clock, random, keepAlive } = this.#options;
    const isLook = opensInMs === WHEN_SETTLED;
    const ms = isLook ? line.lookMs / 2 : Math.max(0, opensInMs - aheadMs);
    // Who is handed a place ahead is whoever comes first: half of that time is left to chance, as of a look.
    const chanceMs = isLook ? line.lookMs / 2 : Math.max(jitterMsMax(ms), aheadMs / 2);
    const jitter = chanceMs * random();
    line.lookMs = isLook ? Math.min(LOOK_MS_MAX, 2 * line.lookMs) : LOOK_MS_FIRST;
    return new Promise((awake) => {
      const wake = (): void => {
        line.wake = undefined;
        cancel();
        awake();
      };
      const cancel = alarm(clock, clock.now() + ms + jitter, wake, keepAlive);
      line.wake = wake;
    });
  }
}
