/**
 * Deadlines of calls to a server. A reply that is late because this host is busy is no outage.
 *
 *     sent ── 5 parts of a deadline ──▶ expired
 *     sent ── 9 parts without any reply of the server ──▶ expired        a patient call
 *
 * Each part has a timer. One that fires late shows that this process was stalled: its part does not count. A patient call
 * waits while the server answers other calls. A server whose calls are late one after the other is slow: without patience,
 * calls expire by their deadline until a reply is in time again.
 */

import { noReplyWithin, withDeadline } from '../../core/call-deadline.ts';
import { type Clock, type Millis, onImmediate, timersEndWithRequest } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';

const PARTS = 5;

/** One less than two deadlines have: timers fire a little late. */
const MAX_QUIET_PARTS = 2 * PARTS - 1;

/** What a call waits at most, in deadlines: stalled, and while other calls are answered. */
const MAX_DEADLINES = 2;
export const MAX_PATIENT_DEADLINES = 10;

/** A timer that is late by more than this share of its part, and than any timer, shows that the process was stalled. */
const LATE_SHARE = 0.25;
const MIN_LATE_MS: Millis = 4;

/** The replies of a server, or of a slot of a cluster. */
interface Replies {
  count: number;
  /** When the first of those arrived that were late since one was in time. */
  lateSince: Millis;
  isSlow: boolean;
}

interface PendingCall {
  readonly sentAt: Millis;
  readonly endsAt: Millis;
  readonly replies: Replies;
  readonly onTimeout: () => void;
  /** When its current part began. */
  issuedAt: Millis;
  /** Those that count, and those of them since the last reply of the server. */
  countedParts: number;
  quietParts: number;
  repliesSeen: number;
}

export class CallDeadlines {
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly isPatient: boolean;
  readonly #silenceMs: Millis;
  /** On Cloudflare Workers a timer ends with its request: each call has one. */
  readonly #hasOwnTimers: boolean;
  readonly #pending: DeadlineSet<PendingCall>;
  readonly #repliesBySlot = new Map<number, Replies>();

  constructor(
    clock: Clock,
    deadlineMs: Millis,
    hasOwnTimers = timersEndWithRequest,
    isPatient = false,
  ) {
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
    this.isPatient = isPatient;
    this.#silenceMs = isPatient ? (deadlineMs * MAX_QUIET_PARTS) / PARTS : deadlineMs;
    this.#hasOwnTimers = hasOwnTimers;
    this.#pending = new DeadlineSet(clock, deadlineMs / PARTS, (call) => this.#endPart(call));
  }

  /** What a call waits for a server that sends no reply. */
  silenceMsOf(slot: number): Millis {
    return this.#repliesBySlot.get(slot)?.isSlow ? this.#deadlineMs : this.#silenceMs;
  }

  /** `since`: when a call was sent first, if it is sent again. `read` gets late replies too. */
  run<T>(
    call: Promise<T>,
    slot = 0,
    since = this.#clock.now(),
    read: (reply: T) => T = (reply) => reply,
  ): Promise<T> {
    if (this.#hasOwnTimers) return withDeadline(this.#clock, this.#deadlineMs, call.then(read));
    const replies = this.#repliesOf(slot);
    const now = this.#clock.now();
    return new Promise((resolve, reject) => {
      const pending: PendingCall = {
        sentAt: now,
        endsAt: since + this.#deadlineMs * MAX_PATIENT_DEADLINES,
        replies,
        issuedAt: now,
        countedParts: 0,
        quietParts: 0,
        repliesSeen: replies.count,
        onTimeout: () => reject(noReplyWithin(this.#deadlineMs)),
      };
      this.#pending.add(pending);
      const onReply = (reply: T): void => {
        const result = read(reply);
        this.#noteReply(pending);
        resolve(result);
      };
      const onFailure = (error: unknown): void => {
        this.#pending.remove(pending);
        reject(error);
      };
      call.then(onReply, onFailure).catch(reject); // of `read`
    });
  }

  #repliesOf(slot: number): Replies {
    const known = this.#repliesBySlot.get(slot);
    const replies = known ?? { count: 0, lateSince: Infinity, isSlow: false };
    if (!known) this.#repliesBySlot.set(slot, replies);
    return replies;
  }

  #noteReply(call: PendingCall): void {
    this.#pending.remove(call);
    const { replies, sentAt, countedParts } = call;
    replies.count++;
    if (countedParts < PARTS) {
      replies.lateSince = Infinity;
      replies.isSlow = false;
    } else if (sentAt > replies.lateSince) replies.isSlow = true;
    else if (replies.lateSince === Infinity) replies.lateSince = this.#clock.now();
  }

  #endPart(call: PendingCall): void {
    const { replies, sentAt, endsAt } = call;
    const now = this.#clock.now();
    const partMs = this.#deadlineMs / PARTS;
    const hasReplied = call.repliesSeen < replies.count;
    const lateMs = now - call.issuedAt - partMs;
    const isCounted = lateMs <= Math.max(MIN_LATE_MS, partMs * LATE_SHARE);
    call.repliesSeen = replies.count;
    if (isCounted) call.countedParts++;
    if (hasReplied) call.quietParts = 0;
    else if (isCounted) call.quietParts++;
    const isOver =
      this.isPatient && !replies.isSlow
        ? call.quietParts >= MAX_QUIET_PARTS || now >= endsAt
        : call.countedParts >= PARTS || now - sentAt >= this.#deadlineMs * MAX_DEADLINES;
    if (isOver) {
      onImmediate(call.onTimeout); // a reply that has arrived is read before
      return;
    }
    call.issuedAt = now;
    this.#pending.add(call);
  }
}
