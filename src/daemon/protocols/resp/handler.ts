/**
 * RESP, the protocol of Redis: every Redis client can check.
 *
 *     chunk ──▶ parser finds a command ──▶ the command replies ──▶ one write for all replies of the chunk
 *
 * An invalid command gets an error and the connection goes on. Invalid RESP gets one error and ends it.
 */

import { systemClock } from '../../../core/clock.ts';
import { errorMessageOf } from '../../../core/errors.ts';
import { ClientSignal } from '../../server/client-signal.ts';
import type { ProtocolFactory, ProtocolHandler } from '../../server/protocol-handler.ts';
import { copyOf } from '../../server/read-buffer.ts';
import type { ResponseQueue } from '../../server/response-queue.ts';
import { BYTES_PER_LOOK, ENDLESS_SLICE, type Slice } from '../../server/turns.ts';
import { acquireAllCommand, checkAllCommand } from './check-all.ts';
import {
  Arguments,
  type CommandContext,
  type Invocation,
  isAuthorised,
  type RespCommand,
  type WriteReply,
} from './command.ts';
import { controlCommands } from './control.ts';
import { Info } from './info.ts';
import {
  CommandParser,
  INCOMPLETE,
  INVALID,
  RESP_BOUNDS,
  type RespBounds,
  UNAUTHENTICATED_BOUNDS,
} from './parser.ts';
import { matchesArity, redisCommands, wrongArity } from './redis.ts';
import { encodeReply, RespWriter } from './reply.ts';
import { reportCommand } from './report.ts';
import { sluiceCommands } from './sluice.ts';
import { clThrottle, throttle } from './throttle.ts';
import { EXEC, takeTransaction, transactionCommands } from './transaction.ts';
import { acquireCommand } from './waiting.ts';

export interface RespContext
  extends Pick<CommandContext, 'router' | 'gcraTable' | 'version'>,
    Partial<Pick<CommandContext, 'password' | 'clock' | 'controls' | 'adminToken'>> {
  readonly clients?: () => number;
  /** Read for each new connection. */
  readonly bounds?: () => RespBounds;
}

const COMMANDS: readonly RespCommand[] = [
  clThrottle,
  ...sluiceCommands,
  checkAllCommand,
  acquireAllCommand,
  reportCommand,
  acquireCommand,
  ...controlCommands,
  ...redisCommands(() => COMMANDS),
  ...transactionCommands,
];

const COMMANDS_BY_NAME: ReadonlyMap<string, RespCommand> = new Map(
  COMMANDS.map((command) => [command.name, command]),
);

const CL_THROTTLE = Buffer.from(clThrottle.name);

/** First words of an HTTP request, sent by a browser under cross-protocol attack: it gets no reply. */
const HTTP_REQUEST_WORDS = ['post', 'host:'];

/** The last word of its first line. With another method than POST it gets one error: it may be a mistake. */
const HTTP_VERSION = /^http\/\d/;

/** How a TLS handshake begins. A server that a page chose may have put commands into the session ticket that it carries. */
const TLS_HANDSHAKE = '\x16\x03';

const NOT_AUTHENTICATED = 'NOAUTH Authentication required.';

const NO_BYTES = Buffer.alloc(0);

const OVERSIZED =
  'ERR out of memory for incomplete commands of all clients, and this connection held most of it';

/** Characters of an unknown command that the error repeats. */
const MAX_SHOWN_CHARS = 128;

/** Replies beyond this size are written before the next command: back-pressure for long replies. */
const MAX_BUFFERED_REPLY_BYTES = 65_536;

/** Collects the replies of one chunk. Shared: a chunk is processed before the next is read. */
const replyBuffer = new RespWriter();

export function respProtocol(context: RespContext): ProtocolFactory {
  const { router, gcraTable, version, clients = () => 0, clock = systemClock } = context;
  const { password = () => undefined, bounds = () => RESP_BOUNDS } = context;
  const { controls, adminToken = () => undefined } = context;
  const info = new Info({ router, gcraTable, version, clients, clock });
  const admin = { controls, adminToken };
  const commandContext: CommandContext = {
    ...{ router, gcraTable, version, password, clock, info },
    ...admin,
  };
  let lastId = 0;
  return (responses, slice = ENDLESS_SLICE) =>
    new RespProtocolHandler(responses, slice, commandContext, bounds(), ++lastId);
}

class RespProtocolHandler implements ProtocolHandler {
  readonly #responses: ResponseQueue;
  readonly #slice: Slice;
  readonly #parser: CommandParser;
  readonly #args: Arguments;
  readonly #invocation: Invocation;
  readonly #bounds: RespBounds;
  /** An incomplete command, or the backlog: the first `#partialLength` bytes. */
  #partial: Buffer | undefined;
  #partialLength = 0;
  hasBacklog = false;
  #lastIncomplete = 0;
  readonly #client = new ClientSignal();

  constructor(
    responses: ResponseQueue,
    slice: Slice,
    context: CommandContext,
    bounds: RespBounds,
    id: number,
  ) {
    this.#responses = responses;
    this.#slice = slice;
    this.#parser = new CommandParser(bounds);
    this.#args = new Arguments(this.#parser);
    this.#bounds = bounds;
    const isAuthenticated = context.password() === undefined;
    const session = { id, protocol: 2, name: '', isAuthenticated, hasQuit: false } as const;
    this.#invocation = {
      ...{ args: this.#args, session: { ...session }, reply: replyBuffer, context },
      client: this.#client,
    };
  }

  onDisconnect(): void {
    this.#client.leave();
  }

  get incompleteRequest(): number {
    if (this.hasBacklog) return 0;
    const { transaction } = this.#invocation.session;
    return transaction?.number ?? (this.#partial ? this.#lastIncomplete : 0);
  }

  get heldBytes(): number {
    const { transaction } = this.#invocation.session;
    return (this.#partial?.length ?? 0) + (transaction?.heldBytes ?? 0);
  }

  refuse(): void {
    this.#partial = undefined;
    this.hasBacklog = false;
    this.#invocation.session.transaction = undefined;
    replyBuffer.error(OVERSIZED);
    this.#flush();
  }

  get isClosedByClient(): boolean {
    return this.#invocation.session.hasQuit;
  }

  onData(chunk: Buffer): boolean {
    const bytes = this.#joinPartial(chunk);
    if (!bytes) return true;
    replyBuffer.protocol = this.#invocation.session.protocol;
    const parser = this.#parser;
    this.#selectBounds();
    let at = 0;
    let lookAt = BYTES_PER_LOOK;
    let goesOn = true;
    this.hasBacklog = false;
    while (goesOn && at < bytes.length) {
      if (replyBuffer.size > MAX_BUFFERED_REPLY_BYTES) this.#flush();
      if (this.#responses.isFull || (at >= lookAt && this.#slice.isOver)) {
        this.hasBacklog = true;
        break;
      }
      if (at >= lookAt) lookAt = at + BYTES_PER_LOOK;
      const end = parser.next(bytes, at);
      if (end === INCOMPLETE) break;
      if (end === INVALID) replyBuffer.error(`ERR Protocol error: ${parser.error}`);
      goesOn = end !== INVALID && (parser.count === 0 || this.#dispatch(bytes, at, end));
      at = end;
    }
    this.#flush();
    parser.source = NO_BYTES; // it would keep the joined bytes
    if (goesOn && at < bytes.length) {
      this.#savePartial(bytes.subarray(at), bytes !== chunk);
      if (at > 0 || bytes === chunk) this.#lastIncomplete++;
    }
    return goesOn;
  }

  /** Runs the command between two offsets, or queues it. False ends the connection. */
  #dispatch(bytes: Buffer, from: number, to: number): boolean {
    const args = this.#args;
    const { session, reply } = this.#invocation;
    const isThrottle = args.isKeyword(0, CL_THROTTLE) && isAuthorised(this.#invocation);
    if (isThrottle && this.#isWellFormed(clThrottle) && !session.transaction) {
      throttle(this.#invocation);
      return true;
    }
    const name = args.lowerText(0);
    const command = COMMANDS_BY_NAME.get(name);
    if (!command) {
      if (HTTP_REQUEST_WORDS.includes(name)) return false;
      if (HTTP_VERSION.test(args.lowerText(args.count - 1))) {
        reply.error('ERR Protocol error: expected RESP, got HTTP');
        return false;
      }
      if (name.startsWith(TLS_HANDSHAKE)) {
        reply.error('ERR Protocol error: expected RESP, got a TLS handshake');
        return false;
      }
    }
    const { transaction } = session;
    const queue = command?.isNeverQueued ? undefined : transaction;
    const problem = this.#problemOf(command, name) ?? queue?.add(bytes, from, to);
    if (problem !== undefined) {
      if (transaction) transaction.isAborted = true;
      reply.error(problem);
    } else if (queue) reply.simple('QUEUED');
    else if (command === EXEC) this.#runTransaction();
    else this.#execute(command as RespCommand);
    if (command?.isAllowedBeforeAuth) this.#selectBounds();
    return !session.hasQuit;
  }

  /** Why a command cannot run. */
  #problemOf(command: RespCommand | undefined, name: string): string | undefined {
    if (!command) return unknownCommand(this.#args);
    if (!matchesArity(command, this.#args.count)) return wrongArity(name);
    if (!command.isAllowedBeforeAuth && !isAuthorised(this.#invocation)) return NOT_AUTHENTICATED;
    if (command.isBlocking && this.#invocation.session.transaction)
      return `ERR ${name.toUpperCase()} inside MULTI is not allowed: a transaction does not wait`;
    return this.#keyProblem(command);
  }

  /** EXEC: each command adds its own reply to the list. */
  #runTransaction(): void {
    const transaction = takeTransaction(this.#invocation);
    if (!transaction) return;
    const { commands, count } = transaction;
    replyBuffer.array(count);
    for (let at = 0; at < commands.length; ) {
      at = this.#parser.next(commands, at);
      this.#execute(COMMANDS_BY_NAME.get(this.#args.lowerText(0)) as RespCommand);
      if (replyBuffer.size > MAX_BUFFERED_REPLY_BYTES) this.#flush();
    }
  }

  /** A client that has not authenticated may make the daemon hold little. */
  #selectBounds(): void {
    this.#parser.bounds = isAuthorised(this.#invocation) ? this.#bounds : UNAUTHENTICATED_BOUNDS;
  }

  #isWellFormed(command: RespCommand): boolean {
    return matchesArity(command, this.#args.count) && this.#keyProblem(command) === undefined;
  }

  #keyProblem({ keyIndex = 0, keyStep = Infinity, takesEmptyKeys }: RespCommand) {
    const { maxKeyBytes } = this.#bounds;
    for (let n = keyIndex; n > 0 && n < this.#args.count; n += keyStep) {
      const size = this.#args.size(n);
      if (size === 0 && !takesEmptyKeys) return 'ERR key is empty';
      if (size > maxKeyBytes) return `ERR key is longer than ${maxKeyBytes} bytes`;
    }
    return undefined;
  }

  #execute(command: RespCommand): void {
    try {
      const reply = command.run(this.#invocation);
      if (reply === undefined) return;
      this.#flush(); // earlier replies first
      if (reply instanceof Promise && command.isBlocking)
        this.#responses.writeAfterWait(this.#encodeLater(reply));
      else if (reply instanceof Promise) this.#responses.writeLater(this.#encodeLater(reply));
      else this.#responses.write(reply);
    } catch (error) {
      replyBuffer.error(`ERR ${errorMessageOf(error)}`);
    }
  }

  async #encodeLater(pending: Promise<WriteReply>): Promise<Buffer> {
    const { protocol } = this.#invocation.session;
    try {
      return encodeReply(protocol, await pending);
    } catch (error) {
      return encodeReply(protocol, (reply) => reply.error(`ERR ${errorMessageOf(error)}`));
    }
  }

  #flush(): void {
    if (replyBuffer.size > 0) this.#responses.write(replyBuffer.takeBytes());
  }

  /** The partial command with the chunk; undefined if it is still known to be incomplete. */
  #joinPartial(chunk: Buffer): Buffer | undefined {
    if (!this.#partial) return chunk;
    const length = this.#partialLength + chunk.length;
    if (length > this.#partial.length) {
      const grown = Math.min(this.#partial.length * 2, this.#parser.bytesNeeded);
      const larger = Buffer.allocUnsafeSlow(Math.max(length, grown));
      this.#partial.copy(larger, 0, 0, this.#partialLength);
      this.#partial = larger;
    }
    chunk.copy(this.#partial, this.#partialLength);
    this.#partialLength = length;
    if (length < this.#parser.bytesNeeded && !this.hasBacklog) return undefined;
    const bytes = this.#partial.subarray(0, length);
    this.#partial = undefined;
    return bytes;
  }

  /** A backlog is not copied again; an incomplete command is, for it may stay long and be a small part of its buffer. */
  #savePartial(rest: Buffer, isOwn: boolean): void {
    this.#partial = this.hasBacklog && isOwn ? rest : copyOf(rest);
    this.#partialLength = rest.length;
  }
}

/** Redis repeats an unknown command and the beginning of its arguments. */
function unknownCommand(args: Arguments): string {
  let shown = '';
  for (let n = 1; n < args.count && shown.length < MAX_SHOWN_CHARS; n++) {
    shown += `'${args.text(n).slice(0, MAX_SHOWN_CHARS - shown.length)}' `;
  }
  const name = args.text(0).slice(0, MAX_SHOWN_CHARS);
  return `ERR unknown command '${name}', with args beginning with: ${shown}`;
}
