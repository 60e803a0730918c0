/**
 *     @UseGuards(rateLimitGuard({ limit: { window: { limit: 5, per: '1m' } }, key: (request) => request.user.id }))
 *     @Post('login') …
 *
 * A refusal is Nest's `HttpException`, so that exception filters see it. A guard runs after middleware and before
 * interceptors, so a request that it refuses costs no handler.
 */

import { type CanActivate, type ExecutionContext, HttpException } from '@nestjs/common';
import { ConfigError } from '../core/errors.ts';
import { mergeHeaders } from './http/headers.ts';
import { buildUnavailableRefusal, type RefusalResponse } from './http/refusal.ts';
import { joinHeader, requestLimiter } from './http/request-limiter.ts';
import type { RequestAccessor } from './http/request-reader.ts';
import {
  type ClosableResponse,
  disconnectSignalOf,
  isAbandoned,
  isStillConnected,
  markRefused,
  settleOnClose,
} from './http/response-close.ts';
import { type HttpOptions, type WithLimiter, withLimiter } from './http/settings.ts';
import type { NodeRequest } from './node.ts';

/** A request of Nest: that of Express, or that of Fastify with Node's in `raw`. */
export interface NestRequest extends Omit<NodeRequest, 'socket'> {
  readonly socket?: NodeRequest['socket'];
  readonly raw?: NodeRequest;
  /** Properties that the application's own guards and middleware have added, such as `user`. */
  readonly [added: string]: unknown;
}

/** The members of Express's response and of Fastify's reply that are used. */
interface NestResponse {
  readonly raw?: ClosableResponse;
  getHeader(name: string): unknown;
  header(name: string, value: string): unknown;
  removeHeader(name: string): unknown;
}

const messageOf = (request: NestRequest): NodeRequest => request.raw ?? (request as NodeRequest);

const REQUEST_ACCESSOR: RequestAccessor<NestRequest> = {
  header: (request, name) => joinHeader(request.headers[name]),
  address: (request) => messageOf(request).socket.remoteAddress,
  ip: (request) => request.ip,
  message: messageOf,
};

const HEADER_ACCESSOR = {
  get: (response: NestResponse, name: string) => response.getHeader(name),
  set: (response: NestResponse, name: string, value: string) => void response.header(name, value),
  remove: (response: NestResponse, name: string) => void response.removeHeader(name),
};

/** Creates a guard. @throws {ConfigError} if an option is invalid. */
export function rateLimitGuard(
  options: HttpOptions<NestRequest>,
): WithLimiter<CanActivate, NestRequest> {
  const limit = requestLimiter(options, REQUEST_ACCESSOR);
  const guard: CanActivate = {
    async canActivate(context) {
      const { request, response } = httpOf(context);
      const raw = response.raw ?? (response as unknown as ClosableResponse);
      if (isAbandoned(raw)) throw exceptionOf(buildUnavailableRefusal());
      const watch = limit.canWait ? () => disconnectSignalOf(raw) : undefined;
      const decision = await limit.check(request, watch);
      if (!isStillConnected(limit, decision, raw)) throw exceptionOf(buildUnavailableRefusal());
      // Nest sends JSON, and logs a warning for each error response that has another type.
      const { 'Content-Type': _, ...headers } = decision.headers ?? {};
      mergeHeaders(HEADER_ACCESSOR, response, headers);
      if (!decision.isAllowed) {
        markRefused(raw);
        throw exceptionOf(decision);
      }
      if (decision.isAllowed && decision.permit)
        settleOnClose(limit, decision.permit, request, raw);
      return true;
    },
  };
  return withLimiter(guard, limit);
}

/** Nest sends an object as it is. Text, which the option `refuse` can set, becomes the message of Nest's own object. */
function exceptionOf({ body, status }: RefusalResponse): HttpException {
  try {
    return new HttpException(JSON.parse(body), status);
  } catch {
    return new HttpException(body, status);
  }
}

function httpOf(context: ExecutionContext): { request: NestRequest; response: NestResponse } {
  const type = context.getType();
  const expected = 'a request of HTTP; in other handlers use a limiter, or `throttle` the method';
  if (type !== 'http') throw new ConfigError('context', expected, type);
  const http = context.switchToHttp();
  return { request: http.getRequest(), response: http.getResponse() };
}
