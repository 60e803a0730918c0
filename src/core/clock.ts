/** The only file that reads time from the system. It is an argument elsewhere, so that simulations and tests never sleep. */

/** An instant or a span, in milliseconds. An instant counts from an origin only its clock knows. */
export type Millis = number;

/** The source of time of a limiter. Tests use `VirtualClock` of `sluice/testing`. */
export interface Clock {
  /** The current instant. Never goes backwards. */
  now(): Millis;

  /**
   * Calls `callback` once `now()` has reached `at`, never before; the returned function cancels it. The process stays
   * alive until then, unless `keepAlive` is false. For a clock without this method the system's timers are used.
   */
  wakeAt?(at: Millis, callback: () => void, keepAlive: boolean): () => void;
}

/** True for anything whose `now()` returns a finite number, `Date` included. */
export const isClock = (value: unknown): value is Clock =>
  typeof (value as Clock | null)?.now === 'function' && Number.isFinite((value as Clock).now());

const TIME_ORIGIN = performance.timeOrigin;

/**
 * Milliseconds since 1970: the wall clock at the start of the process, continued by the monotonic clock. Seconds line
 * up with those of other hosts, and a step of the wall clock has no effect.
 */
export const systemClock: Clock = {
  now: () => TIME_ORIGIN + performance.now(),
  wakeAt: (at, callback, keepAlive) => scheduleOnTimers(systemClock, at, callback, keepAlive),
};

/** How long the event loop has waited for events since it started; 0 on runtimes that do not tell. */
export const eventLoopIdleMs = (): Millis => performance.eventLoopUtilization?.().idle ?? 0;

/**
 * True on Cloudflare Workers: a timer ends with the request that set it, so no request may rely on a timer of another.
 */
export const timersEndWithRequest: boolean =
  (globalThis as { navigator?: { userAgent?: string } }).navigator?.userAgent ===
  'Cloudflare-Workers';

/** Node keeps a timer's delay in a signed 32-bit integer; anything longer fires at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

type Schedule = (clock: Clock, at: Millis, callback: () => void, keepAlive: boolean) => () => void;

/** Uses the system's timers until `clock` has reached `at`. */
const scheduleOnTimers: Schedule = (clock, at, callback, keepAlive) => {
  let timer: ReturnType<typeof setTimeout>;
  const sleep = (): void => {
    const remainingMs = Math.max(0, Math.ceil(at - clock.now()));
    timer = setTimeout(wake, Math.min(remainingMs, MAX_TIMER_MS));
    if (!keepAlive) timer.unref?.(); // a browser's timer is a number, and keeps nothing alive
  };
  // A timer may fire up to a millisecond early.
  const wake = (): void => (clock.now() < at ? sleep() : callback());
  sleep();
  return () => clearTimeout(timer);
};

/** Calls `callback` at an instant of this clock; the returned function cancels it. */
export const schedule: Schedule = (clock, at, callback, keepAlive) =>
  clock.wakeAt?.(at, callback, keepAlive) ?? scheduleOnTimers(clock, at, callback, keepAlive);

/** Reads that are closer together than this belong to one run of checks. */
const CLOSE_READ_GAP_MS = 0.01;

/**
 * Close reads that make a run. With fewer, detecting the end of the turn costs more than reading the clock: an HTTP
 * request reads it once to decide and three times for its headers.
 */
const MIN_CLOSE_READS = 4;

/** How many checks of a run share one read of the clock. */
const MAX_SHARED_READS = 32;

/**
 * A clock that is read once for a whole run of checks.
 *
 * Reading the system clock costs more than a decision, so a server that answers a thousand pipelined checks in one turn
 * of the event loop should not read it a thousand times. One reading serves at most `MAX_SHARED_READS` checks, only if
 * they come within microseconds of each other, and only within its turn. The time is therefore never ahead of the real
 * one, and behind it by at most the length of the turn. A policy with `needsExactTime` uses the system clock itself.
 */
export function coarseClock(source: Clock = systemClock): Clock {
  let lastRead: Millis = Number.NEGATIVE_INFINITY;
  let sharesLeft = 0;
  let closeReads = 0; // in a row
  let isTurnWatched = false;

  const onTurnEnd = (): void => {
    sharesLeft = 0;
    isTurnWatched = false;
  };

  const read = (): Millis => {
    const now = source.now();
    // Reads of the very same instant may come from a clock that a test moves by hand, so they start no run. They do not
    // end one either: the system's clock has a resolution of 0.25 µs, and several checks fit into that.
    if (now !== lastRead)
      closeReads = now > lastRead && now - lastRead < CLOSE_READ_GAP_MS ? closeReads + 1 : 0;
    if (closeReads >= MIN_CLOSE_READS) {
      sharesLeft = MAX_SHARED_READS;
      if (!isTurnWatched) onImmediate(onTurnEnd);
      isTurnWatched = true;
    }
    lastRead = now;
    return now;
  };

  return {
    now: () => (sharesLeft-- > 0 ? lastRead : read()),
    ...wakeAtOf(source),
  };
}

/** Timers of the clock behind another; none if it has none. */
const wakeAtOf = (source: Clock): Pick<Clock, 'wakeAt'> =>
  source.wakeAt ? { wakeAt: source.wakeAt.bind(source) } : {};

/** A clock that can be frozen while a batch is processed. */
export interface BatchClock extends Clock {
  /** Returns one time until `unfreeze`: that of now, unless the caller has just read it. */
  freeze(at?: Millis): void;
  unfreeze(): void;
}

/**
 * A clock that is read once per batch. A protocol handler knows where a batch begins and ends; `coarseClock` has to
 * infer it from how close together reads are.
 */
export function batchClock(source: Clock = systemClock): BatchClock {
  let frozenAt: Millis | undefined;
  return {
    now: () => frozenAt ?? source.now(),
    freeze(at = source.now()) {
      frozenAt = at;
    },
    unfreeze() {
      frozenAt = undefined;
    },
    ...wakeAtOf(source),
  };
}

/**
 * Calls back when the current turn of the event loop is over, microtasks included: every step of an awaited loop is a
 * microtask, and one read of the clock serves many of them. Runtimes without `setImmediate` get the next microtask.
 */
export const onImmediate: (callback: () => void) => unknown =
  globalThis.setImmediate ?? ((callback) => Promise.resolve().then(callback));

/**
 * Calls back when all code that is ready now has run, microtasks included, and before the event loop turns. What is
 * collected until then forms one batch.
 */
export const onNextTick: (callback: () => void) => void = (() => {
  const { process } = globalThis as { process?: { nextTick?(callback: () => void): void } };
  return process?.nextTick ? (callback) => process.nextTick?.(callback) : queueMicrotask;
})();
