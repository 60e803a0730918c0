/**
 * Handles HTTP requests without a socket, so tests and fuzzers can call it directly. Never throws and
 * never rejects.
 *
 *     GET  /check?limit=&key=&cost=&hold=1&wait=2s&plan=   200, or 429, 503, 403: for programs and proxies (auth_request)
 *     GET  /check;limit=&cost=/path                   the same for a proxy that appends the client's path (ext_authz)
 *     POST /batch   POST /settle                      many checks at once; the outcome of a call
 *     GET  /check?check=limit,key&check=…&wait=2s     several limits and keys as one check; POST {"checks": […]}
 *     POST /report                                    how an attempt of a key ended, for a lock-out
 *     POST /take   POST /give                         as many as there are; what was not used
 *     GET  /healthz /readyz                           liveness; readiness
 *     GET  /inspect …   POST /reload                  for operators: `admin-routes.ts`, guarded by `access.ts`
 *     GET  /page/                                     for browsers: `page-routes.ts`
 *     POST /ban /override /reset …   GET /controls    for operators: `control-routes.ts`
 */

import type { Millis } from '../../../core/clock.ts';
import { isId } from '../../../limiter/idempotent-calls.ts';
import { checkAll, type JointPart } from '../../router/joint-check.ts';
import { acquireAll, rerouted } from '../../router/joint-wait.ts';
import { type CheckResult, mayLeave, type RoutedRequest } from '../../router/request.ts';
import type { WaitLimits } from '../../router/waiting.ts';
import { CLIENT_LEFT } from '../../server/client-signal.ts';
import type { Turns } from '../../server/turns.ts';
import {
  type AdminAccess,
  type AdminGuard,
  CROSS_SITE,
  CROSS_SITE_CHECK,
  createAdminGuard,
  isCrossSite,
  isCrossSiteCheck,
  isCrossSiteRead,
  isRebound,
} from './access.ts';
import { type AdminContext, adminRoutes } from './admin-routes.ts';
import type { HttpBounds } from './bounds.ts';
import { callRoutes } from './call-routes.ts';
import {
  type CheckParams,
  checkFromForm,
  hasValidLength,
  invalidId,
  keyLengthProblem,
  missingKey,
  waitTooLong,
} from './check-request.ts';
import { CheckResponder } from './decision-response.ts';
import { type Endpoint, publicEndpoint, READ_METHODS, WRITE_METHODS } from './endpoint.ts';
import {
  checksOrJointFromJson,
  formFromText,
  type JointParams,
  jointFromForm,
  jointKeyOf,
} from './joint-check-request.ts';
import { type KeyExtractor, planOf, type RequestHead, soleHeader } from './key.ts';
import { pageFileRoutes } from './page-routes.ts';
import { preview, ValidationProblem } from './parameters.ts';
import { asRequested, proxiedCheck, withStatus } from './proxied-check.ts';
import { ALWAYS_READY, describeReadiness, type Readiness, readinessResponse } from './readiness.ts';
import { type Formats, parseRequest } from './request-parameters.ts';
import {
  type EventualResponse,
  type HttpResponse,
  isHttpResponse,
  jsonResponse,
  problemResponse,
  textResponse,
  unknownLimitResponse,
} from './response.ts';

export interface HttpHandlerContext extends AdminContext {
  readonly admin: AdminAccess;
  /** Finds the key of a check that names none; undefined: such a check is an error. */
  readonly extractKey?: KeyExtractor | undefined;
  readonly bounds: Pick<HttpBounds, 'maxKey' | 'maxBatch'>;
  /** True: web pages of other sites may check. Default: false. */
  readonly allowCrossSite?: boolean | undefined;
  /** Shares the event loop between batches and other requests; undefined: a batch is handled at once. */
  readonly turns?: Pick<Turns, 'isOver' | 'next'> | undefined;
  /** False while draining. */
  isReady(): boolean;
  /** Default: ready unless draining. */
  readiness?(): Readiness;
  /** Resolves when `readiness` reflects the backends, also those that no check has used. */
  probeBackends?(): Promise<void>;
  /** Called with unexpected errors, which the client sees as 500. */
  onError?(error: unknown): void;
}

/** A proxy may forward the method of the request it authorises. */
const ANY_METHOD: readonly string[] = [];

/** Checks of a batch between two looks at the slice of time. */
const CHECKS_PER_LOOK = 8;

const CHECK_PATH = '/check';
const QUESTION_MARK = 63;

/** The body of a check that a proxy builds: the client's is not read. */
const NOTHING = Buffer.alloc(0);

export class HttpHandler {
  readonly #context: HttpHandlerContext;
  readonly #adminGuard: AdminGuard;
  readonly #responder = new CheckResponder();
  readonly #endpoints: ReadonlyMap<string, Endpoint>;
  readonly #checkFormats: Formats<CheckParams | readonly CheckParams[] | JointParams>;

  constructor(context: HttpHandlerContext) {
    this.#context = context;
    this.#adminGuard = createAdminGuard(context.admin);
    this.#endpoints = this.#createEndpoints();
    const { maxBatch } = context.bounds;
    this.#checkFormats = {
      form: formFromText,
      json: (value) => checksOrJointFromJson(value, maxBatch),
    };
  }

  handle(request: RequestHead, isLoopback: boolean, body: Buffer): EventualResponse {
    try {
      const response = this.#dispatch(request, isLoopback, body);
      return response instanceof Promise
        ? response.catch((error) => this.#internalError(error))
        : response;
    } catch (error) {
      return this.#internalError(error);
    }
  }

  /** Handles `GET /check?…` of one check if no remote limit is on its route; otherwise undefined, and nothing is taken. */
  handleLocally(request: RequestHead, isLoopback: boolean): HttpResponse | undefined {
    try {
      if (isCrossSiteCheck(request, isLoopback) && !this.#context.allowCrossSite)
        return asRequested(request, CROSS_SITE_CHECK);
      const { url = '' } = request;
      const params = checkFromForm(url, CHECK_PATH.length + 1);
      if (params instanceof ValidationProblem)
        return jointFromForm(url, CHECK_PATH.length + 1)
          ? undefined
          : asRequested(request, problemResponse(400, params.detail));
      const routed = this.#route(request, params);
      if (isHttpResponse(routed)) return asRequested(request, routed);
      const { waitMs, id, idHeader } = params;
      const isPlain = waitMs === undefined && id === undefined && idHeader === undefined;
      if (routed.route.remote.length > 0 || !isPlain) return undefined;
      const result = this.#context.router.checkWithStatus(routed) as CheckResult;
      return this.#responder.respond(params, routed, result) as HttpResponse;
    } catch (error) {
      return this.#internalError(error);
    }
  }

  #dispatch(request: RequestHead, isLoopback: boolean, body: Buffer): EventualResponse {
    const url = request.url ?? '';
    const isCheck =
      url.startsWith(CHECK_PATH) &&
      (url.length === CHECK_PATH.length || url.charCodeAt(CHECK_PATH.length) === QUESTION_MARK);
    if (!isCheck) {
      const proxied = proxiedCheck(request);
      if (proxied) return this.#dispatch(proxied, isLoopback, NOTHING);
      return this.#dispatchByPath(request, url, isLoopback, body);
    }
    if (this.#isRefused(request, isLoopback)) return asRequested(request, CROSS_SITE_CHECK);
    return this.#check(request, CHECK_PATH.length + 1, body);
  }

  #dispatchByPath(
    request: RequestHead,
    url: string,
    isLoopback: boolean,
    body: Buffer,
  ): EventualResponse {
    const pathAt = pathStart(url);
    const mark = url.indexOf('?', pathAt);
    const pathEnd = mark < 0 ? url.length : mark;
    const path = url.slice(pathAt, pathEnd);
    const endpoint = this.#endpoints.get(path);
    if (!endpoint)
      return problemResponse(404, `There is no endpoint ${preview(path)}; GET / lists them.`);
    const { methods, isAdmin, handle } = endpoint;
    const forbidden = isAdmin && this.#adminGuard(request, isLoopback);
    if (forbidden) return forbidden;
    const { method = '' } = request;
    if (methods !== ANY_METHOD && !methods.includes(method)) return methodNotAllowed(methods);
    const isFromPage = isCrossSite(request) || (isLoopback && isRebound(request));
    if (methods === WRITE_METHODS && isFromPage) return CROSS_SITE;
    if (isAdmin && isCrossSiteRead(request)) return CROSS_SITE;
    if (methods === ANY_METHOD && this.#isRefused(request, isLoopback)) return CROSS_SITE_CHECK;
    return handle(request, pathEnd + 1, body);
  }

  #createEndpoints(): ReadonlyMap<string, Endpoint> {
    const context = this.#context;
    return new Map<string, Endpoint>([
      [CHECK_PATH, publicEndpoint(ANY_METHOD, (...request) => this.#check(...request))],
      ['/batch', publicEndpoint(WRITE_METHODS, (...request) => this.#batch(...request))],
      ...callRoutes(context.router, (request, params) => this.#route(request, params)),
      ['/healthz', publicEndpoint(READ_METHODS, () => textResponse(200, 'ok\n'))],
      ['/readyz', publicEndpoint(READ_METHODS, () => this.#probedReadiness())],
      ...pageFileRoutes(() => ({
        needsToken: context.admin.token !== undefined,
        ...describeReadiness(this.#readiness()),
      })),
      ...adminRoutes(context),
    ]);
  }

  async #probedReadiness(): Promise<HttpResponse> {
    await this.#context.probeBackends?.();
    return readinessResponse(this.#readiness());
  }

  #readiness(): Readiness {
    const { readiness, isReady } = this.#context;
    return readiness?.() ?? { ...ALWAYS_READY, isStopping: !isReady() };
  }

  /** One check, or several with one verdict. */
  #check(request: RequestHead, queryAt: number, body: Buffer): EventualResponse {
    const params = parseRequest(request, queryAt, body, this.#checkFormats);
    if (isHttpResponse(params)) return asRequested(request, params);
    if ('checks' in params) return this.#runJoint(request, params);
    return Array.isArray(params) ? A_LIST : this.#runCheck(request, params as CheckParams);
  }

  #isRefused(request: RequestHead, isLoopback: boolean): boolean {
    return isCrossSiteCheck(request, isLoopback) && !this.#context.allowCrossSite;
  }

  #batch(request: RequestHead, queryAt: number, body: Buffer): EventualResponse {
    if (body.length === 0) return NO_BODY;
    const params = parseRequest(request, queryAt, body, this.#checkFormats);
    if (isHttpResponse(params)) return params;
    if (!Array.isArray(params)) return problemResponse(400, NOT_A_LIST.detail);
    return this.#runBatch(request, params);
  }

  /** A promise only if a remote limit is on the route. */
  #runCheck(request: RequestHead, params: CheckParams): EventualResponse {
    const routed = this.#route(request, params);
    if (isHttpResponse(routed)) return withStatus(routed, params.status);
    // A request without the header that the URL names has no id.
    const id = params.id ?? (params.idHeader && soleHeader(request, params.idHeader));
    if (id !== undefined && !isId(id))
      return withStatus(problemResponse(400, invalidId(id).detail), params.status);
    const { waitMs } = params;
    if (waitMs !== undefined) return this.#waitFor(request, { ...params, waitMs }, routed, id);
    const { router } = this.#context;
    const result =
      id === undefined
        ? router.checkWithStatus(routed)
        : router.idempotent(routed, id, (known) => router.checkWithStatus(known));
    return result instanceof Promise
      ? this.#responder.respondAsync(params, routed, result)
      : this.#responder.respond(params, routed, result);
  }

  /** Takes nothing before every check is known to be valid. */
  async #runJoint(request: RequestHead, params: JointParams): Promise<HttpResponse> {
    const { router, bounds, extractKey } = this.#context;
    const { checks, wantsPermit, status } = params;
    const parts: JointPart[] = [];
    for (const [n, item] of checks.entries()) {
      const found = jointKeyOf(item, request, extractKey);
      const isInvalid = typeof found === 'string' && !hasValidLength(found, bounds.maxKey);
      const key = isInvalid ? keyLengthProblem(found, bounds.maxKey) : found;
      // A client may leave out a header, or send a long one: the proxy knows what to do with `status`.
      if (key instanceof ValidationProblem)
        return problemResponse(status ?? 400, key.within(`checks[${n}]`).detail);
      const { cost } = item;
      const limit = this.#limitWithPlan(request, item, `checks[${n}]`);
      if (typeof limit === 'object') return withStatus(limit, status);
      const routed = router.route({ limit, key, cost });
      if (!routed) return withStatus(unknownLimitResponse(limit ?? '', `checks[${n}]: `), status);
      parts.push({ limit, key, request: routed });
    }
    const { waitMs } = params;
    if (waitMs === undefined) {
      const result = await checkAll(router, parts, wantsPermit);
      return this.#responder.respondToAll({ status, cost: 1 }, parts, result);
    }
    return this.#waiting(request, { ...params, waitMs }, async (limits) => {
      const result = await acquireAll(router, parts, wantsPermit, limits);
      const partsNow = rerouted(router, parts) ?? parts;
      return this.#responder.respondToAll({ status, cost: 1 }, partsNow, result);
    });
  }

  #waitFor(
    request: RequestHead,
    params: WaitParams & CheckParams,
    routed: RoutedRequest,
    id: string | undefined,
  ): Promise<HttpResponse> {
    const { router, extractKey } = this.#context;
    return this.#waiting(request, params, async (limits) => {
      const limit = this.#limitWithPlan(request, params) as string | undefined; // known: it has a route
      const { key = extractKey?.(request) ?? '' } = params;
      const sent = { limit, key };
      const result = await (id === undefined
        ? router.acquire(routed, sent, limits)
        : router.idempotent(routed, id, (known) => router.acquire(known, sent, limits)));
      // A reload or an override may have put other limits on the route of a call that waited.
      const routedNow = router.route({ ...routed, limit, key }) ?? routed;
      return this.#responder.respond(params, routedNow, result);
    });
  }

  /** Runs a call that waits at most as long as the daemon allows, and while its client is there. */
  async #waiting(
    { socket: { clientLeft: signal } }: RequestHead,
    { waitMs, flow, status }: WaitParams,
    run: (limits: WaitLimits) => Promise<HttpResponse>,
  ): Promise<HttpResponse> {
    const { maxWaitMs } = this.#context.router.waiting.bounds;
    if (waitMs > maxWaitMs)
      return withStatus(problemResponse(400, waitTooLong(maxWaitMs, waitMs).detail), status);
    try {
      // The client has closed its sending side, and reads the response if it has not left.
      return await run(
        signal?.aborted ? { waitMs: 0, signal: undefined, flow } : { waitMs, signal, flow },
      );
    } catch (error) {
      if (error === CLIENT_LEFT) return ABANDONED;
      throw error;
    }
  }

  /** The limit that a check names and the plan of the key, as one name. */
  #limitWithPlan(
    request: RequestHead,
    { limit, plan = planOf(request, this.#context.extractKey?.planHeader) }: PlannedCheck,
    path?: string,
  ): string | undefined | HttpResponse {
    if (plan === undefined) return limit;
    const isKnown = this.#context.router.planNames.has(plan);
    return isKnown ? `${limit ?? '*'}[${plan}]` : unknownPlan(plan, path && `${path}: `);
  }

  /** Finds the key of a check and the limits on its route. Takes nothing. */
  #route(request: RequestHead, params: CheckParams, path?: string): RoutedRequest | HttpResponse {
    const { router, bounds, extractKey } = this.#context;
    const { key = extractKey?.(request), cost, wantsPermit } = params;
    const isPlanned = params.plan !== undefined || extractKey?.planHeader !== undefined;
    const limit = isPlanned ? this.#limitWithPlan(request, params, path) : params.limit;
    if (typeof limit === 'object') return limit;
    if (key === undefined) return keyProblem(missingKey(extractKey?.header), path);
    if (key === '' || key.length > bounds.maxKey)
      return keyProblem(keyLengthProblem(key, bounds.maxKey), path);
    const routed = router.route({ limit, key, cost, wantsPermit });
    return routed ?? unknownLimitResponse(limit ?? '', path && `${path}: `);
  }

  /** Takes nothing before every check of the batch is known to be valid. */
  async #runBatch(request: RequestHead, checks: readonly CheckParams[]): Promise<HttpResponse> {
    const { router, turns } = this.#context;
    const requests: RoutedRequest[] = [];
    for (const [n, params] of checks.entries()) {
      if (n % CHECKS_PER_LOOK === CHECKS_PER_LOOK - 1 && turns?.isOver) await turns.next();
      const routed = this.#route(request, params, `[${n}]`);
      if (isHttpResponse(routed)) return routed;
      requests.push(routed);
    }
    const results: (CheckResult | Promise<CheckResult>)[] = [];
    for (const [n, routed] of requests.entries()) {
      if (n % CHECKS_PER_LOOK === CHECKS_PER_LOOK - 1 && turns?.isOver) await turns.next();
      const { id } = checks[n];
      results.push(
        id === undefined
          ? router.checkRouted(routed)
          : router.idempotent(routed, id, (known) => router.checkRouted(known)),
      );
    }
    const decided = await Promise.all(results);
    const left = await Promise.all(decided.map((result, n) => this.#leftBy(result, requests[n])));
    return jsonResponse(
      200,
      decided.map((result, n) => this.#responder.batchEntry(requests[n], result, left[n])),
    );
  }

  /** `remaining` after a denial; unbounded if that is unknown. */
  #leftBy(result: CheckResult, routed: RoutedRequest): number | Promise<number> {
    if (mayLeave(result, routed.cost)) return this.#context.router.remaining(routed);
    return result.staticVerdict || result.reason ? Infinity : 0;
  }

  #internalError(error: unknown): HttpResponse {
    this.#context.onError?.(error);
    return problemResponse(500, 'Internal error; see the log of the daemon.');
  }
}

/** The client has left, or has closed its sending side and still reads. */
const ABANDONED = problemResponse(
  499,
  'The client closed its side of the connection, so the call waits no longer. Nothing is charged. Keep the connection open to wait.',
);

const NO_BODY = problemResponse(400, 'expected a list of checks as JSON, got no body');

/** The status of /check is a verdict, and a list of decisions has none. */
const A_LIST = problemResponse(
  400,
  'expected `body` to be an object, got a list: send {"checks": […]} for one verdict, or POST /batch for one of each',
);

const NOT_A_LIST = new ValidationProblem('body', 'a list of checks', 'one check');

type WaitParams = Pick<CheckParams, 'flow' | 'status'> & { readonly waitMs: Millis };

type PlannedCheck = Pick<CheckParams, 'limit' | 'plan'>;

const unknownPlan = (plan: string, where = ''): HttpResponse =>
  problemResponse(400, `${where}There is no plan ${preview(plan)}.`);

const keyProblem = (problem: ValidationProblem, path?: string): HttpResponse =>
  problemResponse(400, (path === undefined ? problem : problem.within(path)).detail);

const methodNotAllowed = (methods: readonly string[]): HttpResponse =>
  problemResponse(405, `Use ${methods.join(' or ')}.`, 'Allow', methods.join(', '));

/** Where the path begins: clients behind a proxy may send an absolute URL. */
function pathStart(url: string): number {
  if (url.startsWith('/')) return 0;
  const host = /^https?:\/\/[^/?]*/i.exec(url);
  return host ? host[0].length : 0;
}
