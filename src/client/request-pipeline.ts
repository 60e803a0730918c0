/**
 * Sends requests over one connection and matches replies by their order, within a deadline each.
 *
 *     send ──▶ unsent ── one write for the requests of a tick ──▶ sent ──▶ the reply to the oldest of them
 *                └──── deadline, or the connection fails ──────────┴─────▶ the reason why there is none
 */

import { onNextTick, schedule } from '../core/clock.ts';
import { DeadlineSet, type Issued } from '../core/deadline-set.ts';
import { DaemonConnection, type RequestError } from './connection.ts';
import { type ClientSettings, DEADLINE_GRACE_MS } from './options.ts';
import { encodeCommand, RespError, type RespValue } from './resp.ts';

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

export class RequestPipeline {
  readonly connection: DaemonConnection;
  readonly #settings: ClientSettings;
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

  constructor(settings: ClientSettings) {
    this.#settings = settings;
    this.#pending = new DeadlineSet(settings.clock, settings.deadlineMs, (request) =>
      this.#onDeadline(request),
    );
    this.connection = new DaemonConnection(settings, {
      onOpen: () => this.#flush(),
      onReply: (reply) => this.#onReply(reply),
      onFailure: (error) => this.#onConnectionFailure(error),
    });
  }

  /** Requests whose caller has no reply yet. */
  get pending(): number {
    return this.#pending.size + this.#overdueRequests.length;
  }

  /** Requests to which the daemon has not replied. */
  get #unanswered(): number {
    return this.#unsent.length + this.#sent.length - this.#replied;
  }

  /** Resolves when the daemon has replied to all requests. */
  async drained(): Promise<void> {
    if (this.#unanswered === 0) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
  }

  /** Resolves to the reply or the reason why there is none, within the deadline. Never rejects. */
  send(args: readonly string[]): Promise<RespValue | RequestError> {
    const issuedAt = this.#settings.clock.now();
    const ahead = this.#unanswered;
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
      this.connection.setBusy(true);
      if (this.#isFlushing) return;
      this.#isFlushing = true;
      onNextTick(() => this.#flush());
    });
  }

  #flush(): void {
    this.#isFlushing = false;
    if (this.connection.state !== 'open' || this.#unsent.length === 0) return;
    const requests = this.#unsent;
    this.#unsent = [];
    let text = '';
    for (const request of requests) {
      text += request.encoded;
      this.#sent.push(request);
    }
    this.connection.write(text);
  }

  #onReply(reply: RespValue): void {
    const request = this.#sent[this.#replied];
    if (!request) {
      this.connection.fail(this.connection.protocolError('a reply without a request'));
      return;
    }
    this.#replied++;
    if (this.#replied === this.#sent.length) {
      this.#sent = [];
      this.#replied = 0;
    }
    const now = this.#settings.clock.now();
    if (now - request.issuedAt <= this.#settings.deadlineMs) this.#answeredAt = now;
    this.#resolve(request, reply instanceof RespError ? this.connection.errorOf(reply) : reply);
    if (this.#unanswered === 0) this.#onDrained();
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
      if (unresolved.some(isOutage)) this.connection.fail(this.connection.unavailableError(reason));
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
      ? this.connection.unavailableError(reason)
      : this.connection.rejectedError(`${reason}, in a burst of requests`, deadlineMs);
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
