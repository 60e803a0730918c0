export type { HeaderKind } from './headers.ts';
export type { TrustProxy } from './proxy.ts';
export type { RefusalOverrides, RefusalResponse } from './refusal.ts';
export {
  type Admitted,
  type DisconnectSignal,
  type PlainRequest,
  type RequestDecision,
  type RequestLimiter,
  requestLimiter,
} from './request-limiter.ts';
export type { RequestAccessor } from './request-reader.ts';
export type { HttpOptions, RequestKey, RequestOptions, WithLimiter } from './settings.ts';
