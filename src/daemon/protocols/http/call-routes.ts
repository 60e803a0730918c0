/**
 * Endpoints for programs beside the check: units that are taken ahead, and the outcome of a call.
 *
 *     POST /settle                        the outcome of a call with a permit
 *     POST /report                        how an attempt of a key ended, for a lock-out
 *     POST /take (or /take-up-to)         as many as there are
 *     POST /give (or /give-back)          what was not used of them
 */

import { ConfigError } from '../../../core/errors.ts';
import { inFlightLimitOf } from '../../router/batch.ts';
import { reportAttempt } from '../../router/report.ts';
import type { RoutedRequest, TakeResult } from '../../router/request.ts';
import type { Router } from '../../router/router.ts';
import {
  type CheckParams,
  type GiveBackParams,
  giveBackFromForm,
  giveBackFromJson,
  type ReportParams,
  reportFromForm,
  reportFromJson,
  type Settlement,
  settlementFromForm,
  settlementFromJson,
  type TakeParams,
  takeFromForm,
  takeFromJson,
} from './check-request.ts';
import { type Endpoint, type EndpointHandler, publicEndpoint, WRITE_METHODS } from './endpoint.ts';
import type { RequestHead } from './key.ts';
import { preview } from './parameters.ts';
import { type Formats, parseRequest } from './request-parameters.ts';
import {
  type EventualResponse,
  type HttpResponse,
  isHttpResponse,
  jsonResponse,
  problemResponse,
} from './response.ts';

const SETTLEMENT: Formats<Settlement> = { form: settlementFromForm, json: settlementFromJson };
const REPORT: Formats<ReportParams> = { form: reportFromForm, json: reportFromJson };
const TAKE: Formats<TakeParams> = { form: takeFromForm, json: takeFromJson };
const GIVE_BACK: Formats<GiveBackParams> = { form: giveBackFromForm, json: giveBackFromJson };

/** Finds the route of a key, or the response that says why there is none. */
type RouteRequest = (request: RequestHead, params: CheckParams) => RoutedRequest | HttpResponse;

export function callRoutes(
  router: Router,
  route: RouteRequest,
): readonly (readonly [string, Endpoint])[] {
  const take = takeUpTo(router, route);
  const give = giveBack(router);
  const handlers: Readonly<Record<string, EndpointHandler>> = {
    '/settle': settle(router),
    '/report': report(route),
    '/take': take,
    '/take-up-to': take,
    '/give': give,
    '/give-back': give,
  };
  return Object.entries(handlers).map(
    ([path, handle]) => [path, publicEndpoint(WRITE_METHODS, handle)] as const,
  );
}

const settle =
  ({ permits }: Router): EndpointHandler =>
  (...request) => {
    const settlement = parseRequest(...request, SETTLEMENT);
    if (isHttpResponse(settlement)) return settlement;
    const { permit, result } = settlement;
    return orBadRequest(() =>
      permits.settle(permit, result) ? jsonResponse(200, { settled: true }) : unknownPermit(permit),
    );
  };

const report =
  (route: RouteRequest): EndpointHandler =>
  async (...request) => {
    const params = parseRequest(...request, REPORT);
    if (isHttpResponse(params)) return params;
    const unit = { cost: 1, wantsPermit: false, status: undefined };
    const routed = route(request[0], { ...params, ...unit });
    if (isHttpResponse(routed)) return routed;
    try {
      return jsonResponse(200, { reported: await reportAttempt(routed, params.attempt) });
    } catch (error) {
      if (error instanceof ConfigError) return problemResponse(400, error.message);
      throw error;
    }
  };

const takeUpTo =
  (router: Router, route: RouteRequest): EndpointHandler =>
  (...request) => {
    const params = parseRequest(...request, TAKE);
    if (isHttpResponse(params)) return params;
    const routed = route(request[0], { ...params, cost: params.max, status: undefined });
    if (isHttpResponse(routed)) return routed;
    const inFlight = inFlightLimitOf(routed.route);
    if (inFlight && !inFlight.limit.expose) return NO_BATCHES;
    const respond = (result: TakeResult): HttpResponse => jsonResponse(200, result);
    return orBadRequest(() => {
      const result = router.takeUpTo(routed, params.max);
      return result instanceof Promise ? result.then(respond) : respond(result);
    });
  };

const giveBack =
  ({ permits }: Router): EndpointHandler =>
  (...request) => {
    const params = parseRequest(...request, GIVE_BACK);
    if (isHttpResponse(params)) return params;
    const { permit, unused } = params;
    return orBadRequest(() =>
      permits.giveBack(permit, unused)
        ? jsonResponse(200, { givenBack: true })
        : unknownPermit(permit),
    );
  };

/** A request that the limit or the permit does not allow is the client's mistake. */
function orBadRequest(respond: () => EventualResponse): EventualResponse {
  try {
    return respond();
  } catch (error) {
    if (error instanceof ConfigError) return problemResponse(400, error.message);
    throw error;
  }
}

const unknownPermit = (permit: string): HttpResponse =>
  problemResponse(404, `Permit ${preview(permit)} is unknown, settled or expired.`);

/** Without the name of the limit: it is not exposed. */
const NO_BATCHES = problemResponse(
  400,
  'expected `key` to be one whose limits do not count calls in flight: use check',
);
