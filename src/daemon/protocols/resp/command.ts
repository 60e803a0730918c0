/**
 * What a command is: its name, how many arguments it takes, and what it answers.
 */

import type { GcraTable } from '../../../backends/local/gcra-table.ts';
import type { Clock } from '../../../core/clock.ts';
import type { Router } from '../../router/router.ts';
import type { Info } from './info.ts';
import { type CommandParser, equalsIgnoringCase, parseInteger } from './parser.ts';
import type { RespVersion, RespWriter } from './reply.ts';

/** One client, as far as it has introduced itself. */
export interface Session {
  readonly id: number;
  protocol: RespVersion;
  name: string;
  /** Whether it has said the token, or there is none. */
  isAuthenticated: boolean;
  /** It said goodbye. */
  hasQuit: boolean;
}

/** What commands are about. */
export interface CommandContext {
  readonly router: Router;
  readonly gcraTable: GcraTable;
  readonly clock: Clock;
  readonly version: string;
  readonly token: () => string | undefined;
  readonly info: Info;
}

/** Says what there is to say. */
export type WriteReply = (reply: RespWriter) => void;

export interface Invocation {
  readonly args: Arguments;
  readonly session: Session;
  readonly reply: RespWriter;
  readonly context: CommandContext;
}

export interface Command {
  /** In lower case. */
  readonly name: string;
  /** Former names, which stay accepted. */
  readonly aliases?: readonly string[];
  /** As Redis counts: with the name; below zero, at least so many. */
  readonly arity: number;
  /** With the name, no more than so many. */
  readonly maxArity?: number;
  /** Which argument is a key; 0 none. */
  readonly keyIndex?: number;
  /** What clients may send before they have said the token. */
  readonly isAllowedBeforeAuth?: boolean;
  readonly summary: string;
  /** What follows the name, for people; what is optional stands in brackets. */
  readonly usage: string;
  /**
   * Fills in the answer; or gives one that is made already; or, where somebody else has to be asked,
   * promises to fill it in.
   */
  run(call: Invocation): CommandReply;
}

export type CommandReply = undefined | Buffer | Promise<WriteReply>;

export const NOT_AN_INTEGER = 'ERR value is not an integer or out of range';
export const NOT_A_NUMBER = 'ERR value is not a valid float';
export const SYNTAX = 'ERR syntax error';

/** The arguments of one command; the name is the first. Good until the command has run. */
export class Arguments {
  readonly #parser: CommandParser;

  constructor(parser: CommandParser) {
    this.#parser = parser;
  }

  get count(): number {
    return this.#parser.count;
  }

  /** Where its bytes are, for who wants none of their own. */
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

  /** One character for each byte. */
  text(n: number): string {
    const { source, starts, ends } = this.#parser;
    return source.toString('latin1', starts[n], ends[n]);
  }

  /** In lower case, for words that mean the same in any. */
  lowerText(n: number): string {
    return this.text(n).toLowerCase();
  }

  bytes(n: number): Buffer {
    const { source, starts, ends } = this.#parser;
    return source.subarray(starts[n], ends[n]);
  }

  /** NaN if it is none. */
  integer(n: number): number {
    const { source, starts, ends } = this.#parser;
    return parseInteger(source, starts[n], ends[n]);
  }

  /** Any number of at least 0; NaN if it is none. */
  amount(n: number): number {
    const text = this.text(n);
    return /^\d{1,15}(\.\d{1,15})?$/.test(text) ? Number(text) : Number.NaN;
  }

  isKeyword(n: number, lower: Uint8Array): boolean {
    const { source, starts, ends } = this.#parser;
    return equalsIgnoringCase(source, starts[n], ends[n], lower);
  }
}
