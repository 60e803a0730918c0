/**
 * Sends requests over one connection and matches replies by their order, within a deadline each.
 *
 *     send ──▶ unsent ── one write for the requests of a tick ──▶ in flight ──▶ the reply to the oldest of them
 *                └── the connection fails ───────────────────────────┴── deadline ──▶ the reason why there is none
 *
 * At most `MAX_IN_FLIGHT` requests are in flight. The rest of a burst waits here, where no deadline runs: its own length
 * must not look like an outage, or a client could get past its limit by a burst. A deadline begins when the request is
 * written, and time in which this process is blocked does not count.
 *
 * A request that misses its deadline shows an outage only if the daemon has answered no request in time since the call.
 * Else the call is denied, and its reply is still awaited: no reply in time for another deadline is an outage.
 */

import { afterReads, MAX_EXTENSIONS, wasBlocked } from '../core/call-deadline.ts';
import { type Millis, onNextTick } from '../core/clock.ts';
import { DeadlineSet, type Issued } from '../core/deadline-set.ts';
import { DaemonConnection, type RequestError } from './connection.ts';
import type { ClientSettings } from './options.ts';
import { encodeCommand, RespError, type RespValue } from './resp.ts';

/** A request to which the daemon has not replied yet. */
interface PendingRequest extends Issued {
  readonly encoded: string;
  /** Called once, with the reply or the reason why there is none. */
  readonly resolve: (reply: RespValue | RequestError) => void;
  readonly calledAt: Millis;
  /** When its deadline began. */
  issuedAt: Millis;
  /** How often its deadline began again. */
  extensions: number;
  isResolved: boolean;
  isReplied: boolean;
}

/** Requests in flight: few enough for a busy daemon to answer within a deadline, enough to keep it busy. */
const MAX_IN_FLIGHT = 256;

/** Replied requests that are kept before the list is cut. */
const MAX_REPLIED = 4 * MAX_IN_FLIGHT;

export class RequestPipeline {
  readonly connection: DaemonConnection;
  readonly #settings: ClientSettings;
  /** When a request was last answered before its deadline expired. */
  #answeredAt: Millis = -Infinity;
  /** Requests whose deadline runs: those in flight, and all before the first handshake. */
  readonly #deadlines: DeadlineSet<PendingRequest>;
  /** Not sent yet. */
  #unsent: PendingRequest[] = [];
  /** How many of them wait for the first handshake, within their deadline. */
  #awaiting = 0;
  /** Sent, in order; the first `#replied` of them have a reply. */
  #sent: PendingRequest[] = [];
  #replied = 0;
  #isFlushing = false;
  #overdue: PendingRequest[] = [];
  #unresolved = 0;
  #onIdle: (() => void) | undefined;

  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#deadlines = new DeadlineSet(settings.clock, settings.deadlineMs, (request) =>
      this.#onDeadline(request),
    );
    this.connection = new DaemonConnection(settings, {
      onOpen: () => this.#onOpen(),
      onReply: (reply) => this.#onReply(reply),
      onFailure: (error) => this.#onConnectionFailure(error),
    });
  }

  /** Requests whose caller has no reply yet. */
  get pending(): number {
    return this.#unresolved;
  }

  get #inFlight(): number {
    return this.#sent.length - this.#replied;
  }

  /** Requests to which the daemon has not replied. */
  get #unanswered(): number {
    return this.#unsent.length + this.#inFlight;
  }

  /** Resolves when the daemon has replied to all requests. */
  async drained(): Promise<void> {
    if (this.#unanswered === 0) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
  }

  /** Resolves to the reply or the reason why there is none. Never rejects. */
  send(args: readonly string[]): Promise<RespValue | RequestError> {
    if (this.#unanswered >= this.#settings.maxPending)
      return Promise.resolve(this.#burstError('too many requests are pending'));
    return new Promise((resolve) => {
      const now = this.#settings.clock.now();
      const request: PendingRequest = {
        encoded: encodeCommand(args),
        resolve,
        calledAt: now,
        issuedAt: now,
        extensions: 0,
        isResolved: false,
        isReplied: false,
      };
      this.#unresolved++;
      this.#unsent.push(request);
      this.connection.setBusy(true);
      this.#flushSoon();
    });
  }

  #onOpen(): void {
    for (const request of this.#unsent) this.#deadlines.remove(request);
    this.#awaiting = 0;
    this.#flush();
  }

  #flushSoon(): void {
    if (this.#isFlushing) return;
    this.#isFlushing = true;
    onNextTick(() => this.#flush());
  }

  #flush(): void {
    this.#isFlushing = false;
    const count = Math.min(this.#unsent.length, MAX_IN_FLIGHT - this.#inFlight);
    if (this.connection.state !== 'open') this.#awaitHandshake();
    if (this.connection.state !== 'open' || count === 0) return;
    const requests = this.#takeUnsent(count);
    let text = '';
    for (const request of requests) {
      text += request.encoded;
      this.#sent.push(request);
    }
    this.connection.write(text);
    const now = this.#settings.clock.now();
    for (const request of requests) this.#beginDeadline(request, now);
  }

  /** The deadlines of new requests begin now, not while the program was still making calls. */
  #awaitHandshake(): void {
    const now = this.#settings.clock.now();
    for (const request of this.#unsent.slice(this.#awaiting)) this.#beginDeadline(request, now);
    this.#awaiting = this.#unsent.length;
  }

  #takeUnsent(count: number): PendingRequest[] {
    if (count < this.#unsent.length) return this.#unsent.splice(0, count);
    const all = this.#unsent;
    this.#unsent = [];
    return all;
  }

  #beginDeadline(request: PendingRequest, now: Millis): void {
    request.issuedAt = now;
    this.#deadlines.add(request);
  }

  #onReply(reply: RespValue): void {
    const request = this.#sent[this.#replied];
    if (!request) {
      this.connection.fail(this.connection.protocolError('a reply without a request'));
      return;
    }
    this.#forgetReplied();
    request.isReplied = true;
    this.#deadlines.remove(request);
    if (!request.isResolved) this.#answeredAt = this.#settings.clock.now();
    this.#resolve(request, reply instanceof RespError ? this.connection.errorOf(reply) : reply);
    if (this.#unsent.length > 0) this.#flushSoon();
    else if (this.#inFlight === 0) this.#onDrained();
  }

  #forgetReplied(): void {
    this.#replied++;
    if (this.#replied < MAX_REPLIED && this.#inFlight > 0) return;
    this.#sent = this.#sent.slice(this.#replied);
    this.#replied = 0;
  }

  /** No request is pending. */
  #onDrained(): void {
    this.connection.setBusy(false);
    this.#onIdle?.();
    this.#onIdle = undefined;
  }

  #resolve(request: PendingRequest, reply: RespValue | RequestError): void {
    if (request.isResolved) return;
    request.isResolved = true;
    this.#unresolved--;
    request.resolve(reply);
  }

  #onDeadline(request: PendingRequest): void {
    const { clock, deadlineMs } = this.#settings;
    const now = clock.now();
    const lateMs = now - request.issuedAt - deadlineMs;
    if (wasBlocked(lateMs, deadlineMs) && request.extensions++ < MAX_EXTENSIONS) {
      this.#beginDeadline(request, now);
      return;
    }
    this.#overdue.push(request);
    if (this.#overdue.length === 1) afterReads(() => this.#expireOverdue());
  }

  #expireOverdue(): void {
    const overdue = this.#overdue.filter(({ isReplied }) => !isReplied);
    this.#overdue = [];
    const { clock, deadlineMs } = this.#settings;
    const reason = `no reply within ${deadlineMs} ms`;
    const isSilent = ({ isResolved, issuedAt, calledAt }: PendingRequest): boolean =>
      this.#answeredAt < (isResolved ? issuedAt : calledAt);
    const isOutage = overdue.some(isSilent);
    const late = isOutage ? [...this.#inFlightRequests(), ...this.#unsent] : overdue;
    for (const request of late)
      if (!isSilent(request)) this.#resolve(request, this.#burstError(reason));
    if (isOutage) this.connection.fail(this.connection.unavailableError(reason));
    else for (const request of overdue) this.#beginAgain(request, clock.now());
  }

  #beginAgain(request: PendingRequest, now: Millis): void {
    request.extensions = 0;
    this.#beginDeadline(request, now);
  }

  #inFlightRequests(): PendingRequest[] {
    return this.#sent.slice(this.#replied);
  }

  /** More requests than the daemon answers in time are no outage. */
  #burstError(reason: string): RequestError {
    const { deadlineMs } = this.#settings;
    return this.connection.rejectedError(`${reason}, in a burst of requests`, deadlineMs);
  }

  #onConnectionFailure(error: RequestError): void {
    const requests = [...this.#inFlightRequests(), ...this.#unsent];
    this.#sent = [];
    this.#replied = 0;
    this.#unsent = [];
    this.#awaiting = 0;
    for (const request of requests) {
      request.isReplied = true;
      this.#deadlines.remove(request);
      this.#resolve(request, error);
    }
    this.#onDrained();
  }
}
