/** Limits in front of HTTP servers: `sluice/http`. */

export {
  type FastifyHook,
  type FastifyOptions,
  type FastifyPluginLike,
  fastify,
} from './fastify.ts';
export {
  type Answer,
  type Guard,
  guard,
  type Leaving,
  type Passed,
  type PlainRequest,
} from './guard.ts';
export type { HeaderKind } from './headers.ts';
export { type HonoContextLike, hono } from './hono.ts';
export { express, express as node, type NodeRequest, type NodeResponse } from './node.ts';
export type { TrustProxy } from './proxy.ts';
export type { Refused, Wording } from './refusal.ts';
export type { Reader } from './request.ts';
export type { HttpOptions, Key, RequestOptions } from './settings.ts';
