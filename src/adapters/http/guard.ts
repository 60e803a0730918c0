/**
 * The guard at the door: may this request go on, or what is it told instead?
 *
 *     request ──▶ skipped? ──▶ whose is it? ──▶ the limiter ──▶ go on, with headers and a permit
 *                                                         └──▶ refused: status, headers, body
 *
 * It knows no framework. An adapter hands in requests as its framework has them, a `Reader` that
 * knows how to look at one, and does what the answer says. It never throws and never rejects: a
 * limiter that fails is told to `onError`, and the request is let through, or refused if that was
 * asked for. What a client can bring about by what it sends lets nobody through: see `request.ts`.
 */

import { OUTCOMES, type Outcome } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRemote, type RemoteLimiter } from '../../limiter/async-limiter.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import { internalsOf } from '../../limiter/internals.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import type { CheckOptions, Limiter } from '../../limiter/sync-limiter.ts';
import { type HeaderValues, HeaderWriter } from './headers.ts';
import {
  buildRefusal,
  buildUnavailableRefusal,
  type DenialDetails,
  type RefusalResponse,
  withOverrides,
} from './refusal.ts';
import { ErrorReporter, requireSync } from './report.ts';
import { type RequestAccessor, RequestReader } from './request.ts';
import { type HttpOptions, type HttpSettings, readSettings } from './settings.ts';

/** Go on: set these headers, and settle the permit when the response is out. */
export interface Admitted {
  readonly isAllowed: true;
  readonly headers: HeaderValues | undefined;
  readonly permit: Permit | undefined;
}

/** Go ahead, or what to answer instead. */
export type GuardResult = Admitted | RefusalResponse;

/** How somebody who waits hears that the client has gone. */
export interface DisconnectSignal {
  readonly signal: AbortSignal;
  /** Called when it no longer matters. */
  dispose(): void;
}

/** A request for whoever has no framework. */
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

/** What a header is if it came once, several times, or not at all. */
export const joinHeader = (value: string | readonly string[] | undefined): string | undefined =>
  value === undefined || typeof value === 'string' ? value : value.join(', ');

/** Nothing to set and nothing to settle: the same for everybody. */
const ADMIT_UNCOUNTED: Admitted = { isAllowed: true, headers: undefined, permit: undefined };

/** Makes a guard. @throws {ConfigError} if an option makes no sense. */
export function guard(options: HttpOptions<PlainRequest>): Guard<PlainRequest>;
export function guard<Request>(
  options: HttpOptions<Request>,
  reader: RequestAccessor<Request>,
): Guard<Request>;
export function guard<Request>(
  options: HttpOptions<Request>,
  reader: RequestAccessor<Request> = PLAIN_ACCESSOR as unknown as RequestAccessor<Request>,
): Guard<Request> {
  return new Guard(readSettings(options), reader);
}

/** What a limiter is asked for a request. */
interface CheckArguments<Request> {
  readonly request: Request;
  readonly key: string;
  readonly cost: number;
  readonly options: CheckOptions | undefined;
}

/** A limit in front of requests of any kind; made by `guard`. */
export class Guard<Request> {
  /** Decides, counts and can be asked how things stand. */
  readonly limiter: Limiter | RemoteLimiter;
  /** True if a request may have to wait: whoever checks says how to hear that its client left. */
  readonly canWait: boolean;
  readonly #settings: HttpSettings<Request>;
  readonly #requestReader: RequestReader<Request>;
  readonly #reporter: ErrorReporter;
  readonly #headerWriter: HeaderWriter | undefined;

  constructor(settings: HttpSettings<Request>, reader: RequestAccessor<Request>) {
    this.#settings = settings;
    this.limiter = settings.limiter;
    this.#reporter = new ErrorReporter(settings.limiter.name, settings.onError);
    this.#requestReader = new RequestReader(settings, reader, this.#reporter);
    this.canWait = settings.maxWaitMs !== undefined || isRemote(settings.limiter);
    this.#headerWriter =
      settings.headers === false ? undefined : new HeaderWriter(settings.headers);
  }

  /** A promise only if the request has to wait. */
  check(request: Request, leaving?: () => DisconnectSignal): GuardResult | Promise<GuardResult> {
    try {
      if (this.#requestReader.isSkipped(request)) return ADMIT_UNCOUNTED;
      const asked = this.#checkArguments(request);
      return this.#canDecideNow(asked) ? this.#decideNow(asked) : this.#decideLater(asked, leaving);
    } catch (error) {
      return this.#onCheckFailure(error, request);
    }
  }

  /** What a request counts against. */
  keyOf(request: Request): string {
    return this.#requestReader.keyOf(request);
  }

  /** Gives a permit back. A limiter that fails here must not take the response with it. */
  settle(permit: Permit, outcome: Outcome): void {
    try {
      permit.settle({ outcome });
    } catch (error) {
      this.#reporter.checkFailed(error);
    }
  }

  /** How a request went, by what it was answered. */
  outcomeOf(request: Request, status: number): Outcome {
    const { outcome } = this.#settings;
    try {
      const said = requireSync('outcome', outcome?.(request, status)) ?? defaultOutcome(status);
      if (OUTCOMES.includes(said)) return said;
      throw new ConfigError('outcome', `one of ${OUTCOMES.join(', ')}`, said);
    } catch (error) {
      this.#reporter.optionFailed(error);
      return defaultOutcome(status);
    }
  }

  /** For adapters: it was refused when its response had begun. */
  reportLateRefusal(error: unknown): void {
    this.#reporter.refusedTooLate(error);
  }

  #checkArguments(request: Request): CheckArguments<Request> {
    const partition = this.#requestReader.partitionOf(request);
    return {
      request,
      key: this.#requestReader.keyOf(request),
      cost: this.#requestReader.costOf(request),
      options: partition === undefined ? undefined : { partition },
    };
  }

  /** Whether it can be decided now: nobody waits, or nothing stands in the way. */
  #canDecideNow({ key, cost, options }: CheckArguments<Request>): boolean {
    const { limiter } = this;
    if (isRemote(limiter)) return false;
    if (!this.canWait) return true;
    return (
      !internalsOf(limiter).hasWaiters(key, options) &&
      limiter.peek(key, cost, options).verdict === 'allow'
    );
  }

  #decideNow(asked: CheckArguments<Request>): GuardResult {
    const limiter = internalsOf(this.limiter as Limiter);
    const { key, cost, options } = asked;
    if (!limiter.isCheckOnly) return this.#resultOf(limiter.tryAcquire(key, cost, options), asked);
    const decision = limiter.check(key, cost, options);
    return decision.verdict === 'deny'
      ? this.#refuse(asked, { cost, retryAfterMs: decision.retryAfterMs })
      : this.#admit(key, undefined);
  }

  async #decideLater(
    asked: CheckArguments<Request>,
    leaving: (() => DisconnectSignal) | undefined,
  ): Promise<GuardResult> {
    const { key, cost, options } = asked;
    let left: DisconnectSignal | undefined;
    try {
      left = leaving?.();
      const { maxWaitMs = 0 } = this.#settings;
      const patience = { wait: maxWaitMs, ...options, ...(left && { signal: left.signal }) };
      const entering = this.limiter.acquire(key, cost, patience);
      if (!isRemote(this.limiter)) return this.#resultOf(await entering, asked);
      // Asked in the same breath, how the key stands afterwards comes with the same trip.
      const seeing = this.#headerWriter && maxWaitMs === 0 ? this.limiter.inspect(key) : undefined;
      const entry = await entering;
      return this.#resultOf(entry, asked, await (seeing ?? this.limiter.inspect(key)));
    } catch (error) {
      // Whoever has gone reads no answer; the framework still wants one, to be done with it.
      return left?.signal.aborted
        ? buildUnavailableRefusal()
        : this.#onCheckFailure(error, asked.request);
    } finally {
      left?.dispose();
    }
  }

  #resultOf(
    entry: Permit | Refusal,
    asked: CheckArguments<Request>,
    seen?: Inspection,
  ): GuardResult {
    if (entry.verdict === 'allow') return this.#admit(asked.key, entry, seen);
    const { retryAfterMs, reason } = entry;
    return this.#refuse(asked, { cost: asked.cost, retryAfterMs, reason }, seen);
  }

  #admit(key: string, permit: Permit | undefined, seen?: Inspection): Admitted {
    const headers = this.#headerWriter?.write((seen ?? this.#inspect(key)).rules);
    return headers === undefined && permit === undefined
      ? ADMIT_UNCOUNTED
      : { isAllowed: true, headers, permit };
  }

  #refuse(
    { key, request }: CheckArguments<Request>,
    denied: DenialDetails,
    seen?: Inspection,
  ): GuardResult {
    if (this.#settings.shadow) return this.#admit(key, undefined, seen);
    return this.#applyOverrides(
      buildRefusal(denied, seen ?? this.#inspect(key), this.#headerWriter),
      request,
    );
  }

  /** In the user's words, if there are any that can be sent. */
  #applyOverrides(refused: RefusalResponse, request: Request): RefusalResponse {
    try {
      const wording = requireSync('refuse', this.#settings.refuse?.(refused, request));
      return wording ? withOverrides(refused, wording) : refused;
    } catch (error) {
      this.#reporter.optionFailed(error);
      return refused;
    }
  }

  /** Not being able to describe a limit loses no permit, and lets nobody in who was refused. */
  #inspect(key: string): Inspection {
    const { limiter } = this;
    try {
      if (!isRemote(limiter)) return limiter.inspect(key); // a remote one that is asked here is out of reach
    } catch (error) {
      this.#reporter.checkFailed(error);
    }
    return { name: limiter.name, remaining: 0, rules: [] };
  }

  #onCheckFailure(error: unknown, request: Request): GuardResult {
    this.#reporter.checkFailed(error);
    const { isFailOpen, shadow } = this.#settings;
    return isFailOpen || shadow
      ? ADMIT_UNCOUNTED
      : this.#applyOverrides(buildUnavailableRefusal(), request);
  }
}

/**
 * A service that is overloaded says 503. That a client asked too often (429) is, like every 4xx, the
 * client's affair.
 */
function defaultOutcome(status: number): Outcome {
  if (status === 503) return 'busy';
  return status >= 500 ? 'failed' : 'ok';
}
