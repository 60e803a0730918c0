/**
 * Asks etcd over HTTP: its gateway takes as JSON what its clients send as gRPC.
 *
 * Of several servers the first is asked; one that fails is passed over for the next, until that fails. Each request
 * has a deadline. Who has a name and a password gets a token for it, and another when that is no longer good.
 */

import { Agent, type IncomingMessage, request } from 'node:http';
import { request as requestTls, Agent as TlsAgent } from 'node:https';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { errorMessageOf, UnavailableError } from '../../core/errors.ts';
import { isRecord } from '../../core/options.ts';

/** As `node:tls` has them. */
export interface EtcdTls {
  readonly ca?: string | Buffer;
  readonly cert?: string | Buffer;
  readonly key?: string | Buffer;
}

export interface EtcdHttpOptions {
  readonly endpoints: readonly URL[];
  /** For each server that is asked: how long it is waited for. */
  readonly deadlineMs: Millis;
  readonly clock: Clock;
  readonly auth: { readonly name: string; readonly password: string } | undefined;
  readonly tls: EtcdTls | undefined;
}

interface HttpResponse {
  readonly status: number;
  readonly body: Record<string, unknown>;
}

/** More than etcd itself keeps under a key. */
const MAX_BODY_BYTES = 4 * 1024 * 1024;

const UNAUTHORIZED = 401;
/** From here on it is the server that failed, and another may do better. */
const SERVER_ERROR = 500;

export class EtcdHttp {
  /** Hears what time a server says it is, in whole seconds. */
  onServerDate: (at: Millis, sentAt: Millis, heardAt: Millis) => void = () => {};
  readonly #options: EtcdHttpOptions;
  readonly #httpAgent = new Agent({ keepAlive: true });
  readonly #httpsAgent: TlsAgent;
  #endpointIndex = 0;
  #token: string | undefined;
  #pendingLogin: Promise<void> | undefined;

  constructor(options: EtcdHttpOptions) {
    this.#options = options;
    this.#httpsAgent = new TlsAgent({ keepAlive: true, ...options.tls });
  }

  /** Rejects with what etcd said if it would not. `onDoubt` hears of each server that failed: it may have done it. */
  async post(path: string, body: object, onDoubt = () => {}): Promise<Record<string, unknown>> {
    const { auth } = this.#options;
    for (let isSecond = false; ; isSecond = true) {
      if (auth && this.#token === undefined) await this.#logIn(auth);
      const token = this.#token;
      const answer = await this.#send('POST', path, body, onDoubt);
      if (!auth || isSecond || !isTokenExpired(answer)) return bodyOrThrow(answer);
      if (this.#token === token) this.#token = undefined; // unless somebody else has got another already
    }
  }

  /** Asks for nothing but the time. */
  async pollServerDate(): Promise<void> {
    await this.#send('GET', '/version');
  }

  close(): void {
    this.#httpAgent.destroy();
    this.#httpsAgent.destroy();
  }

  /** Once for all who need it: etcd takes a tenth of a second to look at a password, and longer for many. */
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

  /** Once to each server at most, beginning with the one that answered last. */
  async #send(
    method: string,
    path: string,
    body?: object,
    onDoubt = () => {},
  ): Promise<HttpResponse> {
    const { endpoints } = this.#options;
    for (let failed = 1; ; failed++) {
      const asked = this.#endpointIndex;
      const endpoint = endpoints[asked % endpoints.length];
      try {
        return await this.#sendTo(new URL(path, endpoint), method, body);
      } catch (error) {
        onDoubt();
        if (this.#endpointIndex === asked) this.#endpointIndex++; // unless somebody else has given it up already
        if (failed < endpoints.length) continue;
        throw new UnavailableError(`etcd at ${endpoint.host}`, errorMessageOf(error));
      }
    }
  }

  #sendTo(url: URL, method: string, body?: object): Promise<HttpResponse> {
    const { clock, deadlineMs } = this.#options;
    const sentAt = clock.now();
    const isSecure = url.protocol === 'https:';
    const headers = {
      'content-type': 'application/json',
      ...(this.#token !== undefined && { authorization: this.#token }),
    };
    const agent = isSecure ? this.#httpsAgent : this.#httpAgent;
    return new Promise((done, failed) => {
      const sending = (isSecure ? requestTls : request)(url, { method, headers, agent });
      const late = (): unknown => sending.destroy(new Error(`no answer within ${deadlineMs} ms`));
      const cancel = schedule(clock, sentAt + deadlineMs, late, false);
      sending.once('error', failed).once('close', cancel);
      sending.once('response', (response) => {
        const date = Date.parse(response.headers.date ?? '');
        if (Number.isFinite(date)) this.onServerDate(date, sentAt, clock.now());
        readResponse(response).then(done, failed);
      });
      sending.end(body && JSON.stringify(body));
    });
  }
}

async function readResponse(response: IncomingMessage): Promise<HttpResponse> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of response) {
    bytes += chunk.length;
    if (bytes > MAX_BODY_BYTES) throw new Error(`an answer of more than ${MAX_BODY_BYTES} bytes`);
    chunks.push(chunk);
  }
  const text = Buffer.concat(chunks).toString();
  const answer = { status: response.statusCode ?? 0, body: parseBody(text) };
  if (answer.status >= SERVER_ERROR) throw new Error(responseErrorOf(answer)); // such as one that has no leader
  return answer;
}

function parseBody(text: string): Record<string, unknown> {
  try {
    const body: unknown = JSON.parse(text);
    if (isRecord(body)) return body;
  } catch {}
  throw new Error('an answer that is no JSON: is this etcd?');
}

function bodyOrThrow(answer: HttpResponse): Record<string, unknown> {
  if (answer.status === 200) return answer.body;
  throw new UnavailableError('etcd', responseErrorOf(answer));
}

/** A signed token, which etcd does not keep, is also spent when users or roles have changed since. */
const isTokenExpired = ({ status, body }: HttpResponse): boolean =>
  status === UNAUTHORIZED || /auth store is old/.test(String(body.message ?? body.error));

const responseErrorOf = ({ status, body }: HttpResponse): string =>
  `it says ${status}: ${String(body.message ?? body.error)}`;

/** Keys and values travel like this. */
export const toBase64 = (text: string): string => Buffer.from(text).toString('base64');

export const fromBase64 = (value: unknown): string =>
  Buffer.from(String(value ?? ''), 'base64').toString();
