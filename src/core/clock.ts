/**
 * Time enters the program here and nowhere else.
 *
 * A policy never asks what time it is: it is told. That one habit lets the same code run on a
 * server, inside a simulator that lives a week in a second, and in a test that never sleeps.
 */

/** An instant or a span, in milliseconds. An instant counts from an origin only its clock knows. */
export type Millis = number;

/** Where a limiter looks what time it is. A test hands in `VirtualClock` of `sluice/testing`. */
export interface Clock {
  /** The current instant. Never goes backwards. */
  now(): Millis;

  /**
   * Calls `act` once `now()` has reached `at`, never before; what comes back cancels it. A process
   * does not end before then, unless `keepAlive` is false. A clock without this is slept on with the
   * system's timers.
   */
  wakeAt?(at: Millis, callback: () => void, keepAlive: boolean): () => void;
}

/** Whether that can be told the time from, as a clock of ours or `Date` itself; options check what is handed in. */
export const isClock = (value: unknown): value is Clock =>
  typeof (value as Clock | null)?.now === 'function';

const TIME_ORIGIN = performance.timeOrigin;

/**
 * Milliseconds since 1970 as this machine knew it when the process started, counted on from there
 * by the monotonic clock: seconds line up with everybody else's, and a stepped wall clock is not felt.
 */
export const systemClock: Clock = {
  now: () => TIME_ORIGIN + performance.now(),
  wakeAt: (at, callback, keepAlive) => scheduleOnTimers(systemClock, at, callback, keepAlive),
};

/** Node keeps a timer's delay in a signed 32-bit integer; anything longer fires at once. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** Sleeps on the system's timers until `clock` says that it is time. */
function scheduleOnTimers(
  clock: Clock,
  at: Millis,
  callback: () => void,
  keepAlive: boolean,
): () => void {
  let timer: ReturnType<typeof setTimeout>;
  const sleep = (): void => {
    const left = Math.max(0, Math.ceil(at - clock.now()));
    timer = setTimeout(wake, Math.min(left, MAX_TIMER_MS));
    if (!keepAlive) timer.unref?.(); // a browser's timer is a number, and keeps nothing alive
  };
  // A timer may fire up to a millisecond early, so look again rather than trust it.
  const wake = (): void => (clock.now() < at ? sleep() : callback());
  sleep();
  return () => clearTimeout(timer);
}

/** Calls `act` at an instant of this clock; what comes back cancels it. */
export function schedule(
  clock: Clock,
  at: Millis,
  callback: () => void,
  keepAlive: boolean,
): () => void {
  return (
    clock.wakeAt?.(at, callback, keepAlive) ?? scheduleOnTimers(clock, at, callback, keepAlive)
  );
}

/** Looks closer together than this are one run of asks, not two unrelated events. */
const CLOSE_READ_GAP_MS = 0.01;

/**
 * So many of them make a run. Fewer are not worth it: the end of a turn has to be watched for, and that
 * costs more than looking (a request over HTTP decides, and looks three times to tell of it).
 */
const MIN_CLOSE_READS = 4;

/** How many asks of a run may share one look at the clock. */
const MAX_SHARED_READS = 32;

/**
 * The system clock, looked at once for a whole run of asks.
 *
 * Reading the clock costs more than deciding, so a server that answers a thousand pipelined
 * questions in one turn of the event loop should not read it a thousand times. A look is shared by
 * at most `MAX_SHARED_LOOKS` asks, only when they come within microseconds of each other, and never
 * beyond the turn in which it was taken. Time seen this way is never ahead of the real one, and
 * behind by no more than the turn has lasted; a rule that must not be even that late (`exactTime`
 * of a policy) uses the system clock itself.
 */
export function coarseClock(source: Clock = systemClock): Clock {
  let seen: Millis = Number.NEGATIVE_INFINITY;
  let shares = 0;
  let near = 0; // looks in a row that came right after another
  let turnWatched = false;

  const turnOver = (): void => {
    shares = 0;
    turnWatched = false;
  };

  const look = (): Millis => {
    const now = source.now();
    // Looks that see the very same instant may see a clock that somebody moves by hand, so they make no run. Nor do they end
    // one: the system's clock moves by a quarter of a microsecond, and several asks fit into that.
    if (now !== seen) near = now > seen && now - seen < CLOSE_READ_GAP_MS ? near + 1 : 0;
    if (near >= MIN_CLOSE_READS) {
      shares = MAX_SHARED_READS;
      if (!turnWatched) onImmediate(turnOver);
      turnWatched = true;
    }
    seen = now;
    return now;
  };

  return {
    now: () => (shares-- > 0 ? seen : look()),
    ...(source.wakeAt && { wakeAt: source.wakeAt.bind(source) }),
  };
}

/** A clock that can be made to stand still for a moment. */
export interface BatchClock extends Clock {
  /** Looks once, and goes by that until it is let go. */
  freeze(): void;
  unfreeze(): void;
}

/**
 * The system clock, looked at once for all that came in one piece: a surface knows where a piece begins
 * and ends, and need not guess it from how close together looks are, as `turnClock` has to.
 */
export function batchClock(source: Clock = systemClock): BatchClock {
  let seen: Millis | undefined;
  return {
    now: () => seen ?? source.now(),
    freeze() {
      seen = source.now();
    },
    unfreeze() {
      seen = undefined;
    },
    ...(source.wakeAt && { wakeAt: source.wakeAt.bind(source) }),
  };
}

/**
 * Calls back when the current turn of the event loop is over, promises and all: in an awaited loop
 * every step is a microtask, and a look is good for many of them. Where there is no such call, the
 * next microtask is as near as one can get.
 */
export const onImmediate: (callback: () => void) => unknown =
  globalThis.setImmediate ?? ((callback) => Promise.resolve().then(callback));

interface RuntimeGlobals {
  readonly process?: { nextTick?(callback: () => void): void };
}

/**
 * Calls back when everything that is ready to run now has run, promises included, and before the
 * event loop turns: what is collected until then belongs together.
 */
export const onNextTick: (callback: () => void) => void = (() => {
  const { process } = globalThis as RuntimeGlobals;
  return process?.nextTick ? (callback) => process.nextTick?.(callback) : queueMicrotask;
})();
