/**
 * The desk: what an HTTP request asks, and what it is told.
 *
 *     GET  /check?limit=&key=&cost=&hold=1            200, or 429, 503, 403: for programs, and proxies that ask first
 *     POST /batch   POST /settle                      many at once; how a call went
 *     GET  /healthz /readyz                           alive; ready
 *     GET  /inspect …   POST /reload                  behind the counter: `admin-routes.ts`, and who may, `access.ts`
 *
 * It meets no socket, so that a test, or a million random requests, can ask it directly. It never throws
 * and never rejects.
 */

import type { CheckRequest } from '../../router/router.ts';
import type { Route } from '../../router/routes.ts';
import {
  type AdminAccess,
  type AdminGuard,
  CROSS_SITE,
  createAdminGuard,
  isCrossSite,
} from './access.ts';
import { type AdminContext, adminRoutes } from './admin-routes.ts';
import {
  type CheckParams,
  checkFromForm,
  checksFromJson,
  keyTooLong,
  MISSING_KEY,
  parseJsonBody,
  type Settlement,
  settlementFromForm,
  settlementFromJson,
} from './check-request.ts';
import { batchEntryOf, CheckResponder } from './decision-response.ts';
import { type Endpoint, publicEndpoint, READ_METHODS, WRITE_METHODS } from './endpoint.ts';
import type { KeyExtractor, RequestHead } from './key.ts';
import { preview, ValidationProblem } from './parameters.ts';
import {
  type HttpResponse,
  isHttpResponse,
  jsonResponse,
  problemResponse,
  textResponse,
  unknownLimitResponse,
} from './reply.ts';

export interface CheckHandlerContext extends AdminContext {
  readonly admin: AdminAccess;
  /** Where the key of a check comes from that names none; undefined: it has to. */
  readonly extractKey?: KeyExtractor | undefined;
  readonly bounds: CheckBounds;
  /** False while draining. */
  isReady(): boolean;
  /** Hears of what should not happen. */
  onError?(error: unknown): void;
}

export interface CheckBounds {
  /** Bytes of a key. */
  readonly maxKey: number;
  /** Questions in one request. */
  readonly maxBatch: number;
}

export const CHECK_BOUNDS: CheckBounds = { maxKey: 1024, maxBatch: 1000 };

/** A question that makes sense, and the limits it meets. */
interface RoutedCheck {
  readonly params: CheckParams;
  readonly key: string;
  readonly route: Route;
}

/** Proxies that ask first may send the method they were sent. */
const ANY_METHOD: readonly string[] = [];

const CHECK_PATH = '/check';
const QUESTION_MARK = 63;

export class CheckHandler {
  readonly #context: CheckHandlerContext;
  readonly #adminGuard: AdminGuard;
  readonly #responder = new CheckResponder();
  readonly #endpoints: ReadonlyMap<string, Endpoint>;

  constructor(context: CheckHandlerContext) {
    this.#context = context;
    this.#adminGuard = createAdminGuard(context.admin);
    this.#endpoints = this.#createEndpoints();
  }

  /** What a request is told. */
  handle(
    request: RequestHead,
    isLoopback: boolean,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    try {
      const reply = this.#dispatch(request, isLoopback, body);
      return reply instanceof Promise ? reply.catch((error) => this.#internalError(error)) : reply;
    } catch (error) {
      return this.#internalError(error);
    }
  }

  /** The same for a check in a URL; undefined, and nothing was taken, if somebody else has a say in it. */
  handleLocally(request: RequestHead): HttpResponse | undefined {
    try {
      const asked = this.#routeUrlCheck(request, CHECK_PATH.length + 1);
      if (isHttpResponse(asked)) return asked;
      return asked.route.remote.length === 0 ? (this.#runCheck(asked) as HttpResponse) : undefined;
    } catch (error) {
      return this.#internalError(error);
    }
  }

  #dispatch(
    request: RequestHead,
    isLoopback: boolean,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    const url = request.url ?? '';
    const isCheck =
      url.startsWith(CHECK_PATH) &&
      (url.length === CHECK_PATH.length || url.charCodeAt(CHECK_PATH.length) === QUESTION_MARK);
    if (isCheck && body.length === 0) return this.#checkUrl(request, CHECK_PATH.length + 1);
    return this.#dispatchByPath(request, url, isLoopback, body);
  }

  #dispatchByPath(
    request: RequestHead,
    url: string,
    isLoopback: boolean,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    const pathAt = pathStart(url);
    const mark = url.indexOf('?', pathAt);
    const pathEnd = mark < 0 ? url.length : mark;
    const path = url.slice(pathAt, pathEnd);
    const endpoint = this.#endpoints.get(path);
    if (!endpoint)
      return problemResponse(
        404,
        `There is nothing at ${preview(path)}; GET / says what there is.`,
      );
    const { methods, isAdmin, handle } = endpoint;
    const forbidden = isAdmin && this.#adminGuard(request, isLoopback);
    if (forbidden) return forbidden;
    const { method = '' } = request;
    if (methods !== ANY_METHOD && !methods.includes(method)) return methodNotAllowed(methods);
    if (methods === WRITE_METHODS && isCrossSite(request)) return CROSS_SITE;
    return handle(request, pathEnd + 1, body);
  }

  #createEndpoints(): ReadonlyMap<string, Endpoint> {
    const own = this.#context;
    return new Map<string, Endpoint>([
      ['/check', publicEndpoint(ANY_METHOD, (...asked) => this.#check(...asked))],
      ['/batch', publicEndpoint(WRITE_METHODS, (...asked) => this.#batch(...asked))],
      ['/settle', publicEndpoint(WRITE_METHODS, (...asked) => this.#settle(...asked))],
      ['/healthz', publicEndpoint(READ_METHODS, () => textResponse(200, 'ok\n'))],
      [
        '/readyz',
        publicEndpoint(READ_METHODS, () =>
          own.isReady() ? textResponse(200, 'ready\n') : DRAINING,
        ),
      ],
      ...adminRoutes(own),
    ]);
  }

  // The questions.

  #checkUrl(request: RequestHead, queryAt: number): HttpResponse | Promise<HttpResponse> {
    return this.#runCheck(this.#routeUrlCheck(request, queryAt));
  }

  /** What a URL asks, or what to say to it. */
  #routeUrlCheck(request: RequestHead, queryAt: number): RoutedCheck | HttpResponse {
    const params = checkFromForm(request.url ?? '', queryAt);
    if (params instanceof ValidationProblem) return problemResponse(400, params.detail);
    return this.#routeCheck(request, params);
  }

  #check(
    request: RequestHead,
    queryAt: number,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    if (body.length === 0) return this.#checkUrl(request, queryAt);
    const asked = this.#parseChecks(request, queryAt, body);
    if (isHttpResponse(asked)) return asked;
    return Array.isArray(asked)
      ? this.#runBatch(request, asked)
      : this.#runCheck(this.#routeCheck(request, asked as CheckParams));
  }

  #batch(
    request: RequestHead,
    queryAt: number,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    const asked = this.#parseChecks(request, queryAt, body);
    if (isHttpResponse(asked)) return asked;
    if (!Array.isArray(asked)) return problemResponse(400, NOT_A_LIST.detail);
    return this.#runBatch(request, asked);
  }

  /** What a body asks, or what to say to it. */
  #parseChecks(
    request: RequestHead,
    queryAt: number,
    body: Buffer,
  ): CheckParams | readonly CheckParams[] | HttpResponse {
    const { maxBatch } = this.#context.bounds;
    return this.#parseBody(request, queryAt, body, {
      form: (form) => checkFromForm(form, 0),
      json: (value) => checksFromJson(value, maxBatch),
    });
  }

  /** Reads a body as its type says; a body and a query at once would leave open which of them counts. */
  #parseBody<T extends object>(
    { headers, url = '' }: RequestHead,
    queryAt: number,
    body: Buffer,
    as: { form(form: string): T | ValidationProblem; json(value: unknown): T | ValidationProblem },
  ): T | HttpResponse {
    if (queryAt < url.length)
      return problemResponse(400, 'Ask in the URL or in the body, not in both.');
    const [type] = String(headers['content-type'] ?? '').split(';', 1);
    const kind = type.trim().toLowerCase();
    if (kind === 'application/x-www-form-urlencoded') {
      return orProblemResponse(as.form(body.toString('latin1')));
    }
    if (kind !== 'application/json') return WRONG_TYPE;
    const parsed = parseJsonBody(body);
    return orProblemResponse(parsed instanceof ValidationProblem ? parsed : as.json(parsed.value));
  }

  /** Whose question it is and which limits it meets, before anything is taken. */
  #routeCheck(request: RequestHead, params: CheckParams): RoutedCheck | HttpResponse {
    const key = this.#keyOf(request, params);
    if (key instanceof ValidationProblem) return problemResponse(400, key.detail);
    const route = this.#context.router.route(key, params.limit);
    return route ? { params, key, route } : unknownLimitResponse(params.limit ?? '');
  }

  /** A promise only if somebody else has a say in it. */
  #runCheck(asked: RoutedCheck | HttpResponse): HttpResponse | Promise<HttpResponse> {
    if (isHttpResponse(asked)) return asked;
    const { params, key, route } = asked;
    const { limit, cost, wantsPermit } = params;
    const answer = this.#context.router.checkRoute(route, { limit, key, cost, wantsPermit });
    return answer instanceof Promise
      ? this.#responder.respondAsync(params, key, answer, route)
      : this.#responder.respond(params, key, answer, route);
  }

  #keyOf(request: RequestHead, { key }: CheckParams): string | ValidationProblem {
    const { maxKey } = this.#context.bounds;
    const found = key ?? this.#context.extractKey?.(request);
    if (found === undefined) return MISSING_KEY;
    return found.length > maxKey ? keyTooLong(maxKey, found) : found;
  }

  /** Nothing is asked before all questions are known to make sense. */
  async #runBatch(request: RequestHead, checks: readonly CheckParams[]): Promise<HttpResponse> {
    const { router } = this.#context;
    const asked: { readonly route: Route; readonly check: CheckRequest }[] = [];
    for (let n = 0; n < checks.length; n++) {
      const { limit, cost, wantsPermit } = checks[n];
      const key = this.#keyOf(request, checks[n]);
      if (key instanceof ValidationProblem)
        return problemResponse(400, key.within(`[${n}]`).detail);
      const route = router.route(key, limit);
      if (!route) return unknownLimitResponse(limit ?? '', `[${n}]: `);
      asked.push({ route, check: { limit, key, cost, wantsPermit } });
    }
    const answers = asked.map(({ route, check }) => router.checkRoute(route, check));
    return jsonResponse(200, (await Promise.all(answers)).map(batchEntryOf));
  }

  #settle(request: RequestHead, queryAt: number, body: Buffer): HttpResponse {
    const { url = '' } = request;
    const asked: Settlement | HttpResponse =
      body.length === 0
        ? orProblemResponse(settlementFromForm(url, queryAt))
        : this.#parseBody(request, queryAt, body, {
            form: (form) => settlementFromForm(form, 0),
            json: settlementFromJson,
          });
    if (isHttpResponse(asked)) return asked;
    const isSettled = this.#context.router.settle(asked.permit, asked.result);
    return isSettled
      ? jsonResponse(200, { settled: true })
      : problemResponse(404, `Nobody holds permit ${preview(asked.permit)} any more.`);
  }

  #internalError(error: unknown): HttpResponse {
    this.#context.onError?.(error);
    return problemResponse(500, 'Something went wrong here; the log of the daemon says what.');
  }
}

const DRAINING = problemResponse(503, 'Draining: about to stop.', 'Retry-After', '1');

const WRONG_TYPE = problemResponse(
  415,
  'Send application/json or application/x-www-form-urlencoded.',
  'Accept-Post',
  'application/json, application/x-www-form-urlencoded',
);

const NOT_A_LIST = new ValidationProblem('body', 'a list of questions', 'one');

const orProblemResponse = <T extends object>(read: T | ValidationProblem): T | HttpResponse =>
  read instanceof ValidationProblem ? problemResponse(400, read.detail) : read;

const methodNotAllowed = (methods: readonly string[]): HttpResponse =>
  problemResponse(405, `This takes ${methods.join(' or ')}.`, 'Allow', methods.join(', '));

/** Where the path of a URL begins: some clients, told of a proxy, send the host along. */
function pathStart(url: string): number {
  if (url.startsWith('/')) return 0;
  const host = /^https?:\/\/[^/?]*/i.exec(url);
  return host ? host[0].length : 0;
}
