/**
 * HTTP transport to etcd through its JSON gateway.
 *
 * The first of several servers is used until it fails, then the next. Each request has a deadline. With credentials,
 * the transport logs in for a token, and again when the token has expired.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { errorMessageOf, UnavailableError } from '../../core/errors.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import { HttpClient } from '../connections/http-client.ts';

/** TLS options as in `node:tls`. */
export interface EtcdTls {
  readonly ca?: string | Buffer;
  readonly cert?: string | Buffer;
  readonly key?: string | Buffer;
}

export interface EtcdHttpOptions {
  readonly endpoints: readonly URL[];
  /** Deadline for each server that is tried. */
  readonly deadlineMs: Millis;
  readonly clock: Clock;
  readonly auth: { readonly name: string; readonly password: string } | undefined;
  readonly tls: EtcdTls | undefined;
}

interface EtcdResponse {
  readonly status: number;
  readonly body: Record<string, unknown>;
}

/** Larger than any value that etcd stores. */
const MAX_BODY_BYTES = 4 * 1024 * 1024;

const UNAUTHORIZED = 401;
/** First status of a server failure, where another server may succeed. */
const SERVER_ERROR = 500;

export class EtcdHttp {
  /** Called with the `Date` header of every response, in whole seconds. */
  onServerDate: (at: Millis, sentAt: Millis, receivedAt: Millis) => void = () => {};
  readonly #options: EtcdHttpOptions;
  readonly #client: HttpClient;
  #endpointIndex = 0;
  #token: string | undefined;
  #pendingLogin: Promise<void> | undefined;

  constructor(options: EtcdHttpOptions) {
    this.#options = options;
    this.#client = new HttpClient({ ...options, maxBytes: MAX_BODY_BYTES });
  }

  /** Rejects with etcd's error. `onDoubt` is called for each failed server, which may have executed the request. */
  async post(path: string, body: object, onDoubt = () => {}): Promise<Record<string, unknown>> {
    const { auth } = this.#options;
    for (let isRetry = false; ; isRetry = true) {
      if (auth && this.#token === undefined) await this.#logIn(auth);
      const token = this.#token;
      const response = await this.#send('POST', path, body, onDoubt);
      if (!auth || isRetry || !isTokenExpired(response)) return bodyOrThrow(response);
      if (this.#token === token) this.#token = undefined; // unless a concurrent call has replaced it
    }
  }

  /** A request that only triggers `onServerDate`. */
  async pollServerDate(): Promise<void> {
    await this.#send('GET', '/version');
  }

  close(): void {
    this.#client.close();
  }

  /** Logs in. Concurrent calls share one login: etcd takes 100 ms to verify a password, and longer for many. */
  #logIn(auth: object): Promise<void> {
    this.#pendingLogin ??= this.#requestToken(auth).finally(() => {
      this.#pendingLogin = undefined;
    });
    return this.#pendingLogin;
  }

  async #requestToken(auth: object): Promise<void> {
    const { token } = bodyOrThrow(await this.#send('POST', '/v3/auth/authenticate', auth));
    this.#token = String(token);
  }

  /** Tries each server at most once, starting with the last one that replied. */
  async #send(method: string, path: string, body?: object, onDoubt = () => {}) {
    const { endpoints } = this.#options;
    for (let attempt = 1; ; attempt++) {
      const index = this.#endpointIndex;
      const endpoint = endpoints[index % endpoints.length];
      try {
        return await this.#sendTo(new URL(path, endpoint), method, body);
      } catch (error) {
        onDoubt();
        if (this.#endpointIndex === index) this.#endpointIndex++; // unless a concurrent call has already switched
        if (attempt < endpoints.length) continue;
        throw new UnavailableError(`etcd at ${endpoint.host}`, errorMessageOf(error));
      }
    }
  }

  async #sendTo(url: URL, method: string, body?: object): Promise<EtcdResponse> {
    const { clock } = this.#options;
    const sentAt = clock.now();
    const headers = {
      'content-type': 'application/json',
      ...(this.#token !== undefined && { authorization: this.#token }),
    };
    const response = await this.#client.send(url, method, headers, body && JSON.stringify(body));
    const date = Date.parse(response.headers.date ?? '');
    if (Number.isFinite(date)) this.onServerDate(date, sentAt, response.receivedAt);
    const parsed = { status: response.status, body: parseBody(response.text) };
    if (parsed.status >= SERVER_ERROR) throw new Error(responseErrorOf(parsed)); // such as without a leader
    return parsed;
  }
}

function parseBody(text: string): Record<string, unknown> {
  const body = tryParseJson(text);
  if (isRecord(body)) return body;
  throw new Error('its response is not JSON: is this etcd?');
}

function bodyOrThrow(response: EtcdResponse): Record<string, unknown> {
  if (response.status === 200) return response.body;
  throw new UnavailableError('etcd', responseErrorOf(response));
}

/** Whether the token is invalid: a signed token (JWT) also expires when users or roles have changed since. */
const isTokenExpired = ({ status, body }: EtcdResponse): boolean =>
  status === UNAUTHORIZED || /auth store is old/.test(String(body.message ?? body.error));

const responseErrorOf = ({ status, body }: EtcdResponse): string =>
  `status ${status}: ${String(body.message ?? body.error)}`;

/** Encodes a text: the gateway takes keys and values in base64. */
export const toBase64 = (text: string): string => Buffer.from(text).toString('base64');

export const fromBase64 = (value: unknown): string =>
  Buffer.from(String(value ?? ''), 'base64').toString();
