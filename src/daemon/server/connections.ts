/**
 * Back-pressure: a client that does not read its responses is not read from. It is disconnected if it stays so, or
 * leaves a request incomplete. A client that pipelines without pause gets its slice of each turn (`turns.ts`).
 */

import type { Socket } from 'node:net';
import {
  type BatchClock,
  type Clock,
  type Millis,
  onImmediate,
  schedule,
} from '../../core/clock.ts';
import { scheduleDrainEnd } from '../config/drain-time.ts';
import type { Bounds } from '../config/read.ts';
import type { Holder } from './held-bytes.ts';
import { type EvictableConnection, IdleEviction } from './idle-eviction.ts';
import { IdleTimer, KEEP_ALIVE_MS } from './idle-timer.ts';
import { Arrival } from './overload.ts';
import type { ProtocolFactory, ProtocolHandler } from './protocol-handler.ts';
import { ReadAhead } from './read-ahead.ts';
import { CHUNK_BYTES, reuseReadBuffer } from './read-buffer.ts';
import { ResponseQueue } from './response-queue.ts';
import { Turns } from './turns.ts';

type ConnectionBounds = Pick<Bounds, 'maxConnections' | 'slowMs' | 'idleMs'>;

/** Counted since the start. */
export interface ConnectionCounts {
  readonly open: number;
  readonly accepted: number;
  /** Above the maximum number of connections. */
  readonly refused: number;
  /** Closed because of an invalid or too long request. */
  readonly protocolErrors: number;
  /** Closed because the client did not read its responses, or did not complete a request. */
  readonly slow: number;
  /** Closed because they were idle, at the maximum number of connections. */
  readonly evicted: number;
  /** Closed because all connections together held too many bytes, and these held most. */
  readonly oversized: number;
}

/** A client idle for this long has no request in transit. */
const QUIET_MS: Millis = 20;

/** Polls of a drain during which a client that keeps sending is read: about a second, longer on a busy host. */
const MAX_FINAL_POLLS = 50;

/** How long a client may take to close after the last response. */
const LINGER_MS: Millis = 2_000;

const EMPTY = Buffer.alloc(0);

export class Connections {
  readonly #createHandler: ProtocolFactory;
  readonly #bounds: () => ConnectionBounds;
  readonly #clock: Clock | BatchClock;
  readonly #turns: Turns;
  readonly #open = new Set<Connection>();
  readonly #eviction = new IdleEviction(this.#open);
  readonly #totals = {
    accepted: 0,
    refused: 0,
    protocolErrors: 0,
    slow: 0,
    evicted: 0,
    oversized: 0,
  };
  #cancelPoll = (): void => {};

  constructor(
    createHandler: ProtocolFactory,
    bounds: () => ConnectionBounds,
    clock: Clock | BatchClock,
    turns = new Turns(),
  ) {
    this.#createHandler = createHandler;
    this.#bounds = bounds;
    this.#clock = clock;
    this.#turns = turns;
  }

  get counts(): ConnectionCounts {
    return { open: this.#open.size, ...this.#totals };
  }

  accept(socket: Socket): void {
    const { held } = this.#turns;
    const { size } = this.#open;
    const isFull = held.isFull(size) || size >= this.#bounds().maxConnections;
    if (isFull && !this.#evict()) {
      this.#totals.refused++;
      socket.destroy();
      return;
    }
    this.#totals.accepted++;
    held.connections++;
    if (this.#open.size === 0) this.#schedulePoll();
    const [clock, turns] = [this.#clock, this.#turns];
    const connection = new Connection(socket, this.#createHandler, this.#bounds(), clock, turns, {
      onClosed: () => {
        held.connections--;
        this.#open.delete(connection);
      },
      onProtocolError: () => this.#totals.protocolErrors++,
      onSlow: () => this.#totals.slow++,
      onOversized: () => this.#totals.oversized++,
    });
    this.#open.add(connection);
  }

  /** Closes an idle connection; false if there is none. */
  #evict(): boolean {
    const chosen = this.#eviction.choose(this.#clock.now());
    if (chosen === undefined) return false;
    this.#totals.evicted++;
    this.#open.delete(chosen);
    chosen.destroy();
    return true;
  }

  /** Closes connections with a request that was incomplete at the last poll already. */
  #schedulePoll(): void {
    const at = this.#clock.now() + this.#bounds().slowMs;
    const poll = (): void => {
      for (const connection of this.#open) connection.dropIfStuck();
      if (this.#open.size > 0) this.#schedulePoll();
    };
    this.#cancelPoll();
    this.#cancelPoll = schedule(this.#clock, at, poll, false);
  }

  /** Answers what clients send until they pause, and closes all connections; those open after `withinMs` are destroyed. */
  async drain(withinMs: Millis): Promise<void> {
    const closed = [...this.#open].map((connection) => connection.closed);
    const cancelEnd = scheduleDrainEnd(this.#clock, withinMs, () => {
      for (const connection of this.#open) connection.destroy();
    });
    let cancel = (): void => {};
    const poll = (polls: number): void => {
      const now = this.#clock.now();
      for (const connection of polls > 0 ? this.#open : [])
        if (polls >= MAX_FINAL_POLLS || connection.isQuietAt(now)) connection.closeWhenDone();
      // After a stall, timers run before received bytes are read: read these first.
      const next = (): unknown => onImmediate(() => poll(polls + 1));
      if (this.#open.size > 0) cancel = schedule(this.#clock, now + QUIET_MS, next, true);
    };
    poll(0);
    await Promise.all(closed);
    cancel();
    cancelEnd();
  }
}

interface ConnectionObserver {
  onClosed(): void;
  onProtocolError(): void;
  onSlow(): void;
  onOversized(): void;
}

class Connection implements EvictableConnection, Holder {
  readonly #socket: Socket;
  readonly #handler: ProtocolHandler;
  readonly #responses: ResponseQueue;
  readonly #bounds: ConnectionBounds;
  readonly #clock: Clock;
  readonly #batchClock: BatchClock | undefined;
  readonly #turns: Turns;
  readonly #arrival: Arrival;
  readonly #ahead = new ReadAhead();
  readonly #observer: ConnectionObserver;
  /** Set while the client does not read, or has received everything and does not close. */
  #cancelTimeout: (() => void) | undefined;
  #isFinishing = false;
  /** True until its next turn: it has used its slice. */
  #isWaiting = false;
  lastReadAt: Millis;
  #lastWriteAt: Millis = -Infinity;
  readonly #idle: IdleTimer;
  #heldBytes = 0;
  /** Bytes received since a request waits. */
  #bytesBehindWait = 0;
  #incompleteAtLastPoll = 0;
  readonly closed: Promise<void>;

  constructor(
    accepted: Socket,
    createHandler: ProtocolFactory,
    bounds: ConnectionBounds,
    clock: Clock | BatchClock,
    turns: Turns,
    observer: ConnectionObserver,
  ) {
    this.#bounds = bounds;
    this.#clock = clock;
    this.#batchClock = 'freeze' in clock ? clock : undefined;
    this.#turns = turns;
    this.#arrival = new Arrival(turns.overload, turns.now);
    this.#observer = observer;
    this.lastReadAt = clock.now();
    this.#responses = new ResponseQueue(
      (bytes) => this.#write(bytes),
      () => this.#resumeReading(),
    );
    this.#handler = createHandler(this.#responses, turns);
    const socket = reuseReadBuffer(accepted, (chunk) => {
      if (this.#isFinishing) return;
      if (this.#isWaiting || !this.#ahead.isEmpty) this.#readAhead(chunk);
      else this.#process(chunk);
    });
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    this.#idle = new IdleTimer(
      clock,
      () => this.#lastUseAt,
      () => this.closeWhenDone(),
    );
    this.#idle.start(bounds.idleMs);
    socket.on('drain', () => this.#resumeReading());
    socket.on('end', () => {
      this.#handler.onDisconnect?.();
      this.closeWhenDone();
    });
    socket.on('error', () => socket.destroy()); // the client closed the connection
    this.closed = new Promise((resolve) => {
      socket.on('close', () => {
        this.#cancelTimeout?.();
        this.#idle.stop();
        this.#handler.onDisconnect?.();
        this.#account();
        observer.onClosed();
        resolve();
      });
    });
  }

  /** Processes a chunk that was just read or read ahead, or continues with the rest of one. */
  #process(chunk: Buffer, arrivedAfter?: Millis): void {
    const now = this.#turns.begin();
    if (arrivedAfter !== undefined) this.#arrival.beginReadAhead(arrivedAfter, now);
    else if (chunk.length > 0) this.#arrival.beginChunk(chunk.length, now);
    else this.#arrival.beginRest(now);
    this.#batchClock?.freeze(now); // one clock reading per slice
    this.lastReadAt = this.#clock.now();
    const goesOn = this.#handler.onData(chunk);
    this.#batchClock?.unfreeze();
    this.#turns.end();
    this.#arrival.isHeldBack = this.#responses.isFull;
    if (!goesOn) {
      if (!this.#handler.isClosedByClient) this.#observer.onProtocolError();
      this.#ahead.clear();
      this.closeWhenDone();
    } else if (this.#responses.isFull) this.#pauseIfFull(chunk.length);
    else if (this.#hasBacklog || chunk.length === CHUNK_BYTES) this.#waitForTurn();
    this.#account();
  }

  #account(): void {
    const queued = this.#responses.pendingBytes + this.#socket.writableLength;
    const held = this.#handler.heldBytes + this.#ahead.bytes + queued;
    const bytes = this.#socket.destroyed ? 0 : held;
    if (bytes === this.#heldBytes) return;
    this.#heldBytes = bytes;
    this.#turns.held.set(this, bytes);
  }

  refuse(): void {
    this.#observer.onOversized();
    this.#isFinishing = true;
    this.#heldBytes = 0;
    this.#ahead.clear();
    const hasReplies = this.#responses.pendingCount > 0 || this.#socket.writableLength > 0;
    if (!hasReplies) this.#handler.refuse();
    // At once: a client that does not close would keep the memory.
    if (hasReplies || this.#socket.writableLength > 0) this.destroy();
    else this.#socket.destroySoon();
  }

  #readAhead(chunk: Buffer): void {
    this.#ahead.add(chunk, this.#arrival.readAhead(chunk.length, this.#turns.now));
    this.#account();
    if (!this.#ahead.isFull) return;
    this.#arrival.isBehind = true;
    this.#socket.pause();
  }

  get #hasBacklog(): boolean {
    return this.#handler.hasBacklog || !this.#ahead.isEmpty;
  }

  /** Processes what was received first: the rest of a chunk, or one that was read ahead. */
  #processBacklog(): void {
    const next = this.#handler.hasBacklog ? undefined : this.#ahead.take();
    this.#process(next?.bytes ?? EMPTY, next?.arrivedAfter);
  }

  /** While a request waits, the client is read for a while, since it may leave. */
  #pauseIfFull(received: number): void {
    const { isWaiting } = this.#responses;
    this.#bytesBehindWait = isWaiting ? this.#bytesBehindWait + received : 0;
    if (!isWaiting || this.#bytesBehindWait >= CHUNK_BYTES) this.#socket.pause();
  }

  /** After a full chunk as well: the system would go on reading this connection before all others. */
  #waitForTurn(): void {
    if (!this.#turns.canReadAhead) this.#socket.pause();
    this.#isWaiting = true;
    this.#turns.wait(() => {
      this.#isWaiting = false;
      if (this.#socket.isPaused()) {
        this.lastReadAt = this.#clock.now(); // the client was not read from meanwhile
        this.#arrival.resume(this.#turns.now);
      }
      this.#resumeReading();
    });
  }

  /** A client that waits for a response is not idle. */
  get #lastUseAt(): Millis {
    const isPending = this.#responses.pendingCount > 0;
    return isPending ? this.#clock.now() : Math.max(this.lastReadAt, this.#lastWriteAt);
  }

  #write(bytes: Buffer): void {
    this.#lastWriteAt = this.#clock.now();
    if (this.#socket.destroyed || this.#socket.write(bytes)) return;
    this.#responses.isBlocked = true;
    this.#socket.pause();
    this.#startSlowTimer();
  }

  #startSlowTimer(): void {
    const until = this.#clock.now() + this.#bounds.slowMs;
    this.#cancelTimeout ??= schedule(this.#clock, until, () => this.#drop(), false);
  }

  /** The client reads again, a remote response has arrived, or it is this connection's turn. */
  #resumeReading(): void {
    this.#account();
    if (this.#socket.destroyed || this.#socket.writableNeedDrain) return;
    this.#cancelTimeout?.();
    this.#cancelTimeout = undefined;
    this.#responses.isBlocked = false;
    if (this.#isWaiting) return;
    this.#bytesBehindWait = 0;
    if (this.#hasBacklog && this.#responses.canResume) this.#processBacklog();
    if (this.#isFinishing) this.closeWhenDone();
    else if (this.#responses.canResume && this.#canRead) this.#socket.resume();
  }

  get #canRead(): boolean {
    return !this.#ahead.isFull && (!this.#isWaiting || this.#turns.canReadAhead);
  }

  /** Closes once every received request is answered. */
  closeWhenDone(): void {
    this.#isFinishing = true;
    if (this.#responses.pendingCount > 0 || this.#hasBacklog || this.#socket.writableEnded) return;
    this.#socket.end(() => this.#awaitClientClose());
    this.#socket.resume(); // further data is discarded, but the client's end is seen
    if (this.#socket.writableLength > 0) this.#startSlowTimer();
  }

  /** All responses are sent: the client should close now. */
  #awaitClientClose(): void {
    this.#cancelTimeout?.();
    if (this.#socket.destroyed) return;
    const until = this.#clock.now() + LINGER_MS;
    this.#cancelTimeout = schedule(this.#clock, until, () => this.#socket.destroy(), false);
  }

  get idleSince(): Millis | undefined {
    const isPending = this.#responses.pendingCount > 0 || this.#hasBacklog;
    return isPending || this.#isWaiting ? undefined : this.lastReadAt;
  }

  /** True if the client has sent nothing for a moment. While the connection waits for its turn, that is not known. */
  isQuietAt(now: Millis): boolean {
    return !this.#isWaiting && now - this.lastReadAt >= QUIET_MS;
  }

  dropIfStuck(): void {
    const incomplete = this.#handler.incompleteRequest;
    if (incomplete !== 0 && incomplete === this.#incompleteAtLastPoll) this.#drop();
    this.#incompleteAtLastPoll = incomplete;
  }

  #drop(): void {
    this.#observer.onSlow();
    this.#socket.destroy();
  }

  destroy(): void {
    this.#socket.destroy();
  }
}
