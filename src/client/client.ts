/**
 * Asks a daemon on this host, or near it, whether a call may happen.
 *
 *     const sluice = connect();
 *     if (await sluice.check('alice')) serve();
 *
 * Asking must never be what a service fails by. An answer is there within the deadline, or
 * `onUnavailable` answers; a daemon that does not answer is left alone for a while, and during that
 * while nobody waits at all. Nothing here is ever rejected because of an outage.
 *
 * What is asked in one tick travels as one write, and answers are matched by their order.
 */

import { alarm, endOfTick, type Millis } from '../core/clock.ts';
import { type Dated, Outstanding } from '../core/deadline-set.ts';
import { type Decision, NEVER, type Outcome } from '../core/decision.ts';
import { ConfigError, UnavailableError } from '../core/errors.ts';
import { requireNumber } from '../core/options.ts';
import { Line } from './connection.ts';
import { type InspectedKey, inspectedOf } from './key-status.ts';
import { type ClientOptions, readSettings, type Settings } from './options.ts';
import { bytesOf, Complaint, encode, type Told } from './resp.ts';

/** What an ask may say besides the key. */
export interface AskOptions {
  /** One limit by its name. Default: whichever are for the key. */
  readonly limit?: string;
  /** What the call weighs. Default 1. */
  readonly cost?: number;
  /** True if you will `settle`: for limits that count calls in flight, or learn from them. */
  readonly hold?: boolean;
}

/** Never `wait`: nothing is reserved for later. */
type Settled = Exclude<Decision, { verdict: 'wait' }>;

/** The daemon's decision, or what `onUnavailable` says in its place. */
export type Answer = Settled & {
  /** The limit that refused. */
  readonly limit?: string;
  /** Why it refused, where it is not just a limit that is used up; `unavailable`: nobody could decide. */
  readonly reason?: 'unavailable' | 'deny-list' | 'unmatched';
  /** What to settle with, for who holds. */
  readonly permit?: string;
  /** Why this is not the daemon's answer but that of `onUnavailable`. */
  readonly unavailable?: UnavailableError;
};

/** How a call went that was asked for with `hold`. */
export interface Result {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** What was really used, if that was not the cost. */
  readonly used?: number;
  readonly rttMs?: Millis;
  /** The other side wants nothing more for so long. */
  readonly retryAfterMs?: Millis;
}

/** How it stands with the daemon, and what was answered from the start on. */
export interface ClientStats {
  /** Whether the daemon has greeted and answers. */
  readonly isConnected: boolean;
  /** Connections made, from the start on. */
  readonly connections: number;
  /** Questions that are not answered yet. */
  readonly open: number;
  readonly allowed: number;
  readonly denied: number;
  /** Of both, how many `onUnavailable` answered. */
  readonly unavailable: number;
}

/** Asks a daemon; made by `connect`. Nothing it does is rejected because of an outage. */
export interface Client {
  /** May it happen? True or false within the deadline, whatever becomes of the daemon. */
  check(key: string, cost?: number): Promise<boolean>;
  /** The same, with all there is to know. */
  ask(key: string, options?: AskOptions): Promise<Answer>;
  /** Says how a call went. False if nobody holds the permit any more, or nobody could be told. */
  settle(permit: string, result?: Result): Promise<boolean>;
  /** How the key stands; undefined if nobody could say. */
  inspect(key: string, limit?: string): Promise<InspectedKey | undefined>;
  /** How it stands with the daemon, and what was answered so far. */
  stats(): ClientStats;
  /** Waits for what was asked, then hangs up. Whoever asks later is answered by `onUnavailable`. */
  close(): Promise<void>;
}

/** Begins to talk to a daemon. @throws {ConfigError} if the options make no sense. */
export const connect = (options: ClientOptions = {}): Client =>
  new DaemonClient(readSettings(options));

/** Longer keys count by their beginning: strictly, and within what a daemon listens to. */
const KEY_BYTES_MAX = 4096;

/** The daemon reads no longer numbers. */
const COST_MAX = 999_999_999_999_999;

/**
 * Once a deadline is over, what has already come in is still read. A process that was itself too
 * busy to look must not take that for an outage.
 */
const LAST_LOOK_MS: Millis = 1;

/** One thing asked. */
interface Question extends Dated {
  readonly text: string;
  /** Hears the answer, or why there is none. Once. */
  readonly tell: (told: Told | UnavailableError) => void;
  isTold: boolean;
}

class DaemonClient implements Client {
  readonly #settings: Settings;
  readonly #line: Line;
  /** Those that are not answered yet, for their deadlines. */
  readonly #open: Outstanding<Question>;
  /** Asked, but not on their way yet. */
  #waiting: Question[] = [];
  /** On their way, in order; the first `#next` of them are answered. */
  #sent: Question[] = [];
  #next = 0;
  #isFlushing = false;
  #late: Question[] = [];
  #idle: (() => void) | undefined;
  #closed: Promise<void> | undefined;
  #allowed = 0;
  #denied = 0;
  #unavailable = 0;

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#open = new Outstanding(settings.clock, settings.deadlineMs, (own) => this.#overdue(own));
    this.#line = new Line(settings, {
      opened: () => this.#flush(),
      answered: (told) => this.#answered(told),
      lost: (why) => this.#lost(why),
    });
  }

  async check(key: string, cost = 1): Promise<boolean> {
    return (await this.#ask(key, ANY, cost, false)).verdict === 'allow';
  }

  ask(key: string, { limit = ANY, cost = 1, hold = false }: AskOptions = {}): Promise<Answer> {
    return this.#ask(key, limit, cost, hold);
  }

  async settle(permit: string, result: Result = {}): Promise<boolean> {
    const { outcome = 'ok', used, rttMs, retryAfterMs } = result;
    const notes = { USED: used, RTT: rttMs, RETRYAFTER: retryAfterMs };
    const said = Object.entries(notes).flatMap(([name, amount]) =>
      amount === undefined ? [] : [name, amountOf(name.toLowerCase(), amount)],
    );
    return (await this.#say(['SLUICE.SETTLE', bytesOf(permit), outcome, ...said])) === 1;
  }

  async inspect(key: string, limit = ANY): Promise<InspectedKey | undefined> {
    const told = await this.#say(['SLUICE.INSPECT', keyOf(key), bytesOf(limit)]);
    if (told instanceof Complaint || told instanceof UnavailableError) return undefined;
    return inspectedOf(told);
  }

  stats(): ClientStats {
    return {
      isConnected: this.#line.state === 'open',
      connections: this.#line.connections,
      open: this.#open.size + this.#late.length,
      allowed: this.#allowed,
      denied: this.#denied,
      unavailable: this.#unavailable,
    };
  }

  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    if (this.#size > 0) {
      await new Promise<void>((idle) => {
        this.#idle = idle;
      });
    }
    this.#line.close();
  }

  get #size(): number {
    return this.#waiting.length + this.#sent.length - this.#next;
  }

  async #ask(key: string, limit: string, cost: number, isHold: boolean): Promise<Answer> {
    const hold = isHold ? ['HOLD'] : [];
    const amount = amountOf('cost', cost);
    const told = await this.#say(['SLUICE.ASK', bytesOf(limit), keyOf(key), amount, ...hold]);
    const answer = told instanceof UnavailableError ? this.#standIn(told) : this.#read(told);
    if (answer.verdict === 'allow') this.#allowed++;
    else this.#denied++;
    return answer;
  }

  #read(told: Told): Answer {
    if (told instanceof Complaint) return this.#standIn(this.#wrong(told.text));
    if (!Array.isArray(told) || told.length !== 6) return this.#standIn(this.#wrong('no answer'));
    const [isAllowed, remaining, retryAfterMs, limit, permit, reason] = told;
    if (isAllowed === 1) {
      const left = remaining < 0 ? Infinity : remaining;
      return { verdict: 'allow', remaining: left, ...(permit !== '' && { permit }) };
    }
    const later = retryAfterMs < 0 ? NEVER : retryAfterMs;
    const why = { ...(limit !== '' && { limit }), ...(reason !== '' && { reason }) };
    return { verdict: 'deny', retryAfterMs: later, ...why };
  }

  /** The daemon is there, but could make nothing of it. */
  #wrong(text: string): UnavailableError {
    return new UnavailableError('an answer of sluice', text);
  }

  #standIn(unavailable: UnavailableError): Answer {
    this.#unavailable++;
    if (this.#settings.onUnavailable === 'allow') {
      return { verdict: 'allow', remaining: Infinity, unavailable };
    }
    return { verdict: 'deny', retryAfterMs: this.#line.awayMs, unavailable };
  }

  /** Asks; what comes back is an answer, or why there is none. Never late, never rejected. */
  #say(args: readonly string[]): Promise<Told | UnavailableError> {
    const { state, why } = this.#line;
    if (state === 'away' || state === 'closed') return Promise.resolve(why);
    if (this.#closed)
      return Promise.resolve(new UnavailableError('sluice', 'the client is closed'));
    if (this.#size >= this.#settings.asksMax) {
      return Promise.resolve(new UnavailableError('sluice', 'too many questions are open'));
    }
    return new Promise((tell) => {
      const heldAt = this.#settings.clock.now();
      const question: Question = { text: encode(args), tell, heldAt, isTold: false };
      this.#open.add(question);
      this.#waiting.push(question);
      this.#line.busy(true);
      if (this.#isFlushing) return;
      this.#isFlushing = true;
      endOfTick(() => this.#flush());
    });
  }

  #flush(): void {
    this.#isFlushing = false;
    if (this.#line.state !== 'open' || this.#waiting.length === 0) return;
    const questions = this.#waiting;
    this.#waiting = [];
    let text = '';
    for (const question of questions) {
      text += question.text;
      this.#sent.push(question);
    }
    this.#line.write(text);
  }

  #answered(told: Told): void {
    const question = this.#sent[this.#next];
    if (!question) {
      this.#line.fail('it answers what nobody asked');
      return;
    }
    this.#next++;
    if (this.#next === this.#sent.length) {
      this.#sent = [];
      this.#next = 0;
    }
    this.#tell(question, told);
    if (this.#size === 0) this.#rest();
  }

  /** Nobody waits for anything. */
  #rest(): void {
    this.#line.busy(false);
    this.#idle?.();
    this.#idle = undefined;
  }

  #tell(question: Question, told: Told | UnavailableError): void {
    if (question.isTold) return;
    question.isTold = true;
    this.#open.remove(question);
    question.tell(told);
  }

  /** Its deadline is over. */
  #overdue(question: Question): void {
    this.#late.push(question);
    if (this.#late.length > 1) return;
    const { clock, deadlineMs } = this.#settings;
    const look = (): void => {
      const late = this.#late;
      this.#late = [];
      if (late.some(({ isTold }) => !isTold)) this.#line.fail(`no answer within ${deadlineMs} ms`);
    };
    alarm(clock, clock.now() + LAST_LOOK_MS, look, false);
  }

  #lost(why: UnavailableError): void {
    const questions = [...this.#sent.slice(this.#next), ...this.#waiting];
    this.#sent = [];
    this.#next = 0;
    this.#waiting = [];
    for (const question of questions) this.#tell(question, why);
    this.#rest();
  }
}

/** In the place of a limit's name: whichever are for the key. */
const ANY = '*';

function keyOf(key: unknown): string {
  if (typeof key !== 'string') throw new ConfigError('key', 'a text', key);
  return bytesOf(key).slice(0, KEY_BYTES_MAX);
}

/** A number as the daemon reads it: without an exponent. */
function amountOf(field: string, amount: number): string {
  requireNumber(field, amount, { min: 0, max: COST_MAX });
  return Number.isInteger(amount) ? String(amount) : amount.toFixed(9);
}
