/**
 * Commands that must reach Redis although no call waits for them, such as the release of a lease. During an outage they
 * are repeated until they expire, so only commands that may run twice belong here.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { PendingSet } from '../../core/pending.ts';
import type { SendCommand } from './fair-queue.ts';

/** The most stored commands. Beyond it the oldest is dropped, and the data it would release expires. */
const MAX_UNSENT = 10_000;

const RESEND_MS: Millis = 1000;

interface UnsentCommand {
  readonly key: string;
  readonly command: string;
  /** Time from which the command is useless. */
  readonly until: Millis;
}

/** Whether a failed command was sent: Redis may have executed it, and only its reply was lost. */
export const wasSent = (error: unknown): boolean => (error as Error).cause instanceof Error;

export class UnsentCommands {
  readonly #send: SendCommand;
  readonly #clock: Clock;
  readonly #commands = new Set<UnsentCommand>();
  readonly #pending = new PendingSet();
  #cancelResend: (() => void) | undefined;
  #isStopped = false;

  constructor(send: SendCommand, clock: Clock) {
    this.#send = send;
    this.#clock = clock;
  }

  /** Resolves when Redis has executed the command or it is stored for later. */
  send(key: string, command: string, until: Millis): Promise<void> {
    return this.#pending.add(this.#trySend({ key, command, until }));
  }

  /** Sends the stored commands; called when Redis is available. */
  resend(): void {
    const commands = [...this.#commands];
    this.#commands.clear();
    const now = this.#clock.now();
    for (const each of commands) if (each.until > now) this.#pending.add(this.#trySend(each));
  }

  /** Stores a command whose first attempt failed elsewhere. */
  keep(key: string, command: string, until: Millis): void {
    this.#keep({ key, command, until });
  }

  /** Resolves when no command is in flight; commands that fail now are dropped. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancelResend?.();
    this.#commands.clear();
    await this.#pending.drained();
  }

  async #trySend(command: UnsentCommand): Promise<void> {
    try {
      await this.#send(command.key, command.command);
    } catch {
      this.#keep(command);
    }
  }

  #keep(command: UnsentCommand): void {
    if (this.#isStopped) return;
    if (this.#commands.size >= MAX_UNSENT) {
      const [oldest] = this.#commands;
      this.#commands.delete(oldest);
    }
    this.#commands.add(command);
    this.#cancelResend ??= schedule(
      this.#clock,
      this.#clock.now() + RESEND_MS,
      () => {
        this.#cancelResend = undefined;
        this.resend();
      },
      false,
    );
  }
}
