import type { Millis } from '../../core/clock.ts';
import type { PendingSet } from '../../core/pending.ts';
import { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { type CompositeLimiter, createComposite } from '../../limiter/composite-limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { CallSource } from '../calls/call-recorder.ts';
import type { LimitConfig } from '../config/limits.ts';
import type { Pattern } from '../keys/pattern.ts';
import { isConcurrencyLimit } from './limiter-registry.ts';

export interface AppliedLimit {
  readonly limit: LimitConfig;
  /** The name of the limiter: the limit's, or its override's. */
  readonly name: string;
  readonly limiter: SyncLimiter | AsyncLimiter;
  readonly pending: PendingSet;
  /** The rule of an override that was set at run time. */
  readonly runtimeRule?: unknown;
}

type LocalAppliedLimit = AppliedLimit & { readonly limiter: SyncLimiter };

type RemoteAppliedLimit = AppliedLimit & { readonly limiter: AsyncLimiter };

/** A verdict without counting: by a list, or because no limit matches. */
export interface StaticVerdict {
  readonly isAllowed: boolean;
  readonly reason: 'allow-list' | 'deny-list' | 'unmatched' | 'banned';
  /** The limit that has the list; undefined: the global list. */
  readonly limit?: string;
  readonly pattern?: Pick<Pattern, 'text'>;
  /** The rest of a ban; undefined: the configuration decides for good. */
  retryAfterMs?(): Millis;
  /** The end of a ban, in Unix time, and its note. */
  readonly until?: Millis;
  readonly note?: string | undefined;
}

export interface Route {
  readonly staticVerdict?: StaticVerdict;
  readonly applied: readonly AppliedLimit[];
  /** The key that its limits count under, and records of its calls have; undefined: the key that was sent. */
  readonly canonicalKey: string | undefined;
  /** Set if one local limit decides alone, by the key's hash. */
  readonly singleLimiter: SyncLimiter | undefined;
  /** All local limits except those on calls in flight, as one. */
  readonly local: CompositeLimiter | undefined;
  /** All local limits as one, for clients that settle a permit. */
  readonly localWithPermits: CompositeLimiter | undefined;
  /** Limits on calls in flight: a check without permit only peeks at them. */
  readonly concurrencyLimits: readonly LocalAppliedLimit[];
  /** Limits that a remote backend decides. */
  readonly remote: readonly RemoteAppliedLimit[];
  /** Limits in shadow mode: they count and never refuse. */
  readonly shadowLimits: readonly AppliedLimit[];
  /** The names of limits whose calls must be settled. */
  readonly settledLimits: readonly string[];
  /** Where its calls are counted by key: its limits, with their overrides and plans, or the list that decides. */
  readonly callSources: readonly CallSource[];
}

/** The one key of a limit with `per: limit`. */
const SHARED_KEY = '*';

export const staticVerdictFields = (verdict: StaticVerdict) => ({
  verdict: verdict.isAllowed ? 'allow' : 'deny',
  reason: verdict.reason,
  limit: verdict.limit,
  pattern: verdict.pattern?.text,
  ...(verdict.retryAfterMs && { retryAfterMs: verdict.retryAfterMs() }),
});

const isLocal = (applied: AppliedLimit): applied is LocalAppliedLimit =>
  applied.limiter instanceof SyncLimiter;

const isRemote = (applied: AppliedLimit): applied is RemoteAppliedLimit =>
  applied.limiter instanceof AsyncLimiter;

export function staticRoute(staticVerdict: StaticVerdict): Route {
  const { reason, limit } = staticVerdict;
  const about = { ...(limit !== undefined && { limit }), reason };
  const callSources = [{ id: `${reason} ${limit ?? ''}`, about }];
  return { ...EMPTY_ROUTE, staticVerdict, callSources };
}

const callSourceOf = ({ limit: { name, shadow } }: AppliedLimit): CallSource =>
  shadow ? { id: `shadow ${name}`, about: { limit: name, shadow: true } } : { id: name };

export function createRoute(applied: readonly AppliedLimit[]): Route {
  const active = applied.filter(({ limit }) => !limit.shadow);
  const local = active.filter(isLocal);
  const counting = local.filter(({ limiter }) => !isConcurrencyLimit(limiter));
  const [first] = applied;
  const isSingle = applied.length === 1 && counting.length === 1 && first.limit.per === 'key';
  const single = isSingle && counting[0].limiter.isCheckOnly ? counting[0].limiter : undefined;
  return {
    applied,
    canonicalKey: undefined,
    singleLimiter: single,
    local: combineLocal(counting),
    localWithPermits: combineLocal(local),
    concurrencyLimits: local.filter(({ limiter }) => isConcurrencyLimit(limiter)),
    remote: active.filter(isRemote),
    shadowLimits: applied.filter(({ limit }) => limit.shadow),
    settledLimits: active
      .filter(({ limiter }) => limiter.mustSettle)
      .map(({ limit }) => limit.name),
    callSources: applied.map(callSourceOf),
  };
}

const EMPTY_ROUTE = createRoute([]);

export const UNMATCHED_ALLOWED = staticRoute({ isAllowed: true, reason: 'unmatched' });
export const UNMATCHED_DENIED = staticRoute({ isAllowed: false, reason: 'unmatched' });

/** Several limiters as one: all or nothing, without reservations. */
function combineLocal(parts: readonly LocalAppliedLimit[]): CompositeLimiter | undefined {
  if (parts.length === 0) return undefined;
  const keyOf = (limit: LimitConfig) => (limit.per === 'limit' ? { key: SHARED_KEY } : {});
  return createComposite(parts.map(({ limiter, limit }) => ({ limiter, ...keyOf(limit) })));
}

/** The key that a limit counts a request under. */
export const limiterKeyOf = ({ limit }: Pick<AppliedLimit, 'limit'>, key: string): string =>
  limit.per === 'key' ? key : SHARED_KEY;
