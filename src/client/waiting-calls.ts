/**
 * Sends commands that wait, each over a connection of its own: commands behind a waiting one wait too.
 *
 *     acquire ──▶ idle connection, or a new one ──▶ SLUICE.ACQUIRE … WAIT ms ──▶ reply ──▶ connection is idle
 *                                                          └── abort, deadline ──▶ connection closes: the call leaves the queue
 */

import { scheduleDeadline } from '../core/call-deadline.ts';
import { type Millis, schedule } from '../core/clock.ts';
import { DaemonConnection, type RequestError } from './connection.ts';
import type { ClientSettings } from './options.ts';
import { encodeCommand, RespError, type RespValue } from './resp.ts';

/** Time after which a connection without a call is closed. */
const IDLE_MS: Millis = 10_000;

/** Connections without a call that are kept for the next one. */
const MAX_IDLE = 16;

/** A command that waits; `encode` gets the remaining wait when it is sent. */
export interface WaitingCommand {
  readonly waitMs: Millis;
  readonly signal: AbortSignal | undefined;
  encode(waitMs: Millis): readonly string[];
}

/** When the daemon last completed a handshake or replied, on any connection. */
interface Progress {
  at: Millis;
}

interface AbortGroup {
  readonly calls: Set<WaitingConnection>;
  stop(): void;
}

export class WaitingCalls {
  readonly #settings: ClientSettings;
  readonly #idle: WaitingConnection[] = [];
  readonly #busy = new Set<WaitingConnection>();
  /** Many calls may share a signal: it has one listener. */
  readonly #abortGroups = new Map<AbortSignal, AbortGroup>();
  readonly #progress: Progress = { at: -Infinity };
  #onIdle: (() => void) | undefined;

  constructor(settings: ClientSettings) {
    this.#settings = settings;
  }

  /** Calls without a reply yet. */
  get size(): number {
    return this.#busy.size;
  }

  /** Resolves to the reply, or to the reason why there is none. Rejects only if the signal aborts. */
  async send(command: WaitingCommand): Promise<RespValue | RequestError> {
    command.signal?.throwIfAborted();
    const connection = this.#idle.pop() ?? new WaitingConnection(this.#settings, this.#progress);
    this.#busy.add(connection);
    const unwatch = command.signal && this.#watch(command.signal, connection);
    try {
      return await connection.send(command);
    } finally {
      unwatch?.();
      this.#busy.delete(connection);
      if (this.#idle.length < MAX_IDLE && connection.isOpen) this.#keep(connection);
      else connection.close();
      if (this.#busy.size === 0) this.#onIdle?.();
    }
  }

  /** Ends the call when the signal aborts. The returned function stops that. */
  #watch(signal: AbortSignal, connection: WaitingConnection): () => void {
    const group = this.#abortGroups.get(signal) ?? this.#createAbortGroup(signal);
    group.calls.add(connection);
    return () => {
      group.calls.delete(connection);
      if (group.calls.size === 0) group.stop();
    };
  }

  #createAbortGroup(signal: AbortSignal): AbortGroup {
    const calls = new Set<WaitingConnection>();
    const onAbort = (): void => {
      for (const connection of calls) connection.abort();
    };
    const stop = (): void => {
      signal.removeEventListener('abort', onAbort);
      this.#abortGroups.delete(signal);
    };
    signal.addEventListener('abort', onAbort, { once: true });
    this.#abortGroups.set(signal, { calls, stop });
    return { calls, stop };
  }

  #keep(connection: WaitingConnection): void {
    this.#idle.push(connection);
    connection.closeAfter(IDLE_MS, () => {
      const at = this.#idle.indexOf(connection);
      if (at >= 0) this.#idle.splice(at, 1);
    });
  }

  /** Waits for pending replies, then disconnects. */
  async close(): Promise<void> {
    if (this.#busy.size > 0)
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    for (const connection of this.#idle.splice(0)) connection.close();
  }
}

/** A connection that has one call at a time. */
class WaitingConnection {
  readonly #settings: ClientSettings;
  readonly #connection: DaemonConnection;
  readonly #progress: Progress;
  #calledAt: Millis;
  #onOpen = (): void => {};
  #resolve: (reply: RespValue | RequestError) => void = () => {};
  #cancelTimer = (): void => {};

  constructor(settings: ClientSettings, progress: Progress) {
    this.#settings = settings;
    this.#progress = progress;
    this.#calledAt = settings.clock.now();
    this.#connection = new DaemonConnection(settings, {
      onOpen: () => {
        progress.at = settings.clock.now();
        this.#onOpen();
      },
      onReply: (reply) => {
        progress.at = settings.clock.now();
        this.#resolve(reply);
      },
      onFailure: (error) => this.#resolve(error),
      timeoutError: (reason) => this.#timeoutError(reason, this.#calledAt),
    });
  }

  get isOpen(): boolean {
    return this.#connection.state === 'open';
  }

  async send({ waitMs, signal, encode }: WaitingCommand): Promise<RespValue | RequestError> {
    const { clock, deadlineMs } = this.#settings;
    const connection = this.#connection;
    this.#cancelTimer();
    this.#calledAt = clock.now();
    const until = this.#calledAt + waitMs;
    connection.setBusy(true);
    const reply = await new Promise<RespValue | RequestError>((resolve) => {
      this.#resolve = resolve;
      const reason = `no reply within ${waitMs + deadlineMs} ms`;
      const fail = (): void => connection.fail(this.#timeoutError(reason, until));
      this.#cancelTimer = scheduleDeadline(clock, until, deadlineMs, fail, true);
      const write = (): void => {
        const leftMs = Math.max(0, Math.floor(until - clock.now()));
        connection.write(encodeCommand(encode(leftMs)));
      };
      if (this.isOpen) write();
      else this.#onOpen = write;
    });
    this.#cancelTimer();
    this.#onOpen = () => {};
    connection.setBusy(false);
    signal?.throwIfAborted();
    return reply instanceof RespError ? connection.errorOf(reply) : reply;
  }

  /** While the daemon serves other calls, one that it has not served in time is no outage: it is denied. */
  #timeoutError(reason: string, dueSince: Millis): RequestError {
    return this.#progress.at < dueSince
      ? this.#connection.unavailableError(reason)
      : this.#connection.rejectedError(`${reason}, in a burst of calls`, this.#settings.deadlineMs);
  }

  abort(): void {
    this.#connection.close();
  }

  closeAfter(ms: Millis, onClosed: () => void): void {
    const { clock } = this.#settings;
    const close = (): void => {
      onClosed();
      this.close();
    };
    this.#resolve = close; // the daemon has closed it
    this.#cancelTimer = schedule(clock, clock.now() + ms, close, false);
  }

  close(): void {
    this.#cancelTimer();
    this.#resolve = () => {};
    this.#connection.close();
  }
}
