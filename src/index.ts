/** The package's entry: exports only. */

export type { BackendFactory } from './backends/backend.ts';
export type { RemoteBackendFactory } from './backends/remote-backend.ts';
export { type Clock, coarseClock, type Millis, systemClock } from './core/clock.ts';
export {
  type AttemptOutcome,
  type Decision,
  NEVER,
  type Outcome,
  WHEN_SETTLED,
} from './core/decision.ts';
export type { Duration, Rate } from './core/duration.ts';
export {
  ConfigError,
  type Denial,
  DeniedError,
  type ErrorCode,
  RejectedError,
  SluiceError,
  UnavailableError,
} from './core/errors.ts';
export type { FlowOptions } from './core/flow.ts';
export { type Random, seededRandom, systemRandom } from './core/random.ts';
export type { RemoteLimiter, RemoteStats } from './limiter/async-limiter.ts';
export {
  type AllOptions,
  all,
  type ComponentOptions,
  type RemoteComponentOptions,
} from './limiter/composite-limiter.ts';
export type {
  AvailabilityEvent,
  CancelledEvent,
  DecisionEvent,
  ExpiredEvent,
  LimitChangedEvent,
  LimitEvent,
  Listener,
  ReconfiguredEvent,
  RetryDeniedEvent,
  SettledEvent,
} from './limiter/events.ts';
export type { Inspection, NamedRuleStatus } from './limiter/inspection.ts';
export {
  type LimiterOptions,
  limiter,
  type QueueOptions,
  type RemoteLimiterOptions,
} from './limiter/limiter.ts';
export type { AcquireOptions, CheckOptions, Limiter, Stats } from './limiter/limiter-interface.ts';
export { Permit, type PermitResult, Refusal, type RefusalReason } from './limiter/permit.ts';
export type { CounterSnapshot, Histogram } from './limiter/stats.ts';
export type { CallResult, IdOptions, SettleOptions, WaitOptions } from './limiter/validate.ts';
export type { QueueOrder } from './limiter/wait-queue.ts';
export type { AdaptiveOptions } from './policies/adaptive.ts';
export type { BucketOptions } from './policies/bucket.ts';
export type { BusyOptions } from './policies/busy.ts';
export type { ConcurrencyOptions } from './policies/concurrency.ts';
export type { Limit, LimitKinds } from './policies/limit.ts';
export type { LockoutOptions, LockoutTrigger } from './policies/lockout.ts';
export type {
  Feedback,
  KeyState,
  LimitCause,
  RuleStatus,
} from './policies/policy.ts';
export type { QuotaOptions } from './policies/quota.ts';
export type { RampMode, RampOptions } from './policies/ramp.ts';
export type { SpacingOptions } from './policies/spacing.ts';
export type { WindowOptions } from './policies/window.ts';
export type { Attempt, RetryOptions } from './throttle/retry.ts';
export {
  type Callable,
  type CallOptions,
  type Throttled,
  type ThrottleOptions,
  throttle,
  throttled,
} from './throttle/throttle.ts';
