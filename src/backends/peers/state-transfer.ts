/**
 * How a newcomer learns from a neighbour how keys stand, limit by limit and page by page.
 *
 *     ask-state, cursor 0 ───▶
 *                         ◀─── state, next 80
 *                         ◀─── state, next 160      (several pages for one question)
 *     ask-state, cursor 160 ─▶
 *                         ◀─── state, next 0: that was all
 *
 * It is heard only from whoever was asked, while it is asked, each page once: later it would do harm. A
 * neighbour that falls silent is left, and another asked for what is still to be learned.
 *
 * Whoever has been there longest knows most, so the oldest is asked, and one that is met later and is older
 * still is asked in its place. Newcomers that begin at once have nothing to tell each other: who is learning
 * tells nobody, but for the one it learns from.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { keysPerPage } from './codec.ts';
import type { Limits } from './limits.ts';
import { freshNumber, type MessageOf, type NodeId } from './messages.ts';
import type { Peer, Peers } from './peer-table.ts';
import type { Hits } from './pending-hits.ts';
import type { Anticipation } from './prediction.ts';
import type { Voice } from './sender.ts';

/** How often it asks if no answer comes. */
const ASK_AGAIN_MS: Millis = 50;

/** One that does not answer for so long is left. */
const SILENT_MS: Millis = 1000;

/** More of the same answer may be on its way. */
const OVERTAKEN_MS: Millis = 10;

/** What a neighbour told and is missing here is had first, if it comes so soon: else it would count twice. */
const MISSING_MS: Millis = 5000;

/** Neighbours to learn from, one after the other: each of them knows what all have told. */
const TEACHERS_MAX = 2;

/** Pages for one question; when they have come, the next is asked at once. */
const PAGES = 16;

const NOTHING = { standings: [], next: 0 };

/** What a node knows, as far as learning needs it. */
interface Knowledge {
  readonly voice: Voice;
  readonly limits: Limits;
  readonly hits: Hits;
  readonly anticipation: Anticipation;
  readonly peers: Peers;
  readonly random: Random;
  /** Whether everything that a peer told was counted. */
  isHeard(peer: Peer): boolean;
}

export class Learning {
  readonly #own: Knowledge;
  /** Ids of limits yet to be learned, the first of them at the moment. */
  #wanted: number[] = [];
  /** From whom, the oldest first and at the moment. */
  #teachers: Peer[] = [];
  /** Who was left because it did not answer. */
  readonly #silent = new Set<NodeId>();
  #nonce = 0;
  #cursor = 0;
  /** That came since the last question. */
  #pages = 0;
  #beganAt: Millis = 0;
  #answeredAt: Millis = 0;
  #askAt: Millis = Infinity;
  /** Everything was learned once, or nobody was there to learn from. */
  isDone = false;

  constructor(own: Knowledge) {
    this.#own = own;
  }

  /** When `tick` has something to do. */
  get wakeAt(): Millis {
    return this.#teachers.length === 0 ? Infinity : this.#askAt;
  }

  /** A limit that was taken on is to be learned as well. */
  add(id: number): void {
    if (!this.#wanted.includes(id)) this.#wanted.push(id);
  }

  /** Learns all limits, also those that were learned before; after whoever is older, if it is at it. */
  begin(from: Peer, now: Millis): void {
    if (this.#teachers.includes(from)) return;
    const teachers = [...this.#teachers, from].sort((a, b) => a.bornAt - b.bornAt);
    this.#teachers = teachers.slice(0, TEACHERS_MAX);
    if (this.#teachers[0] === from) this.#learnAll(now);
  }

  /** Nobody was there to learn from: what is known here is all there is. */
  startAlone(): void {
    if (this.#teachers.length > 0) return; // somebody is about to tell
    this.#wanted = [];
    this.isDone = true;
  }

  /** Asks nobody any more. */
  stop(): void {
    this.#teachers = [];
  }

  #learnAll(now: Millis): void {
    this.#wanted = this.#own.limits.ids;
    this.#ask(now);
  }

  /** From the first of them, from the beginning of what is still wanted. */
  #ask(now: Millis): void {
    this.#nonce = freshNumber(this.#own.random);
    this.#cursor = 0;
    this.#beganAt = now;
    this.#answeredAt = now;
    this.#askAt = now;
  }

  tick(now: Millis): void {
    this.#wanted = this.#wanted.filter((id) => this.#own.limits.byId(id));
    if (this.#teachers.length === 0) this.#findNeighbour(now);
    if (now < this.wakeAt) return;
    if (this.#wanted.length === 0) this.#finish(now);
    if (this.#isSilent(now)) this.#leave(now);
    const [teacher] = this.#teachers;
    if (!teacher) return;
    this.#askAt = now + ASK_AGAIN_MS;
    if (this.#hasYetToHear(teacher, now)) return;
    this.#pages = 0;
    const place = { limit: this.#wanted[0], cursor: this.#cursor };
    this.#own.voice.say(teacher.id, { kind: 'ask-state', nonce: this.#nonce, ...place });
  }

  /** A newcomer knows it all now; for others, what the next has to tell is why it is there. */
  #finish(now: Millis): void {
    this.#teachers = this.isDone ? this.#teachers.slice(1) : [];
    this.isDone = true;
    this.#silent.clear();
    if (this.#teachers.length > 0) this.#learnAll(now);
  }

  #isSilent(now: Millis): boolean {
    if (this.#teachers.length === 0) return false;
    return !this.#own.peers.isThere(this.#teachers[0], now) || now - this.#answeredAt > SILENT_MS;
  }

  /** Goes on with another, if there is one. */
  #leave(now: Millis): void {
    const [silent, ...others] = this.#teachers;
    this.#silent.add(silent.id);
    this.#teachers = others;
    if (others.length > 0) this.#ask(now);
    else this.#findNeighbour(now);
  }

  /** The first is found by being met; later the oldest will do that was not asked in vain. */
  #findNeighbour(now: Millis): void {
    if (this.#wanted.length === 0) return;
    const neighbour = this.#own.peers.oldest(this.#silent, now);
    if (neighbour) {
      this.#teachers = [neighbour];
      this.#ask(now);
    } else this.#silent.clear(); // from the beginning, next time
  }

  /** A newcomer hears only what is told from now on, and misses nothing. */
  #hasYetToHear(teacher: Peer, now: Millis): boolean {
    const isBehind = this.isDone && !this.#own.isHeard(teacher);
    if (!isBehind || now - this.#beganAt > MISSING_MS) return false;
    this.#answeredAt = now; // it was not asked
    return true;
  }

  /** Only what was asked for, in its order: each of it counts once. */
  take(state: MessageOf<'state'>, now: Millis): void {
    const { standings, buckets, next } = state;
    const isAsked = this.#teachers.at(0)?.id === state.from && this.#nonce === state.nonce;
    const isNext = this.#wanted[0] === state.limit && this.#cursor === state.cursor;
    const limit = this.#own.limits.byId(state.limit);
    if (!limit || !isAsked || !isNext) return;
    if (standings.length > 0 && limit.buckets !== buckets) return;
    this.#own.anticipation.giveUp(); // or what is learned would be given back
    for (let at = 0; at < standings.length; at += 2 + buckets) {
      const [low, high] = [standings[at], standings[at + 1]];
      const untold = this.#own.hits.of(limit.id, low, high); // the other one cannot have counted these
      const fullInMs = standings.slice(at + 2, at + 2 + buckets);
      this.#own.limits.raise(limit.id, low, high, fullInMs, untold);
    }
    this.#cursor = next;
    this.#answeredAt = now;
    this.#pages++;
    this.#askAt = next > 0 && this.#pages < PAGES ? now + OVERTAKEN_MS : now;
    if (next === 0) this.#wanted.shift();
  }

  /** The other side of it: tells what it knows, unless it is about to know more. */
  tell({ from, nonce, limit: id, cursor: first }: MessageOf<'ask-state'>): void {
    const teacher = this.#teachers.at(0);
    if (!this.isDone && teacher && teacher.id !== from) return;
    const limit = this.#own.limits.byId(id);
    const buckets = limit?.buckets ?? 0;
    let cursor = first;
    for (let n = 0; n < PAGES && (n === 0 || cursor > 0); n++) {
      const page = limit?.stateFrom(cursor, keysPerPage(buckets)) ?? NOTHING;
      this.#own.voice.say(from, { kind: 'state', nonce, limit: id, cursor, buckets, ...page });
      cursor = page.next;
    }
  }
}
