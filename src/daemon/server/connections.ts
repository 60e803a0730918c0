/**
 * Connections: sockets on one side, conversations on the other, and a bound on everything.
 *
 * A client that does not read its answers is not read any further, and is let go if it stays so; one
 * more than the bound is turned away; one that vanished without a word is found by keep-alive probes.
 * None of them costs the others more than its place.
 */

import type { Socket } from 'node:net';
import { alarm, type Clock, type HeldClock, type Millis } from '../../core/clock.ts';
import type { Conversation, Converse } from './protocol-handler.ts';
import { heardInPlace } from './read-buffer.ts';
import { Answers } from './response-queue.ts';

export interface StreamBounds {
  /** The most connections at once, over all addresses of a surface. */
  readonly connectionsMax: number;
  /** A client that does not read its answers for so long is let go. */
  readonly slowMs: Millis;
  /** A client that says nothing for so long is let go; Infinity: never. */
  readonly idleMs: Millis;
}

/** What happened to connections, from the start on. */
export interface StreamCounts {
  readonly open: number;
  readonly accepted: number;
  /** Turned away: there were too many. */
  readonly refused: number;
  /** Ended because what they said made no sense, or was too long. */
  readonly senseless: number;
  /** Let go because they did not read their answers. */
  readonly slow: number;
}

/** Silence before the system asks a client whether it is still there. */
const KEEP_ALIVE_MS = 30_000;

/** Who said nothing for so long is not in the middle of asking. */
const SILENT_MS: Millis = 20;

/** So long is heard, when stopping, who does not end. */
const LAST_WORDS_MS_MAX: Millis = 1000;

/** How long whoever has got everything may take to hang up. */
const LINGER_MS: Millis = 2_000;

const NOTHING = Buffer.alloc(0);

export class Streams {
  readonly #converse: Converse;
  readonly #bounds: () => StreamBounds;
  readonly #clock: Clock | HeldClock;
  readonly #open = new Set<Stream>();
  #accepted = 0;
  #refused = 0;
  #senseless = 0;
  #slow = 0;

  constructor(converse: Converse, bounds: () => StreamBounds, clock: Clock | HeldClock) {
    this.#converse = converse;
    this.#bounds = bounds;
    this.#clock = clock;
  }

  get counts(): StreamCounts {
    return {
      open: this.#open.size,
      accepted: this.#accepted,
      refused: this.#refused,
      senseless: this.#senseless,
      slow: this.#slow,
    };
  }

  accept(socket: Socket): void {
    if (this.#open.size >= this.#bounds().connectionsMax) {
      this.#refused++;
      socket.destroy();
      return;
    }
    this.#accepted++;
    const stream = new Stream(socket, this.#converse, this.#bounds(), this.#clock, {
      ended: () => this.#open.delete(stream),
      senseless: () => this.#senseless++,
      slow: () => this.#slow++,
    });
    this.#open.add(stream);
  }

  /**
   * Answers what was asked, hears nothing more, and hangs up. Who is in the middle of asking is heard to
   * the end of it, if that is soon.
   */
  async drain(withinMs: Millis): Promise<void> {
    const startedAt = this.#clock.now();
    const ended = [...this.#open].map((stream) => stream.ended);
    const look = (): void => {
      const now = this.#clock.now();
      for (const stream of this.#open) {
        if (now - startedAt >= withinMs) stream.destroy();
        else if (now - stream.heardAt >= SILENT_MS || now - startedAt >= LAST_WORDS_MS_MAX) {
          stream.finish();
        }
      }
      cancel = alarm(this.#clock, now + SILENT_MS, look, true);
    };
    let cancel = (): void => {};
    look();
    await Promise.all(ended);
    cancel();
  }
}

interface Told {
  ended(): void;
  senseless(): void;
  slow(): void;
}

class Stream {
  readonly #socket: Socket;
  readonly #conversation: Conversation;
  readonly #answers: Answers;
  readonly #bounds: StreamBounds;
  readonly #clock: Clock;
  readonly #held: HeldClock | undefined;
  readonly #told: Told;
  /** Set while the client does not read, or has got everything and does not hang up. */
  #patience: (() => void) | undefined;
  #isFinishing = false;
  /** When something came last. */
  heardAt: Millis;
  readonly ended: Promise<void>;

  constructor(
    accepted: Socket,
    converse: Converse,
    bounds: StreamBounds,
    clock: Clock | HeldClock,
    told: Told,
  ) {
    this.#bounds = bounds;
    this.#clock = clock;
    this.#held = 'hold' in clock ? clock : undefined;
    this.#told = told;
    this.heardAt = clock.now();
    this.#answers = new Answers(
      (bytes) => this.#write(bytes),
      () => this.#goOn(),
    );
    this.#conversation = converse(this.#answers);
    const socket = heardInPlace(accepted, (chunk) => this.#hear(chunk));
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    if (bounds.idleMs < Infinity) socket.setTimeout(bounds.idleMs, () => this.#hangUp());
    socket.on('drain', () => this.#goOn());
    socket.on('end', () => this.#hangUp());
    socket.on('error', () => socket.destroy()); // it hung up: nothing to tell anybody
    this.ended = new Promise((resolve) => {
      socket.on('close', () => {
        this.#patience?.();
        told.ended();
        resolve();
      });
    });
  }

  #hear(chunk: Buffer): void {
    if (!this.#isFinishing) this.#converse(chunk);
  }

  #converse(chunk: Buffer): void {
    this.#held?.hold(); // all that came in one piece came at once
    this.heardAt = this.#clock.now();
    const isFine = this.#conversation.hear(chunk);
    this.#held?.letGo();
    if (!isFine) {
      if (!this.#conversation.isGoodbye) this.#told.senseless();
      this.#hangUp();
    } else if (this.#answers.isFull) this.#socket.pause();
  }

  #write(bytes: Buffer): void {
    if (this.#socket.destroyed || this.#socket.write(bytes)) return;
    this.#answers.isStuck = true;
    this.#socket.pause();
    this.#expectReading();
  }

  #expectReading(): void {
    const until = this.#clock.now() + this.#bounds.slowMs;
    this.#patience ??= alarm(this.#clock, until, () => this.#giveUp(), false);
  }

  #giveUp(): void {
    this.#told.slow();
    this.#socket.destroy();
  }

  /** The client reads again, or an answer that was owed has come. */
  #goOn(): void {
    if (this.#socket.destroyed || this.#socket.writableNeedDrain) return;
    this.#patience?.();
    this.#patience = undefined;
    this.#answers.isStuck = false;
    if (this.#conversation.isBehind && this.#answers.hasRoom) this.#converse(NOTHING);
    if (this.#isFinishing) this.#hangUp();
    else if (this.#answers.hasRoom) this.#socket.resume();
  }

  /** Ends when everything that was asked is answered. */
  #hangUp(): void {
    this.#isFinishing = true;
    if (this.#answers.owed > 0 || this.#conversation.isBehind || this.#socket.writableEnded) return;
    this.#socket.end(() => this.#linger());
    this.#socket.resume(); // whatever still comes is not heard, but the client's goodbye is
    if (this.#socket.writableLength > 0) this.#expectReading();
  }

  /** Everything is out: now it is the client's turn to hang up. */
  #linger(): void {
    this.#patience?.();
    if (this.#socket.destroyed) return;
    const until = this.#clock.now() + LINGER_MS;
    this.#patience = alarm(this.#clock, until, () => this.#socket.destroy(), false);
  }

  finish(): void {
    this.#hangUp();
  }

  destroy(): void {
    this.#socket.destroy();
  }
}
