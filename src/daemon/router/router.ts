/**
 * The gate: what every surface asks, whatever it speaks.
 *
 *     surface parses ──▶ gate ──▶ routes: which limits, by the key ──▶ limiters ──▶ surface encodes
 *
 * A limit that decides here answers at once, and the gate with it; where one is shared through somebody
 * else, the answer is a promise. A call that meets several limits takes from all of them or from none.
 */

import { allow, type Decision, deny, NEVER } from '../../core/decision.ts';
import type { Hasher } from '../../core/hash.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import type { Permit } from '../../limiter/permit.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { LimiterRegistry } from './limiter-registry.ts';
import { PermitRegistry } from './permits.ts';
import {
  type AppliedLimit,
  limiterKeyOf,
  type Route,
  type RoutesConfig,
  RouteTable,
  type StaticVerdict,
} from './routes.ts';

export interface CheckRequest {
  /** One limit by its name; undefined: those that are for the key. */
  readonly limit?: string | undefined;
  readonly key: string;
  readonly cost: number;
  /** Whether the caller will settle: it gets a permit. */
  readonly wantsPermit?: boolean;
}

export interface CheckResult {
  /** Allow or deny: nothing is ever reserved for later. */
  readonly decision: Decision;
  /** The limit that refused. */
  readonly limit?: string;
  /** Set if nobody could decide, and it was refused for that. */
  readonly reason?: 'unavailable';
  /** Why there was nothing to count. */
  readonly staticVerdict?: StaticVerdict;
  /** What to settle with; only for who holds. */
  readonly permit?: string;
}

/** All that is known of a limit whose decider cannot be asked. */
export interface UnavailableLimit {
  readonly name: string;
  readonly isAvailable: false;
}

/** A limit was asked for by a name that nobody has. */
export interface UnknownLimit {
  readonly unknown: string;
}

export const isUnknownLimit = (answer: CheckResult | UnknownLimit): answer is UnknownLimit =>
  'unknown' in answer;

const ALLOWED: CheckResult = { decision: allow(Number.MAX_SAFE_INTEGER) };

export class Router {
  readonly permits: PermitRegistry;
  readonly registry: LimiterRegistry;
  readonly #hasher: Hasher;
  #routeTable: RouteTable;

  constructor(
    config: RoutesConfig,
    registry: LimiterRegistry,
    hasher: Hasher,
    random: Random = systemRandom,
  ) {
    this.permits = new PermitRegistry(random);
    this.registry = registry;
    this.#hasher = hasher;
    this.#routeTable = new RouteTable(config, registry);
  }

  /** From now on, by other rules. The shelf has them already. */
  applyConfig(config: RoutesConfig): void {
    this.#routeTable = new RouteTable(config, this.registry);
  }

  /** May one call happen for this key? The shortest road: no text is made of the bytes if none is needed. */
  isAllowed(bytes: Buffer, from: number, to: number): boolean | Promise<boolean> {
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    const known = this.#routeTable.cached(hasher);
    const quick = known?.singleLimiter?.checkHashed(hasher, 1);
    if (quick) return quick.verdict === 'allow';
    const key = bytes.toString('latin1', from, to);
    const answer = this.#runCheck(known ?? this.#routeTable.resolve(hasher, key), { key, cost: 1 });
    return answer instanceof Promise ? answer.then(isAllowResult) : isAllowResult(answer);
  }

  /** May `cost` happen? All or nothing. */
  check(request: CheckRequest): CheckResult | UnknownLimit | Promise<CheckResult> {
    const route = this.#resolveRoute(request);
    return route ? this.#runCheck(route, request) : { unknown: request.limit ?? '' };
  }

  /** The same along a route that was found before, for who also wants to tell of it. */
  checkRoute(route: Route, request: CheckRequest): CheckResult | Promise<CheckResult> {
    return this.#runCheck(route, request);
  }

  /** How a call went that holds a permit; false if nobody holds it any more. */
  settle(permit: string, result: Parameters<Permit['settle']>[0]): boolean {
    return this.permits.settle(permit, result);
  }

  /** What would happen to this key, and why. */
  route(key: string, limit?: string): Route | undefined {
    return this.#resolveRoute({ limit, key, cost: 1 });
  }

  /** How the key stands with every limit it meets. */
  async inspect(
    key: string,
    limit?: string,
  ): Promise<readonly (Inspection | UnavailableLimit)[] | undefined> {
    const route = this.route(key, limit);
    if (!route) return undefined;
    const look = async (own: AppliedLimit): Promise<Inspection | UnavailableLimit> =>
      (await own.limiter.inspect(limiterKeyOf(own, key))) ?? { name: own.name, isAvailable: false };
    return Promise.all(route.applied.map(look));
  }

  #resolveRoute({ limit, key }: CheckRequest): Route | undefined {
    if (limit !== undefined) return this.#routeTable.resolveNamed(limit, key);
    this.#hasher.hash(key);
    return this.#routeTable.cached(this.#hasher) ?? this.#routeTable.resolve(this.#hasher, key);
  }

  #runCheck(route: Route, request: CheckRequest): CheckResult | Promise<CheckResult> {
    if (route.staticVerdict) return staticResultOf(route.staticVerdict);
    const local = request.wantsPermit
      ? this.#acquireLocal(route, request)
      : this.#checkLocal(route, request);
    if (local.result.decision.verdict === 'deny') return local.result;
    if (route.remote.length > 0) {
      const answer = this.#acquireRemote(route, request, local);
      for (const { pending } of route.remote) pending.add(answer);
      return answer;
    }
    for (const own of route.shadowLimits) countInShadow(own, request);
    return this.#issuePermit(local, request);
  }

  /** Takes what those give who decide here. */
  #checkLocal(route: Route, { key, cost }: CheckRequest): LocalResult {
    if (route.singleLimiter)
      return { result: checkSingle(route.singleLimiter, key, cost), permits: [] };
    for (const own of route.concurrencyLimits) {
      const decision = own.limiter.peek(limiterKeyOf(own, key), cost);
      if (decision.verdict === 'deny')
        return { result: { decision, limit: own.name }, permits: [] };
    }
    return { result: route.local?.checkNamed(key, cost) ?? ALLOWED, permits: [] };
  }

  #acquireLocal(route: Route, { key, cost }: CheckRequest): LocalResult {
    const permit = route.localWithPermits?.tryAcquire(key, cost);
    if (!permit) return { result: ALLOWED, permits: [] };
    if (permit.verdict === 'allow') return { result: ALLOWED, permits: [permit] };
    const { retryAfterMs, limit } = permit;
    return { result: { decision: deny(retryAfterMs), limit }, permits: [] };
  }

  /** Then those that somebody else decides, one after the other; who refuses undoes the rest. */
  async #acquireRemote(
    route: Route,
    request: CheckRequest,
    local: LocalResult,
  ): Promise<CheckResult> {
    const held: Permit[] = [...local.permits];
    for (const own of route.remote) {
      const permit = await own.limiter.tryAcquire(limiterKeyOf(own, request.key), request.cost);
      if (permit.verdict === 'allow') {
        held.push(permit);
        continue;
      }
      for (const other of held) other.settle({ outcome: 'ignored' });
      if (!request.wantsPermit)
        route.local?.settle(request.key, { outcome: 'ignored', cost: request.cost });
      const { retryAfterMs, limit, reason } = permit;
      return { decision: deny(retryAfterMs), limit, ...(reason === 'unavailable' && { reason }) };
    }
    for (const own of route.shadowLimits) countInShadow(own, request);
    return this.#issuePermit({ result: local.result, permits: held }, request);
  }

  /** Who settles later gets a permit; for who does not, everything is settled now. */
  #issuePermit({ result, permits }: LocalResult, { wantsPermit }: CheckRequest): CheckResult {
    if (!wantsPermit) {
      for (const permit of permits) permit.settle();
      return result;
    }
    const permit = this.permits.add(permits);
    return permit === undefined ? result : { ...result, permit };
  }
}

/** What was answered so far, and what was taken for it. */
interface LocalResult {
  readonly result: CheckResult;
  readonly permits: readonly Permit[];
}

/** One limit alone needs nobody to bring several together. */
function checkSingle(limiter: SyncLimiter, key: string, cost: number): CheckResult {
  const decision = limiter.check(key, cost);
  return decision.verdict === 'deny' ? { decision, limit: limiter.name } : { decision };
}

const isAllowResult = ({ decision }: CheckResult): boolean => decision.verdict === 'allow';

function staticResultOf(staticVerdict: StaticVerdict): CheckResult {
  const decision = staticVerdict.isAllowed ? ALLOWED.decision : deny(NEVER);
  const { limit } = staticVerdict;
  return {
    decision,
    staticVerdict,
    ...(limit !== undefined && !staticVerdict.isAllowed && { limit }),
  };
}

/** A limit that only counts: what it says is in its figures, and nowhere else. */
function countInShadow(own: AppliedLimit, { key: tag, cost }: CheckRequest): void {
  const key = limiterKeyOf(own, tag);
  if (own.limiter instanceof SyncLimiter) {
    const permit = own.limiter.tryAcquire(key, cost);
    if (permit.verdict === 'allow') permit.settle();
    return;
  }
  const asked = own.limiter.tryAcquire(key, cost);
  own.pending.add(asked.then((permit) => permit.verdict === 'allow' && permit.settle()));
}
