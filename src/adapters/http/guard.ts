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
import type { Permit, Refusal } from '../../limiter/permit.ts';
import type { AskOptions, Limiter } from '../../limiter/sync-limiter.ts';
import { type Headers, HeaderWriter } from './headers.ts';
import { type Denied, type Refused, refuse, refuseUnavailable, reworded } from './refusal.ts';
import { atOnce, Reporter } from './report.ts';
import { type Reader, RequestReader } from './request.ts';
import { type HttpOptions, readSettings, type Settings } from './settings.ts';

/** Go on: set these headers, and settle the permit when the response is out. */
export interface Passed {
  readonly go: true;
  readonly headers: Headers | undefined;
  readonly permit: Permit | undefined;
}

/** Go ahead, or what to answer instead. */
export type Answer = Passed | Refused;

/** How somebody who waits hears that the client has gone. */
export interface Leaving {
  readonly signal: AbortSignal;
  /** Called when it no longer matters. */
  stop(): void;
}

/** A request for whoever has no framework. */
export interface PlainRequest {
  readonly method?: string;
  readonly url?: string;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly remoteAddress?: string | undefined;
}

const PLAIN: Reader<PlainRequest> = {
  header: ({ headers }, name) => joined(headers[name]),
  address: ({ remoteAddress }) => remoteAddress,
};

/** What a header is if it came once, several times, or not at all. */
export const joined = (value: string | readonly string[] | undefined): string | undefined =>
  value === undefined || typeof value === 'string' ? value : value.join(', ');

/** Nothing to set and nothing to settle: the same for everybody. */
const PASS: Passed = { go: true, headers: undefined, permit: undefined };

/** Makes a guard. @throws {ConfigError} if an option makes no sense. */
export function guard(options: HttpOptions<PlainRequest>): Guard<PlainRequest>;
export function guard<Request>(
  options: HttpOptions<Request>,
  reader: Reader<Request>,
): Guard<Request>;
export function guard<Request>(
  options: HttpOptions<Request>,
  reader: Reader<Request> = PLAIN as unknown as Reader<Request>,
): Guard<Request> {
  return new Guard(readSettings(options), reader);
}

/** What a limiter is asked for a request. */
interface Asked<Request> {
  readonly request: Request;
  readonly key: string;
  readonly cost: number;
  readonly options: AskOptions | undefined;
}

/** A limit in front of requests of any kind; made by `guard`. */
export class Guard<Request> {
  /** Decides, counts and can be asked how things stand. */
  readonly limiter: Limiter | RemoteLimiter;
  /** True if a request may have to wait: whoever checks says how to hear that its client left. */
  readonly waits: boolean;
  readonly #settings: Settings<Request>;
  readonly #requests: RequestReader<Request>;
  readonly #reporter: Reporter;
  readonly #writer: HeaderWriter | undefined;

  constructor(settings: Settings<Request>, reader: Reader<Request>) {
    this.#settings = settings;
    this.limiter = settings.limiter;
    this.#reporter = new Reporter(settings.limiter.name, settings.onError);
    this.#requests = new RequestReader(settings, reader, this.#reporter);
    this.waits = settings.waitMsMax !== undefined || isRemote(settings.limiter);
    this.#writer = settings.headers === false ? undefined : new HeaderWriter(settings.headers);
  }

  /** A promise only if the request has to wait. */
  check(request: Request, leaving?: () => Leaving): Answer | Promise<Answer> {
    try {
      if (this.#requests.isSkipped(request)) return PASS;
      const asked = this.#asked(request);
      return this.#isDue(asked) ? this.#decide(asked) : this.#wait(asked, leaving);
    } catch (error) {
      return this.#unavailable(error, request);
    }
  }

  /** What a request counts against. */
  keyOf(request: Request): string {
    return this.#requests.keyOf(request);
  }

  /** Gives a permit back. A limiter that fails here must not take the response with it. */
  settle(permit: Permit, outcome: Outcome): void {
    try {
      permit.settle({ outcome });
    } catch (error) {
      this.#reporter.unchecked(error);
    }
  }

  /** How a request went, by what it was answered. */
  outcomeOf(request: Request, status: number): Outcome {
    const { outcome } = this.#settings;
    try {
      const said = atOnce('outcome', outcome?.(request, status)) ?? usualOutcome(status);
      if (OUTCOMES.includes(said)) return said;
      throw new ConfigError('outcome', `one of ${OUTCOMES.join(', ')}`, said);
    } catch (error) {
      this.#reporter.misread(error);
      return usualOutcome(status);
    }
  }

  /** For adapters: it was refused when its response had begun. */
  tooLate(error: unknown): void {
    this.#reporter.tooLate(error);
  }

  #asked(request: Request): Asked<Request> {
    const partition = this.#requests.partitionOf(request);
    return {
      request,
      key: this.#requests.keyOf(request),
      cost: this.#requests.costOf(request),
      options: partition === undefined ? undefined : { partition },
    };
  }

  /** Whether it can be decided now: nobody waits, or nothing stands in the way. */
  #isDue({ key, cost, options }: Asked<Request>): boolean {
    const { limiter } = this;
    if (isRemote(limiter)) return false;
    if (!this.waits) return true;
    return !limiter.hasLine(key, options) && limiter.peek(key, cost, options).verdict === 'allow';
  }

  #decide(asked: Asked<Request>): Answer {
    const limiter = this.limiter as Limiter;
    const { key, cost, options } = asked;
    if (!limiter.isSimple) return this.#answer(limiter.tryAcquire(key, cost, options), asked);
    const decision = limiter.ask(key, cost, options);
    return decision.verdict === 'deny'
      ? this.#refuse(asked, { cost, retryAfterMs: decision.retryAfterMs })
      : this.#pass(key, undefined);
  }

  async #wait(asked: Asked<Request>, leaving: (() => Leaving) | undefined): Promise<Answer> {
    const { key, cost, options } = asked;
    let left: Leaving | undefined;
    try {
      left = leaving?.();
      const { waitMsMax = 0 } = this.#settings;
      const patience = { wait: waitMsMax, ...options, ...(left && { signal: left.signal }) };
      const entering = this.limiter.acquire(key, cost, patience);
      if (!isRemote(this.limiter)) return this.#answer(await entering, asked);
      // Asked in the same breath, how the key stands afterwards comes with the same trip.
      const seeing = this.#writer && waitMsMax === 0 ? this.limiter.inspect(key) : undefined;
      const entry = await entering;
      return this.#answer(entry, asked, await (seeing ?? this.limiter.inspect(key)));
    } catch (error) {
      // Whoever has gone reads no answer; the framework still wants one, to be done with it.
      return left?.signal.aborted ? refuseUnavailable() : this.#unavailable(error, asked.request);
    } finally {
      left?.stop();
    }
  }

  #answer(entry: Permit | Refusal, asked: Asked<Request>, seen?: Inspection): Answer {
    if (entry.verdict === 'allow') return this.#pass(asked.key, entry, seen);
    const { retryAfterMs, reason } = entry;
    return this.#refuse(asked, { cost: asked.cost, retryAfterMs, reason }, seen);
  }

  #pass(key: string, permit: Permit | undefined, seen?: Inspection): Passed {
    const headers = this.#writer?.write((seen ?? this.#inspect(key)).rules);
    return headers === undefined && permit === undefined ? PASS : { go: true, headers, permit };
  }

  #refuse({ key, request }: Asked<Request>, denied: Denied, seen?: Inspection): Answer {
    if (this.#settings.shadow) return this.#pass(key, undefined, seen);
    return this.#worded(refuse(denied, seen ?? this.#inspect(key), this.#writer), request);
  }

  /** In the user's words, if there are any that can be sent. */
  #worded(refused: Refused, request: Request): Refused {
    try {
      const wording = atOnce('refuse', this.#settings.refuse?.(refused, request));
      return wording ? reworded(refused, wording) : refused;
    } catch (error) {
      this.#reporter.misread(error);
      return refused;
    }
  }

  /** Not being able to describe a limit loses no permit, and lets nobody in who was refused. */
  #inspect(key: string): Inspection {
    const { limiter } = this;
    try {
      if (!isRemote(limiter)) return limiter.inspect(key); // a remote one that is asked here is out of reach
    } catch (error) {
      this.#reporter.unchecked(error);
    }
    return { name: limiter.name, remaining: 0, rules: [] };
  }

  #unavailable(error: unknown, request: Request): Answer {
    this.#reporter.unchecked(error);
    const { allowUnchecked, shadow } = this.#settings;
    return allowUnchecked || shadow ? PASS : this.#worded(refuseUnavailable(), request);
  }
}

/**
 * A service that is overloaded says 503. That a client asked too often (429) is, like every 4xx, the
 * client's affair.
 */
function usualOutcome(status: number): Outcome {
  if (status === 503) return 'busy';
  return status >= 500 ? 'failed' : 'ok';
}
