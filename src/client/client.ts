/**
 * Checks with a daemon on this host, or near it, whether a call is allowed.
 *
 *     const sluice = connect();
 *     if (await sluice.isAllowed('alice')) serve();
 *
 * A check must never be what a service fails by. A decision comes within the deadline, from the daemon or from
 * `onUnavailable`. After a failure no request is sent during the backoff, and decisions come at once. An outage never
 * rejects a promise. An error reply is not an outage: a client could cause one by a long key, and get past its limit.
 * So the call is denied. A mistake of the program (an unknown limit, a wrong password or port) rejects the promise.
 *
 * Requests of one tick are sent in one write, and replies are matched by their order.
 */

import { createHash } from 'node:crypto';
import { type Millis, onNextTick, schedule } from '../core/clock.ts';
import { isNonEmptyString } from '../core/config-helpers.ts';
import { DeadlineSet, type Issued } from '../core/deadline-set.ts';
import {
  ATTEMPT_OUTCOMES,
  type AttemptOutcome,
  type Decision,
  NEVER,
  OUTCOMES,
  type Outcome,
} from '../core/decision.ts';
import type { Duration } from '../core/duration.ts';
import { ConfigError, RejectedError, UnavailableError } from '../core/errors.ts';
import { FLOW_FIELDS, type FlowOptions, readFlow } from '../core/flow.ts';
import { OptionReader, requireNumber } from '../core/options.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import { DaemonConnection, type RequestError } from './connection.ts';
import { type InspectedKey, toInspectedKey } from './key-status.ts';
import {
  type ClientOptions,
  type ClientSettings,
  DEADLINE_GRACE_MS,
  readSettings,
} from './options.ts';
import { encodeCommand, RespError, type RespValue, toBinaryString } from './resp.ts';
import { WaitingCalls } from './waiting-calls.ts';

/** Options of `check`. */
export interface CheckOptions {
  /** The name of one limit. Default: all limits that match the key. */
  readonly limit?: string | undefined;
  /** The plan of the key. Default: that of the daemon's plan file, if there is one. */
  readonly plan?: string | undefined;
  /** True to get a permit, to be settled: for limits that count calls in flight, or learn from them. */
  readonly withPermit?: boolean | undefined;
  /** A repeated check with the same id is charged once, for a minute: after a lost reply, or a retry. */
  readonly id?: string | undefined;
}

/** One check of `checkAll`. */
export interface CheckItem {
  readonly key: string;
  /** The name of one limit. Default: all limits that match the key. */
  readonly limit?: string;
  /** The plan of the key. */
  readonly plan?: string;
  /** Default 1. */
  readonly cost?: number;
}

/** Options of `acquire`. */
export interface AcquireOptions extends CheckOptions, FlowOptions {
  /** Default 1. */
  readonly cost?: number | undefined;
  /** The longest wait, up to the `bounds.wait` of the daemon. Default 10 s. */
  readonly wait?: Duration | undefined;
  /** Ends the wait when it aborts: the call leaves the queue, and the promise rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/** Never `wait`: the daemon reserves nothing. */
type ImmediateDecision = { readonly verdict: 'allow' } | Extract<Decision, { verdict: 'deny' }>;

/** The decision of the daemon, or of `onUnavailable` in its place. */
export type CheckResult = ImmediateDecision & {
  /** What is left, also after a refusal. Left out where it is unknown, or no limit counts the key. */
  readonly remaining?: number;
  /** The limit that refused. */
  readonly limit?: string;
  /**
   * Why it refused, if not by an exhausted limit; `unavailable`: the backend of a limit is unavailable, or the daemon stops;
   * `queue-full`: too many calls wait. `locked`: a lock-out has locked the key. `overload`: the daemon was too busy to decide, and its fail mode did, also if allowed.
   */
  readonly reason?:
    | 'unavailable'
    | 'queue-full'
    | 'overload'
    | 'locked'
    | 'deny-list'
    | 'unmatched'
    | 'banned';
  /** The permit to settle, with `withPermit`. */
  readonly permit?: string;
  /** Set if `onUnavailable` decided: why. */
  readonly unavailable?: UnavailableError;
  /** Set if the call is denied because the daemon rejected the key, the cost or a burst: why. */
  readonly rejected?: RejectedError;
};

/** What `takeUpTo` took. */
export interface TakeResult {
  /** How many; 0 if none was left. */
  readonly taken: number;
  /** The permit for `giveBack`, with `withPermit`. */
  readonly permit?: string;
  /** Set if none was taken because the backend of a limit is unavailable. */
  readonly reason?: 'unavailable';
  /** Set if `onUnavailable` decided: why. Then `taken` is all or nothing. */
  readonly unavailable?: UnavailableError;
  /** Set if the daemon rejected the key, the amount or a burst: why. Then `taken` is 0. */
  readonly rejected?: RejectedError;
}

/** How a call with a permit went. */
export interface CallReport {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** The cost that the call really had. Default: the cost of the check. */
  readonly used?: number;
  readonly rttMs?: Millis;
  /** The Retry-After of the server that was called. */
  readonly retryAfterMs?: Millis;
  /** Lock-out: how the attempt ended, such as a login. */
  readonly attempt?: AttemptOutcome;
}

/** The state of the connection, and counters since the start. */
export interface ClientStats {
  /** Whether the connection is open. */
  readonly isConnected: boolean;
  /** Connections established so far. */
  readonly connections: number;
  /** Requests without a reply yet. */
  readonly pending: number;
  /** Calls of `acquire` without a decision yet. */
  readonly waiting: number;
  readonly allowed: number;
  readonly denied: number;
  /** How many of both `onUnavailable` decided. */
  readonly fallback: number;
  /** How many the daemon rejected: denied, or an error. */
  readonly rejected: number;
}

/** A client of a daemon; created by `connect`. An outage never rejects a promise; an unknown limit, a wrong password or a wrong port does. */
export interface Client {
  /** Checks and counts a call: the decision, within the deadline. Cost defaults to 1; 0 counts nothing. */
  check(key: string, cost?: number, options?: CheckOptions): Promise<CheckResult>;
  /** Checks several limits and keys as one call: all are charged, or none. */
  checkAll(
    checks: readonly CheckItem[],
    options?: Pick<CheckOptions, 'withPermit'>,
  ): Promise<CheckResult>;
  /** `check`, waiting in the daemon's queue until the call is allowed or its `wait` is over. An abort rejects. */
  acquire(key: string, options?: AcquireOptions): Promise<CheckResult>;
  /** `check` as a boolean: true if the call is allowed. */
  isAllowed(key: string, cost?: number): Promise<boolean>;
  /** Reports how a call went. False if the permit has expired, or the daemon is unavailable. */
  settle(permit: string, result?: CallReport): Promise<boolean>;
  /** Lock-out: reports how an attempt of a key ended. False if the daemon is unavailable, or no limit of the key has one. */
  report(
    key: string,
    attempt: AttemptOutcome,
    options?: Pick<CheckOptions, 'limit' | 'plan'>,
  ): Promise<boolean>;
  /** Takes as many as there are, up to `max`. For limits that do not count calls in flight. */
  takeUpTo(key: string, max: number, options?: Omit<CheckOptions, 'id'>): Promise<TakeResult>;
  /** Returns what was not used of `takeUpTo`. False if the permit has expired, or the daemon is unavailable. */
  giveBack(permit: string, unused: number): Promise<boolean>;
  /** The state of a key; undefined if the daemon is unavailable. */
  inspect(key: string, limit?: string): Promise<InspectedKey | undefined>;
  /** The state of the connection, and counters since the start. */
  stats(): ClientStats;
  /** Waits for pending replies, then disconnects. Later checks are decided by `onUnavailable`. */
  close(): Promise<void>;
}

/** Creates a client, which connects in the background. @throws {ConfigError} if an option is invalid. */
export const connect = (options: ClientOptions = {}): Client =>
  new DaemonClient(readSettings(options));

/**
 * The daemon accepts no longer keys. Of a longer one, the beginning is sent, for the patterns of limits, and a digest of the
 * whole: two long keys that begin alike have separate counts.
 */
const MAX_KEY_BYTES = 4096;

/** The daemon accepts no longer ids. */
const MAX_ID_BYTES = 256;

const isId = (value: unknown): value is string =>
  isNonEmptyString(value) && toBinaryString(value).length <= MAX_ID_BYTES;

/** The daemon accepts no more checks in one question. */
const MAX_CHECKS = 32;

/** The largest number that the daemon parses. */
const MAX_COST = 999_999_999_999_999;

/** A request without a reply yet. */
interface PendingRequest extends Issued {
  readonly encoded: string;
  /** Called once, with the reply or the reason why there is none. */
  readonly resolve: (reply: RespValue | RequestError) => void;
  /** Requests that were pending when it was issued. */
  readonly ahead: number;
  isResolved: boolean;
}

/** A request with so many ahead of it is late because of them, if others are answered in time. */
const BURST = 200;

class DaemonClient implements Client {
  readonly #settings: ClientSettings;
  readonly #connection: DaemonConnection;
  readonly #waiting: WaitingCalls;
  /** When a request was last answered within its deadline. */
  #answeredAt = -Infinity;
  /** Requests whose deadline runs. */
  readonly #pending: DeadlineSet<PendingRequest>;
  /** Not sent yet. */
  #unsent: PendingRequest[] = [];
  /** Sent, in order; the first `#replied` of them have a reply. */
  #sent: PendingRequest[] = [];
  #replied = 0;
  #isFlushing = false;
  #overdueRequests: PendingRequest[] = [];
  #onIdle: (() => void) | undefined;
  #closing: Promise<void> | undefined;
  #allowed = 0;
  #denied = 0;
  #fallbacks = 0;
  #rejected = 0;

  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#waiting = new WaitingCalls(settings);
    this.#pending = new DeadlineSet(settings.clock, settings.deadlineMs, (request) =>
      this.#onDeadline(request),
    );
    this.#connection = new DaemonConnection(settings, {
      onOpen: () => this.#flush(),
      onReply: (reply) => this.#onReply(reply),
      onFailure: (error) => this.#onConnectionFailure(error),
    });
  }

  async check(key: string, cost = 1, options?: CheckOptions): Promise<CheckResult> {
    const amount = encodeAmount('cost', cost);
    return this.#decide(encodeRequest('SLUICE.CHECK', key, amount, options));
  }

  async checkAll(
    checks: readonly CheckItem[],
    options: Pick<CheckOptions, 'withPermit'> = {},
  ): Promise<CheckResult> {
    return this.#decide(encodeChecks(checks, options));
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
    const { request, waitMs, signal } = readAcquire(key, options);
    const encode = (leftMs: Millis): string[] => [...request, 'WAIT', String(leftMs)];
    const reply = this.#refusalToWait() ?? (await this.#waiting.send({ waitMs, signal, encode }));
    return this.#countResult(this.#toCheckResult(reply));
  }

  /** Why no call may wait now. */
  #refusalToWait(): RequestError | undefined {
    const { state, error } = this.#connection;
    const { maxWaiting } = this.#settings;
    if (state === 'backing-off' || state === 'closed') return error;
    if (this.#closing) return this.#connection.unavailableError('the client is closed');
    if (this.#waiting.size < maxWaiting) return undefined;
    return this.#connection.rejectedError(`${maxWaiting} calls wait already (maxWaiting)`, 0);
  }

  async isAllowed(key: string, cost = 1): Promise<boolean> {
    const { verdict, rejected } = await this.check(key, cost);
    warnIfRejected(rejected);
    return verdict === 'allow';
  }

  async settle(permit: string, result: CallReport = {}): Promise<boolean> {
    requireNonEmptyString('permit', permit);
    const args = ['SLUICE.SETTLE', toBinaryString(permit), ...encodeReport(result)];
    return isDone(await this.#send(args));
  }

  async report(
    key: string,
    attempt: AttemptOutcome,
    options: Pick<CheckOptions, 'limit' | 'plan'> = {},
  ): Promise<boolean> {
    if (!ATTEMPT_OUTCOMES.includes(attempt))
      throw new ConfigError('attempt', `one of ${ATTEMPT_OUTCOMES.join(', ')}`, attempt);
    const { limit = ANY_LIMIT, plan } = readCheckOptions(options);
    const args = [encodeLimit(limit, plan), encodeKey(key), attempt];
    const reply = await this.#send(['SLUICE.REPORT', ...args]);
    throwIfMistake(reply);
    warnIfRejected(reply);
    return typeof reply === 'number' && reply > 0;
  }

  async takeUpTo(key: string, max: number, options?: CheckOptions): Promise<TakeResult> {
    if (options?.id !== undefined)
      throw new ConfigError('options.id', 'left out of takeUpTo', options.id);
    const most = encodeWhole('max', max);
    const reply = await this.#send(encodeRequest('SLUICE.TAKEUPTO', key, most, options));
    const result =
      Array.isArray(reply) && (reply.length === 2 || reply[2] === 'unavailable')
        ? toTakeResult(reply)
        : this.#undecidedTake(max, this.#whyUndecided(reply));
    if (result.taken > 0) this.#allowed++;
    else if (max > 0) this.#denied++;
    return result;
  }

  async giveBack(permit: string, unused: number): Promise<boolean> {
    requireNonEmptyString('permit', permit);
    const amount = encodeWhole('unused', unused);
    return isDone(await this.#send(['SLUICE.GIVEBACK', toBinaryString(permit), amount]));
  }

  async inspect(key: string, limit = ANY_LIMIT): Promise<InspectedKey | undefined> {
    requireNonEmptyString('limit', limit);
    const reply = await this.#send(['SLUICE.INSPECT', encodeKey(key), toBinaryString(limit)]);
    throwIfMistake(reply);
    warnIfRejected(reply);
    return isError(reply) ? undefined : toInspectedKey(reply);
  }

  stats(): ClientStats {
    return {
      isConnected: this.#connection.state === 'open',
      connections: this.#connection.handshakes,
      pending: this.#pending.size + this.#overdueRequests.length,
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
    if (this.#pendingCount > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    this.#connection.close();
  }

  get #pendingCount(): number {
    return this.#unsent.length + this.#sent.length - this.#replied;
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
      const retryAfterMs = state === 'open' ? error.retryAfterMs : backoffMs;
      return { verdict: 'deny', retryAfterMs, rejected: error };
    }
    this.#fallbacks++;
    if (this.#settings.onUnavailable === 'allow') {
      warnOfFailOpen(error, this.#connection.name);
      return { verdict: 'allow', unavailable: error };
    }
    return { verdict: 'deny', retryAfterMs: backoffMs, unavailable: error };
  }

  /** Sends a command; resolves to its reply or the reason why there is none, within the deadline. Never rejects. */
  #send(args: readonly string[]): Promise<RespValue | RequestError> {
    const { state, error } = this.#connection;
    if (state === 'backing-off' || state === 'closed') return Promise.resolve(error);
    if (this.#closing)
      return Promise.resolve(this.#connection.unavailableError('the client is closed'));
    const issuedAt = this.#settings.clock.now();
    const ahead = this.#sent.length - this.#replied + this.#unsent.length;
    if (ahead >= this.#settings.maxPending) {
      const isLate = this.#answeredAt < issuedAt - this.#settings.deadlineMs;
      return Promise.resolve(this.#undecidedBurst('too many requests are pending', isLate));
    }
    return new Promise((resolve) => {
      const request: PendingRequest = {
        encoded: encodeCommand(args),
        resolve,
        issuedAt,
        ahead,
        isResolved: false,
      };
      this.#pending.add(request);
      this.#unsent.push(request);
      this.#connection.setBusy(true);
      if (this.#isFlushing) return;
      this.#isFlushing = true;
      onNextTick(() => this.#flush());
    });
  }

  #flush(): void {
    this.#isFlushing = false;
    if (this.#connection.state !== 'open' || this.#unsent.length === 0) return;
    const requests = this.#unsent;
    this.#unsent = [];
    let text = '';
    for (const request of requests) {
      text += request.encoded;
      this.#sent.push(request);
    }
    this.#connection.write(text);
  }

  #onReply(reply: RespValue): void {
    const request = this.#sent[this.#replied];
    if (!request) {
      this.#connection.fail(this.#connection.protocolError('a reply without a request'));
      return;
    }
    this.#replied++;
    if (this.#replied === this.#sent.length) {
      this.#sent = [];
      this.#replied = 0;
    }
    const now = this.#settings.clock.now();
    if (now - request.issuedAt <= this.#settings.deadlineMs) this.#answeredAt = now;
    this.#resolve(request, reply instanceof RespError ? this.#connection.errorOf(reply) : reply);
    if (this.#pendingCount === 0) this.#onDrained();
  }

  /** No request is pending. */
  #onDrained(): void {
    this.#connection.setBusy(false);
    this.#onIdle?.();
    this.#onIdle = undefined;
  }

  #resolve(request: PendingRequest, reply: RespValue | RequestError): void {
    if (request.isResolved) return;
    request.isResolved = true;
    this.#pending.remove(request);
    request.resolve(reply);
  }

  #onDeadline(request: PendingRequest): void {
    this.#overdueRequests.push(request);
    if (this.#overdueRequests.length > 1) return;
    const { clock, deadlineMs } = this.#settings;
    const failIfUnresolved = (): void => {
      const overdue = this.#overdueRequests;
      this.#overdueRequests = [];
      const unresolved = overdue.filter(({ isResolved }) => !isResolved);
      const reason = `no reply within ${deadlineMs} ms`;
      const isOutage = (request: PendingRequest): boolean =>
        request.ahead < BURST || this.#answeredAt < request.issuedAt;
      if (unresolved.some(isOutage))
        this.#connection.fail(this.#connection.unavailableError(reason));
      else
        for (const request of unresolved)
          this.#resolve(request, this.#undecidedBurst(reason, false));
    };
    schedule(clock, clock.now() + DEADLINE_GRACE_MS, failIfUnresolved, false);
  }

  /** A burst of requests is no outage: while others are answered in time, the rest of it is denied. */
  #undecidedBurst(reason: string, isLate: boolean): RequestError {
    const { deadlineMs } = this.#settings;
    return isLate
      ? this.#connection.unavailableError(reason)
      : this.#connection.rejectedError(`${reason}, in a burst of requests`, deadlineMs);
  }

  #onConnectionFailure(error: RequestError): void {
    const requests = [...this.#sent.slice(this.#replied), ...this.#unsent];
    this.#sent = [];
    this.#replied = 0;
    this.#unsent = [];
    for (const request of requests) this.#resolve(request, error);
    this.#onDrained();
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

/** In the place of a limit's name: all limits that match the key. */
const ANY_LIMIT = '*';

/** A command with a limit, a key, an amount and perhaps HOLD. */
function encodeRequest(
  name: string,
  key: string,
  amount: string,
  options: CheckOptions = {},
): string[] {
  const { limit = ANY_LIMIT, plan, withPermit, id } = readCheckOptions(options);
  const args = [name, encodeLimit(limit, plan), encodeKey(key), amount];
  if (withPermit) args.push('HOLD');
  return id === undefined ? args : [...args, 'ID', toBinaryString(id)];
}

/** A limit and the plan of the key, as one name. */
const encodeLimit = (limit: string, plan: string | undefined): string =>
  toBinaryString(plan === undefined ? limit : `${limit}[${plan}]`);

function encodeChecks(
  checks: readonly CheckItem[],
  options: Pick<CheckOptions, 'withPermit'>,
): string[] {
  if (!Array.isArray(checks) || checks.length === 0 || checks.length > MAX_CHECKS)
    throw new ConfigError('checks', `a list of 1 to ${MAX_CHECKS} checks`, checks);
  const reader = new OptionReader('options', options);
  const withPermit = reader.boolean('withPermit', false);
  reader.finish();
  const args = checks.flatMap((check, n) => {
    const fields = new OptionReader(`checks[${n}]`, check);
    const limit = fields.optional('limit', isNonEmptyString, 'a non-empty string') ?? ANY_LIMIT;
    const plan = fields.optional('plan', isNonEmptyString, 'a non-empty string');
    const key = encodeKey(fields.get('key'), fields.pathOf('key'));
    const cost = encodeAmount(fields.pathOf('cost'), fields.get('cost') ?? 1);
    fields.finish();
    return [encodeLimit(limit, plan), key, cost];
  });
  return ['SLUICE.CHECKALL', ...args, ...(withPermit ? ['HOLD'] : [])];
}

function readCheckOptions(options: CheckOptions): CheckOptions {
  const reader = new OptionReader('options', options);
  const limit = reader.optional('limit', isNonEmptyString, 'a non-empty string');
  const plan = reader.optional('plan', isNonEmptyString, 'a non-empty string');
  const withPermit = reader.boolean('withPermit', false);
  const id = reader.optional('id', isId, `a string of 1 to ${MAX_ID_BYTES} bytes`);
  reader.finish();
  const named = { ...(limit !== undefined && { limit }), ...(plan !== undefined && { plan }) };
  return { withPermit, ...named, ...(id !== undefined && { id }) };
}

/** The default `wait` of `acquire`. */
const DEFAULT_WAIT_MS: Millis = 10_000;

function readAcquire(key: string, options: AcquireOptions) {
  const reader = new OptionReader('options', options);
  const waitMs = reader.duration('wait', DEFAULT_WAIT_MS);
  const isSignal = (value: unknown): value is AbortSignal => value instanceof AbortSignal;
  const signal = reader.optional('signal', isSignal, 'an AbortSignal');
  const amount = encodeAmount(reader.pathOf('cost'), reader.get('cost') ?? 1);
  const names = ['limit', 'plan', 'withPermit', 'id'];
  const [limit, plan, withPermit, id] = names.map((name) => reader.get(name));
  const flow = encodeFlow(reader);
  reader.finish();
  const check = { limit, plan, withPermit, id } as CheckOptions;
  const request = [...encodeRequest('SLUICE.ACQUIRE', key, amount, check), ...flow];
  return { request, waitMs, signal };
}

/** Each field of a flow is a keyword of SLUICE.ACQUIRE, in capitals. */
function encodeFlow(reader: OptionReader): string[] {
  const given = FLOW_FIELDS.filter((name) => reader.has(name));
  const options = Object.fromEntries(given.map((name) => [name, reader.get(name)]));
  for (const name of FLOW_FIELDS) reader.get(name);
  readFlow(options);
  return given.flatMap((name) => {
    const value = options[name];
    const text =
      typeof value === 'number' ? encodeAmount(name, value) : toBinaryString(value as string);
    return [name.toUpperCase(), text];
  });
}

/** The fields of a CallReport, and their names in SLUICE.SETTLE. */
const REPORT_FIELDS = { used: 'USED', rttMs: 'RTT', retryAfterMs: 'RETRYAFTER' };

function encodeReport(report: CallReport): string[] {
  const reader = new OptionReader('result', report);
  const args: string[] = [reader.oneOf('outcome', OUTCOMES, 'ok')];
  for (const [field, name] of Object.entries(REPORT_FIELDS)) {
    const amount = reader.get(field);
    if (amount !== undefined) args.push(name, encodeAmount(reader.pathOf(field), amount));
  }
  if (reader.has('attempt')) args.push('ATTEMPT', reader.oneOf('attempt', ATTEMPT_OUTCOMES));
  reader.finish();
  return args;
}

function requireNonEmptyString(field: string, value: unknown): void {
  if (!isNonEmptyString(value)) throw new ConfigError(field, 'a non-empty string', value);
}

function encodeKey(key: unknown, field = 'key'): string {
  if (typeof key !== 'string') throw new ConfigError(field, 'a string', key);
  const bytes = toBinaryString(key);
  if (bytes.length <= MAX_KEY_BYTES) return bytes;
  const digest = `#${createHash('sha256').update(bytes, 'latin1').digest('base64url')}`;
  return bytes.slice(0, MAX_KEY_BYTES - digest.length) + digest;
}

function encodeWhole(field: string, given: unknown): string {
  requireNumber(field, given, { min: 0, max: MAX_COST, integer: true });
  return String(given);
}

/** A decimal number: the daemon parses no exponents. */
function encodeAmount(field: string, given: unknown): string {
  requireNumber(field, given, { min: 0, max: MAX_COST });
  const amount = given as number;
  return Number.isInteger(amount) ? String(amount) : amount.toFixed(9);
}
