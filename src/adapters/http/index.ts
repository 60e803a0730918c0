/** Limits in front of HTTP servers: `sluice/http`. */

export { type FastifyPluginLike, fastify } from './fastify.ts';
export {
  type Answer,
  type Guard,
  guard,
  type Leaving,
  type Passed,
  type PlainRequest,
  type Reader,
} from './guard.ts';
export type { HeaderKind } from './headers.ts';
export { hono } from './hono.ts';
export { express, express as node, type NodeRequest, type NodeResponse } from './node.ts';
export type { TrustProxy } from './proxy.ts';
export type { Refused } from './refusal.ts';
export type { HttpOptions, RequestOptions } from './settings.ts';
