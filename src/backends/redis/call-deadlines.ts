/**
 * Deadlines of calls to a server. A reply that is late because this host is busy is not an outage.
 *
 *     sent ── 5 parts of a deadline ──▶ expired
 *     sent ── 9 parts without any reply of the server ──▶ expired        a patient call
 *
 * Each part has a timer. A late timer shows that this process was stalled: its part does not count. A patient call
 * waits while the server replies to other calls. A server is slow if it replies late to calls sent after a late reply:
 * then calls expire by their deadline, without patience, until a reply is in time again.
 */

import { noReplyWithin, withDeadline } from '../../core/call-deadline.ts';
import { type Clock, type Millis, onImmediate, timersEndWithRequest } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';

const PARTS = 5;

/** One part less than two deadlines have, because timers fire slightly late. */
const MAX_QUIET_PARTS = 2 * PARTS - 1;

/** The longest wait of a call, in deadlines: while stalled, and while other calls get replies. */
const MAX_DEADLINES = 2;
export const MAX_PATIENT_DEADLINES = 10;

/** A timer that is late by more than this fraction of its part, and by more than 4 ms, shows a stalled process. */
const LATE_SHARE = 0.25;
const MIN_LATE_MS: Millis = 4;

/** The replies of a server, or of a slot of a cluster. */
interface Replies {
  count: number;
  /** Arrival of the first late reply since the last one in time. */
  lateSince: Millis;
  isSlow: boolean;
}

interface PendingCall {
  readonly sentAt: Millis;
  readonly endsAt: Millis;
  readonly replies: Replies;
  readonly onTimeout: () => void;
  /** Start of the current part. */
  issuedAt: Millis;
  /** Parts that count, and those of them since the last reply of the server. */
  countedParts: number;
  quietParts: number;
  repliesSeen: number;
}

export class CallDeadlines {
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly isPatient: boolean;
  readonly #silenceMs: Millis;
  /** True on Cloudflare Workers, where a timer ends with its request: each call has its own. */
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

  /** The longest wait for a server that sends no reply. */
  silenceMsOf(slot: number): Millis {
    return this.#repliesBySlot.get(slot)?.isSlow ? this.#deadlineMs : this.#silenceMs;
  }

  /** Bounds a call. `since`: time of its first attempt, if it is repeated. `read` also gets late replies. */
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
      call.then(onReply, onFailure).catch(reject); // if `read` throws
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
      onImmediate(call.onTimeout); // a reply that has arrived is read first
      return;
    }
    call.issuedAt = now;
    this.#pending.add(call);
  }
}
