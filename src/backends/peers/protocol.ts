/**
 * How peers keep one limit: each serves by its own count, tells what it served, and takes off what the
 * others say they did.
 *
 *     served(key) ──▶ noted ──▶ report, numbered ──▶ everybody ──▶ hear(key, hits)
 *                                    │
 *                                    └─ kept for a while: whoever missed it can have it again
 *
 * An engine meets no socket and no clock: what came goes in with the time, what is to be sent comes out,
 * and it says when it wants to be woken. So it lives in a simulated network as it lives in a real one.
 *
 * A node that is heard for the first time has to prove that it is there now (`membership.ts`). From then on
 * each of its reports counts once, in whatever order they come, and what does not come is asked for
 * (`peer-table.ts`). A newcomer learns how keys stand (`state-transfer.ts`), and once in a while everybody compares
 * (`anti-entropy.ts`).
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { Comparing } from './anti-entropy.ts';
import { decode, fitting } from './codec.ts';
import { Returning } from './late-reports.ts';
import { Limits, type PeerLimit } from './limits.ts';
import { Meeting } from './membership.ts';
import {
  ALL,
  ENTRY,
  type Entries,
  freshNumber,
  type Message,
  type MessageOf,
  type NodeId,
} from './messages.ts';
import { type Peer, Peers, type PeerView } from './peer-table.ts';
import { Hits } from './pending-hits.ts';
import { Anticipation } from './prediction.ts';
import { Budget } from './report-budget.ts';
import { countAgain, mayAnswer } from './response-limiter.ts';
import { History } from './retransmit-buffer.ts';
import { Counts, type Send, Voice } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import { Learning } from './state-transfer.ts';

/** Reports sent again for one question. */
const AGAIN_MAX = 64;

/** How often it looks who is gone and what is too old to keep. */
const FORGET_MS: Millis = 1000;

/** How often it says that it is there: to nobody yet, and to those who know it, if it has nothing to tell. */
const CALL_OUT_MS: Millis = 200;
const BEAT_MS: Millis = 1000;

/** One that is woken so much later than it wanted to be was asleep: stopped, suspended, or busy with itself. */
const ASLEEP_MS: Millis = 1000;

export class PeerEngine {
  readonly #options: PeerOptions;
  readonly #voice: Voice;
  readonly #limits = new Limits();
  readonly #hits = new Hits();
  readonly #anticipation = new Anticipation(this.#limits);
  readonly #history: History;
  readonly #peers: Peers;
  readonly #returning = new Returning();
  readonly #learning: Learning;
  readonly #meeting: Meeting;
  readonly #comparing: Comparing;
  readonly #budget: Budget;
  /** Hits of a key that nobody was told of, from which on they are told at once. */
  readonly #urgentFrom: number;
  #reportAt: Millis;
  #isUrgent = false;
  /** As it was told last. */
  #now: Millis;
  #beatAt: Millis;
  #forgetAt: Millis;
  readonly counts = new Counts();

  constructor(options: PeerOptions, random: Random, send: Send, now: Millis) {
    this.#options = options;
    this.#voice = new Voice(freshNumber(random), this.counts, send);
    this.#history = new History(options.historyMs, options.historyBytes);
    this.#peers = new Peers(options.goneMs);
    const own = {
      voice: this.#voice,
      limits: this.#limits,
      hits: this.#hits,
      anticipation: this.#anticipation,
      peers: this.#peers,
      history: this.#history,
      random,
      isHeard: (peer: Peer): boolean => peer.heard.isComplete && !this.#returning.has(peer),
    };
    this.#learning = new Learning(own);
    const known = { ...own, learning: this.#learning, returning: this.#returning };
    this.#meeting = new Meeting(known, options, now);
    this.#comparing = new Comparing(own, now);
    this.#budget = new Budget(options.reportsMax, now);
    this.#urgentFrom = options.exchange === 'prompt' ? options.slack : Infinity;
    this.#now = now;
    this.#reportAt = now + options.intervalMs;
    this.#beatAt = now;
    this.#forgetAt = now + FORGET_MS;
  }

  /** Who it is, for as long as it runs. */
  get id(): NodeId {
    return this.#voice.id;
  }

  // From the side of the limits.

  /** Takes on a limit. */
  join(limit: PeerLimit): void {
    // One that takes the place of another knows what that one knew.
    if (!this.#limits.byId(limit.id)) this.#learning.add(limit.id);
    this.#limits.join(limit);
  }

  /** Hears no more for a limit. What it served so far is told. */
  leave(limit: PeerLimit): void {
    this.#limits.leave(limit);
  }

  /** A call was let through here. True if somebody should be told before the interval is over. */
  served(limit: PeerLimit, low: number, high: number, hits: number): boolean {
    if (hits <= 0) return false;
    this.#limits.served(limit, low, high, hits);
    const unheard = this.#hits.add(limit.id, low, high, hits);
    if (this.#hits.isFull) this.flush(this.#now); // there is no room to wait for anything
    if (this.#isUrgent || unheard < this.#urgentFrom) return false;
    this.#isUrgent = true;
    return true;
  }

  /** Plain intervals stay the plain rule: nothing is told early, expected or compared. */
  get #isPrompt(): boolean {
    return this.#options.exchange === 'prompt';
  }

  /** A call that was let through did not happen. What others were told already stays told. */
  unserved({ id }: PeerLimit, low: number, high: number, hits: number): void {
    this.#hits.takeBack(id, low, high, hits);
  }

  // From the side of the clock.

  /** When `tick` has something to do. */
  wakeAt(now: Millis): Millis {
    return Math.min(
      this.#reportAt,
      this.#isUrgent ? this.#budget.dueAt(now) : Infinity,
      this.#beatAt,
      this.#peers.askAt,
      this.#learning.wakeAt,
      this.#returning.countAt,
      this.#compareAt,
    );
  }

  tick(now: Millis): void {
    this.#lookAt(now);
    const isDue = now >= this.#reportAt;
    if (isDue || (this.#isUrgent && this.#budget.dueAt(now) <= now)) this.flush(now);
    if (isDue) this.#nextInterval(now);
    if (now >= this.#beatAt) this.#beat(now);
    this.#peers.askForMissing(now, (id, ranges) =>
      this.#voice.say(id, { kind: 'missing', ranges }),
    );
    this.#countLate(now);
    this.#learning.tick(now);
    this.#anticipation.tick(now);
    if (now >= this.#compareAt) this.#comparing.ask(now);
    this.#forget(now);
  }

  /**
   * What comes in after a sleep was said during it, and would count as of now, though it has long flowed back
   * in elsewhere. So a node that wakes up is a newcomer once more, who has kept its name, its buckets and what
   * it has yet to tell: it meets the others again, hears them from then on, and learns how keys stand.
   */
  #lookAt(now: Millis): void {
    this.#now = now;
    if (now - this.#reportAt < ASLEEP_MS) return;
    this.#returning.clear(); // it is in what will be learned
    this.#peers.clear();
    this.#meeting.beginAnew(now);
    this.#learning.stop();
    this.#beatAt = now;
    this.#nextInterval(now);
  }

  #nextInterval(now: Millis): void {
    const { intervalMs } = this.#options;
    this.#reportAt +=
      intervalMs * Math.max(1, Math.ceil((now - this.#reportAt) / intervalMs + 1e-9));
  }

  /** A newcomer has nothing to compare. */
  get #compareAt(): Millis {
    return this.#isPrompt && this.#canCompare ? this.#comparing.askAt : Infinity;
  }

  get #canCompare(): boolean {
    return this.#learning.isDone && this.#returning.isEmpty;
  }

  /** Tells everybody what was served and not told yet, in as many datagrams as it takes. */
  flush(now: Millis): void {
    this.#isUrgent = false;
    if (this.#hits.size === 0) return;
    const entries = this.#hits.drain();
    const before = this.counts.reports;
    for (let at = 0; at < entries.length; ) {
      const count = fitting(entries, at) * ENTRY;
      this.#sendReport(entries.slice(at, at + count), now);
      at += count;
    }
    this.#budget.spend(this.counts.reports - before, now);
    this.#beatAt = now + this.#options.intervalMs;
  }

  #sendReport(entries: Entries, now: Millis): void {
    this.counts.reports++;
    if (this.#isPrompt) this.#anticipation.served(entries, now);
    const seq = this.#history.last + 1;
    this.#history.add(this.#voice.say(ALL, { kind: 'report', agoMs: 0, seq, entries }), now);
    this.#comparing.told(seq, entries);
  }

  /** Says that it is there, so that a lost last report is missed, and newcomers are found. */
  #beat(now: Millis): void {
    const { intervalMs, goneMs } = this.#options;
    const isAlone = this.#peers.size === 0;
    if (isAlone) {
      this.#meeting.callOut(now);
    } else {
      this.#voice.say(ALL, { kind: 'beat', seq: this.#history.last });
    }
    const everyMs = isAlone ? CALL_OUT_MS : Math.min(BEAT_MS, goneMs / 4);
    this.#beatAt = now + Math.max(intervalMs, everyMs);
  }

  /** Forgets who is gone for longer than anything of it could come again, and what is too old to repeat. */
  #forget(now: Millis): void {
    const { goneMs, historyMs } = this.#options;
    if (now < this.#forgetAt && !this.#history.isTooLarge) return;
    this.#forgetAt = now + FORGET_MS;
    this.#peers.forget(now, Math.max(goneMs, historyMs) + goneMs);
    this.#history.forget(now);
  }

  // From the side of the network.

  /** Takes in a datagram. Whatever cannot be understood, or is not for this node, changes nothing. */
  receive(bytes: Uint8Array, now: Millis): boolean {
    return this.take(decode(bytes), now);
  }

  /**
   * The same for one that was decoded already. True if it is certain that its sender has said it just now, as
   * nothing that came before was said later: so wherever it came from, its sender is there.
   */
  take(message: Message | undefined, now: Millis): boolean {
    this.#lookAt(now);
    if (message === undefined) {
      this.counts.senseless++;
      return false;
    }
    const { from, to, count } = message;
    if (from === this.id || (to !== ALL && to !== this.id)) return false;
    this.counts.received++;
    const peer = this.#peers.get(from);
    if (!peer) return this.#meeting.meet(message, now);
    const isLatest = peer.window.isLatest(count);
    if (!peer.window.accept(count)) {
      this.counts.duplicates++;
      return false;
    }
    this.#returning.look(peer, now);
    if (isLatest) peer.heardAt = now;
    const { lost } = peer.heard;
    this.#takeFrom(peer, message, now);
    if (peer.heard.lost > lost) this.#learning.begin(peer, now); // what was in it, it can still tell
    this.#peers.noteMissing(peer, now);
    this.#countLate(now);
    return isLatest;
  }

  #takeFrom(peer: Peer, message: Message, now: Millis): void {
    switch (message.kind) {
      case 'report':
        this.#hear(peer, message, now);
        break;
      case 'beat':
        peer.heard.noteLast(message.seq);
        break;
      case 'gone':
        peer.heard.giveUp(message.seq);
        break;
      case 'state':
        this.#learning.take(message, now);
        break;
      case 'levels':
        this.#comparing.take(peer, message, now);
        break;
      case 'welcome':
        break; // it has proved that before
      default:
        if (mayAnswer(peer, message.kind, now)) this.#answer(peer, message, now);
    }
  }

  #answer(
    peer: Peer,
    question: MessageOf<'hello' | 'missing' | 'ask-state' | 'ask-levels'>,
    now: Millis,
  ): void {
    switch (question.kind) {
      case 'hello':
        this.#meeting.welcome(question, now);
        break;
      case 'missing':
        this.#sendAgain(peer, question.ranges, now);
        break;
      case 'ask-state':
        this.#learning.tell(question);
        break;
      case 'ask-levels':
        if (this.#canCompare) this.#comparing.tell(peer, question, now);
    }
  }

  #hear(peer: Peer, { seq, agoMs, entries }: MessageOf<'report'>, now: Millis): void {
    if (!peer.heard.accept(seq)) {
      this.counts.duplicates++; // it was asked for, and came twice
      return;
    }
    peer.reports++;
    if (seq < peer.heard.last && this.#peers.isBehind(peer)) this.counts.repaired++;
    if (this.#returning.has(peer)) this.#returning.keep(peer, now - agoMs, entries);
    else this.#count(peer, entries, agoMs);
  }

  #count(peer: Peer, entries: Entries, agoMs: Millis): void {
    this.#comparing.heard(peer.id, entries);
    if (this.#isPrompt) this.#anticipation.heard(entries, this.#now);
    this.counts.unknown += this.#limits.hear(entries, agoMs);
  }

  #countLate(now: Millis): void {
    for (const { from, entries, servedAt } of this.#returning.due(now)) {
      this.#count(from, entries, now - servedAt);
    }
  }

  #sendAgain(to: Peer, ranges: readonly number[], now: Millis): void {
    const { first } = this.#history;
    if (ranges.length > 0 && ranges[0] < first) {
      this.#voice.say(to.id, { kind: 'gone', seq: first - 1 });
    }
    const reports = this.#history.again(ranges, AGAIN_MAX);
    for (const { bytes, at } of reports) this.#voice.sayAgain(to.id, bytes, Math.max(0, now - at));
    countAgain(to, reports.length);
  }

  /** True once it knows how keys stand elsewhere, or that there is nobody to know it from. */
  get hasLearned(): boolean {
    return this.#learning.isDone;
  }

  /** Nobody is there to learn from: what is known here is all there is. */
  startAlone(): void {
    this.#learning.startAlone();
  }

  /** Everybody who was heard lately. */
  peers(now: Millis): PeerView[] {
    return this.#peers.views(now);
  }
}
