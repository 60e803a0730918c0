/**
 *     protocol parses ──▶ router: hash the key ──▶ route table ──▶ limiters ──▶ protocol encodes
 *
 * A key is hashed once: route table, decision and status use the same hash. Only a key that counts under another one,
 * such as an IPv6 address, is hashed again as that one. Local limits decide synchronously; with a remote limit on the
 * route the result is a promise. A request that meets several limits takes from all of them or from none.
 */

import { type Millis, systemClock } from '../../core/clock.ts';
import { allow, deny, NEVER } from '../../core/decision.ts';
import type { Hasher, KeyHash } from '../../core/hash.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import { IdempotentCalls } from '../../limiter/idempotent-calls.ts';
import { decisionOfRefusal, type Permit, type Refusal } from '../../limiter/permit.ts';
import { acquireAll, type RemoteCall } from '../../limiter/remote-charge.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { CallRecorder, type CallSource } from '../calls/call-recorder.ts';
import type { GapSampler } from '../calls/gap-sampler.ts';
import type { LimitConfig } from '../config/limits.ts';
import { DenialRecorder } from '../denials/denial-recorder.ts';
import { type Batch, takeBatch } from './batch.ts';
import { type Explanation, explainRoute } from './explain.ts';
import type { LimiterRegistry } from './limiter-registry.ts';
import {
  acquireLocal,
  checkLocal,
  type LocalResult,
  leastRemaining,
  resultOf,
  statusOf,
} from './local-decision.ts';
import { PermitUse } from './permit-use.ts';
import { PermitRegistry, permitBytes } from './permits.ts';
import { recordByLimit, recordDenial, recordEmptyBatch } from './record-denial.ts';
import {
  ALLOWED,
  type CheckRequest,
  type CheckResult,
  isAllowResult,
  isCharged,
  type KeyStatus,
  PERMITS_FULL,
  type RoutedRequest,
  remainingIn,
  type TakeResult,
} from './request.ts';
import { type AppliedLimit, limiterKeyOf, type Route, type StaticVerdict } from './route.ts';
import type { RouteIndex, RoutesConfig } from './route-index.ts';
import { type RouteControls, RouteTable } from './routes.ts';
import { type LoadShedder, SHEDS_NOTHING, shed, shedOpen } from './shed.ts';
import { type WaitBounds, Waiting, type WaitLimits } from './waiting.ts';
import type { WaitingCall } from './waiting-call.ts';

/** A call with a cost of 0 takes nothing, so no source counts it. */
const NO_SOURCES: readonly CallSource[] = [];

/** Its limit comes with the command. */
const THROTTLE = { command: 'CL.THROTTLE' };
const THROTTLE_SOURCE = { name: 'command CL.THROTTLE' };
const THROTTLE_CALLS = [{ id: THROTTLE_SOURCE.name, about: THROTTLE }];
const SHED_THROTTLE = { ...THROTTLE, reason: 'overload' };
const SHED_THROTTLE_SOURCE = { name: 'overload CL.THROTTLE' };

/** The limit and the key of a request as the client sent them. */
type SentRequest = Pick<CheckRequest, 'limit' | 'key'>;

const remoteCallsOf = ({ route, key, cost }: RoutedRequest): readonly RemoteCall[] =>
  route.remote.map((one) => ({ limiter: one.limiter, key: limiterKeyOf(one, key), cost }));

export class Router {
  readonly permits: PermitRegistry;
  readonly registry: LimiterRegistry;
  readonly waiting = new Waiting();
  readonly permitUse = new PermitUse();
  /** Denied keys, and why they were denied. */
  readonly denials: DenialRecorder;
  /** The most called keys. */
  readonly calls: CallRecorder;
  /** Checks that are too old get its answer, and are not counted. */
  overload: LoadShedder = SHEDS_NOTHING;
  /** Calls denied without counting, by reason. */
  readonly staticDenials: Record<StaticVerdict['reason'], number> = {
    'allow-list': 0,
    'deny-list': 0,
    unmatched: 0,
    banned: 0,
  };
  readonly #hasher: Hasher;
  readonly #sampler: GapSampler;
  readonly #idempotency: IdempotentCalls<CheckResult>;
  readonly #controls: RouteControls | undefined;
  #routeTable: RouteTable;

  constructor(
    config: RoutesConfig,
    registry: LimiterRegistry,
    hasher: Hasher,
    random: Random = systemRandom,
    denials = new DenialRecorder(),
    controls?: RouteControls,
    calls = new CallRecorder(),
  ) {
    this.#controls = controls;
    this.calls = calls;
    this.#sampler = calls.sampler;
    this.permits = new PermitRegistry(random);
    this.#idempotency = new IdempotentCalls(systemClock, random, undefined, isCharged);
    this.registry = registry;
    this.denials = denials;
    this.#hasher = hasher;
    this.#routeTable = new RouteTable(config, registry, controls);
    this.#configureWaiting(config);
  }

  #configureWaiting({ bounds }: RoutesConfig & { readonly bounds?: WaitBounds }): void {
    if (bounds) this.waiting.bounds = bounds;
  }

  /** Routes by another configuration from now on. The registry must have its limiters already. */
  applyConfig(config: RoutesConfig, index?: RouteIndex): void {
    this.#routeTable = new RouteTable(config, this.registry, this.#controls, index);
    this.permitUse.retain(config.limits);
    this.#configureWaiting(config);
    this.waiting.reroute();
  }

  /** The limits as configured now. */
  get limits(): readonly LimitConfig[] {
    return this.#routeTable.limits;
  }

  /** Finds routes anew, all or that of one key: a control was set, removed or has expired. */
  forgetRoutes(onlyKey?: string): void {
    if (onlyKey !== undefined) this.#hasher.hash(onlyKey);
    this.#routeTable.forgetRoutes(onlyKey === undefined ? undefined : this.#hasher);
    this.waiting.reroute();
  }

  /** The key that limits count a key under. */
  canonicalKey(key: string): string {
    return this.#routeTable.canonicalKey(key);
  }

  /** The limits that apply to a key if it is on no list and not banned. */
  limitsOf(key: string): readonly LimitConfig[] {
    return this.#routeTable.limitsOf(key);
  }

  /** The name of the limiter that the configuration has for a key in one limit. */
  configuredName(limit: string, key: string): string {
    return this.#routeTable.configuredName(limit, key);
  }

  /** Checks a key given as bytes, cost 1. The fastest path: decodes no string unless a limit needs the name. */
  isAllowed(bytes: Buffer, from: number, to: number): boolean | Promise<boolean> {
    if (this.overload.isShedding) return this.#isAllowedWhenShed(bytes, from, to);
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    const limiter = this.#routeTable.cachedLimiter(hasher, bytes, from, to);
    const decision = limiter?.checkHashed(hasher, 1);
    if (limiter && decision) {
      if (this.#sampler.isDue()) this.#addBytesToSample(limiter, bytes, from, to);
      if (decision.verdict === 'allow') return true;
      this.denials.recordBytes(limiter, hasher, bytes, from, to, decision);
      return false;
    }
    const request = this.#routeHashed(bytes.toString('latin1', from, to));
    this.countCall(request);
    const result = this.#run(request);
    return result instanceof Promise ? result.then(isAllowResult) : isAllowResult(result);
  }

  /** Counts a call that is to be decided; at high rates a random sample of calls. */
  countCall(request: RoutedRequest): void {
    if (this.#sampler.isDue()) this.#addToSample(request);
  }

  #addToSample({ route, key, cost, low, high }: RoutedRequest): void {
    this.calls.add(cost > 0 ? route.callSources : NO_SOURCES, key, low, high);
  }

  /** Adds a call to the sample that one limit has decided, by the hash of its key. */
  #addBytesToSample({ name }: SyncLimiter, bytes: Buffer, from: number, to: number): void {
    const { low, high } = this.#hasher;
    const limit = { id: name.split('[', 1)[0] }; // with its overrides and plans
    this.calls.add([limit], bytes.toString('latin1', from, to), low, high);
  }

  /** `isAllowed` of a check that is too old. Decodes no string where no key is denied. */
  #isAllowedWhenShed(bytes: Buffer, from: number, to: number): boolean {
    const hasher = this.#hasher;
    if (this.shedsAllOpen) return isAllowResult(shedOpen(this));
    hasher.hashBytes(bytes, from, to);
    const request = this.#routeHashed(bytes.toString('latin1', from, to));
    return isAllowResult(shed(this, request));
  }

  /** True if no check that is shed is denied: neither by a list or ban, nor because its limit fails closed. */
  get shedsAllOpen(): boolean {
    return this.overload.isOpen && !this.#routeTable.deniesWhenShed;
  }

  /** True if a call of CL.THROTTLE is to be counted with `countThrottled`. */
  isSampleDue(): boolean {
    return this.#sampler.isDue();
  }

  countThrottled({ low, high }: KeyHash, bytes: Buffer, from: number, to: number): void {
    this.calls.add(THROTTLE_CALLS, bytes.toString('latin1', from, to), low, high);
  }

  /** Records a denial of CL.THROTTLE. */
  recordThrottled(
    bytes: Buffer,
    from: number,
    to: number,
    cost: number,
    retryMs: Millis,
    isShed = false,
  ): void {
    this.#hasher.hashBytes(bytes, from, to);
    const [hasher, decision] = [this.#hasher, deny(retryMs)];
    const source = isShed ? SHED_THROTTLE_SOURCE : THROTTLE_SOURCE;
    const about = isShed ? SHED_THROTTLE : THROTTLE;
    this.denials.recordBytes(source, hasher, bytes, from, to, decision, about, cost);
  }

  /** Checks a request: all limits on its route or none. Undefined if the request names an unknown limit. */
  check(request: CheckRequest): CheckResult | Promise<CheckResult> | undefined {
    const routed = this.route(request);
    return routed && this.checkRouted(routed);
  }

  /** Hashes the key and finds its route; undefined if the request names an unknown limit. Takes nothing. */
  route({ limit, key, cost, wantsPermit = false }: CheckRequest): RoutedRequest | undefined {
    const hasher = this.#hasher;
    hasher.hash(key);
    const { low, high } = hasher;
    const route =
      limit === undefined
        ? (this.#routeTable.cached(hasher, key) ?? this.#routeTable.resolve(hasher, key))
        : this.#routeTable.resolveNamed(limit, key);
    if (!route) return undefined;
    const holdsPermit = wantsPermit && cost > 0; // a cost of 0 takes nothing, so there is nothing to settle
    if (route.canonicalKey !== undefined)
      return this.#withKey(route, route.canonicalKey, cost, holdsPermit);
    return { route, key, cost, wantsPermit: holdsPermit, low, high };
  }

  /** The request of a key that was just hashed: cost 1, without a permit. */
  #routeHashed(key: string): RoutedRequest {
    const hasher = this.#hasher;
    const { low, high } = hasher;
    const route = this.#routeTable.cached(hasher, key) ?? this.#routeTable.resolve(hasher, key);
    if (route.canonicalKey !== undefined) return this.#withKey(route, route.canonicalKey, 1, false);
    return { route, key, cost: 1, wantsPermit: false, low, high };
  }

  /** By the hash of the key that is counted: addresses of one network are one key in all records. */
  #withKey(route: Route, key: string, cost: number, wantsPermit: boolean): RoutedRequest {
    this.#hasher.hash(key);
    const { low, high } = this.#hasher;
    return { route, key, cost, wantsPermit, low, high };
  }

  checkRouted(request: RoutedRequest): CheckResult | Promise<CheckResult> {
    if (this.overload.isShedding) return shed(this, request);
    this.countCall(request);
    const { route, cost, wantsPermit } = request;
    if (route.singleLimiter === undefined || wantsPermit) return this.#run(request);
    const decision = route.singleLimiter.checkHashed(request, cost);
    if (decision === undefined) return this.#run(request);
    if (decision.verdict === 'deny')
      this.denials.recordLocal(route.singleLimiter, request, decision);
    return resultOf(route.singleLimiter, decision);
  }

  /**
   * One decision for all requests of a key with this id: a repeated check is charged once. A single remote limit gets
   * the id too, so that another daemon charges it once as well. With several remote limits, one may give back its charge.
   */
  idempotent<T extends CheckResult | Promise<CheckResult>>(
    request: RoutedRequest,
    id: string,
    decide: (request: RoutedRequest) => T,
  ): T {
    const { route, key, cost, wantsPermit } = request;
    if (cost === 0 || this.overload.isShedding) return decide(request);
    const question = JSON.stringify([route.applied.map(({ name }) => name), wantsPermit, key]);
    const known = route.remote.length === 1 ? { ...request, id } : request;
    return this.#idempotency.idempotent(question, id, () => decide(known));
  }

  /**
   * `checkRouted`, waiting if need be. `sent`: the limit and the key as they were sent, to find the route again after a
   * reload. Rejects only if the signal aborts.
   */
  acquire(request: RoutedRequest, sent: SentRequest, limits: WaitLimits): Promise<CheckResult> {
    if (request.route.settledLimits.length > 0) this.permitUse.note(request);
    this.countCall(request);
    return this.waiting
      .acquire(this.#waitingCall(request, sent), limits)
      .then((result) =>
        isAllowResult(result) || result.staticVerdict ? result : this.refused(request, result),
      );
  }

  #waitingCall(request: RoutedRequest, sent: SentRequest): WaitingCall {
    const { route, key, cost, wantsPermit } = request;
    const { local: counting, localWithPermits: limits } = route;
    return {
      limiters: route.applied.map(({ limiter }) => limiter),
      key,
      wantsPermit,
      local: limits && { limits, counting, key, cost },
      remote: remoteCallsOf(request),
      decideUncounted: () => (this.overload.isShedding ? shed(this, request) : this.#run(request)),
      admit: (remaining, permits) => this.#admit(request, remaining, permits),
      reroute: () => {
        const next = this.route({ ...request, ...sent });
        return next && this.#waitingCall(next, sent);
      },
    };
  }

  /** `checkRouted`, with the status of each rule in the result where one lookup yields both. */
  checkWithStatus(request: RoutedRequest): CheckResult | Promise<CheckResult> {
    if (this.overload.isShedding) return shed(this, request);
    this.countCall(request);
    const { route, cost, wantsPermit } = request;
    if (route.singleLimiter === undefined || wantsPermit) return this.#run(request);
    const checked = route.singleLimiter.checkWithStatus(request, cost);
    if (checked === undefined) return this.#run(request);
    if (checked.decision.verdict !== 'deny') return checked;
    this.denials.recordLocal(route.singleLimiter, request, checked.decision);
    return { ...checked, limit: route.singleLimiter.name };
  }

  /** Takes up to `max` units of all limits on the route. @throws {ConfigError} as `takeBatch` */
  takeUpTo(request: RoutedRequest, max: number): TakeResult | Promise<TakeResult> {
    const { route, key } = request;
    if (this.overload.isShedding && !route.staticVerdict)
      return { taken: isAllowResult(shed(this, request)) ? max : 0 };
    this.countCall(request);
    if (route.staticVerdict && max > 0) this.staticResult(route.staticVerdict, request); // counts a denial
    const batch = takeBatch(route, key, max, (applied) =>
      recordEmptyBatch(this.denials, request, [applied]),
    );
    return batch instanceof Promise
      ? batch.then((late) => this.#holdBatch(late, request))
      : this.#holdBatch(batch, request);
  }

  #holdBatch(batch: Batch, request: RoutedRequest): TakeResult {
    const { route, key, wantsPermit, cost } = request;
    if (batch.cost === 0 && cost > 0) {
      const candidates = route.applied.filter(({ limit }) => !limit.shadow);
      const reason = recordEmptyBatch(this.denials, request, candidates);
      return { taken: 0, ...(reason && { reason }) };
    }
    if (!wantsPermit || batch.isSettled) return { taken: batch.cost };
    const permit = this.permits.add([batch], permitBytes(key, route.applied.length));
    if (permit !== undefined) return { taken: batch.cost, permit };
    this.refused(request, PERMITS_FULL);
    return { taken: 0 };
  }

  get planNames(): ReadonlySet<string> {
    return this.#routeTable.planNames;
  }

  /** Which limits match the key of a request, as it was sent, and why. */
  explain({ route }: RoutedRequest, key: string): Explanation {
    return explainRoute(route, this.#routeTable, key);
  }

  /** The status of a key with every limit on its route. */
  inspect({ route, key }: RoutedRequest): readonly KeyStatus[] | Promise<readonly KeyStatus[]> {
    const statuses = route.applied.map((applied) => {
      const found = applied.limiter.inspect(limiterKeyOf(applied, key));
      if (!(found instanceof Promise)) return found;
      return found.then((status) => status ?? { name: applied.name, isAvailable: false as const });
    });
    return statuses.some((status) => status instanceof Promise)
      ? Promise.all(statuses)
      : (statuses as KeyStatus[]);
  }

  /** `remaining` of the tightest limit on the route; unbounded where no limit can tell. */
  remaining(request: RoutedRequest): number | Promise<number> {
    const { applied } = request.route;
    const statuses = this.inspect(request);
    const least = (all: readonly KeyStatus[]): number =>
      leastRemaining(all.filter((_, n) => !applied[n].limit.shadow));
    return statuses instanceof Promise ? statuses.then(least) : least(statuses as KeyStatus[]);
  }

  /** Decides by the key's name: several limits, permits, remote limits. */
  #run(request: RoutedRequest): CheckResult | Promise<CheckResult> {
    const { route } = request;
    if (route.staticVerdict) return this.staticResult(route.staticVerdict, request);
    if (request.route.settledLimits.length > 0) this.permitUse.note(request);
    const local = request.wantsPermit ? acquireLocal(request) : checkLocal(request);
    if (local.result.decision.verdict === 'deny') return this.refused(request, local.result);
    if (route.remote.length > 0) {
      const result = this.#acquireRemote(request, local);
      for (const { pending } of route.remote) pending.add(result);
      return result;
    }
    for (const applied of route.shadowLimits) this.countInShadow(applied, request);
    return this.#issuePermit(local, request);
  }

  /** Records a refusal and returns it. */
  refused(request: RoutedRequest, result: CheckResult): CheckResult {
    recordDenial(this.denials, request, result);
    return result;
  }

  /** The result of a verdict without counting; a denial is counted by its reason. */
  staticResult(staticVerdict: StaticVerdict, request: RoutedRequest): CheckResult {
    const { isAllowed, reason, limit } = staticVerdict;
    if (isAllowed) return { decision: ALLOWED.decision, staticVerdict };
    this.staticDenials[reason]++;
    const decision = deny(staticVerdict.retryAfterMs?.() ?? NEVER);
    const known = limit !== undefined && { limit };
    return this.refused(request, { decision, staticVerdict, ...known });
  }

  /** Acquires from all remote limits or from none; a refusal returns what was taken from local ones. */
  async #acquireRemote(request: RoutedRequest, local: LocalResult): Promise<CheckResult> {
    const { route, key, cost, wantsPermit } = request;
    const acquired = await acquireAll(remoteCallsOf(request), request.id);
    if (!Array.isArray(acquired)) {
      for (const earlier of local.permits) earlier.settle({ outcome: 'ignored' });
      if (!wantsPermit) route.local?.settle(key, { outcome: 'ignored', cost });
      const { limit, reason } = acquired;
      const known = reason === 'unavailable' && { reason };
      return this.refused(request, { decision: decisionOfRefusal(acquired), limit, ...known });
    }
    const left = acquired.map((permit) => permit.remaining ?? Infinity);
    const decision = allow(Math.min(remainingIn(local.result), ...left));
    for (const applied of route.shadowLimits) this.countInShadow(applied, request);
    const permits = [...local.permits, ...acquired];
    return this.#issuePermit({ result: { decision }, permits }, request);
  }

  #admit(request: RoutedRequest, remaining: number, permits: readonly Permit[]): CheckResult {
    const { route, key, wantsPermit } = request;
    for (const applied of route.shadowLimits) this.countInShadow(applied, request);
    const status = wantsPermit ? statusOf(route, key) : ALLOWED;
    const least = Math.min(remaining, remainingIn(status));
    return this.#issuePermit({ result: { ...status, decision: allow(least) }, permits }, request);
  }

  /** Registers the permits for a client that settles later; otherwise settles them now. */
  #issuePermit({ result, permits }: LocalResult, request: RoutedRequest): CheckResult {
    const { route, key, wantsPermit } = request;
    if (!wantsPermit) for (const permit of permits) permit.settle();
    if (!wantsPermit || permits.length === 0) return result;
    const permit = this.permits.add(permits, permitBytes(key, route.applied.length));
    if (permit === undefined) return this.refused(request, PERMITS_FULL);
    return { ...result, permit };
  }

  /** Shadow mode: the decision only shows in the limit's own counters, and in the record of denials. */
  countInShadow(applied: AppliedLimit, request: RoutedRequest): void {
    const acquired = applied.limiter.tryAcquire(limiterKeyOf(applied, request.key), request.cost);
    if (acquired instanceof Promise)
      applied.pending.add(acquired.then((permit) => this.#endInShadow(applied, request, permit)));
    else this.#endInShadow(applied, request, acquired);
  }

  #endInShadow(applied: AppliedLimit, request: RoutedRequest, permit: Permit | Refusal): void {
    if (permit.verdict === 'allow') permit.settle();
    else recordByLimit(this.denials, applied, request, permit);
  }
}
