/**
 * Load shedding by age: a check that waited longer than `maxAge` in this process gets the answer of the fail mode at
 * once. It is not counted against its limit.
 *
 *     bytes arrive ──▶ the event loop is busy ──▶ read ──▶ the connection waits for its turn ──▶ answered
 *                 └────────────────────────── age ──────────────────────────┘
 *
 * The system does not tell when bytes arrived. They arrived after the connection was last known to have none. That was
 * when it was read to the end, or when the event loop polled all connections and this one had no bytes. So the age here
 * is an upper bound of the real one, within two turns of the event loop.
 *
 * One pause sheds nothing: garbage collection, a reload, a suspended process. A pause makes checks too old at once;
 * in an overload they wait longer and longer. So shedding begins when checks of `MIN_CONNECTIONS` connections are
 * too old, and those before them were old for `STANDING_MS`. It ends when none was for `ACTIVE_MS`. Checks that age as
 * fast as time passes are old for that long before they are too old. So none that is too old is decided:
 *
 *     age    0 ────────────── old ──────── STANDING_MS ────────▶ too old ─────────▶ maxAge
 *            decided          decided, and watched              shed
 *
 * A few connections that pipeline more than can be decided in time delay only themselves (`turns.ts`): that is no
 * overload.
 */

import { type Clock, eventLoopIdleMs, type Millis, onImmediate } from '../../core/clock.ts';
import type { OverloadConfig } from '../config/overload.ts';
import { CHUNK_BYTES } from './read-buffer.ts';

/** The beginning of a poll is recorded at most this often: recording every one would cost more than it shows. */
const POLL_INTERVAL_MS: Millis = 1;

/** Younger bytes are never too old: the smallest `maxAge` is 1 ms. */
const SUSPECT_MS: Millis = 0.5;

/** Fraction of `maxAge` after which a check is shed: the answer still has to reach the client. */
const SHED_AT = 0.8;

/** How long the checks of a connection are old before those that are too old are shed, and of how many connections. */
const STANDING_MS: Millis = 50;
const MIN_CONNECTIONS = 4;

/** Checks are old at this fraction of the age at which they are shed, or later: a short `maxAge` is no time to watch. */
const MIN_OLD_AT = 0.25;

/** How long checks are shed as soon as they are too old. */
const ACTIVE_MS: Millis = 1_000;

/** How long readiness reports an overload after the last check that was shed. */
const REPORT_MS: Millis = 5_000;

interface Poll {
  readonly at: Millis;
  readonly idleMs: Millis;
}

export const NO_SHEDDING: OverloadConfig = { maxAgeMs: Infinity, isOpen: true };

export class Overload {
  config: OverloadConfig;
  /** True while checks are processed that are too old. */
  isShedding = false;
  /** Checks shed since the start, and those of them that were denied. */
  shedCount = 0;
  deniedCount = 0;
  /** Called when a check is shed, and none was for a while. */
  onBegin: (() => void) | undefined;
  /** A recent poll, before the current one: what was readable then is read by now. */
  polledAt: Millis;
  /** When another poll is to be recorded. */
  nextPollAt: Millis = 0;
  readonly #clock: Clock;
  #lastPoll: Poll;
  #pollBefore: Poll;
  /** When the slice began in which checks are shed. */
  #beganAt: Millis = 0;
  lastShedAt: Millis = -Infinity;
  #activeUntil: Millis = -Infinity;
  /** Connections whose checks were old for a while and then too old, lately; at most `MIN_CONNECTIONS`. */
  readonly #standing = new Set<Arrival>();
  #standingUntil: Millis = -Infinity;

  constructor(clock: Clock, config = NO_SHEDDING) {
    this.#clock = clock;
    this.config = config;
    this.#lastPoll = { at: clock.now(), idleMs: eventLoopIdleMs() };
    this.#pollBefore = this.#lastPoll;
    this.polledAt = this.#pollBefore.at;
  }

  /** True if bytes of this age are old. Records the next poll. */
  isOld(ageMs: Millis, now: Millis): boolean {
    const shedAtMs = this.config.maxAgeMs * SHED_AT;
    if (now >= this.nextPollAt) {
      this.nextPollAt = Infinity;
      if (shedAtMs < Infinity) onImmediate(this.#onPoll);
    }
    const oldAtMs = Math.max(shedAtMs - STANDING_MS, shedAtMs * MIN_OLD_AT);
    return ageMs > oldAtMs && this.#isOlder(ageMs, oldAtMs); // without a call for all that are not
  }

  /** Sheds the checks of connections that are too old and have been old for a while, and then those of all. */
  begin(ageMs: Millis, oldForMs: Millis, arrival: Arrival, now: Millis): void {
    if (!this.#isOlder(ageMs, this.config.maxAgeMs * SHED_AT)) return;
    if (oldForMs >= STANDING_MS) this.#countStanding(arrival, now);
    this.isShedding = now < this.#activeUntil;
    this.#beganAt = now;
  }

  #isOlder(ageMs: Millis, thanMs: Millis): boolean {
    return ageMs > thanMs && ageMs - this.#idleMs() > thanMs;
  }

  #countStanding(arrival: Arrival, now: Millis): void {
    if (now >= this.#standingUntil) {
      this.#standing.clear();
      this.#standingUntil = now + ACTIVE_MS;
    }
    this.#standing.add(arrival);
    if (this.#standing.size >= MIN_CONNECTIONS) {
      this.#activeUntil = now + ACTIVE_MS;
      this.#standingUntil = -Infinity; // counts anew
    }
  }

  /** How long the event loop has waited for events lately: no connection had any bytes then. */
  #idleMs(): Millis {
    return eventLoopIdleMs() - this.#pollBefore.idleMs;
  }

  /** The fail mode of limits without their own. */
  get isOpen(): boolean {
    return this.config.isOpen;
  }

  countShed(isDenied: boolean): void {
    if (this.#beganAt - this.lastShedAt >= REPORT_MS) this.onBegin?.();
    this.shedCount++;
    if (isDenied) this.deniedCount++;
    this.lastShedAt = this.#beganAt;
  }

  /** True if a check was shed a moment ago. */
  get isRecent(): boolean {
    return this.#clock.now() - this.lastShedAt < REPORT_MS;
  }

  /** The turn is over: the next poll begins. */
  readonly #onPoll = (): void => {
    this.#pollBefore = this.#lastPoll;
    this.#lastPoll = { at: this.#clock.now(), idleMs: eventLoopIdleMs() };
    this.polledAt = this.#pollBefore.at;
    this.nextPollAt = this.#lastPoll.at + POLL_INTERVAL_MS;
  };
}

/** When the bytes of one connection arrived. */
export class Arrival {
  readonly #overload: Overload;
  /** The bytes that are processed arrived after this instant, and those not yet read after that. */
  #readAfter: Millis;
  #unreadAfter: Millis;
  /** The connection was read at this instant, or is read again since then. */
  #watchedSince: Millis;
  /** Since when all checks were old; undefined if the last was not. */
  #oldSince: Millis | undefined;
  /** True if the connection was not read because of its client, or of a remote backend: that is no overload. */
  isHeldBack = false;
  /** Before this instant the connection was held back: bytes that were read ahead count as arrived then. */
  #heldBackUntil: Millis = -Infinity;
  /** True if more was sent than is read ahead: the rest may be in the client, until a poll finds nothing to read. */
  isBehind = false;

  constructor(overload: Overload, now: Millis) {
    this.#overload = overload;
    this.#readAfter = now;
    this.#unreadAfter = now;
    this.#watchedSince = now;
  }

  /** Begins to process a chunk that was just read. The usual case is one call without others. */
  beginChunk(bytes: number, now: Millis): void {
    if (this.isHeldBack) this.#forget(now);
    const overload = this.#overload;
    const readAfter = this.readAhead(bytes, now);
    this.#readAfter = readAfter;
    if (now >= overload.nextPollAt || now - readAfter > SUSPECT_MS) this.#begin(now);
  }

  /** A chunk was read while others wait for the connection's turn. Returns the instant after which it arrived. */
  readAhead(bytes: number, now: Millis): Millis {
    const { polledAt } = this.#overload;
    const isFresh = polledAt > this.#watchedSince;
    if (isFresh) this.isBehind = false;
    const readAfter = isFresh ? polledAt : this.#unreadAfter;
    this.#unreadAfter = bytes === CHUNK_BYTES || this.isBehind ? readAfter : now;
    this.#watchedSince = now;
    return readAfter;
  }

  /** Begins to process a chunk that was read ahead. */
  beginReadAhead(arrivedAfter: Millis, now: Millis): void {
    if (this.isHeldBack) this.#forget(now);
    this.#readAfter = Math.max(arrivedAfter, this.#heldBackUntil);
    this.#begin(now);
  }

  /** Continues with the rest of the last chunk. */
  beginRest(now: Millis): void {
    if (this.isHeldBack) this.#forget(now);
    this.#begin(now);
  }

  #begin(now: Millis): void {
    const ageMs = now - this.#readAfter;
    if (!this.#overload.isOld(ageMs, now)) {
      this.#oldSince = undefined;
      return;
    }
    this.#oldSince ??= now;
    this.#overload.begin(ageMs, now - this.#oldSince, this, now);
  }

  /** The connection was not read while it waited for its turn, and is read again. */
  resume(now: Millis): void {
    this.#watchedSince = now;
  }

  #forget(now: Millis): void {
    this.isHeldBack = false;
    this.#heldBackUntil = now;
    this.#readAfter = now;
    this.#unreadAfter = now;
  }
}
