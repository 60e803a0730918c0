/**
 * MULTI and EXEC: commands of one connection that run together, as in Redis.
 *
 *     MULTI ──▶ OK     SLUICE.CHECK … ──▶ QUEUED     EXEC ──▶ one list with the reply to each command
 *
 * A command that is unknown, has a wrong number of arguments or does not fit into the queue gets its error at once.
 * EXEC then fails, and nothing was counted. Commands of limits in this process run without any other client's between
 * them.
 */

import type { Invocation, RespCommand } from './command.ts';

/** Commands of one transaction, and their bytes: a client may leave them queued. */
const MAX_QUEUED_COMMANDS = 1000;
const MAX_QUEUED_BYTES = 131_072;

const TOO_LONG = `ERR a transaction has at most ${MAX_QUEUED_COMMANDS} commands and ${MAX_QUEUED_BYTES} bytes`;

const ABORTED = 'EXECABORT Transaction discarded because of previous errors.';

let lastNumber = 0;

/** The queued commands, as they were sent. */
export class Transaction {
  count = 0;
  /** Set by a command that could not be queued. */
  isAborted = false;
  /** Below 0: tells it from others, and from incomplete commands. */
  readonly number = --lastNumber;
  #bytes: Buffer = Buffer.allocUnsafe(0);
  #length = 0;

  get heldBytes(): number {
    return this.#bytes.length;
  }

  /** The queued commands, one behind the other. */
  get commands(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  /** Queues a command and returns undefined; otherwise an error. */
  add(source: Buffer, from: number, to: number): string | undefined {
    const length = this.#length + to - from;
    if (this.count === MAX_QUEUED_COMMANDS || length > MAX_QUEUED_BYTES) return TOO_LONG;
    if (length > this.#bytes.length) {
      const larger = Buffer.allocUnsafeSlow(Math.min(MAX_QUEUED_BYTES, 2 * length));
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    source.copy(this.#bytes, this.#length, from, to);
    this.#length = length;
    this.count++;
    return undefined;
  }
}

function multi({ session, reply }: Invocation): undefined {
  if (session.transaction) return reply.error('ERR MULTI calls can not be nested');
  session.transaction = new Transaction();
  return reply.simple('OK');
}

function discard({ session, reply }: Invocation): undefined {
  if (!session.transaction) return reply.error('ERR DISCARD without MULTI');
  session.transaction = undefined;
  return reply.simple('OK');
}

/** Ends the transaction. Returns it if its commands are to run now. */
export function takeTransaction({ session, reply }: Invocation): Transaction | undefined {
  const { transaction } = session;
  session.transaction = undefined;
  if (!transaction) return reply.error('ERR EXEC without MULTI');
  return transaction.isAborted ? reply.error(ABORTED) : transaction;
}

const WATCH_REFUSED =
  'ERR WATCH is not supported: no key of this server is read before a check. Use MULTI and EXEC without it';

/** EXEC is run by the handler, which dispatches commands. */
export const EXEC: RespCommand = {
  name: 'exec',
  arity: 1,
  isNeverQueued: true,
  summary: 'Runs the commands since MULTI',
  usage: '',
  run: () => undefined,
};

export const transactionCommands: readonly RespCommand[] = [
  {
    name: 'multi',
    arity: 1,
    isNeverQueued: true,
    summary: 'Queues the commands that follow, until EXEC',
    usage: '',
    run: multi,
  },
  EXEC,
  {
    name: 'discard',
    arity: 1,
    isNeverQueued: true,
    summary: 'Drops the commands since MULTI',
    usage: '',
    run: discard,
  },
  {
    name: 'watch',
    arity: -2,
    isNeverQueued: true,
    summary: 'Is refused: nothing is read before a check',
    usage: 'key',
    run: ({ session, reply }) =>
      reply.error(session.transaction ? 'ERR WATCH inside MULTI is not allowed' : WATCH_REFUSED),
  },
];
