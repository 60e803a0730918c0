/**
 * Several checks as one decision: every limit of every check is charged, or none is.
 *
 *     login-user alice ──┐
 *                        ├──▶ one charge for each limit and key ──▶ local limits, together
 *     login-ip 10.0.0.1 ─┘                                                   │ all allow
 *                              one verdict ◀── remote limits, all or none
 *
 * A limit that two checks name with the same key is charged the sum of both costs: one after the other, each would fit. A
 * limit that several checks reach without naming it, such as a ceiling for all keys, is charged once: they are one call.
 * Remote limits are charged in one call where they share a server, else in two steps (`limiter/remote-charge.ts`). If they
 * refuse, the local limits get back what was taken.
 */

import { allow } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { identity } from '../../limiter/composite-component.ts';
import { CompositeLimiter } from '../../limiter/composite-limiter.ts';
import { decisionOfRefusal, type Permit, type PermitResult } from '../../limiter/permit.ts';
import { acquireAll, type RemoteCall } from '../../limiter/remote-charge.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { isConcurrencyLimit } from './limiter-registry.ts';
import { permitBytes } from './permits.ts';
import { type CheckResult, PERMITS_FULL, type RoutedRequest } from './request.ts';
import { type AppliedLimit, limiterKeyOf, type StaticVerdict } from './route.ts';
import type { Router } from './router.ts';
import { shedAll } from './shed.ts';
import type { LocalCall } from './waiting-call.ts';

/** The most checks in one decision. */
export const MAX_JOINT_CHECKS = 32;

/** One of several checks: the limit that it names, if any, and the key, as they were sent, and its route. */
export interface JointPart {
  readonly limit: string | undefined;
  readonly key: string;
  readonly request: RoutedRequest;
}

/** The charge of one limit under one key. */
export interface Charge {
  readonly applied: AppliedLimit;
  /** The first check that reached the limit. */
  readonly request: RoutedRequest;
  /** The key as the limit counts it. */
  readonly key: string;
  readonly cost: number;
}

/** A charge of a limit that decides in this process. */
interface LocalCharge extends Pick<Charge, 'key' | 'cost'> {
  readonly limiter: SyncLimiter;
}

/** Decides all parts as one call. The result names the limit with the longest wait, of those that were checked. */
export function checkAll(
  router: Router,
  parts: readonly JointPart[],
  holdsPermit: boolean,
): CheckResult | Promise<CheckResult> {
  const early = decideEarly(router, parts);
  if (early) return early;
  const { check, charges } = beginCheck(router, parts, holdsPermit);
  const record = (result: CheckResult): CheckResult => recordRefusal(router, charges, result);
  const result = check.run();
  return result instanceof Promise ? result.then(record) : record(result);
}

/** The part that decides without counting: one on a deny list, or the first of all if no limit counts any. */
export function listedPart(parts: readonly JointPart[]): JointPart | undefined {
  const denied = parts.find(({ request }) => request.route.staticVerdict?.isAllowed === false);
  const isListed = ({ request }: JointPart): boolean => request.route.staticVerdict !== undefined;
  return denied ?? (parts.every(isListed) ? parts[0] : undefined);
}

export const staticResult = (router: Router, { request }: JointPart): CheckResult =>
  router.staticResult(request.route.staticVerdict as StaticVerdict, request);

/** Decides by a list, or because checks are shed. */
function decideEarly(router: Router, parts: readonly JointPart[]): CheckResult | undefined {
  const listed = listedPart(parts);
  if (listed) return staticResult(router, listed);
  const requests = parts.map(({ request }) => request);
  return router.overload.isShedding ? shedAll(router, requests) : undefined;
}

/** Counts the calls of all keys. */
export function beginCheck(router: Router, parts: readonly JointPart[], holdsPermit: boolean) {
  for (const { request } of parts) router.countCall(request);
  const check = createCheck(router, parts, holdsPermit);
  const { wantsPermit } = check;
  for (const { request } of parts) router.permitUse.note({ ...request, wantsPermit });
  return { check, charges: check.charges };
}

/** Requires that at least one of the parts is counted. */
export function createCheck(
  router: Router,
  parts: readonly JointPart[],
  holdsPermit: boolean,
): JointCheck {
  const charges = chargesOf(parts);
  return new JointCheck(router, charges, holdsPermit && charges.some(({ cost }) => cost > 0));
}

/** A denial counts as one of the check that reached the limit. */
export function recordRefusal(
  router: Router,
  charges: readonly Charge[],
  result: CheckResult,
): CheckResult {
  if (result.decision.verdict !== 'deny') return result;
  if (result.staticVerdict) return result; // recorded already
  const { request, cost } =
    charges.find(({ applied }) => applied.name === result.limit) ?? charges[0];
  return router.refused({ ...request, cost }, result);
}

/** `remaining` of the tightest limit, after a denial; unbounded where no limit can tell. */
export function remainingOfAll(
  router: Router,
  parts: readonly JointPart[],
): number | Promise<number> {
  const each = parts.map(({ request }) => router.remaining(request));
  if (!each.some((one) => one instanceof Promise)) return Math.min(...(each as number[]));
  return Promise.all(each).then((all) => Math.min(...all));
}

/** One charge for each limit and key. */
export function chargesOf(parts: readonly JointPart[]): readonly Charge[] {
  const sums = new Map<string, Charge & { named: number; reached: number }>();
  for (const { limit, request } of parts) {
    for (const applied of request.route.applied) {
      const key = limiterKeyOf(applied, request.key);
      const id = `${applied.name}\0${key}`;
      const { named = 0, reached = 0, ...first } = sums.get(id) ?? { request };
      const isNamed = applied.limit.name === limit?.split('[', 1)[0]; // without its plan
      const sum = isNamed ? named + request.cost : named;
      const most = isNamed ? reached : Math.max(reached, request.cost);
      const cost = Math.max(sum, most);
      sums.set(id, { applied, request: first.request, key, cost, named: sum, reached: most });
    }
  }
  return [...sums.values()];
}

/** Charges all limits, or none. */
export class JointCheck {
  readonly #router: Router;
  readonly charges: readonly Charge[];
  readonly wantsPermit: boolean;
  readonly #local: readonly LocalCharge[];
  /** Local limits on calls in flight that are only peeked at: without a permit nothing would end the call. */
  readonly #peeked: readonly LocalCharge[];
  /** The other local limits as one, which takes the charges of all. */
  readonly #taker: CompositeLimiter | undefined;
  readonly remote: readonly RemoteCall[];
  /** The cost of every charge; undefined if they differ. */
  readonly #cost: number | undefined;

  constructor(router: Router, charges: readonly Charge[], wantsPermit: boolean) {
    this.#router = router;
    this.charges = charges;
    this.wantsPermit = wantsPermit;
    const [{ cost }] = charges;
    this.#cost = charges.every((each) => each.cost === cost) ? cost : undefined;
    const active = charges.filter(({ applied }) => !applied.limit.shadow);
    this.#local = active.flatMap(localChargeOf);
    const isPeeked = ({ limiter }: LocalCharge): boolean =>
      !wantsPermit && isConcurrencyLimit(limiter);
    this.#peeked = this.#local.filter(isPeeked);
    this.#taker = this.#combine(this.#local.filter((charge) => !isPeeked(charge)));
    this.remote = active.flatMap(remoteCallOf);
  }

  /** All local limits as one, for a call that waits. */
  get local(): LocalCall | undefined {
    const limits = this.#combine(this.#local);
    const [{ key }] = this.charges;
    const isCounting = ({ limiter }: LocalCharge): boolean => !isConcurrencyLimit(limiter);
    const counting = this.#combine(this.#local.filter(isCounting));
    return limits && { limits, counting, key, cost: this.#callCost };
  }

  /** Everything is charged, after a wait. */
  admit(remaining: number, permits: readonly Permit[]): CheckResult {
    return this.#finish({ permits, remaining: Math.min(remaining, this.#leastLeft()) });
  }

  /** Returns a promise only if a remote limit is checked. */
  run(): CheckResult | Promise<CheckResult> {
    const taken = this.#refusedInFlight() ?? this.#takeLocal();
    if (!('permits' in taken)) return taken;
    if (this.remote.length === 0) return this.#finish(taken);
    const result = this.#takeRemote(taken);
    for (const { applied } of this.charges) applied.pending.add(result);
    return result;
  }

  #refusedInFlight(): CheckResult | undefined {
    for (const { limiter, key, cost } of this.#peeked) {
      const decision = limiter.peek(key, cost);
      if (decision.verdict !== 'deny') continue;
      limiter.recordDecision(key, cost, decision, 0);
      const longer = this.#taker?.peek(key, this.#callCost);
      return this.#taker && longer?.verdict === 'deny'
        ? { decision: longer, limit: this.#taker.refusingLimit(key, this.#callCost) }
        : { decision, limit: limiter.name };
    }
    return undefined;
  }

  /** Takes from all local limits, or returns the refusal. */
  #takeLocal(): Taken | CheckResult {
    const [{ key }] = this.charges;
    if (!this.#taker) return { permits: [], remaining: this.#leastLeft() };
    if (!this.wantsPermit) {
      const result = this.#taker.checkNamed(key, this.#callCost);
      if (result.decision.verdict === 'deny') return result;
      return { permits: [], remaining: this.#leastLeft() };
    }
    const permit = this.#taker.tryAcquire(key, this.#callCost);
    if (permit.verdict === 'allow') return { permits: [permit], remaining: this.#leastLeft() };
    return { decision: decisionOfRefusal(permit), limit: permit.limit };
  }

  /** The smallest `remaining` of the local limits, after they were charged. */
  #leastLeft(): number {
    let least = Number.MAX_SAFE_INTEGER;
    for (const { limiter, key } of this.#local)
      least = Math.min(least, Math.max(0, limiter.inspect(key).remaining));
    return least;
  }

  /** Takes from all remote limits or from none; a refusal returns what was taken from local ones. */
  async #takeRemote(local: Taken): Promise<CheckResult> {
    const acquired = await acquireAll(this.remote);
    if (Array.isArray(acquired)) {
      const left = acquired.map(({ remaining = Infinity }) => remaining);
      const remaining = Math.min(local.remaining, ...left);
      return this.#finish({ permits: [...local.permits, ...acquired], remaining });
    }
    for (const earlier of local.permits) earlier.settle({ outcome: 'ignored' });
    if (!this.wantsPermit) this.#giveBackLocal();
    const { limit, reason } = acquired;
    const known = reason === 'unavailable' && { reason };
    return { decision: decisionOfRefusal(acquired), limit, ...known };
  }

  #giveBackLocal(): void {
    const [{ key }] = this.charges;
    this.#taker?.settle(key, { outcome: 'ignored', cost: this.#callCost });
  }

  /** Everything is charged: counts in shadow limits, and keeps the permits or settles them. */
  #finish({ permits, remaining }: Taken): CheckResult {
    const decision = allow(remaining);
    for (const { applied, request, cost } of this.charges)
      if (applied.limit.shadow) this.#router.countInShadow(applied, { ...request, cost });
    if (!this.wantsPermit) for (const permit of permits) permit.settle();
    if (!this.wantsPermit || permits.length === 0) return { decision };
    const held = this.#cost === undefined ? permits.map(withoutUsed) : permits;
    const bytes = this.charges.reduce((sum, { key }) => sum + permitBytes(key, 1), 0);
    const permit = this.#router.permits.add(held, bytes);
    return permit === undefined ? PERMITS_FULL : { decision, permit };
  }

  /** The cost to call the combined limiter with, which its components map to their own if they differ. */
  get #callCost(): number {
    return this.#cost ?? 1;
  }

  #combine(charges: readonly LocalCharge[]): CompositeLimiter | undefined {
    if (charges.length === 0) return undefined;
    const components = charges.map(({ limiter, key, cost }) => ({
      limiter,
      keyOf: () => key,
      costOf: this.#cost === undefined ? () => cost : identity,
    }));
    return new CompositeLimiter(components, '');
  }
}

/** The permits of the limits that were charged so far, and `remaining` of the tightest one. */
interface Taken {
  readonly permits: readonly Permit[];
  readonly remaining: number;
}

const localChargeOf = ({ applied: { limiter }, key, cost }: Charge): readonly LocalCharge[] =>
  limiter instanceof SyncLimiter ? [{ limiter, key, cost }] : [];

const remoteCallOf = ({ applied: { limiter }, key, cost }: Charge): readonly RemoteCall[] =>
  limiter instanceof AsyncLimiter ? [{ limiter, key, cost }] : [];

/** One number cannot say what each of several costs was in the end. */
const withoutUsed = (permit: Permit) => ({
  cost: permit.cost,
  get isSettled() {
    return permit.isSettled;
  },
  settle(result: PermitResult = {}): void {
    if (result.used !== undefined)
      throw new ConfigError(
        'used',
        'left out: the checks of this permit differ in cost',
        result.used,
      );
    permit.settle(result);
  },
});
