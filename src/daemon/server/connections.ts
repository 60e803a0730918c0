/**
 * Connections: sockets on one side, conversations on the other, and a bound on everything.
 *
 * A client that does not read its answers is not read any further, and is let go if it stays so; one
 * more than the bound is turned away; one that vanished without a word is found by keep-alive probes.
 * None of them costs the others more than its place.
 */

import type { Socket } from 'node:net';
import { type BatchClock, type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { ProtocolFactory, ProtocolHandler } from './protocol-handler.ts';
import { reuseReadBuffer } from './read-buffer.ts';
import { ResponseQueue } from './response-queue.ts';

export interface ConnectionBounds {
  /** The most connections at once, over all addresses of a surface. */
  readonly maxConnections: number;
  /** A client that does not read its answers for so long is let go. */
  readonly slowMs: Millis;
  /** A client that says nothing for so long is let go; Infinity: never. */
  readonly idleMs: Millis;
}

/** What happened to connections, from the start on. */
export interface ConnectionCounts {
  readonly open: number;
  readonly accepted: number;
  /** Turned away: there were too many. */
  readonly refused: number;
  /** Ended because what they said made no sense, or was too long. */
  readonly protocolErrors: number;
  /** Let go because they did not read their answers. */
  readonly slow: number;
}

/** Silence before the system asks a client whether it is still there. */
const KEEP_ALIVE_MS = 30_000;

/** Who said nothing for so long is not in the middle of asking. */
const QUIET_MS: Millis = 20;

/** So long is heard, when stopping, who does not end. */
const MAX_FINAL_READ_MS: Millis = 1000;

/** How long whoever has got everything may take to hang up. */
const LINGER_MS: Millis = 2_000;

const EMPTY = Buffer.alloc(0);

export class Connections {
  readonly #createHandler: ProtocolFactory;
  readonly #bounds: () => ConnectionBounds;
  readonly #clock: Clock | BatchClock;
  readonly #open = new Set<Connection>();
  #accepted = 0;
  #refused = 0;
  #protocolErrors = 0;
  #slow = 0;

  constructor(
    createHandler: ProtocolFactory,
    bounds: () => ConnectionBounds,
    clock: Clock | BatchClock,
  ) {
    this.#createHandler = createHandler;
    this.#bounds = bounds;
    this.#clock = clock;
  }

  get counts(): ConnectionCounts {
    return {
      open: this.#open.size,
      accepted: this.#accepted,
      refused: this.#refused,
      protocolErrors: this.#protocolErrors,
      slow: this.#slow,
    };
  }

  accept(socket: Socket): void {
    if (this.#open.size >= this.#bounds().maxConnections) {
      this.#refused++;
      socket.destroy();
      return;
    }
    this.#accepted++;
    const connection = new Connection(socket, this.#createHandler, this.#bounds(), this.#clock, {
      onClosed: () => this.#open.delete(connection),
      onProtocolError: () => this.#protocolErrors++,
      onSlowReader: () => this.#slow++,
    });
    this.#open.add(connection);
  }

  /**
   * Answers what was asked, hears nothing more, and hangs up. Who is in the middle of asking is heard to
   * the end of it, if that is soon.
   */
  async drain(withinMs: Millis): Promise<void> {
    const startedAt = this.#clock.now();
    const ended = [...this.#open].map((connection) => connection.closed);
    const poll = (): void => {
      const now = this.#clock.now();
      for (const connection of this.#open) {
        if (now - startedAt >= withinMs) connection.destroy();
        else if (now - connection.lastReadAt >= QUIET_MS || now - startedAt >= MAX_FINAL_READ_MS) {
          connection.finish();
        }
      }
      cancel = schedule(this.#clock, now + QUIET_MS, poll, true);
    };
    let cancel = (): void => {};
    poll();
    await Promise.all(ended);
    cancel();
  }
}

interface ConnectionObserver {
  onClosed(): void;
  onProtocolError(): void;
  onSlowReader(): void;
}

class Connection {
  readonly #socket: Socket;
  readonly #handler: ProtocolHandler;
  readonly #responses: ResponseQueue;
  readonly #bounds: ConnectionBounds;
  readonly #clock: Clock;
  readonly #batchClock: BatchClock | undefined;
  readonly #observer: ConnectionObserver;
  /** Set while the client does not read, or has got everything and does not hang up. */
  #cancelTimeout: (() => void) | undefined;
  #isFinishing = false;
  /** When something came last. */
  lastReadAt: Millis;
  readonly closed: Promise<void>;

  constructor(
    accepted: Socket,
    createHandler: ProtocolFactory,
    bounds: ConnectionBounds,
    clock: Clock | BatchClock,
    observer: ConnectionObserver,
  ) {
    this.#bounds = bounds;
    this.#clock = clock;
    this.#batchClock = 'freeze' in clock ? clock : undefined;
    this.#observer = observer;
    this.lastReadAt = clock.now();
    this.#responses = new ResponseQueue(
      (bytes) => this.#write(bytes),
      () => this.#resumeReading(),
    );
    this.#handler = createHandler(this.#responses);
    const socket = reuseReadBuffer(accepted, (chunk) => this.#onData(chunk));
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    if (bounds.idleMs < Infinity) socket.setTimeout(bounds.idleMs, () => this.#closeWhenDone());
    socket.on('drain', () => this.#resumeReading());
    socket.on('end', () => this.#closeWhenDone());
    socket.on('error', () => socket.destroy()); // it hung up: nothing to tell anybody
    this.closed = new Promise((resolve) => {
      socket.on('close', () => {
        this.#cancelTimeout?.();
        observer.onClosed();
        resolve();
      });
    });
  }

  #onData(chunk: Buffer): void {
    if (!this.#isFinishing) this.#process(chunk);
  }

  #process(chunk: Buffer): void {
    this.#batchClock?.freeze(); // all that came in one piece came at once
    this.lastReadAt = this.#clock.now();
    const isFine = this.#handler.onData(chunk);
    this.#batchClock?.unfreeze();
    if (!isFine) {
      if (!this.#handler.isClosedByClient) this.#observer.onProtocolError();
      this.#closeWhenDone();
    } else if (this.#responses.isFull) this.#socket.pause();
  }

  #write(bytes: Buffer): void {
    if (this.#socket.destroyed || this.#socket.write(bytes)) return;
    this.#responses.isBlocked = true;
    this.#socket.pause();
    this.#startSlowTimer();
  }

  #startSlowTimer(): void {
    const until = this.#clock.now() + this.#bounds.slowMs;
    this.#cancelTimeout ??= schedule(this.#clock, until, () => this.#dropSlow(), false);
  }

  #dropSlow(): void {
    this.#observer.onSlowReader();
    this.#socket.destroy();
  }

  /** The client reads again, or an answer that was owed has come. */
  #resumeReading(): void {
    if (this.#socket.destroyed || this.#socket.writableNeedDrain) return;
    this.#cancelTimeout?.();
    this.#cancelTimeout = undefined;
    this.#responses.isBlocked = false;
    if (this.#handler.hasBacklog && this.#responses.canResume) this.#process(EMPTY);
    if (this.#isFinishing) this.#closeWhenDone();
    else if (this.#responses.canResume) this.#socket.resume();
  }

  /** Ends when everything that was asked is answered. */
  #closeWhenDone(): void {
    this.#isFinishing = true;
    if (this.#responses.pendingCount > 0 || this.#handler.hasBacklog || this.#socket.writableEnded)
      return;
    this.#socket.end(() => this.#awaitClientClose());
    this.#socket.resume(); // whatever still comes is not heard, but the client's goodbye is
    if (this.#socket.writableLength > 0) this.#startSlowTimer();
  }

  /** Everything is out: now it is the client's turn to hang up. */
  #awaitClientClose(): void {
    this.#cancelTimeout?.();
    if (this.#socket.destroyed) return;
    const until = this.#clock.now() + LINGER_MS;
    this.#cancelTimeout = schedule(this.#clock, until, () => this.#socket.destroy(), false);
  }

  finish(): void {
    this.#closeWhenDone();
  }

  destroy(): void {
    this.#socket.destroy();
  }
}
