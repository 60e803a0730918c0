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
 */

import type { Millis } from '../../clock.ts';
import type { Random } from '../../random.ts';
import type { Limits } from './limits.ts';
import type { Peers } from './peers.ts';
import type { Voice } from './voice.ts';
import { freshNumber, keysPerPage, type MessageOf, type NodeId } from './wire.ts';

/** How often it asks if no answer comes. */
const ASK_AGAIN_MS: Millis = 50;

/** More of the same answer may be on its way. */
const OVERTAKEN_MS: Millis = 10;

/** Pages for one question. */
const PAGES = 8;

const NOTHING = { standings: [], next: 0 };

export class Learning {
  readonly #voice: Voice;
  readonly #limits: Limits;
  readonly #peers: Peers;
  readonly #random: Random;
  /** Ids of limits yet to be learned, the first of them at the moment. */
  #wanted: number[] = [];
  #from: NodeId | undefined;
  #nonce = 0;
  #cursor = 0;
  #askAt: Millis = Infinity;
  /** Everything was learned once, or nobody was there to learn from. */
  isDone = false;

  constructor(voice: Voice, limits: Limits, peers: Peers, random: Random) {
    this.#voice = voice;
    this.#limits = limits;
    this.#peers = peers;
    this.#random = random;
  }

  /** When `tick` has something to do. */
  get wakeAt(): Millis {
    return this.#from === undefined ? Infinity : this.#askAt;
  }

  /** A limit that was taken on is to be learned as well. */
  add(id: number): void {
    if (!this.#wanted.includes(id)) this.#wanted.push(id);
  }

  /** Learns all limits, also those that were learned before; unless it is at it already. */
  begin(from: NodeId, now: Millis): void {
    if (this.#from !== undefined) return;
    this.#wanted = this.#limits.ids;
    this.#ask(from, now);
  }

  /** Nobody was there to learn from: what is known here is all there is. */
  startAlone(): void {
    if (this.#from === undefined) this.#wanted = [];
    this.isDone = true;
  }

  #ask(from: NodeId, now: Millis): void {
    this.#from = from;
    this.#nonce = freshNumber(this.#random);
    this.#cursor = 0;
    this.#askAt = now;
  }

  tick(now: Millis): void {
    this.#wanted = this.#wanted.filter((id) => this.#limits.byId(id));
    if (this.#from === undefined) this.#findNeighbour(now);
    if (this.#from === undefined || now < this.#askAt) return;
    if (this.#wanted.length === 0 || !this.#peers.isThere(this.#peers.get(this.#from), now)) {
      this.isDone ||= this.#wanted.length === 0;
      this.#from = undefined;
      return;
    }
    this.#askAt = now + ASK_AGAIN_MS;
    const place = { limit: this.#wanted[0], cursor: this.#cursor };
    this.#voice.say(this.#from, { kind: 'ask-state', nonce: this.#nonce, ...place });
  }

  /** The first is found by being met; later anybody will do. */
  #findNeighbour(now: Millis): void {
    if (this.#wanted.length === 0 || this.#peers.size === 0) return;
    const neighbour = this.#peers.somebody(this.#random, now);
    if (neighbour) this.#ask(neighbour.id, now);
  }

  /** Only what was asked for, in its order: each of it counts once. True if it is news. */
  take(state: MessageOf<'state'>, now: Millis): boolean {
    const { standings, buckets, next } = state;
    const isAsked = this.#from === state.from && this.#nonce === state.nonce;
    const isNext = this.#wanted[0] === state.limit && this.#cursor === state.cursor;
    const limit = this.#limits.byId(state.limit);
    if (!limit || !isAsked || !isNext) return false;
    if (standings.length > 0 && limit.buckets !== buckets) return false;
    for (let at = 0; at < standings.length; at += 2 + buckets) {
      const fullInMs = standings.slice(at + 2, at + 2 + buckets);
      limit.raise(standings[at], standings[at + 1], fullInMs);
    }
    this.#cursor = next;
    this.#askAt = next > 0 ? now + OVERTAKEN_MS : now;
    if (next === 0) this.#wanted.shift();
    return true;
  }

  /** The other side of it. */
  tell({ from, nonce, limit: id, cursor: first }: MessageOf<'ask-state'>): void {
    const limit = this.#limits.byId(id);
    const buckets = limit?.buckets ?? 0;
    let cursor = first;
    for (let n = 0; n < PAGES && (n === 0 || cursor > 0); n++) {
      const page = limit?.stateFrom(cursor, keysPerPage(buckets)) ?? NOTHING;
      this.#voice.say(from, { kind: 'state', nonce, limit: id, cursor, buckets, ...page });
      cursor = page.next;
    }
  }
}
