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

import { type Millis, onNextTick, schedule } from '../core/clock.ts';
import { DeadlineSet, type Issued } from '../core/deadline-set.ts';
import { type Decision, NEVER, type Outcome } from '../core/decision.ts';
import { ConfigError, UnavailableError } from '../core/errors.ts';
import { requireNumber } from '../core/options.ts';
import { DaemonConnection } from './connection.ts';
import { type InspectedKey, toInspectedKey } from './key-status.ts';
import { type ClientOptions, type ClientSettings, readSettings } from './options.ts';
import { encodeCommand, RespError, type RespValue, toBinaryString } from './resp.ts';

/** What an ask may say besides the key. */
export interface CheckOptions {
  /** One limit by its name. Default: whichever are for the key. */
  readonly limit?: string;
  /** What the call weighs. Default 1. */
  readonly cost?: number;
  /** True if you will `settle`: for limits that count calls in flight, or learn from them. */
  readonly withPermit?: boolean;
}

/** Never `wait`: nothing is reserved for later. */
type ImmediateDecision = Exclude<Decision, { verdict: 'wait' }>;

/** The daemon's decision, or what `onUnavailable` says in its place. */
export type CheckResult = ImmediateDecision & {
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
export interface CallReport {
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
  readonly pending: number;
  readonly allowed: number;
  readonly denied: number;
  /** Of both, how many `onUnavailable` answered. */
  readonly fallback: number;
}

/** Asks a daemon; made by `connect`. Nothing it does is rejected because of an outage. */
export interface Client {
  /** May it happen? True or false within the deadline, whatever becomes of the daemon. */
  isAllowed(key: string, cost?: number): Promise<boolean>;
  /** The same, with all there is to know. */
  check(key: string, options?: CheckOptions): Promise<CheckResult>;
  /** Says how a call went. False if nobody holds the permit any more, or nobody could be told. */
  settle(permit: string, result?: CallReport): Promise<boolean>;
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
const MAX_KEY_BYTES = 4096;

/** The daemon reads no longer numbers. */
const MAX_COST = 999_999_999_999_999;

/**
 * Once a deadline is over, what has already come in is still read. A process that was itself too
 * busy to look must not take that for an outage.
 */
const DEADLINE_GRACE_MS: Millis = 1;

/** One thing asked. */
interface PendingRequest extends Issued {
  readonly encoded: string;
  /** Hears the answer, or why there is none. Once. */
  readonly resolve: (told: RespValue | UnavailableError) => void;
  isResolved: boolean;
}

class DaemonClient implements Client {
  readonly #settings: ClientSettings;
  readonly #connection: DaemonConnection;
  /** Those that are not answered yet, for their deadlines. */
  readonly #pending: DeadlineSet<PendingRequest>;
  /** Asked, but not on their way yet. */
  #unsent: PendingRequest[] = [];
  /** On their way, in order; the first `#next` of them are answered. */
  #sent: PendingRequest[] = [];
  #replied = 0;
  #isFlushing = false;
  #overdueRequests: PendingRequest[] = [];
  #onIdle: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  #allowed = 0;
  #denied = 0;
  #fallbacks = 0;

  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#pending = new DeadlineSet(settings.clock, settings.deadlineMs, (own) =>
      this.#onDeadline(own),
    );
    this.#connection = new DaemonConnection(settings, {
      onOpen: () => this.#flush(),
      onReply: (told) => this.#onReply(told),
      onFailure: (why) => this.#onConnectionFailure(why),
    });
  }

  async isAllowed(key: string, cost = 1): Promise<boolean> {
    return (await this.#sendCheck(key, ANY_LIMIT, cost, false)).verdict === 'allow';
  }

  check(
    key: string,
    { limit = ANY_LIMIT, cost = 1, withPermit = false }: CheckOptions = {},
  ): Promise<CheckResult> {
    return this.#sendCheck(key, limit, cost, withPermit);
  }

  async settle(permit: string, result: CallReport = {}): Promise<boolean> {
    const { outcome = 'ok', used, rttMs, retryAfterMs } = result;
    const notes = { USED: used, RTT: rttMs, RETRYAFTER: retryAfterMs };
    const said = Object.entries(notes).flatMap(([name, amount]) =>
      amount === undefined ? [] : [name, encodeAmount(name.toLowerCase(), amount)],
    );
    return (await this.#send(['SLUICE.SETTLE', toBinaryString(permit), outcome, ...said])) === 1;
  }

  async inspect(key: string, limit = ANY_LIMIT): Promise<InspectedKey | undefined> {
    const told = await this.#send(['SLUICE.INSPECT', encodeKey(key), toBinaryString(limit)]);
    if (told instanceof RespError || told instanceof UnavailableError) return undefined;
    return toInspectedKey(told);
  }

  stats(): ClientStats {
    return {
      isConnected: this.#connection.state === 'open',
      connections: this.#connection.handshakes,
      pending: this.#pending.size + this.#overdueRequests.length,
      allowed: this.#allowed,
      denied: this.#denied,
      fallback: this.#fallbacks,
    };
  }

  close(): Promise<void> {
    this.#closing ??= this.#drainAndClose();
    return this.#closing;
  }

  async #drainAndClose(): Promise<void> {
    if (this.#pendingCount > 0) {
      await new Promise<void>((idle) => {
        this.#onIdle = idle;
      });
    }
    this.#connection.close();
  }

  get #pendingCount(): number {
    return this.#unsent.length + this.#sent.length - this.#replied;
  }

  async #sendCheck(
    key: string,
    limit: string,
    cost: number,
    withPermit: boolean,
  ): Promise<CheckResult> {
    const hold = withPermit ? ['HOLD'] : [];
    const amount = encodeAmount('cost', cost);
    const told = await this.#send([
      'SLUICE.CHECK',
      toBinaryString(limit),
      encodeKey(key),
      amount,
      ...hold,
    ]);
    const answer =
      told instanceof UnavailableError ? this.#fallbackResult(told) : this.#toCheckResult(told);
    if (answer.verdict === 'allow') this.#allowed++;
    else this.#denied++;
    return answer;
  }

  #toCheckResult(told: RespValue): CheckResult {
    if (told instanceof RespError) return this.#fallbackResult(this.#invalidReply(told.message));
    if (!Array.isArray(told) || told.length !== 6)
      return this.#fallbackResult(this.#invalidReply('no answer'));
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
  #invalidReply(text: string): UnavailableError {
    return new UnavailableError('an answer of sluice', text);
  }

  #fallbackResult(unavailable: UnavailableError): CheckResult {
    this.#fallbacks++;
    if (this.#settings.onUnavailable === 'allow') {
      return { verdict: 'allow', remaining: Infinity, unavailable };
    }
    return { verdict: 'deny', retryAfterMs: this.#connection.backoffMs, unavailable };
  }

  /** Asks; what comes back is an answer, or why there is none. Never late, never rejected. */
  #send(args: readonly string[]): Promise<RespValue | UnavailableError> {
    const { state, error } = this.#connection;
    if (state === 'backing-off' || state === 'closed') return Promise.resolve(error);
    if (this.#closing)
      return Promise.resolve(new UnavailableError('sluice', 'the client is closed'));
    if (this.#pendingCount >= this.#settings.maxPending) {
      return Promise.resolve(new UnavailableError('sluice', 'too many questions are open'));
    }
    return new Promise((tell) => {
      const issuedAt = this.#settings.clock.now();
      const question: PendingRequest = {
        encoded: encodeCommand(args),
        resolve: tell,
        issuedAt,
        isResolved: false,
      };
      this.#pending.add(question);
      this.#unsent.push(question);
      this.#connection.setBusy(true);
      if (this.#isFlushing) return;
      this.#isFlushing = true;
      onNextTick(() => this.#flush());
    });
  }

  #flush(): void {
    this.#isFlushing = false;
    if (this.#connection.state !== 'open' || this.#unsent.length === 0) return;
    const questions = this.#unsent;
    this.#unsent = [];
    let text = '';
    for (const question of questions) {
      text += question.encoded;
      this.#sent.push(question);
    }
    this.#connection.write(text);
  }

  #onReply(told: RespValue): void {
    const question = this.#sent[this.#replied];
    if (!question) {
      this.#connection.fail('it answers what nobody asked');
      return;
    }
    this.#replied++;
    if (this.#replied === this.#sent.length) {
      this.#sent = [];
      this.#replied = 0;
    }
    this.#resolve(question, told);
    if (this.#pendingCount === 0) this.#onDrained();
  }

  /** Nobody waits for anything. */
  #onDrained(): void {
    this.#connection.setBusy(false);
    this.#onIdle?.();
    this.#onIdle = undefined;
  }

  #resolve(question: PendingRequest, told: RespValue | UnavailableError): void {
    if (question.isResolved) return;
    question.isResolved = true;
    this.#pending.remove(question);
    question.resolve(told);
  }

  /** Its deadline is over. */
  #onDeadline(question: PendingRequest): void {
    this.#overdueRequests.push(question);
    if (this.#overdueRequests.length > 1) return;
    const { clock, deadlineMs } = this.#settings;
    const look = (): void => {
      const late = this.#overdueRequests;
      this.#overdueRequests = [];
      if (late.some(({ isResolved }) => !isResolved))
        this.#connection.fail(`no answer within ${deadlineMs} ms`);
    };
    schedule(clock, clock.now() + DEADLINE_GRACE_MS, look, false);
  }

  #onConnectionFailure(why: UnavailableError): void {
    const questions = [...this.#sent.slice(this.#replied), ...this.#unsent];
    this.#sent = [];
    this.#replied = 0;
    this.#unsent = [];
    for (const question of questions) this.#resolve(question, why);
    this.#onDrained();
  }
}

/** In the place of a limit's name: whichever are for the key. */
const ANY_LIMIT = '*';

function encodeKey(key: unknown): string {
  if (typeof key !== 'string') throw new ConfigError('key', 'a text', key);
  return toBinaryString(key).slice(0, MAX_KEY_BYTES);
}

/** A number as the daemon reads it: without an exponent. */
function encodeAmount(field: string, amount: number): string {
  requireNumber(field, amount, { min: 0, max: MAX_COST });
  return Number.isInteger(amount) ? String(amount) : amount.toFixed(9);
}
