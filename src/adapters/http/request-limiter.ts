/**
 * Rate limiting of HTTP requests, independent of any framework.
 *
 *     request ──▶ skipped? ──▶ key, cost ──▶ event loop late? ──▶ limiter ──▶ admitted: headers and a permit
 *                                                        └─────────────┴───▶ refused: status, headers, body
 *
 * An adapter passes its framework's requests, an accessor that reads them, and applies the decision. `check` never throws
 * or rejects: an error of the limiter is reported to `onError`, and `onUnavailable` decides (fail open by default). Values
 * that a client controls never exempt its requests: see `request-reader.ts`.
 */

import { type AttemptOutcome, type Decision, OUTCOMES, type Outcome } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRemote, type RemoteLimiter } from '../../limiter/async-limiter.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import type { LimiterInternals } from '../../limiter/internals.ts';
import type { CheckOptions, Limiter } from '../../limiter/limiter-interface.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import { ErrorReporter, requireSync } from './error-reporter.ts';
import { type HeaderValues, HeaderWriter } from './headers.ts';
import { LoadShedder } from './load-shedder.ts';
import {
  buildHeadersRefusal,
  buildOverloadRefusal,
  buildRefusal,
  buildUnavailableRefusal,
  type DenialDetails,
  OVERLOAD_RETRY_MS,
  type RefusalResponse,
  withOverrides,
} from './refusal.ts';
import { type RequestAccessor, RequestReader } from './request-reader.ts';
import { type HttpOptions, type HttpSettings, readSettings } from './settings.ts';

/** Admitted: set these headers, and settle the permit when the response is over. */
export interface Admitted {
  readonly isAllowed: true;
  readonly headers: HeaderValues | undefined;
  readonly permit: Permit | undefined;
}

/** The decision on a request: admitted, or the response to send instead. */
export type RequestDecision = Admitted | RefusalResponse;

/** Tells a waiting request that its client has disconnected. */
export interface DisconnectSignal {
  readonly signal: AbortSignal;
  /** Removes the listeners; called when the request no longer waits. */
  dispose(): void;
}

/** A request without a framework. */
export interface PlainRequest {
  readonly method?: string;
  readonly url?: string;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly remoteAddress?: string | undefined;
}

const PLAIN_ACCESSOR: RequestAccessor<PlainRequest> = {
  header: ({ headers }, name) => joinHeader(headers[name]),
  address: ({ remoteAddress }) => remoteAddress,
};

/** The value of a header that came once, several times or not at all. */
export const joinHeader = (value: string | readonly string[] | undefined): string | undefined =>
  value === undefined || typeof value === 'string' ? value : value.join(', ');

/** No headers and no permit: one object for all requests. */
const ADMIT_UNCOUNTED: Admitted = { isAllowed: true, headers: undefined, permit: undefined };

/** The decision on a request that is shed. */
const SHED: Decision = {
  verdict: 'deny',
  retryAfterMs: OVERLOAD_RETRY_MS,
  rule: 'event-loop-delay',
};

/** Creates a limiter of requests. @throws {ConfigError} if an option is invalid. */
export function requestLimiter(options: HttpOptions<PlainRequest>): RequestLimiter<PlainRequest>;
export function requestLimiter<Request>(
  options: HttpOptions<Request>,
  accessor: RequestAccessor<Request>,
): RequestLimiter<Request>;
export function requestLimiter<Request>(
  options: HttpOptions<Request>,
  accessor: RequestAccessor<Request> = PLAIN_ACCESSOR as unknown as RequestAccessor<Request>,
): RequestLimiter<Request> {
  return new RequestLimiter(readSettings(options), accessor);
}

/** The arguments of the limiter for a request. */
interface CheckArguments<Request> {
  readonly request: Request;
  readonly key: string;
  readonly cost: number;
  readonly options: CheckOptions | undefined;
}

/** Decides on requests; created by `requestLimiter`. */
export class RequestLimiter<Request> {
  /** The limiter that decides. */
  readonly limiter: Limiter | RemoteLimiter;
  /** True if a request may have to wait: then pass `check` a way to notice that its client disconnects. */
  readonly canWait: boolean;
  readonly #settings: HttpSettings<Request>;
  readonly #requestReader: RequestReader<Request>;
  readonly #reporter: ErrorReporter;
  readonly #headerWriter: HeaderWriter | undefined;
  readonly #shedder: LoadShedder | undefined;
  /** How requests were counted, where that can differ later: a user is known, a client has disconnected. 0.5 µs for each. */
  readonly #counted: WeakMap<object, CheckArguments<Request>> | undefined;
  /** Built once: under overload every microsecond of a refusal counts. */
  #overloadRefusal: RefusalResponse | undefined;

  constructor(settings: HttpSettings<Request>, accessor: RequestAccessor<Request>) {
    this.#settings = settings;
    this.limiter = settings.limiter;
    this.#reporter = new ErrorReporter(settings.limiter.name, settings.onError);
    this.#requestReader = new RequestReader(settings, accessor, this.#reporter);
    this.canWait = settings.maxWaitMs !== undefined || settings.limiter.isRemote;
    this.#headerWriter =
      settings.headers === false ? undefined : new HeaderWriter(settings.headers);
    const { limiter, key, maxEventLoopDelayMs } = settings;
    if (limiter.takesReports || key !== undefined) this.#counted = new WeakMap();
    if (maxEventLoopDelayMs < Infinity) {
      this.#shedder = new LoadShedder(limiter.clock, maxEventLoopDelayMs);
      limiter.observeEventLoop(this.#shedder);
    }
  }

  /** Decides on a request. Returns a promise only if the request has to wait. */
  check(
    request: Request,
    watchDisconnect?: () => DisconnectSignal,
  ): RequestDecision | Promise<RequestDecision> {
    try {
      if (this.#requestReader.hasDroppedHeaders(request)) return this.#refuseHeaders(request);
      if (this.#requestReader.isSkipped(request)) return ADMIT_UNCOUNTED;
      const args = this.#checkArguments(request);
      this.#counted?.set(request as object, args);
      if (this.#shedder?.admit() === false) return this.#shed(args);
      return this.#canDecideNow(args)
        ? this.#decideNow(args)
        : this.#decideLater(args, watchDisconnect);
    } catch (error) {
      return this.#onCheckFailure(error, request);
    }
  }

  /** The key that a request was counted by, or would be. */
  keyOf(request: Request): string {
    return this.#counted?.get(request as object)?.key ?? this.#requestReader.keyOf(request);
  }

  /**
   * Lock-out: reports how the attempt of a request ended, such as a login. A request that `skip` admits was no attempt.
   * An error of the limiter goes to `onError`. @throws {ConfigError} for a limit without a lock-out.
   */
  report(request: Request, attempt: AttemptOutcome): Promise<void> | undefined {
    const { limiter } = this.#settings;
    const counted = this.#counted?.get(request as object);
    if (!counted && this.#requestReader.isSkipped(request)) return undefined;
    const { key, cost } = counted ?? this.#checkArguments(request);
    const reported = limiter.report(key, attempt, cost);
    return reported?.catch((error: unknown) => {
      if (error instanceof ConfigError) throw error;
      this.#reporter.report('report', error);
    });
  }

  /** The status of the key that a request was counted by. */
  inspect(request: Request): Inspection | Promise<Inspection | undefined> {
    return this.limiter.inspect(this.keyOf(request));
  }

  /** Settles a permit. An error of the limiter is reported and must not break the response. */
  settle(permit: Permit, outcome: Outcome): void {
    try {
      permit.settle({ outcome });
    } catch (error) {
      this.#reporter.report('settle', error);
    }
  }

  /** The outcome of a request by the status of its response. */
  outcomeOf(request: Request, status: number): Outcome {
    const { outcome } = this.#settings;
    try {
      const result = requireSync('outcome', outcome?.(request, status)) ?? defaultOutcome(status);
      if (OUTCOMES.includes(result)) return result;
      throw new ConfigError('outcome', `one of ${OUTCOMES.join(', ')}`, result);
    } catch (error) {
      this.#reporter.report('option', error);
      return defaultOutcome(status);
    }
  }

  /** For adapters: the request was refused after its response had begun. */
  reportLateRefusal(error: unknown): void {
    this.#reporter.report('refusal', error);
  }

  #checkArguments(request: Request): CheckArguments<Request> {
    return {
      request,
      key: this.#requestReader.keyOf(request),
      cost: this.#requestReader.costOf(request),
      options: this.#requestReader.checkOptionsOf(request),
    };
  }

  /** True if the request does not wait, or would be allowed at once. */
  #canDecideNow({ key, cost, options }: CheckArguments<Request>): boolean {
    const { limiter } = this.#settings;
    if (limiter.isRemote) return false;
    if (!this.canWait) return true;
    return (
      !limiter.hasWaiters(key, options) && limiter.peek(key, cost, options).verdict === 'allow'
    );
  }

  #decideNow(args: CheckArguments<Request>): RequestDecision {
    const limiter = this.#settings.limiter as LimiterInternals;
    const { key, cost, options } = args;
    if (!limiter.isCheckOnly) return this.#decisionOf(limiter.tryAcquire(key, cost, options), args);
    const decision = limiter.check(key, cost, options);
    if (decision.verdict !== 'deny') return this.#admit(key, undefined);
    const { retryAfterMs, reason } = decision;
    return this.#refuse(args, { cost, retryAfterMs, ...(reason === 'closed' && { reason }) });
  }

  async #decideLater(
    args: CheckArguments<Request>,
    watchDisconnect: (() => DisconnectSignal) | undefined,
  ): Promise<RequestDecision> {
    const { key, cost, options } = args;
    const { maxWaitMs: wait = 0 } = this.#settings;
    let disconnect: DisconnectSignal | undefined;
    try {
      disconnect = watchDisconnect?.();
      const signal = disconnect && { signal: disconnect.signal };
      const acquired = this.limiter.acquire(key, cost, { wait, ...options, ...signal });
      if (!isRemote(this.limiter)) return this.#decisionOf(await acquired, args);
      // Sent in the same tick, the inspection for the headers shares a round trip with the decision.
      const inspected = this.#headerWriter && wait === 0 ? this.limiter.inspect(key) : undefined;
      const result = await acquired;
      return this.#decisionOf(result, args, await (inspected ?? this.limiter.inspect(key)));
    } catch (error) {
      // A disconnected client reads no response, but the framework needs one to finish the request.
      return disconnect?.signal.aborted
        ? buildUnavailableRefusal()
        : this.#onCheckFailure(error, args.request);
    } finally {
      disconnect?.dispose();
    }
  }

  #decisionOf(
    result: Permit | Refusal,
    args: CheckArguments<Request>,
    inspection?: Inspection,
  ): RequestDecision {
    if (result.verdict === 'allow') return this.#admit(args.key, result, inspection);
    const { retryAfterMs, reason } = result;
    return this.#refuse(args, { cost: args.cost, retryAfterMs, reason }, inspection);
  }

  #admit(key: string, permit: Permit | undefined, inspection?: Inspection): Admitted {
    const headers = this.#headerWriter?.write((inspection ?? this.#inspect(key)).rules);
    return headers === undefined && permit === undefined
      ? ADMIT_UNCOUNTED
      : { isAllowed: true, headers, permit };
  }

  #refuse(
    { key, request }: CheckArguments<Request>,
    denied: DenialDetails,
    inspection?: Inspection,
  ): RequestDecision {
    if (this.#settings.shadow) return this.#admit(key, undefined, inspection);
    return this.#applyOverrides(
      buildRefusal(denied, inspection ?? this.#inspect(key), this.#headerWriter),
      request,
    );
  }

  #refuseHeaders(request: Request): RequestDecision {
    if (this.#settings.shadow) return ADMIT_UNCOUNTED;
    return this.#applyOverrides(buildHeadersRefusal(), request);
  }

  /** Refuses a request that the limit itself did not decide on. */
  #shed({ key, cost, request }: CheckArguments<Request>): RequestDecision {
    this.#settings.limiter.recordDecision(key, cost, SHED, 0);
    if (this.#settings.shadow) return ADMIT_UNCOUNTED;
    this.#overloadRefusal ??= buildOverloadRefusal(this.limiter.name);
    return this.#applyOverrides(this.#overloadRefusal, request);
  }

  /** Applies the option `refuse`, if its result can be sent. */
  #applyOverrides(refused: RefusalResponse, request: Request): RefusalResponse {
    try {
      const overrides = requireSync('refuse', this.#settings.refuse?.(refused, request));
      return overrides ? withOverrides(refused, overrides) : refused;
    } catch (error) {
      this.#reporter.report('option', error);
      return refused;
    }
  }

  /** A failed inspection changes only the headers: a permit is kept, and a refusal stays one. */
  #inspect(key: string): Inspection {
    const { limiter } = this;
    try {
      if (!isRemote(limiter)) return limiter.inspect(key); // a remote backend is unavailable here
    } catch (error) {
      this.#reporter.report('inspect', error);
    }
    return { name: limiter.name, remaining: 0, rules: [] };
  }

  #onCheckFailure(error: unknown, request: Request): RequestDecision {
    this.#reporter.report('check', error);
    const { isFailOpen, shadow } = this.#settings;
    const isOutage = !(error instanceof ConfigError); // invalid arguments may come from the client
    return (isFailOpen && isOutage) || shadow
      ? ADMIT_UNCOUNTED
      : this.#applyOverrides(buildUnavailableRefusal(), request);
  }
}

/** Only 503 means overload: a 429, like every 4xx, is about the client and not about load. */
function defaultOutcome(status: number): Outcome {
  if (status === 503) return 'busy';
  return status >= 500 ? 'failed' : 'ok';
}
