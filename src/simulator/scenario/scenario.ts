/**
 * A scenario: clients, limits, a server, faults and expectations.
 *
 *     clients ──▶ balancer ──▶ nodes: one limiter each, joined by a backend ──▶ server
 *
 * `read.ts` makes it from the value of a file; docs/reference/scenarios.md describes the fields.
 */

import type { PeerOptions } from '../../backends/peers/context.ts';
import type { PoolOnUnavailable } from '../../backends/pool/pool.ts';
import type { Millis } from '../../core/clock.ts';
import type { AttemptOutcome } from '../../core/decision.ts';
import type { QueueOrder } from '../../limiter/wait-queue.ts';
import type { Limit } from '../../policies/limit.ts';

export const BALANCERS = ['round-robin', 'random', 'sticky', 'least'] as const;
export type BalancerOrder = (typeof BALANCERS)[number];

export const BACKEND_KINDS = ['redis', 'peers', 'pool', 'groups'] as const;

export interface Balancer {
  readonly order: BalancerOrder;
  /** Delay after a node's failure until it gets no more calls; calls resume when it is back. */
  readonly detectsMs: Millis;
}

export interface Client {
  readonly name: string;
  readonly traffic: Traffic;
  /** The number of clients of this kind; each has its own traffic and its own key. */
  readonly count: number;
  /** The number of keys over which its calls are spread at random. */
  readonly keys: number;
  /** One key for all clients of this kind; undefined: a key for each. */
  readonly key: string | undefined;
  readonly cost: number;
  /** The outcome of its attempts, such as failed logins: reported to a lock-out. */
  readonly attempt: AttemptOutcome | undefined;
  /** The longest time a call waits for a permit; 0: it does not wait. */
  readonly waitMs: Millis;
  /** Further attempts after a refusal or a reply that is not ok, and the first pause before one. */
  readonly retries: number;
  readonly backoffMs: Millis;
  /** Time after which a call without a reply has timed out. */
  readonly timeoutMs: Millis;
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

/** When calls are made. Rates in calls per millisecond. */
export type Traffic =
  | { readonly shape: 'steady' | 'poisson'; readonly perMs: number }
  /** Random arrivals; for `forMs` of every `everyMs`, `times` as many. */
  | {
      readonly shape: 'spike';
      readonly perMs: number;
      readonly everyMs: Millis;
      readonly forMs: Millis;
      readonly times: number;
    }
  /** Random arrivals whose rate swings by the fraction `swing` around the mean. */
  | {
      readonly shape: 'sine';
      readonly perMs: number;
      readonly everyMs: Millis;
      readonly swing: number;
    }
  /** Random arrivals for `forMs` of every `everyMs`, none between. */
  | {
      readonly shape: 'flappy';
      readonly perMs: number;
      readonly everyMs: Millis;
      readonly forMs: Millis;
    }
  /** `parallel` calls in flight at all times; after a refusal the next one follows in `everyMs`. */
  | { readonly shape: 'hog'; readonly parallel: number; readonly everyMs: Millis };

export type BackendSpec =
  | { readonly kind: 'local' }
  | {
      readonly kind: 'redis';
      readonly rttMs: Millis;
      readonly deadlineMs: Millis;
      readonly onUnavailable: 'allow' | 'deny';
    }
  | { readonly kind: 'peers'; readonly peers: Partial<PeerOptions> }
  | {
      readonly kind: 'pool';
      readonly syncMs: Millis;
      readonly memberTimeoutMs: Millis;
      readonly staleForMs: Millis;
      readonly onUnavailable: PoolOnUnavailable;
    }
  | { readonly kind: 'groups'; readonly reserve: number; readonly deadlineMs: Millis };

export interface ScenarioLimit {
  readonly name: string;
  readonly limit: Limit;
  readonly backend: BackendSpec;
  /** One key for all calls; undefined: the client's. */
  readonly key: string | undefined;
  readonly queue: { readonly max: number; readonly order: QueueOrder };
}

export interface ScenarioServer {
  /** Calls served at once; others are queued. */
  readonly workers: number;
  readonly timeMs: Millis;
  readonly distribution: 'constant' | 'exponential' | 'log-normal';
  /** Number of calls in service above which each call takes longer. */
  readonly knee: number | undefined;
  /** Length of the queue; calls beyond it are refused. */
  readonly maxQueue: number;
  /** Calls per second; calls beyond it are refused. */
  readonly quotaPerSecond: number | undefined;
  /** Fraction of calls that is refused at random. */
  readonly busy: number;
  /** For `forMs` of every `everyMs` the server does no work. */
  readonly pause: { readonly everyMs: Millis; readonly forMs: Millis } | undefined;
  readonly rttMs: Millis;
}

export interface ScenarioNetwork {
  readonly delayMs: Millis;
  readonly jitterMs: Millis;
  readonly loss: number;
}

export type Fault = { readonly atMs: Millis; readonly forMs: Millis } & (
  | { readonly kind: 'crash' | 'freeze' | 'restart'; readonly node: number }
  | { readonly kind: 'partition'; readonly nodes: readonly number[] }
  | { readonly kind: 'outage' | 'refuse' }
  | { readonly kind: 'slow'; readonly factor: number }
);

export interface Expectation {
  readonly figure: FigureName;
  readonly min: number;
  readonly max: number;
  /** The client, or undefined for all. */
  readonly of: string | undefined;
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

/** Figures that an expectation can name; times are in milliseconds. */
export const FIGURE_NAMES = [
  'calls',
  'allowed',
  'denied',
  'failed',
  'allowedPerSecond',
  'waitP50',
  'waitP95',
  'waitMax',
  'ok',
  'busy',
  'timeouts',
  'latencyP50',
  'latencyP95',
  'utilisation',
  'overshoot',
  'jain',
  'inFlight',
  'maxInFlight',
  'serverUse',
  'limit',
] as const;
export type FigureName = (typeof FIGURE_NAMES)[number];

export interface Scenario {
  readonly name: string;
  readonly durationMs: Millis;
  /** The wall clock at the first call, in milliseconds since 1970. */
  readonly startMs: Millis;
  /** Time before the first call, in which backends connect. */
  readonly warmUpMs: Millis;
  readonly seed: number;
  readonly nodes: number;
  readonly balancer: Balancer;
  readonly limits: readonly ScenarioLimit[];
  readonly clients: readonly Client[];
  readonly server: ScenarioServer | undefined;
  readonly network: ScenarioNetwork;
  readonly faults: readonly Fault[];
  readonly expect: readonly Expectation[];
}
