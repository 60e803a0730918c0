/**
 * Checks with a daemon on this host, or near it, whether a call is allowed.
 *
 *     const sluice = connect();
 *     if (await sluice.isAllowed('alice')) serve();
 *
 * A check must never be what a service fails by. If the daemon does not reply within the deadline, `onUnavailable`
 * decides. After a failure no request is sent during the backoff, and decisions come at once. An outage never
 * rejects a promise.
 *
 * A burst of calls, or a process that is too busy to read replies, is not an outage. Nor is an error reply: a client
 * could cause one by a long key, and get past its limit. So the call is denied. A mistake of the program (an unknown limit, a wrong password or port) rejects the promise.
 *
 * `commands.ts` encodes a call, `request-pipeline.ts` sends it and matches replies, this file says what a reply means.
 */

import type { Millis } from '../core/clock.ts';
import { type AttemptOutcome, NEVER } from '../core/decision.ts';
import { RejectedError, UnavailableError } from '../core/errors.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import type {
  AcquireAllOptions,
  AcquireOptions,
  CallReport,
  CheckItem,
  CheckOptions,
  CheckResult,
  Client,
  ClientStats,
  TakeResult,
} from './api.ts';
import {
  checkAllCommand,
  checkCommand,
  giveBackCommand,
  inspectCommand,
  readAcquire,
  readAcquireAll,
  reportCommand,
  settleCommand,
  takeUpToCommand,
  type WaitingRequest,
} from './commands.ts';
import type { DaemonConnection, RequestError } from './connection.ts';
import { type InspectedKey, toInspectedKey } from './key-status.ts';
import { type ClientOptions, type ClientSettings, readSettings } from './options.ts';
import { RequestPipeline } from './request-pipeline.ts';
import type { RespValue } from './resp.ts';
import { WaitingCalls } from './waiting-calls.ts';

/** Creates a client, which connects in the background. @throws {ConfigError} if an option is invalid. */
export const connect = (options: ClientOptions = {}): Client =>
  new DaemonClient(readSettings(options));

class DaemonClient implements Client {
  readonly #settings: ClientSettings;
  readonly #pipeline: RequestPipeline;
  readonly #connection: DaemonConnection;
  readonly #waiting: WaitingCalls;
  #closing: Promise<void> | undefined;
  #allowed = 0;
  #denied = 0;
  #fallbacks = 0;
  #rejected = 0;

  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#waiting = new WaitingCalls(settings);
    this.#pipeline = new RequestPipeline(settings);
    this.#connection = this.#pipeline.connection;
  }

  async check(key: string, cost = 1, options?: CheckOptions): Promise<CheckResult> {
    return this.#decide(checkCommand(key, cost, options));
  }

  async checkAll(
    checks: readonly CheckItem[],
    options: Pick<CheckOptions, 'withPermit'> = {},
  ): Promise<CheckResult> {
    return this.#decide(checkAllCommand(checks, options));
  }

  async #decide(command: readonly string[]): Promise<CheckResult> {
    return this.#countResult(this.#toCheckResult(await this.#send(command)));
  }

  #countResult(result: CheckResult): CheckResult {
    if (result.verdict === 'allow') this.#allowed++;
    else this.#denied++;
    return result;
  }

  async acquire(key: string, options: AcquireOptions = {}): Promise<CheckResult> {
    return this.#wait(readAcquire(key, options));
  }

  async acquireAll(
    checks: readonly CheckItem[],
    options: AcquireAllOptions = {},
  ): Promise<CheckResult> {
    return this.#wait(readAcquireAll(checks, options));
  }

  async #wait({ request, waitMs, signal }: WaitingRequest): Promise<CheckResult> {
    const encode = (leftMs: Millis): string[] => [...request, 'WAIT', String(leftMs)];
    const reply = this.#refusalToWait() ?? (await this.#waiting.send({ waitMs, signal, encode }));
    return this.#countResult(this.#toCheckResult(reply));
  }

  /** Why no call may wait now. */
  #refusalToWait(): RequestError | undefined {
    const { maxWaiting } = this.#settings;
    const refusal = this.#refusal();
    if (refusal || this.#waiting.size < maxWaiting) return refusal;
    return this.#connection.rejectedError(`${maxWaiting} calls wait already (maxWaiting)`, 0);
  }

  /** Why no request is sent now. */
  #refusal(): RequestError | undefined {
    const { state, error } = this.#connection;
    if (state === 'backing-off' || state === 'closed') return error;
    return this.#closing && this.#connection.closedError();
  }

  /** Sends a command; resolves to its reply or the reason why there is none. Never rejects. */
  #send(command: readonly string[]): Promise<RespValue | RequestError> {
    const refusal = this.#refusal();
    return refusal ? Promise.resolve(refusal) : this.#pipeline.send(command);
  }

  async isAllowed(key: string, cost = 1): Promise<boolean> {
    const { verdict, rejected } = await this.check(key, cost);
    warnIfRejected(rejected);
    return verdict === 'allow';
  }

  async settle(permit: string, result: CallReport = {}): Promise<boolean> {
    return isDone(await this.#send(settleCommand(permit, result)));
  }

  async report(
    key: string,
    attempt: AttemptOutcome,
    options: Pick<CheckOptions, 'limit' | 'plan'> = {},
  ): Promise<boolean> {
    const reply = await this.#send(reportCommand(key, attempt, options));
    throwIfMistake(reply);
    warnIfRejected(reply);
    return typeof reply === 'number' && reply > 0;
  }

  async takeUpTo(key: string, max: number, options?: CheckOptions): Promise<TakeResult> {
    const reply = await this.#send(takeUpToCommand(key, max, options));
    const result =
      Array.isArray(reply) && (reply.length === 2 || reply[2] === 'unavailable')
        ? toTakeResult(reply)
        : this.#undecidedTake(max, this.#whyUndecided(reply));
    if (result.taken > 0) this.#allowed++;
    else if (max > 0) this.#denied++;
    return result;
  }

  async giveBack(permit: string, unused: number): Promise<boolean> {
    return isDone(await this.#send(giveBackCommand(permit, unused)));
  }

  async inspect(key: string, limit?: string): Promise<InspectedKey | undefined> {
    const reply = await this.#send(inspectCommand(key, limit));
    throwIfMistake(reply);
    warnIfRejected(reply);
    return isError(reply) ? undefined : toInspectedKey(reply);
  }

  stats(): ClientStats {
    return {
      isConnected: this.#connection.state === 'open',
      connections: this.#connection.handshakes,
      pending: this.#pipeline.pending,
      waiting: this.#waiting.size,
      allowed: this.#allowed,
      denied: this.#denied,
      fallback: this.#fallbacks,
      rejected: this.#rejected,
    };
  }

  close(): Promise<void> {
    this.#closing ??= this.#drainAndClose();
    return this.#closing;
  }

  async #drainAndClose(): Promise<void> {
    await this.#waiting.close();
    await this.#pipeline.drained();
    this.#connection.close();
  }

  #toCheckResult(reply: RespValue | RequestError): CheckResult {
    if (!Array.isArray(reply) || reply.length !== 6)
      return this.#undecided(this.#whyUndecided(reply));
    const [isAllowed, remaining, retryAfterMs, limit, permit, reason] = reply;
    if (isAllowed === 1) {
      return {
        verdict: 'allow',
        ...(remaining >= 0 && { remaining }),
        ...(permit !== '' && { permit }),
        ...(reason === 'overload' && { reason }),
      };
    }
    return {
      verdict: 'deny',
      retryAfterMs: retryAfterMs < 0 ? NEVER : retryAfterMs,
      ...(remaining >= 0 && { remaining }),
      ...(limit !== '' && { limit }),
      ...(reason !== '' && { reason }),
    };
  }

  /** After a reply of another shape, later ones may belong to other requests: the connection ends. */
  #whyUndecided(reply: RespValue | RequestError): RequestError {
    if (isError(reply)) return reply;
    const error = this.#connection.protocolError('an unexpected reply');
    this.#connection.fail(error);
    return error;
  }

  #undecidedTake(max: number, error: RequestError): TakeResult {
    const { verdict, unavailable, rejected } = this.#undecided(error);
    const taken = verdict === 'allow' ? max : 0;
    return { taken, ...(unavailable && { unavailable }), ...(rejected && { rejected }) };
  }

  /** Only an outage is decided by `onUnavailable`. */
  #undecided(error: RequestError): CheckResult {
    const { backoffMs, state } = this.#connection;
    if (error instanceof RejectedError) {
      this.#rejected++;
      if (error.isMistake) throw error;
      const retryAfterMs = state === 'backing-off' ? backoffMs : error.retryAfterMs;
      return { verdict: 'deny', retryAfterMs, rejected: error };
    }
    this.#fallbacks++;
    if (this.#settings.onUnavailable === 'allow') {
      warnOfFailOpen(error, this.#connection.name);
      return { verdict: 'allow', unavailable: error };
    }
    return { verdict: 'deny', retryAfterMs: backoffMs, unavailable: error };
  }
}

const isError = (reply: RespValue | RequestError): reply is RequestError =>
  reply instanceof UnavailableError || reply instanceof RejectedError;

function toTakeResult([taken, permit, reason]: readonly RespValue[]): TakeResult {
  return {
    taken: Number(taken),
    ...(permit !== '' && { permit: String(permit) }),
    ...(reason === 'unavailable' && { reason }),
  };
}

function isDone(reply: RespValue | RequestError): boolean {
  warnIfRejected(reply);
  return reply === 1;
}

function throwIfMistake(reply: RespValue | RequestError): void {
  if (reply instanceof RejectedError && reply.isMistake) throw reply;
}

/** Calls are not limited meanwhile: the process warns of it, once for each daemon. */
function warnOfFailOpen({ message }: UnavailableError, daemon: string): void {
  const text = () =>
    `${message}. Meanwhile \`onUnavailable: 'allow'\` allows calls without counting them`;
  emitProcessWarning('FAIL_OPEN', text, daemon);
}

/** Where the caller gets no reason, the process warns of it, once. */
function warnIfRejected(reply: unknown): void {
  if (reply instanceof RejectedError) emitProcessWarning('REJECTED', reply.message, reply.message);
}
