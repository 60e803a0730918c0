import { allow, type Decision, deny } from '../../core/decision.ts';
import type { KeyHash } from '../../core/hash.ts';
import type { Inspection, NamedRuleStatus } from '../../limiter/inspection.ts';
import type { Route, StaticVerdict } from './route.ts';

/** Validated by the protocol: the key's length, and a cost of at least 0. */
export interface CheckRequest {
  /** One limit by name, with a plan `limit[plan]` or `*[plan]`; undefined: every limit whose patterns match the key. */
  readonly limit?: string | undefined;
  readonly key: string;
  readonly cost: number;
  /** True if the client settles later: it gets a permit. */
  readonly wantsPermit?: boolean;
}

/** A request with its route and the hash of the key that is counted. */
export interface RoutedRequest extends KeyHash {
  readonly route: Route;
  /** The key that is counted: the network of an IPv6 address. */
  readonly key: string;
  readonly cost: number;
  readonly wantsPermit: boolean;
  /** Set by `once`: the id that a remote limit is charged once for. */
  readonly id?: string;
}

export interface CheckResult {
  /** Allow or deny: the router never reserves for later. */
  readonly decision: Decision;
  /** The limit that refused. */
  readonly limit?: string;
  /**
   * Set on a refusal because the backend is unavailable, no more permits can be held, or no more calls may wait.
   * `overload`: the check was too old to be decided, whatever the verdict.
   */
  readonly reason?: 'unavailable' | 'queue-full' | 'overload';
  /** Set if the configuration decides without counting. */
  readonly staticVerdict?: StaticVerdict;
  /** Id to settle with; only with `wantsPermit`. */
  readonly permit?: string;
  /** Status of each rule right after the decision, where the decision yields it: `checkWithStatus`. */
  readonly rules?: readonly NamedRuleStatus[];
}

/** The result of `takeUpTo`. */
export interface TakeResult {
  readonly taken: number;
  /** Id to give back with; only with `wantsPermit`. */
  readonly permit?: string;
  /** Set if nothing was taken because the backend of a limit is unavailable, and its `onUnavailable` is deny. */
  readonly reason?: 'unavailable';
}

/** A limit whose backend is unavailable has no status. */
interface UnavailableLimit {
  readonly name: string;
  readonly isAvailable: false;
}

/** The status of a key in one limit. */
export type KeyStatus = Inspection | UnavailableLimit;

export const ALLOWED: CheckResult = { decision: allow(Number.MAX_SAFE_INTEGER) };

/** No more permits can be held; one may be settled or expire at any time. */
export const PERMITS_FULL: CheckResult = { decision: deny(1000), reason: 'unavailable' };

export const remainingIn = ({ decision }: CheckResult): number =>
  decision.verdict === 'allow' ? decision.remaining : 0;

/** True of a refusal that may leave something: a refused cost up to 1 leaves less than 1, which counts as 0. */
export const mayLeave = ({ decision, staticVerdict, reason }: CheckResult, cost: number): boolean =>
  decision.verdict === 'deny' && cost > 1 && !staticVerdict && !reason;

/** Lists and overload charge nothing. */
export const isCharged = ({ decision, reason, staticVerdict }: CheckResult): boolean =>
  decision.verdict === 'allow' && reason === undefined && staticVerdict === undefined;

export const isAllowResult = ({ decision }: CheckResult): boolean => decision.verdict === 'allow';
