/**
 * What the others are about to do is taken off before they tell.
 *
 * News takes its time. When the next token drips in, every node sees it, and each lets a call through until
 * it hears of the others: the further apart they are, the more all open together and close together. So a
 * node that serves a hit holds back what the others serve meanwhile if they go on as they last did: with a
 * quarter of the hits to itself, three more. What they then tell is met by what was held back for it; what
 * they do not tell fades, and is given back.
 *
 *     served here: 1 ──▶ 1 counted, 3 held back ──▶ told by others: 2 ──▶ 2 of the 3 are counted
 *                                               └─▶ nothing comes ──────▶ they fade in a moment
 *
 * So whoever has just served waits for its turn, as long as the others take theirs. Nobody ever lets through
 * more by it: it only ever holds back, and gives back no more than it has held. At most it holds back what
 * all serve in `EXPECT_MS`.
 */

import type { Millis } from '../../core/clock.ts';
import type { Limits, PeerLimit } from './limits.ts';
import { ENTRY, type Entries } from './messages.ts';

/** Keys it is done for at once: each has one place it can be at. A power of two. */
const PLACES = 4096;

/** With more hits than this lately, a key does not make room for another. */
const BUSY = 2;

/** Over so long it counts how hits are shared out. Longer is steadier, shorter follows a change sooner. */
const SHARES_MS: Millis = 1000;

/** What does not come in about so long is not expected any more: some ways there and back. */
const EXPECT_MS: Millis = 200;

/** Less than this is nothing. */
const DUST = 0.01;

interface Key {
  readonly id: number;
  readonly low: number;
  readonly high: number;
  /** When all of the following was true. */
  at: Millis;
  /** Hits lately, here and elsewhere. */
  own: number;
  others: number;
  held: number;
}

export class Anticipation {
  readonly #limits: Limits;
  readonly #places: (Key | undefined)[] = [];
  /** Those of which something is held back. */
  readonly #holding = new Set<Key>();

  constructor(limits: Limits) {
    this.#limits = limits;
  }

  /** These were served here, and are counted. */
  served(entries: Entries, now: Millis): void {
    for (let at = 0; at < entries.length; at += ENTRY) {
      this.#servedOne(entries[at], entries[at + 1], entries[at + 2], entries[at + 3], now);
    }
  }

  #servedOne(id: number, low: number, high: number, hits: number, now: Millis): void {
    const limit = this.#limits.byId(id);
    if (!limit?.addsUp) return;
    const key = this.#key(id, low, high, now);
    if (!key) return;
    this.#fade(key, limit, hits, now);
    key.own += hits;
    const meanwhile = ((key.own + key.others) * EXPECT_MS) / SHARES_MS;
    const more = Math.min((hits * key.others) / key.own, meanwhile - key.held);
    if (more > 0) this.#hold(key, limit, more);
  }

  /** Others served these, which are not counted yet. */
  heard(entries: Entries, now: Millis): void {
    for (let at = 0; at < entries.length; at += ENTRY) {
      this.#heardOne(entries[at], entries[at + 1], entries[at + 2], entries[at + 3], now);
    }
  }

  #heardOne(id: number, low: number, high: number, hits: number, now: Millis): void {
    const limit = this.#limits.byId(id);
    if (!limit?.addsUp) return;
    const key = this.#key(id, low, high, now);
    if (!key) return;
    this.#fade(key, limit, 0, now);
    key.others += hits;
    this.#hold(key, limit, -Math.min(hits, key.held));
  }

  /** How many hits of a key are held back. */
  of(id: number, low: number, high: number): number {
    const key = this.#places[(id ^ low) & (PLACES - 1)];
    return key?.id === id && key.low === low && key.high === high ? key.held : 0;
  }

  /** Gives back what is not expected any more. */
  tick(now: Millis): void {
    for (const key of this.#holding) {
      const limit = this.#limits.byId(key.id);
      if (limit) this.#fade(key, limit, 0, now);
      else this.#holding.delete(key);
    }
  }

  /** Gives back everything: what is counted now is what was served. */
  giveUp(): void {
    for (const key of this.#holding) this.#drop(key);
  }

  /** A key's place, unless it belongs to another that is busy. */
  #key(id: number, low: number, high: number, now: Millis): Key | undefined {
    const place = (id ^ low) & (PLACES - 1);
    const known = this.#places[place];
    if (known?.id === id && known.low === low && known.high === high) return known;
    if (known && known.own + known.others > BUSY && now - known.at < SHARES_MS) return undefined;
    if (known) this.#drop(known);
    const key = { id, low, high, at: now, own: 0, others: 0, held: 0 };
    this.#places[place] = key;
    return key;
  }

  /** `hits` have just been counted, and were not before. */
  #fade(key: Key, limit: PeerLimit, hits: number, now: Millis): void {
    const ms = Math.max(0, now - key.at);
    if (ms > 0) {
      key.at = now;
      const kept = Math.exp(-ms / SHARES_MS);
      key.own *= kept;
      key.others *= kept;
    }
    if (key.held === 0) return;
    // What is held back in a bucket that would be full by now has flowed back in already.
    key.held = Math.min(key.held, Math.max(0, limit.level(key.low, key.high) - hits));
    const left = key.held * Math.exp(-ms / EXPECT_MS);
    this.#hold(key, limit, (left > DUST ? left : 0) - key.held);
  }

  #hold(key: Key, limit: PeerLimit, more: number): void {
    if (more === 0) return;
    key.held += more;
    limit.move(key.low, key.high, more);
    if (key.held > 0) this.#holding.add(key);
    else this.#holding.delete(key);
  }

  #drop(key: Key): void {
    const limit = this.#limits.byId(key.id);
    if (limit) this.#fade(key, limit, 0, Infinity);
    this.#holding.delete(key);
    this.#places[(key.id ^ key.low) & (PLACES - 1)] = undefined;
  }
}
