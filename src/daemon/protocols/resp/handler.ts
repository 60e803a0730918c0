/**
 * RESP, the protocol of Redis: any of its clients, in any language, can ask.
 *
 *     chunk ──▶ parser finds a command ──▶ the command answers ──▶ answers of the chunk in one piece
 *
 * Whatever makes no sense as a command is answered with an error, and the talk goes on; what makes no
 * sense as RESP is answered once, and ends it.
 */

import type { Cells } from '../../../backends/local/gcra-table.ts';
import { type Clock, systemClock } from '../../../core/clock.ts';
import { reasonOf } from '../../../core/errors.ts';
import type { Gate } from '../../router/router.ts';
import type { Conversation, Converse } from '../../server/protocol-handler.ts';
import type { Answers } from '../../server/response-queue.ts';
import { Arguments, type Call, type Command, type Fill, type Served } from './command.ts';
import { Info } from './info.ts';
import { BROKEN, CommandParser, INCOMPLETE, RESP_BOUNDS, type RespBounds } from './parser.ts';
import { hasCount, redisCommands, wrongCount } from './redis.ts';
import { Reply, replyWith } from './reply.ts';
import { sluiceCommands } from './sluice.ts';
import { clThrottle, throttle } from './throttle.ts';

export interface RespSetting {
  readonly gate: Gate;
  /** The keys of those who bring their limit along. */
  readonly cells: Cells;
  /** The daemon's, for who asks. */
  readonly version: string;
  /** What clients must say before anything else, as a password. Default: nothing. */
  readonly token?: () => string | undefined;
  /** How many connections are open, for who asks. */
  readonly clients?: () => number;
  /** What holds for those who connect from now on. */
  readonly bounds?: () => RespBounds;
  readonly clock?: Clock;
}

const COMMANDS: readonly Command[] = [
  clThrottle,
  ...sluiceCommands,
  ...redisCommands(() => COMMANDS),
];

const BY_NAME: ReadonlyMap<string, Command> = new Map(COMMANDS.map((own) => [own.name, own]));

const CL_THROTTLE = Buffer.from(clThrottle.name);

/** A browser that was tricked into talking to us says one of these early on; it gets no answer. */
const BROWSER_WORDS = ['post', 'host:'];

const NOT_KNOWN = 'NOAUTH Authentication required.';

/** How much of a command that nobody knows is repeated. */
const SHOWN_CHARS_MAX = 128;

/** So much of an answer, and it is seen whether the client takes it: some are far longer than the question. */
const GATHERED_BYTES_MAX = 65_536;

/** Answers of one chunk are gathered here; a chunk is answered before the next one is heard. */
const gathered = new Reply();

/** Makes the RESP surface. */
export function respProtocol(setting: RespSetting): Converse {
  const { gate, cells, version, clients = () => 0, clock = systemClock } = setting;
  const { token = () => undefined, bounds = () => RESP_BOUNDS } = setting;
  const info = new Info({ gate, cells, version, clients, clock });
  const served: Served = { gate, cells, version, token, clock, info };
  let clientsSoFar = 0;
  return (answers) => new RespConversation(answers, served, bounds(), ++clientsSoFar);
}

class RespConversation implements Conversation {
  readonly #answers: Answers;
  readonly #parser: CommandParser;
  readonly #args: Arguments;
  readonly #call: Call;
  readonly #keyBytesMax: number;
  /** The beginning of a command whose end has not come yet, or all that is kept: so many bytes of this. */
  #begun: Buffer | undefined;
  #begunLength = 0;
  isBehind = false;

  constructor(answers: Answers, served: Served, bounds: RespBounds, id: number) {
    this.#answers = answers;
    this.#parser = new CommandParser(bounds);
    this.#args = new Arguments(this.#parser);
    this.#keyBytesMax = bounds.keyBytesMax;
    const isKnown = served.token() === undefined;
    const session = { id, protocol: 2, name: '', isKnown, isOver: false } as const;
    this.#call = { args: this.#args, session: { ...session }, reply: gathered, served };
  }

  get isGoodbye(): boolean {
    return this.#call.session.isOver;
  }

  hear(chunk: Buffer): boolean {
    const bytes = this.#withBegun(chunk);
    if (!bytes) return true;
    gathered.protocol = this.#call.session.protocol;
    const parser = this.#parser;
    let at = 0;
    let goesOn = true;
    this.isBehind = false;
    while (goesOn && at < bytes.length) {
      if (gathered.size > GATHERED_BYTES_MAX) this.#give();
      if (this.#answers.isFull) {
        this.isBehind = true;
        break;
      }
      const end = parser.next(bytes, at);
      if (end === INCOMPLETE) break;
      if (end === BROKEN) gathered.error(`ERR Protocol error: ${parser.complaint}`);
      goesOn = end !== BROKEN && (parser.count === 0 || this.#run());
      at = end;
    }
    this.#give();
    if (goesOn && at < bytes.length) this.#keep(bytes, at);
    return goesOn;
  }

  /** Answers one command. False: nothing is to be heard after it. */
  #run(): boolean {
    const args = this.#args;
    const { session, reply } = this.#call;
    if (args.is(0, CL_THROTTLE) && session.isKnown && this.#isWellFormed(clThrottle)) {
      throttle(this.#call);
      return true;
    }
    const name = args.word(0);
    const command = BY_NAME.get(name);
    if (!command) {
      if (BROWSER_WORDS.includes(name)) return false;
      reply.error(unknown(args));
    } else if (!hasCount(command, args.count)) reply.error(wrongCount(name));
    else if (!session.isKnown && !command.isOpen) reply.error(NOT_KNOWN);
    else if (!this.#isWellFormed(command)) reply.error(this.#keyTooLong);
    else this.#answer(command);
    return !session.isOver;
  }

  #isWellFormed(command: Command): boolean {
    const { count } = this.#args;
    const { key = 0 } = command;
    return hasCount(command, count) && (key === 0 || this.#args.size(key) <= this.#keyBytesMax);
  }

  get #keyTooLong(): string {
    return `ERR key is longer than ${this.#keyBytesMax} bytes`;
  }

  #answer(command: Command): void {
    try {
      const answer = command.run(this.#call);
      if (answer === undefined) return;
      this.#give(); // what was answered before goes before it
      if (answer instanceof Promise) this.#answers.owe(this.#later(answer));
      else this.#answers.give(answer);
    } catch (error) {
      gathered.error(`ERR ${reasonOf(error)}`);
    }
  }

  async #later(answer: Promise<Fill>): Promise<Buffer> {
    const { protocol } = this.#call.session;
    try {
      return replyWith(protocol, await answer);
    } catch (error) {
      return replyWith(protocol, (reply) => reply.error(`ERR ${reasonOf(error)}`));
    }
  }

  #give(): void {
    if (gathered.size > 0) this.#answers.give(gathered.take());
  }

  /** All that is not answered yet, if it is enough to look at. */
  #withBegun(chunk: Buffer): Buffer | undefined {
    if (!this.#begun) return chunk;
    const length = this.#begunLength + chunk.length;
    if (length > this.#begun.length) {
      const larger = Buffer.allocUnsafe(Math.max(length, this.#begun.length * 2));
      this.#begun.copy(larger, 0, 0, this.#begunLength);
      this.#begun = larger;
    }
    chunk.copy(this.#begun, this.#begunLength);
    this.#begunLength = length;
    if (length < this.#parser.needed && !this.isBehind) return undefined;
    const bytes = this.#begun.subarray(0, length);
    this.#begun = undefined;
    return bytes;
  }

  #keep(bytes: Buffer, from: number): void {
    this.#begun = Buffer.from(bytes.subarray(from));
    this.#begunLength = bytes.length - from;
  }
}

/** Nobody knows such a command: Redis repeats it, and the beginning of what came with it. */
function unknown(args: Arguments): string {
  let shown = '';
  for (let n = 1; n < args.count && shown.length < SHOWN_CHARS_MAX; n++) {
    shown += `'${args.text(n).slice(0, SHOWN_CHARS_MAX - shown.length)}' `;
  }
  const name = args.text(0).slice(0, SHOWN_CHARS_MAX);
  return `ERR unknown command '${name}', with args beginning with: ${shown}`;
}
