/** Limits in front of HTTP servers: `sluice/http`. */

export {
  type FastifyHook,
  type FastifyOptions,
  type FastifyPluginLike,
  fastify,
} from './fastify.ts';
export { type HonoContextLike, hono } from './hono.ts';
export {
  type Admitted,
  type DisconnectSignal,
  type Guard,
  type GuardResult,
  guard,
  type PlainRequest,
} from './http/guard.ts';
export type { HeaderKind } from './http/headers.ts';
export type { TrustProxy } from './http/proxy.ts';
export type { RefusalOverrides, RefusalResponse } from './http/refusal.ts';
export type { RequestAccessor } from './http/request.ts';
export type { HttpOptions, RequestKey, RequestOptions } from './http/settings.ts';
export { express, express as node, type NodeRequest, type NodeResponse } from './node.ts';
