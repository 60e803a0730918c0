/**
 * The guard at the door: may this request go on, or what is it told instead?
 *
 *     request ──▶ skipped? ──▶ whose is it? ──▶ the limiter ──▶ go on, with headers and a permit
 *                                                         └──▶ refused: status, headers, body
 *
 * It knows no framework. An adapter hands in requests as its framework has them, a `Reader` that
 * knows how to look at one, and does what the answer says. It never throws and never rejects: what
 * goes wrong in here (a key function that fails, a limiter that is gone) is told to `onError`, and
 * the request is let through, or refused if that was asked for.
 */

import type { Outcome } from '../../decision.ts';
import { ConfigError, show } from '../../errors.ts';
import type { Inspection } from '../../inspection.ts';
import type { AskOptions, Limiter } from '../../limiter.ts';
import type { Permit, Refusal } from '../../permit.ts';
import { warn } from '../../warning.ts';
import { clientKey, networkKey } from './address.ts';
import { type Headers, HeaderWriter } from './headers.ts';
import { type Denied, type Refused, refuse, refuseUnavailable } from './refusal.ts';
import { type HttpOptions, readSettings, type Settings } from './settings.ts';

/** How to look at a request of some framework. */
export interface Reader<Request> {
  /** A header by its name in small letters; several of the same name joined by commas. */
  header(request: Request, name: string): string | undefined;
  /** Who the connection is from. */
  address(request: Request): string | undefined;
  /** Who the framework says it is from, if it has a setting for proxies of its own. */
  ip?(request: Request): string | undefined;
}

/** Go on: set these headers, and settle the permit when the response is out. */
export interface Passed {
  readonly go: true;
  readonly headers: Headers | undefined;
  readonly permit: Permit | undefined;
}

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

/** All requests whose address nobody knows share one key. */
const UNKNOWN = 'unknown';

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

export class Guard<Request> {
  /** Decides, counts and can be asked how things stand. */
  readonly limiter: Limiter;
  /** True if a request may have to wait: whoever checks says how to hear that its client left. */
  readonly waits: boolean;
  readonly #settings: Settings<Request>;
  readonly #reader: Reader<Request>;
  readonly #writer: HeaderWriter | undefined;

  constructor(settings: Settings<Request>, reader: Reader<Request>) {
    this.#settings = settings;
    this.#reader = reader;
    this.limiter = settings.limiter;
    this.waits = settings.maxWaitMs !== undefined;
    this.#writer = settings.headers === false ? undefined : new HeaderWriter(settings.headers);
  }

  /** A promise only if the request has to wait. */
  check(request: Request, leaving?: () => Leaving): Answer | Promise<Answer> {
    try {
      const { skip, cost, partition } = this.#settings;
      if (skip && atOnce('skip', skip(request)) === true) return PASS;
      const key = this.keyOf(request);
      const price = cost ? atOnce('cost', cost(request)) : 1;
      const part = partition && atOnce('partition', partition(request));
      const options = part === undefined ? undefined : { partition: part };
      return this.#isDue(key, price, options)
        ? this.#decide(key, price, options)
        : this.#wait(key, price, options, leaving);
    } catch (error) {
      return this.#unavailable(error);
    }
  }

  /** What a request counts against. */
  keyOf(request: Request): string {
    const { key, header } = this.#settings;
    if (header !== undefined) {
      const value = this.#reader.header(request, header);
      // Named, so that nobody passes a header that looks like somebody else's address.
      return value ? `${header}=${value}` : this.#client(request);
    }
    return (key && atOnce('key', key(request))) ?? this.#client(request);
  }

  /** Gives a permit back. A limiter that fails here must not take the response with it. */
  settle(permit: Permit, outcome: Outcome): void {
    try {
      permit.settle({ outcome });
    } catch (error) {
      this.#report(error);
    }
  }

  #client(request: Request): string {
    const { clientOf, ipv6Prefix } = this.#settings;
    const from = clientOf
      ? clientOf(this.#address(request), this.#reader.header(request, 'x-forwarded-for'))
      : this.#address(request, this.#reader.ip);
    if (!from) return UNKNOWN;
    return typeof from === 'string' ? clientKey(from, ipv6Prefix) : networkKey(from, ipv6Prefix);
  }

  /** What the user says, else what the framework makes of it, else who the connection is from. */
  #address(request: Request, ip?: Reader<Request>['ip']): string | undefined {
    const { address } = this.#settings;
    return address ? address(request) : (ip?.(request) ?? this.#reader.address(request));
  }

  /** Whether it can be decided now: nobody waits, or nothing stands in the way. */
  #isDue(key: string, cost: number, options: AskOptions | undefined): boolean {
    if (!this.waits) return true;
    const { limiter } = this;
    return !limiter.hasLine(key, options) && limiter.peek(key, cost, options).verdict === 'allow';
  }

  #decide(key: string, cost: number, options: AskOptions | undefined): Answer {
    const { limiter } = this;
    if (!limiter.isSimple) return this.#answer(limiter.tryAcquire(key, cost, options), key, cost);
    const decision = limiter.ask(key, cost, options);
    return decision.verdict === 'deny'
      ? this.#refuse(key, { cost, retryAfterMs: decision.retryAfterMs })
      : this.#pass(key, undefined);
  }

  async #wait(
    key: string,
    cost: number,
    options: AskOptions | undefined,
    leaving: (() => Leaving) | undefined,
  ): Promise<Answer> {
    let left: Leaving | undefined;
    try {
      left = leaving?.();
      const { maxWaitMs = 0 } = this.#settings;
      const patience = { maxWaitMs, ...options, ...(left && { signal: left.signal }) };
      return this.#answer(await this.limiter.acquire(key, cost, patience), key, cost);
    } catch (error) {
      // Whoever has gone reads no answer; the framework still wants one, to be done with it.
      return left?.signal.aborted ? refuseUnavailable() : this.#unavailable(error);
    } finally {
      left?.stop();
    }
  }

  #answer(entry: Permit | Refusal, key: string, cost: number): Answer {
    if (entry.verdict === 'allow') return this.#pass(key, entry);
    const { retryAfterMs, reason } = entry;
    return this.#refuse(key, { cost, retryAfterMs, reason });
  }

  #pass(key: string, permit: Permit | undefined): Passed {
    const headers = this.#writer?.write(this.#inspect(key).rules);
    return headers === undefined && permit === undefined ? PASS : { go: true, headers, permit };
  }

  #refuse(key: string, denied: Denied): Answer {
    if (this.#settings.shadow) return this.#pass(key, undefined);
    return refuse(denied, this.#inspect(key), this.#writer);
  }

  /** Not being able to describe a limit loses no permit, and lets nobody in who was refused. */
  #inspect(key: string): Inspection {
    try {
      return this.limiter.inspect(key);
    } catch (error) {
      this.#report(error);
      return { name: this.limiter.name, remaining: 0, rules: [] };
    }
  }

  #unavailable(error: unknown): Answer {
    this.#report(error);
    return this.#settings.allowUnchecked || this.#settings.shadow ? PASS : refuseUnavailable();
  }

  #report(error: unknown): void {
    const { onError } = this.#settings;
    try {
      if (onError) {
        defuse(onError(error));
        return;
      }
    } catch {
      // then it is told as if nobody listened
    }
    const what = error instanceof Error ? `${error.name}: ${error.message}` : show(error);
    warn('ADAPTER', `a request could not be checked against limit "${this.limiter.name}": ${what}`);
  }
}

/** A request is decided here and now: a promise is a mistake, and its failure nobody's to hear. */
function atOnce<T>(name: string, value: T): T {
  if (!(value instanceof Promise)) return value;
  defuse(value);
  throw new ConfigError(name, 'a function that answers at once', 'a promise');
}

/** Nobody waits for this; if it is a promise that fails, it fails quietly. */
function defuse(value: unknown): void {
  if (value instanceof Promise) value.catch(() => {});
}

/** How a request went, by what it was answered. */
export function outcomeOf(status: number, isFinished: boolean): Outcome {
  if (!isFinished) return 'failed';
  if (status === 429 || status === 503) return 'busy';
  return status >= 500 ? 'failed' : 'ok';
}
