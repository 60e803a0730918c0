/**
 * Who is asked how keys stand, and when: once a second somebody, by chance, of whom nothing is missing. What
 * is made of the answer is told in `recent-keys.ts`.
 *
 * After a split that is healed, one has all that a third told meanwhile and the other has yet to hear it. If
 * they compared then, what was made even would be counted once more when it comes: so whoever waits for a lot
 * neither asks nor answers.
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { Limits } from './limits.ts';
import { ENTRY, type Entries, freshNumber, type MessageOf, type NodeId } from './messages.ts';
import type { Peer, Peers } from './peer-table.ts';
import type { Hits } from './pending-hits.ts';
import type { Anticipation } from './prediction.ts';
import { COMPARED_MAX, Comparison, Lately } from './recent-keys.ts';
import type { History } from './retransmit-buffer.ts';
import type { Voice } from './sender.ts';

/** How often it compares how keys stand with another node. */
const COMPARE_MS: Millis = 1000;

/**
 * If that comes to nothing it tries again, after so many times as an answer took last, within bounds. Where
 * datagrams are lost most questions come to nothing, and the node that is ahead is the hardest to compare
 * with: it tells so often that something of it is always missing.
 */
const PATIENCE = 4;
const PATIENCE_MS_MIN: Millis = 20;
const PATIENCE_MS_MAX: Millis = 200;

/** What a node knows, as far as comparing needs it. */
export interface Knowledge {
  readonly voice: Voice;
  readonly limits: Limits;
  readonly hits: Hits;
  readonly anticipation: Anticipation;
  readonly peers: Peers;
  readonly history: History;
  readonly random: Random;
}

export class Comparing {
  readonly #own: Knowledge;
  /** What was served lately, and with whom that is compared. */
  readonly #lately = new Lately();
  #comparison: Comparison | undefined;
  #askedAt: Millis;
  #patienceMs: Millis = PATIENCE_MS_MAX;
  /** When `ask` is to be called. */
  askAt: Millis;

  constructor(own: Knowledge, now: Millis) {
    this.#own = own;
    this.#askedAt = now;
    this.askAt = now + COMPARE_MS * (1 + own.random()); // not all of a fleet at once
  }

  /** This node told so much. */
  told(seq: number, entries: Entries): void {
    this.#comparison?.told(seq, entries);
    this.#lately.note(entries);
  }

  /** Another one did. */
  heard(from: NodeId, entries: Entries): void {
    if (this.#comparison?.with === from) this.#comparison.heard(entries);
    this.#lately.note(entries);
  }

  /** Asks somebody, by chance, how keys stand there that were served lately. */
  ask(now: Millis): void {
    this.#askedAt = now;
    this.askAt = now + this.#patienceMs;
    this.#comparison = undefined; // an answer that took so long says nothing any more
    const { peers, random, voice, history } = this.#own;
    if (this.#lately.isEmpty || peers.isFarBehind(now)) return;
    const other = peers.somebody(random, now);
    if (!other) return;
    const comparison = new Comparison(other.id, freshNumber(random), history.last);
    this.#eachLevel(this.#lately.take(), (limit, low, high, level) =>
      comparison.add(limit, low, high, level),
    );
    const { nonce, entries } = comparison;
    if (entries.length === 0) return;
    this.#comparison = comparison;
    voice.say(other.id, { kind: 'ask-levels', nonce, entries });
  }

  /** Answers another node's question, if everything that it told was counted here. */
  tell({ id, heard }: Peer, { nonce, entries: asked }: MessageOf<'ask-levels'>, now: Millis): void {
    if (!heard.isComplete || this.#own.peers.isFarBehind(now)) return;
    const entries: number[] = [];
    this.#eachLevel(asked.slice(0, COMPARED_MAX * ENTRY), (...entry) => entries.push(...entry));
    if (entries.length === 0) return;
    const counted = { seq: this.#own.history.last, heard: heard.last };
    this.#own.voice.say(id, { kind: 'levels', nonce, ...counted, entries });
  }

  /** Each answer counts once, and only the one to the question that is open. True if it is that. */
  take(peer: Peer, { nonce, seq, heard, entries }: MessageOf<'levels'>, now: Millis): boolean {
    const comparison = this.#comparison;
    if (comparison?.with !== peer.id || comparison.nonce !== nonce) return false;
    this.#comparison = undefined;
    const patienceMs = Math.max(PATIENCE_MS_MIN, PATIENCE * (now - this.#askedAt));
    this.#patienceMs = Math.min(PATIENCE_MS_MAX, patienceMs);
    if (!peer.heard.isComplete || peer.heard.last !== seq) return true; // what it counted has yet to come
    const isCompared = comparison.moves(
      entries,
      heard,
      (limit, low, high) => this.#levelOf(limit, low, high),
      (limit, low, high, by) => this.#own.limits.byId(limit)?.move(low, high, by),
    );
    if (isCompared) this.askAt = now + COMPARE_MS;
    return true;
  }

  /** Of these keys, those of which something is spent. */
  #eachLevel(
    keys: Entries,
    act: (limit: number, low: number, high: number, level: number) => void,
  ): void {
    for (let at = 0; at < keys.length; at += ENTRY) {
      const [limit, low, high] = keys.slice(at, at + ENTRY);
      const level = this.#levelOf(limit, low, high);
      if (level > 0) act(limit, low, high, level);
    }
  }

  /** What is spent of a key, but for what nobody was told of and what nobody has served yet. */
  #levelOf(id: number, low: number, high: number): number {
    const limit = this.#own.limits.byId(id);
    if (!limit) return 0;
    const { hits, anticipation } = this.#own;
    return limit.level(low, high) - hits.of(id, low, high) - anticipation.of(id, low, high);
  }
}
