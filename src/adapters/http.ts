/** Limits in front of HTTP servers: `sluice/http`. */

export {
  type FastifyHook,
  type FastifyOptions,
  type FastifyPluginLike,
  fastify,
} from './fastify.ts';
export { type HonoContextLike, hono } from './hono.ts';
export {
  type Answer,
  type Guard,
  guard,
  type Leaving,
  type Passed,
  type PlainRequest,
} from './http/guard.ts';
export type { HeaderKind } from './http/headers.ts';
export type { TrustProxy } from './http/proxy.ts';
export type { Refused, Wording } from './http/refusal.ts';
export type { Reader } from './http/request.ts';
export type { HttpOptions, Key, RequestOptions } from './http/settings.ts';
export { express, express as node, type NodeRequest, type NodeResponse } from './node.ts';
