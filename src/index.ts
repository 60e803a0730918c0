/** The front door. */

export { type AllOptions, all, type PartOptions } from './all-of.ts';
export type { Result, WaitOptions } from './arguments.ts';
export { type Clock, type Millis, systemClock, turnClock } from './clock.ts';
export type { Counted, Histogram } from './counts.ts';
export { type Decision, NEVER, type Outcome, WHEN_SETTLED } from './decision.ts';
export type { Duration, Rate } from './duration.ts';
export type { AcquireOptions, AskOptions, Limiter, Stats } from './engine.ts';
export {
  ConfigError,
  type Denial,
  DeniedError,
  type ErrorCode,
  SluiceError,
  UnavailableError,
} from './errors.ts';
export type {
  DecisionEvent,
  LeftEvent,
  LimitEvent,
  Listener,
  LostEvent,
  ReachEvent,
  SettledEvent,
} from './events.ts';
export type { Inspection, NamedStanding } from './inspection.ts';
export {
  type LimiterOptions,
  limiter,
  type QueueOptions,
  type RemoteLimiterOptions,
} from './limiter.ts';
export type { Order } from './line.ts';
export { Permit, Refusal, type Settled } from './permit.ts';
export type { AdaptiveOptions } from './policy/adaptive.ts';
export type { BucketOptions } from './policy/bucket.ts';
export type { BusyOptions } from './policy/busy.ts';
export type { Limit } from './policy/limit.ts';
export type { News, Standing, View } from './policy/policy.ts';
export type { RampMode, RampOptions } from './policy/ramp.ts';
export type { SpacingOptions } from './policy/spacing.ts';
export type { WindowOptions } from './policy/window.ts';
export { type Random, seededRandom, systemRandom } from './random.ts';
export type { RemoteLimiter, RemoteStats } from './remote-engine.ts';
export type { RetryOptions, Tried } from './retry.ts';
export type { RemoteShareMaker } from './share/remote.ts';
export type { ShareMaker } from './share/share.ts';
export {
  type Callable,
  type CallOptions,
  type ThrottleOptions,
  throttle,
  throttled,
} from './throttle.ts';
export type { Reason } from './waiting.ts';
