/**
 * What a command is: its name, how many arguments it takes, and what it answers.
 */

import type { Cells } from '../../../backends/local/gcra-table.ts';
import type { Clock } from '../../../core/clock.ts';
import type { Gate } from '../../router/router.ts';
import type { Info } from './info.ts';
import { type CommandParser, integerIn, isWord } from './parser.ts';
import type { Protocol, Reply } from './reply.ts';

/** One client, as far as it has introduced itself. */
export interface Session {
  readonly id: number;
  protocol: Protocol;
  name: string;
  /** Whether it has said the token, or there is none. */
  isKnown: boolean;
  /** It said goodbye. */
  isOver: boolean;
}

/** What commands are about. */
export interface Served {
  readonly gate: Gate;
  readonly cells: Cells;
  readonly clock: Clock;
  readonly version: string;
  readonly token: () => string | undefined;
  readonly info: Info;
}

/** Says what there is to say. */
export type Fill = (reply: Reply) => void;

export interface Call {
  readonly args: Arguments;
  readonly session: Session;
  readonly reply: Reply;
  readonly served: Served;
}

export interface Command {
  /** In lower case. */
  readonly name: string;
  /** As Redis counts: with the name; below zero, at least so many. */
  readonly arity: number;
  /** With the name, no more than so many. */
  readonly most?: number;
  /** Which argument is a key; 0 none. */
  readonly key?: number;
  /** What clients may send before they have said the token. */
  readonly isOpen?: boolean;
  readonly summary: string;
  /** What follows the name, for people; what is optional stands in brackets. */
  readonly usage: string;
  /**
   * Fills in the answer; or gives one that is made already; or, where somebody else has to be asked,
   * promises to fill it in.
   */
  run(call: Call): Answered;
}

export type Answered = undefined | Buffer | Promise<Fill>;

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

  from(n: number): number {
    return this.#parser.starts[n];
  }

  to(n: number): number {
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
  word(n: number): string {
    return this.text(n).toLowerCase();
  }

  bytes(n: number): Buffer {
    const { source, starts, ends } = this.#parser;
    return source.subarray(starts[n], ends[n]);
  }

  /** NaN if it is none. */
  integer(n: number): number {
    const { source, starts, ends } = this.#parser;
    return integerIn(source, starts[n], ends[n]);
  }

  /** Any number of at least 0; NaN if it is none. */
  amount(n: number): number {
    const text = this.text(n);
    return /^\d{1,15}(\.\d{1,15})?$/.test(text) ? Number(text) : Number.NaN;
  }

  is(n: number, lower: Uint8Array): boolean {
    const { source, starts, ends } = this.#parser;
    return isWord(source, starts[n], ends[n], lower);
  }
}
