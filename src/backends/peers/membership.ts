/**
 * How nodes meet. Whoever is heard for the first time is asked to prove that it is there now; once it has, it is a
 * peer, and what it tells counts from a report on that both agree on.
 *
 *     hello, how old I am ───▶
 *                         ◀─── welcome, how old I am, and which of my reports you can have
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { Strangers } from './handshake.ts';
import type { Returning } from './late-reports.ts';
import { ALL, type Message, type MessageOf, type NodeId } from './messages.ts';
import type { Peers } from './peer-table.ts';
import { mayAnswer } from './response-limiter.ts';
import type { History } from './retransmit-buffer.ts';
import type { Voice } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import type { Learning } from './state-transfer.ts';

/** Nodes that are so alike in age have begun together. */
const TOGETHER_MS: Millis = 500;

/** What a node knows, as far as meeting others needs it. */
interface Knowledge {
  readonly voice: Voice;
  readonly peers: Peers;
  readonly history: History;
  readonly learning: Learning;
  readonly returning: Returning;
  readonly random: Random;
}

export class Meeting {
  readonly #own: Knowledge;
  readonly #options: PeerOptions;
  readonly #strangers: Strangers;
  /** Since when it takes part: since it was started, or woke up. */
  #bornAt: Millis;

  constructor(own: Knowledge, options: PeerOptions, now: Millis) {
    this.#own = own;
    this.#options = options;
    this.#strangers = new Strangers(own.random, options.goneMs);
    this.#bornAt = now;
  }

  /** From now on it is a newcomer, and what was asked so far proves nothing any more. */
  beginAnew(now: Millis): void {
    this.#bornAt = now;
    this.#strangers.clear();
  }

  /** Asks everybody, where it knows nobody. */
  callOut(now: Millis): void {
    this.#sayHello(ALL, now);
  }

  /** A node that was not heard before has to prove that it is there now. True if it did. */
  meet(message: Message, now: Millis): boolean {
    const { from } = message;
    if (message.kind === 'welcome' && this.#strangers.hasProved(from, message.nonce, now)) {
      return this.#admit(message, now);
    }
    const stranger = this.#strangers.get(from);
    if (message.kind === 'hello' && mayAnswer(stranger, 'hello', now)) {
      this.welcome(message, now);
    }
    if (this.#own.peers.isFull || now < stranger.askAt) return false;
    this.#sayHello(from, now);
    return false;
  }

  #sayHello(to: NodeId, now: Millis): void {
    const nonce = this.#strangers.nonceFor(to, now);
    this.#own.voice.say(to, { kind: 'hello', nonce, ageMs: this.#ageMs(now) });
  }

  /** It never seems older than it is. */
  #ageMs(now: Millis): Millis {
    return Math.max(0, Math.floor(now - this.#bornAt));
  }

  /** The answer to whoever asks. */
  welcome({ from: to, nonce, ageMs: theirs }: MessageOf<'hello'>, now: Millis): void {
    const { history, voice } = this.#own;
    history.forget(now);
    const { last: seq } = history;
    const first = history.firstSince(now - theirs);
    const [ageMs, { name }] = [this.#ageMs(now), this.#options];
    voice.say(to, { kind: 'welcome', nonce, seq, first, ageMs, name });
  }

  /**
   * From now on it is heard. One that has just begun itself is told by a neighbour how keys stand, and
   * hears what comes from here on; others want everything the newcomer still has, and nothing from before.
   */
  #admit(welcome: MessageOf<'welcome'>, now: Millis): boolean {
    const { from: id, count, seq, first, ageMs, name } = welcome;
    if (this.#own.peers.isFull) return false;
    this.#strangers.forget(id);
    const ownAgeMs = now - this.#bornAt;
    // One that was there before, and was only met late: most of what it told, the neighbour has told.
    const isOlder = ageMs > ownAgeMs && ownAgeMs < this.#options.goneMs;
    // Those that begin together have nothing to learn from each other: each wants all that the other told.
    const areTwins = !isOlder && ownAgeMs - ageMs < TOGETHER_MS;
    const isWhole = !isOlder && (this.#own.learning.isDone || areTwins);
    const who = { id, name, count, bornAt: now - ageMs };
    const peer = this.#own.peers.add(who, isWhole ? Math.min(first - 1, seq) : seq, seq, now);
    if (!peer.heard.isComplete) this.#own.returning.meet(peer, Math.min(ageMs, ownAgeMs), now);
    if (!isWhole || first > 1) this.#own.learning.begin(peer, now);
    return true;
  }
}
