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
 * A node that is heard for the first time has to prove that it is there now, by answering with a number
 * made for it: what somebody recorded earlier and sends again proves nothing. From then on each of its
 * reports counts once, in whatever order they come, and what does not come is asked for. How keys stand is
 * heard from whoever was asked, while it was asked: such an answer would do harm later.
 */

import type { Millis } from '../../clock.ts';
import type { Random } from '../../random.ts';
import { Heard } from './heard.ts';
import { History } from './history.ts';
import { Hits } from './hits.ts';
import { COMPARED_MAX, Comparison, Lately } from './levels.ts';
import {
  ALL,
  decode,
  ENTRY,
  type Entries,
  encode,
  fitting,
  type Message,
  type NodeId,
} from './wire.ts';

/** Sends a datagram to a node that was heard before, or to everybody. */
export type Send = (to: NodeId, bytes: Uint8Array) => void;

/** One limit, as the engine meets it. */
export interface PeerLimit {
  /** What all of the fleet call it: the same rule under the same name is the same number. */
  readonly id: number;
  /** Others served so many. */
  hear(low: number, high: number, hits: number): void;
  /** How keys stand from a place on, at most so many: entries without their limit, and where to go on. */
  stateFrom(cursor: number, most: number): { readonly entries: Entries; readonly next: number };
  /** A key is as good as new in so long, and no sooner. */
  raise(low: number, high: number, freshInMs: Millis): void;
  /** How much of a key is spent; 0 if it is as good as new, or not known. */
  level(low: number, high: number): number;
  /** Counts so much more as spent, or so much less. */
  move(low: number, high: number, by: number): void;
}

export interface PeerOptions {
  /** How often it reports. */
  readonly intervalMs: Millis;
  /** `prompt` also reports as soon as a key has so many hits that nobody was told of. */
  readonly exchange: 'interval' | 'prompt';
  readonly slack: number;
  /** Reports a second at most, also when much is prompt: more is told in fewer, fuller ones. */
  readonly reportsMax: number;
  /** A peer that was silent for so long is gone. */
  readonly goneMs: Millis;
  /** How long, and how many bytes of, its own reports it keeps for those who missed them. */
  readonly historyMs: Millis;
  readonly historyBytes: number;
  /** For people. */
  readonly name: string;
}

export const PEER_DEFAULTS: PeerOptions = {
  intervalMs: 100,
  exchange: 'prompt',
  slack: 1,
  reportsMax: 100,
  goneMs: 5000,
  historyMs: 60_000,
  historyBytes: 4 * 1024 * 1024,
  name: '',
};

/** Peers known at once; more are not heard. */
export const PEERS_MAX = 4096;

/** Strangers that were asked to prove that they are there, and have not yet. */
const STRANGERS_MAX = 1024;

/** A report out of order is not missing yet. */
const OVERTAKEN_MS: Millis = 10;

/** How often a peer is asked for what is missing, and a stranger who it is. */
const ASK_AGAIN_MS: Millis = 50;

/** What is missing is asked for in so many ranges at once. */
const RANGES_MAX = 32;

/** Reports sent again for one question. */
const AGAIN_MAX = 64;

/**
 * What a node is answered at most, as a span for each answer and how much may come at once. It asks less
 * often by itself; somebody who recorded a question may send it as often as he likes.
 */
const ANSWER_MS = { hello: 10, missing: 10, state: 2, levels: 10 } as const;
const ANSWERS_AHEAD_MS: Millis = 200;

/** Entries of how keys stand in one datagram, and datagrams for one question. */
const STATE_ENTRIES = 80;
const STATE_DATAGRAMS = 8;

/** How often it compares how keys stand with another node. */
const COMPARE_MS: Millis = 1000;

/** How soon it tries again if that came to nothing. */
const COMPARE_AGAIN_MS: Millis = 200;

/** How often it looks who is gone and what is too old to keep. */
const FORGET_MS: Millis = 1000;

/** Datagrams that may go out at once after a quiet spell. */
const REPORTS_BURST = 10;

/** What is known of another node. */
export interface PeerView {
  readonly id: NodeId;
  readonly name: string;
  /** How long ago it was heard last. */
  readonly ageMs: Millis;
  /** Reports that were heard, asked for again, given up. */
  readonly heard: number;
  readonly missing: number;
  readonly lost: number;
}

interface Peer {
  readonly id: NodeId;
  name: string;
  heardAt: Millis;
  readonly heard: Heard;
  /** The number of its last beat. */
  beats: number;
  /** Until when it has had its share of answers. */
  answeredTo: Millis;
  reports: number;
  /** When it may be asked again. */
  askAt: Millis;
}

interface Stranger {
  nonce: number;
  /** Until when an answer to it proves anything. */
  nonceTo: Millis;
  askAt: Millis;
  answeredTo: Millis;
}

/** What has been sent and what came, from the start on. */
export interface PeerCounts {
  readonly reports: number;
  readonly sent: number;
  readonly sentBytes: number;
  readonly received: number;
  readonly senseless: number;
  readonly duplicates: number;
  readonly repaired: number;
}

export class PeerEngine {
  readonly id: NodeId;
  readonly #options: PeerOptions;
  readonly #random: Random;
  readonly #send: Send;
  readonly #limits: PeerLimit[] = [];
  readonly #byId = new Map<number, PeerLimit>();
  readonly #hits = new Hits();
  readonly #peers = new Map<NodeId, Peer>();
  /** Those of them of whom something is missing. */
  readonly #behind = new Set<Peer>();
  readonly #strangers = new Map<NodeId, Stranger>();
  readonly #history: History;
  #beats = 0;
  #reportAt: Millis;
  #beatAt: Millis;
  #tokens = REPORTS_BURST;
  #tokensAt: Millis;
  #isUrgent = false;
  #forgetAt: Millis;
  /** Whom this one learns from how keys stand, and from where on. */
  #learning:
    | { from: NodeId; nonce: number; limit: number; cursor: number; askAt: Millis }
    | undefined;
  #hasLearned = false;
  readonly #bornAt: Millis;
  /** What was served lately, and with whom that is compared. */
  readonly #lately = new Lately();
  #comparison: Comparison | undefined;
  #compareAt: Millis;
  readonly counts = {
    reports: 0,
    sent: 0,
    sentBytes: 0,
    received: 0,
    senseless: 0,
    duplicates: 0,
    repaired: 0,
  };

  constructor(options: PeerOptions, random: Random, send: Send, now: Millis) {
    this.#options = options;
    this.#random = random;
    this.#send = send;
    this.#history = new History(options.historyMs, options.historyBytes);
    this.id = this.#number();
    this.#reportAt = now + options.intervalMs;
    this.#beatAt = now;
    this.#tokensAt = now;
    this.#forgetAt = now + FORGET_MS;
    this.#bornAt = now;
    // Not all of a fleet at once; and where hits come in lumps, what is under way says more than a level.
    const isSmooth = options.exchange === 'prompt';
    this.#compareAt = isSmooth ? now + COMPARE_MS * (1 + random()) : Infinity;
  }

  /** A number of 48 bits that nobody else has, and never 0. */
  #number(): number {
    return 1 + Math.floor(this.#random() * (2 ** 48 - 1));
  }

  /** Takes on a limit; what comes back is how `served` calls it. */
  join(limit: PeerLimit): number {
    this.#byId.set(limit.id, limit);
    return this.#limits.push(limit) - 1;
  }

  // From the side of the limits.

  /** A call was let through here. True if somebody should be told before the interval is over. */
  served(limit: number, low: number, high: number, hits: number): boolean {
    if (hits <= 0) return false;
    const unheard = this.#hits.add(limit, low, high, hits);
    if (this.#options.exchange === 'prompt' ? unheard < this.#options.slack : !this.#hits.isFull) {
      return false;
    }
    const isNews = !this.#isUrgent;
    this.#isUrgent = true;
    return isNews;
  }

  /** A call that was let through did not happen. What others were told already stays told. */
  unserved(limit: number, low: number, high: number, hits: number): void {
    this.#hits.takeBack(limit, low, high, hits);
  }

  // From the side of the clock.

  /** When `tick` has something to do. */
  wakeAt(now: Millis): Millis {
    let at = Math.min(this.#reportAt, this.#beatAt, this.#compareAt);
    if (this.#isUrgent) at = Math.min(at, this.#tokenAt(now));
    for (const { askAt } of this.#behind) at = Math.min(at, askAt);
    if (this.#learning) at = Math.min(at, this.#learning.askAt);
    return at;
  }

  tick(now: Millis): void {
    const isDue = now >= this.#reportAt;
    if (isDue || (this.#isUrgent && this.#tokenAt(now) <= now)) this.#report(now);
    if (isDue) this.#nextInterval(now);
    if (now >= this.#beatAt) this.#beat(now);
    this.#askForMissing(now);
    this.#learn(now);
    if (now >= this.#compareAt) this.#compare(now);
    this.#forget(now);
  }

  /** Tells at once what nobody was told of yet. */
  flush(now: Millis): void {
    this.#report(now);
  }

  #nextInterval(now: Millis): void {
    const { intervalMs } = this.#options;
    this.#reportAt +=
      intervalMs * Math.max(1, Math.ceil((now - this.#reportAt) / intervalMs + 1e-9));
  }

  /** When a report may go out that does not wait for the interval. */
  #tokenAt(now: Millis): Millis {
    this.#refill(now);
    if (this.#tokens >= 1) return now;
    return this.#tokensAt + ((1 - this.#tokens) * 1000) / this.#options.reportsMax;
  }

  #refill(now: Millis): void {
    const gained = (Math.max(0, now - this.#tokensAt) * this.#options.reportsMax) / 1000;
    this.#tokens = Math.min(REPORTS_BURST, this.#tokens + gained);
    this.#tokensAt = Math.max(this.#tokensAt, now);
  }

  /** Tells everybody what was served since the last time, in as many datagrams as it takes. */
  #report(now: Millis): void {
    this.#isUrgent = false;
    if (this.#hits.size === 0) return;
    const entries = this.#hits.drain(this.#limits.map(({ id }) => id));
    for (let at = 0; at < entries.length; ) {
      const count = fitting(entries, at) * ENTRY;
      this.#sendReport(entries.slice(at, at + count), now);
      at += count;
    }
    this.#refill(now);
    this.#tokens -= 1;
    this.#beatAt = now + this.#options.intervalMs;
  }

  #sendReport(entries: Entries, now: Millis): void {
    this.counts.reports++;
    const seq = this.#history.last + 1;
    this.#history.add(this.#say({ kind: 'report', from: this.id, to: ALL, seq, entries }), now);
    this.#comparison?.told(seq, entries);
    this.#lately.note(entries);
  }

  /** Says that it is there, so that a lost last report is missed, and newcomers are found. */
  #beat(now: Millis): void {
    const isAlone = this.#peers.size === 0;
    if (isAlone)
      this.#say({ kind: 'hello', from: this.id, to: ALL, nonce: this.#nonceFor(ALL, now) });
    else {
      this.#beats++;
      this.#say({
        kind: 'beat',
        from: this.id,
        to: ALL,
        seq: this.#history.last,
        count: this.#beats,
      });
    }
    const everyMs = isAlone ? 200 : Math.min(1000, this.#options.goneMs / 4);
    this.#beatAt = now + Math.max(this.#options.intervalMs, everyMs);
  }

  // From the side of the network.

  /** Takes in a datagram. Whatever cannot be understood, or is not for this node, changes nothing. */
  receive(bytes: Uint8Array, now: Millis): boolean {
    return this.take(decode(bytes), now);
  }

  /**
   * The same for one that was decoded already. True if it is certain that its sender has said it just
   * now: nobody can have recorded it earlier, so wherever it came from, its sender is there.
   */
  take(message: Message | undefined, now: Millis): boolean {
    if (message === undefined) {
      this.counts.senseless++;
      return false;
    }
    const { from, to } = message;
    if (from === this.id || (to !== ALL && to !== this.id)) return false;
    this.counts.received++;
    const peer = this.#peers.get(from);
    if (!peer) return this.#meet(message, now);
    const isNew = this.#takeFrom(peer, message, now);
    if (isNew) peer.heardAt = now;
    this.#noteMissing(peer, now);
    return isNew;
  }

  #takeFrom(peer: Peer, message: Message, now: Millis): boolean {
    switch (message.kind) {
      case 'report':
        return this.#hear(peer, message.seq, message.entries);
      case 'beat':
        if (message.count <= peer.beats) return false;
        peer.beats = message.count;
        peer.heard.noteLast(message.seq);
        return true;
      case 'hello':
        if (mayAnswer(peer, ANSWER_MS.hello, now)) this.#welcome(peer.id, message.nonce, now);
        return false;
      case 'missing':
        if (mayAnswer(peer, ANSWER_MS.missing, now)) this.#sendAgain(peer.id, message.ranges);
        return false;
      case 'gone': {
        const { lost } = peer.heard;
        peer.heard.giveUp(message.seq);
        if (peer.heard.lost > lost) this.#learnFrom(peer.id, now);
        return false;
      }
      case 'ask-state':
        if (mayAnswer(peer, ANSWER_MS.state, now)) this.#tellState(message);
        return false;
      case 'state':
        return this.#learned(message, now);
      case 'ask-levels':
        if (mayAnswer(peer, ANSWER_MS.levels, now)) {
          this.#tellLevels(peer, message.nonce, message.entries);
        }
        return false;
      case 'levels':
        return this.#compared(peer, message, now);
      case 'welcome':
        return false;
    }
  }

  #hear(peer: Peer, seq: number, entries: Entries): boolean {
    if (!peer.heard.accept(seq)) {
      this.counts.duplicates++;
      return false;
    }
    peer.reports++;
    if (seq < peer.heard.last && this.#behind.has(peer)) this.counts.repaired++;
    if (this.#comparison?.with === peer.id) this.#comparison.heard(entries);
    this.#lately.note(entries);
    for (let at = 0; at < entries.length; at += ENTRY) {
      this.#byId.get(entries[at])?.hear(entries[at + 1], entries[at + 2], entries[at + 3]);
    }
    return true;
  }

  // Who is there.

  /** A node that was not heard before has to prove that it is there now. True if it did. */
  #meet(message: Message, now: Millis): boolean {
    const { from } = message;
    if (message.kind === 'welcome' && this.#isAnswered(from, message.nonce, now)) {
      return this.#admit(message, now);
    }
    const stranger = this.#stranger(from);
    if (message.kind === 'hello' && mayAnswer(stranger, ANSWER_MS.hello, now)) {
      this.#welcome(from, message.nonce, now);
    }
    if (this.#peers.size >= PEERS_MAX || now < stranger.askAt) return false;
    this.#say({ kind: 'hello', from: this.id, to: from, nonce: this.#nonceFor(from, now) });
    return false;
  }

  #welcome(to: NodeId, nonce: number, now: Millis): void {
    const { name } = this.#options;
    this.#history.forget(now);
    const { first } = this.#history;
    const ageMs = Math.max(0, Math.round(now - this.#bornAt));
    const own = { seq: this.#history.last, first, ageMs, name };
    this.#say({ kind: 'welcome', from: this.id, to, nonce, ...own });
  }

  #stranger(id: NodeId): Stranger {
    const known = this.#strangers.get(id);
    if (known) return known;
    if (this.#strangers.size >= STRANGERS_MAX) {
      const [oldest] = this.#strangers.keys();
      this.#strangers.delete(oldest);
    }
    const stranger = { nonce: 0, nonceTo: -Infinity, askAt: -Infinity, answeredTo: -Infinity };
    this.#strangers.set(id, stranger);
    return stranger;
  }

  /**
   * A number that only whoever is there can answer. It is good for less time than anybody is remembered:
   * an answer that has let somebody in never lets it in again.
   */
  #nonceFor(id: NodeId, now: Millis): number {
    const stranger = this.#stranger(id);
    if (now >= stranger.nonceTo) {
      stranger.nonce = this.#number();
      stranger.nonceTo = now + this.#options.goneMs;
    }
    stranger.askAt = now + ASK_AGAIN_MS;
    return stranger.nonce;
  }

  #isAnswered(from: NodeId, nonce: number, now: Millis): boolean {
    const isIt = (own: Stranger | undefined): boolean => own?.nonce === nonce && now < own.nonceTo;
    return isIt(this.#strangers.get(from)) || isIt(this.#strangers.get(ALL));
  }

  /**
   * From now on it is heard. One that has just begun itself is told by a neighbour how keys stand, and
   * hears what comes from here on; others want everything the newcomer still has, and nothing from before.
   */
  #admit(welcome: Extract<Message, { kind: 'welcome' }>, now: Millis): boolean {
    const { from: id, seq, first, name } = welcome;
    if (this.#peers.size >= PEERS_MAX) return false;
    this.#strangers.delete(id);
    const ownAgeMs = now - this.#bornAt;
    // One that was there before, and was only met late: most of what it told, the neighbour has told.
    const isOlder = welcome.ageMs > ownAgeMs && ownAgeMs < this.#options.goneMs;
    const heard = new Heard(this.#hasLearned && !isOlder ? Math.min(first - 1, seq) : seq);
    heard.noteLast(seq);
    const peer = {
      ...{ id, name, heardAt: now, heard, beats: 0, answeredTo: -Infinity },
      ...{ reports: 0, askAt: now },
    };
    this.#peers.set(id, peer);
    this.#noteMissing(peer, now);
    if (!this.#hasLearned || isOlder || first > 1) this.#learnFrom(id, now);
    return true;
  }

  /** Forgets who is gone for longer than anything of it could come again, and what is too old to repeat. */
  #forget(now: Millis): void {
    const { goneMs, historyMs } = this.#options;
    if (now < this.#forgetAt && !this.#history.isTooLarge) return;
    this.#forgetAt = now + FORGET_MS;
    for (const [id, peer] of this.#peers) {
      if (now - peer.heardAt <= Math.max(goneMs, historyMs) + goneMs) continue;
      this.#peers.delete(id);
      this.#behind.delete(peer);
    }
    this.#history.forget(now);
  }

  // What did not come.

  #noteMissing(peer: Peer, now: Millis): void {
    if (peer.heard.isComplete) {
      if (this.#behind.size > 0) this.#behind.delete(peer);
    } else if (!this.#behind.has(peer)) {
      this.#behind.add(peer);
      peer.askAt = now + OVERTAKEN_MS;
    }
  }

  #askForMissing(now: Millis): void {
    for (const peer of this.#behind) {
      if (now < peer.askAt) continue;
      const ranges = peer.heard.missing(RANGES_MAX);
      peer.askAt = now + ASK_AGAIN_MS;
      if (now - peer.heardAt > this.#options.goneMs) continue; // nobody is there to ask
      this.#say({ kind: 'missing', from: this.id, to: peer.id, ranges });
    }
  }

  #sendAgain(to: NodeId, ranges: readonly number[]): void {
    const { first } = this.#history;
    if (ranges.length > 0 && ranges[0] < first) {
      this.#say({ kind: 'gone', from: this.id, to, seq: first - 1 });
    }
    for (const bytes of this.#history.again(ranges, AGAIN_MAX)) this.#put(to, bytes);
  }

  // How keys stand elsewhere.

  #learnFrom(from: NodeId, now: Millis): void {
    this.#learning ??= { from, nonce: this.#number(), limit: 0, cursor: 0, askAt: now };
  }

  #learn(now: Millis): void {
    const learning = this.#learning;
    if (!learning || now < learning.askAt) return;
    const limit = this.#limits[learning.limit];
    const isThere =
      now - (this.#peers.get(learning.from)?.heardAt ?? -Infinity) < this.#options.goneMs;
    if (!limit || !isThere) {
      this.#learning = undefined;
      this.#hasLearned ||= limit === undefined;
      return;
    }
    learning.askAt = now + ASK_AGAIN_MS;
    const { from: to, nonce, cursor } = learning;
    this.#say({ kind: 'ask-state', from: this.id, to, nonce, limit: limit.id, cursor });
  }

  #tellState(asked: Extract<Message, { kind: 'ask-state' }>): void {
    const { from: to, nonce, limit: id } = asked;
    const limit = this.#byId.get(id);
    let { cursor } = asked;
    for (let n = 0; n < STATE_DATAGRAMS && (n === 0 || cursor > 0); n++) {
      const { entries, next } = limit?.stateFrom(cursor, STATE_ENTRIES) ?? NOTHING;
      this.#say({ kind: 'state', from: this.id, to, nonce, limit: id, cursor, next, entries });
      cursor = next;
    }
  }

  /** Only what was asked for, in its order: each of it counts once. */
  #learned(state: Extract<Message, { kind: 'state' }>, now: Millis): boolean {
    const limit = this.#byId.get(state.limit);
    const learning = this.#learning;
    const isNext =
      learning?.nonce === state.nonce &&
      learning.from === state.from &&
      this.#limits[learning.limit] === limit &&
      learning.cursor === state.cursor;
    if (!learning || !limit || !isNext) return false;
    const { entries } = state;
    for (let at = 0; at < entries.length; at += ENTRY) {
      limit.raise(entries[at + 1], entries[at + 2], entries[at + 3]);
    }
    learning.cursor = state.next;
    learning.askAt = now + OVERTAKEN_MS; // more of the same answer may be on its way
    if (state.next > 0) return true;
    learning.limit++;
    learning.askAt = now;
    return true;
  }

  // How keys stand here and there.

  /** Asks somebody, by chance, how keys stand there that were served lately. */
  #compare(now: Millis): void {
    this.#compareAt = now + COMPARE_AGAIN_MS;
    this.#comparison = undefined; // an answer that took so long says nothing any more
    if (this.#lately.isEmpty || !this.#hasLearned) return;
    const other = this.#somebody(now);
    if (!other) return;
    const keys = this.#lately.take();
    const comparison = new Comparison(other.id, this.#number(), this.#history.last);
    for (let at = 0; at < keys.length; at += ENTRY) {
      const [limit, low, high] = keys.slice(at);
      const level = this.#levelOf(limit, low, high);
      if (level > 0) comparison.add(limit, low, high, level);
    }
    const { nonce, entries } = comparison;
    if (entries.length === 0) return;
    this.#comparison = comparison;
    this.#say({ kind: 'ask-levels', from: this.id, to: other.id, nonce, entries });
  }

  /** Any node that is there, and of whom nothing is missing. */
  #somebody(now: Millis): Peer | undefined {
    let left = Math.floor(this.#random() * (this.#peers.size - this.#behind.size));
    for (const peer of this.#peers.values()) {
      if (!peer.heard.isComplete || left-- > 0) continue;
      return now - peer.heardAt <= this.#options.goneMs ? peer : undefined;
    }
    return undefined;
  }

  /** What is spent of a key, but for what nobody was told of. */
  #levelOf(id: number, low: number, high: number): number {
    const limit = this.#byId.get(id);
    if (!limit) return 0;
    return limit.level(low, high) - this.#hits.of(this.#limits.indexOf(limit), low, high);
  }

  #tellLevels({ id, heard }: Peer, nonce: number, asked: Entries): void {
    if (!this.#hasLearned || !heard.isComplete) return;
    const entries: number[] = [];
    for (let at = 0; at < Math.min(asked.length, COMPARED_MAX * ENTRY); at += ENTRY) {
      const level = this.#levelOf(asked[at], asked[at + 1], asked[at + 2]);
      if (level > 0) entries.push(asked[at], asked[at + 1], asked[at + 2], level);
    }
    if (entries.length === 0) return;
    const counted = { seq: this.#history.last, heard: heard.last };
    this.#say({ kind: 'levels', from: this.id, to: id, nonce, ...counted, entries });
  }

  /** Each answer counts once, and only the one to the question that is open. */
  #compared(peer: Peer, levels: Extract<Message, { kind: 'levels' }>, now: Millis): boolean {
    const { nonce, seq, heard, entries } = levels;
    const comparison = this.#comparison;
    if (comparison?.with !== peer.id || comparison.nonce !== nonce) return false;
    this.#comparison = undefined;
    if (!peer.heard.isComplete || peer.heard.last !== seq) return true; // what it counted has yet to come
    this.#compareAt = now + COMPARE_MS;
    comparison.moves(
      entries,
      heard,
      (limit, low, high) => this.#levelOf(limit, low, high),
      (limit, low, high, by) => this.#byId.get(limit)?.move(low, high, by),
    );
    return true;
  }

  /** True once it knows how keys stand elsewhere, or that there is nobody to know it from. */
  get hasLearned(): boolean {
    return this.#hasLearned;
  }

  /** Nobody was there to learn from: what is known here is all there is. */
  startAlone(): void {
    this.#hasLearned = true;
  }

  /** Everybody who was heard lately. */
  peers(now: Millis): PeerView[] {
    return [...this.#peers.values()]
      .filter((peer) => now - peer.heardAt <= this.#options.goneMs)
      .map(({ id, name, heardAt, reports, heard }) => ({
        id,
        name,
        ageMs: now - heardAt,
        heard: reports,
        missing: heard.missing(RANGES_MAX).reduce((sum, own, n) => sum + (n % 2 ? own : 0), 0),
        lost: heard.lost,
      }));
  }

  #say(message: Message): Uint8Array {
    const bytes = encode(message);
    this.#put(message.to, bytes);
    return bytes;
  }

  #put(to: NodeId, bytes: Uint8Array): void {
    this.counts.sent++;
    this.counts.sentBytes += bytes.length;
    this.#send(to, bytes);
  }
}

const NOTHING = { entries: [], next: 0 };

/** Whether somebody has not been answered too often lately; counts this answer if so. */
function mayAnswer(whom: { answeredTo: Millis }, everyMs: Millis, now: Millis): boolean {
  const to = Math.max(whom.answeredTo, now - ANSWERS_AHEAD_MS) + everyMs;
  if (to > now) return false;
  whom.answeredTo = to;
  return true;
}
