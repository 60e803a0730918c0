import type { GcraTable } from '../../../backends/local/gcra-table.ts';
import type { Clock } from '../../../core/clock.ts';
import type { Controls } from '../../control/controls.ts';
import type { Router } from '../../router/router.ts';
import type { ClientSignal } from '../../server/client-signal.ts';
import type { Info } from './info.ts';
import { type CommandParser, equalsIgnoringCase, parseInteger } from './parser.ts';
import type { RespVersion, RespWriter } from './reply.ts';
import type { Transaction } from './transaction.ts';

/** The state of one connection. */
export interface Session {
  readonly id: number;
  protocol: RespVersion;
  name: string;
  /** True after AUTH, or if no password was configured when the client connected. */
  isAuthenticated: boolean;
  hasQuit: boolean;
  /** The commands since MULTI. */
  transaction?: Transaction | undefined;
  /** The token that the client sent as the user admin, with AUTH or HELLO. */
  adminToken?: string | undefined;
}

export interface CommandContext {
  readonly router: Router;
  /** The keys of CL.THROTTLE, whose limit comes with the command. */
  readonly gcraTable: GcraTable;
  readonly clock: Clock;
  readonly version: string;
  /** The password that clients must AUTH with, if any. */
  readonly password: () => string | undefined;
  readonly info: Info;
  readonly controls?: Controls | undefined;
  /** The token of operators, if any. */
  readonly adminToken: () => string | undefined;
}

export type WriteReply = (reply: RespWriter) => void;

export interface Invocation {
  readonly args: Arguments;
  readonly session: Session;
  readonly reply: RespWriter;
  readonly context: CommandContext;
  readonly client: Pick<ClientSignal, 'signal'>;
}

/** True if the client may run all commands. A reload may have removed the password since it connected. */
export const isAuthorised = ({ session, context }: Invocation): boolean =>
  session.isAuthenticated || context.password() === undefined;

/** True after a login as admin with the token of the configuration. A reload may have changed it since. */
export const isOperator = ({ session, context }: Invocation): boolean =>
  session.adminToken !== undefined && session.adminToken === context.adminToken();

export interface RespCommand {
  /** In lower case. */
  readonly name: string;
  /** The number of arguments with the name, as in Redis; negative: the least number. */
  readonly arity: number;
  /** The largest number of arguments, with the name. */
  readonly maxArity?: number;
  /** Index of the argument that is a key; 0: none. */
  readonly keyIndex?: number;
  /** The distance from one key to the next among the arguments; default: there is one key. */
  readonly keyStep?: number;
  /** True if a key may be empty, as in Redis. */
  readonly takesEmptyKeys?: boolean;
  readonly isAllowedBeforeAuth?: boolean;
  /** True if MULTI does not queue it. */
  readonly isNeverQueued?: boolean;
  /** True if it may wait: the commands behind it wait too. */
  readonly isBlocking?: boolean;
  readonly summary: string;
  /** Arguments for COMMAND DOCS; optional ones in brackets. */
  readonly usage: string;
  /** Writes the reply, returns an encoded one, or promises to write it once a remote backend has decided. */
  run(call: Invocation): CommandReply;
}

export type CommandReply = undefined | Buffer | Promise<WriteReply>;

/** Characters of an argument in an error. */
const MAX_SHOWN_CHARS = 130;

export const NOT_AN_INTEGER = 'ERR value is not an integer or out of range';
/** An argument that `Arguments.amount` could not read. */
export const notAnAmount = (name: string, given: string): string =>
  `ERR ${name} must be a number from 0 to 1e15, got '${given.slice(0, MAX_SHOWN_CHARS)}'`;
export const SYNTAX = 'ERR syntax error';

/** The arguments of one command, its name first. Valid until the command has run. */
export class Arguments {
  readonly #parser: CommandParser;

  constructor(parser: CommandParser) {
    this.#parser = parser;
  }

  get count(): number {
    return this.#parser.count;
  }

  /** The bytes that `startOf` and `endOf` refer to. */
  get source(): Buffer {
    return this.#parser.source;
  }

  startOf(n: number): number {
    return this.#parser.starts[n];
  }

  endOf(n: number): number {
    return this.#parser.ends[n];
  }

  size(n: number): number {
    return this.#parser.ends[n] - this.#parser.starts[n];
  }

  /** One character per byte. */
  text(n: number): string {
    const { source, starts, ends } = this.#parser;
    return source.toString('latin1', starts[n], ends[n]);
  }

  lowerText(n: number): string {
    return this.text(n).toLowerCase();
  }

  bytes(n: number): Buffer {
    const { source, starts, ends } = this.#parser;
    return source.subarray(starts[n], ends[n]);
  }

  /** NaN if it is not an integer. */
  integer(n: number): number {
    const { source, starts, ends } = this.#parser;
    return parseInteger(source, starts[n], ends[n]);
  }

  /** A decimal number of at least 0; NaN if it is not one. */
  amount(n: number): number {
    const text = this.text(n);
    return /^\d{1,15}(\.\d{1,15})?$/.test(text) ? Number(text) : Number.NaN;
  }

  isKeyword(n: number, lower: Uint8Array): boolean {
    const { source, starts, ends } = this.#parser;
    return equalsIgnoringCase(source, starts[n], ends[n], lower);
  }
}
