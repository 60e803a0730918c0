/**
 * Decides every request of the daemon, whatever protocol it came by.
 *
 *     protocol parses ──▶ router: hash the key ──▶ route table ──▶ limiters ──▶ protocol encodes
 *
 * A key is hashed once: route table, decision and status use the same hash. Local limits decide
 * synchronously; with a remote limit on the route the result is a promise. A request that meets several
 * limits takes from all of them or from none.
 */

import { type Millis, systemClock } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER } from '../../core/decision.ts';
import type { Hasher, KeyHash } from '../../core/hash.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import {
  CLOSED,
  COOLDOWN,
  type Inspection,
  type NamedRuleStatus,
} from '../../limiter/inspection.ts';
import { decisionOfRefusal, type Permit, type Refusal } from '../../limiter/permit.ts';
import { RememberedCalls } from '../../limiter/remembered-calls.ts';
import { acquireAll } from '../../limiter/remote-charge.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { CallRecorder, type CallSource } from '../calls/call-recorder.ts';
import type { GapSampler } from '../calls/gap-sampler.ts';
import type { LimitConfig } from '../config/limits.ts';
import { DenialRecorder } from '../denials/denial-recorder.ts';
import { type Batch, takeBatch } from './batch.ts';
import { type Explanation, explainRoute } from './explain.ts';
import type { LimiterRegistry } from './limiter-registry.ts';
import { PermitUse } from './permit-use.ts';
import { PermitRegistry, permitBytes } from './permits.ts';
import { recordByLimit, recordDenial, recordEmptyBatch } from './record-denial.ts';
import {
  type AppliedLimit,
  limiterKeyOf,
  type Route,
  type RouteControls,
  type RouteIndex,
  type RoutesConfig,
  RouteTable,
  type StaticVerdict,
} from './routes.ts';
import { type LoadShedder, SHEDS_NOTHING, shed, shedOpen } from './shed.ts';
import { type WaitBounds, Waiting, type WaitLimits } from './waiting.ts';

/** Validated by the protocol: the key's length, and a cost of at least 0. */
export interface CheckRequest {
  /** One limit by name, with a plan `limit[plan]` or `*[plan]`; undefined: every limit whose patterns match the key. */
  readonly limit?: string | undefined;
  readonly key: string;
  readonly cost: number;
  /** True if the client settles later: it gets a permit. */
  readonly wantsPermit?: boolean;
}

/** A request with its route and the hash of its key. */
export interface RoutedRequest extends KeyHash {
  readonly route: Route;
  /** The key that is counted: of an IPv6 address its network. */
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

/** What `takeUpTo` took. */
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

const ALLOWED: CheckResult = { decision: allow(Number.MAX_SAFE_INTEGER) };

/** No more permits can be held; one may be settled or expire at any time. */
export const PERMITS_FULL: CheckResult = { decision: deny(1000), reason: 'unavailable' };

/** A cost of 0 takes nothing: a question. */
const NO_SOURCES: readonly CallSource[] = [];

/** Its limit comes with the command. */
const THROTTLE = { command: 'CL.THROTTLE' };
const THROTTLE_SOURCE = { name: 'command CL.THROTTLE' };
const THROTTLE_CALLS = [{ id: THROTTLE_SOURCE.name, about: THROTTLE }];
const SHED_THROTTLE = { ...THROTTLE, reason: 'overload' };
const SHED_THROTTLE_SOURCE = { name: 'overload CL.THROTTLE' };

export class Router {
  readonly permits: PermitRegistry;
  readonly registry: LimiterRegistry;
  readonly waiting: Waiting;
  readonly permitUse = new PermitUse();
  /** Who is denied, and by what. */
  readonly denials: DenialRecorder;
  /** Which keys are called most. */
  readonly calls: CallRecorder;
  /** Questions that are too old get its answer, and are not counted. */
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
  readonly #remembered: RememberedCalls<CheckResult>;
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
    this.#remembered = new RememberedCalls(systemClock, random, undefined, isCharged);
    this.registry = registry;
    this.denials = denials;
    this.#hasher = hasher;
    this.#routeTable = new RouteTable(config, registry, controls);
    this.waiting = new Waiting({
      decideUncounted: (request) =>
        this.overload.isShedding ? shed(this, request) : this.#run(request),
      admit: (request, remaining, permits) => this.#admit(request, remaining, permits),
      reroute: (request, sent) => this.route({ ...request, ...sent }),
    });
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
  countedKey(key: string): string {
    return this.#routeTable.countedKey(key);
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
    const key = bytes.toString('latin1', from, to);
    const { low, high } = hasher;
    const route = this.#routeTable.cached(hasher, key) ?? this.#routeTable.resolve(hasher, key);
    const counted = route.countedKey ?? key;
    const request = { route, key: counted, cost: 1, wantsPermit: false, low, high };
    this.countCall(request);
    const result = this.#run(request);
    return result instanceof Promise ? result.then(isAllowResult) : isAllowResult(result);
  }

  /** Counts a call that is to be decided; of many, a random sample. */
  countCall(request: RoutedRequest): void {
    if (this.#sampler.isDue()) this.#addToSample(request);
  }

  #addToSample(request: RoutedRequest): void {
    const { route, key, cost } = request;
    const isNetwork = route.countedKey !== undefined;
    if (isNetwork) this.#hasher.hash(key); // addresses of one network are one key
    const { low, high } = isNetwork ? this.#hasher : request;
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
    const key = bytes.toString('latin1', from, to);
    const route = this.#routeTable.cached(hasher, key) ?? this.#routeTable.resolve(hasher, key);
    const { low, high } = hasher;
    const counted = route.countedKey ?? key;
    return isAllowResult(
      shed(this, { route, key: counted, cost: 1, wantsPermit: false, low, high }),
    );
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
    const counted = route.countedKey ?? key;
    // A cost of 0 takes nothing, so there is nothing to settle.
    return { route, key: counted, cost, wantsPermit: wantsPermit && cost > 0, low, high };
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
   * One decision for all requests of a key with this id: a repeated question is charged once. A single remote limit gets
   * the id too, so that another daemon charges it once as well. Of several, one may give back what it was charged.
   */
  once<T extends CheckResult | Promise<CheckResult>>(
    request: RoutedRequest,
    id: string,
    decide: (request: RoutedRequest) => T,
  ): T {
    const { route, key, cost, wantsPermit } = request;
    if (cost === 0 || this.overload.isShedding) return decide(request);
    const question = JSON.stringify([route.applied.map(({ name }) => name), wantsPermit, key]);
    const known = route.remote.length === 1 ? { ...request, id } : request;
    return this.#remembered.once(question, id, () => decide(known));
  }

  /** `checkRouted`, waiting if need be. Rejects only if the signal aborts. */
  acquire(request: RoutedRequest, limits: WaitLimits): Promise<CheckResult> {
    if (request.route.settledLimits.length > 0) this.permitUse.note(request);
    this.countCall(request);
    return this.waiting
      .acquire(request, limits)
      .then((result) =>
        isAllowResult(result) || result.staticVerdict ? result : this.refused(request, result),
      );
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

  /** The names of all plans. */
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

  /** What the tightest limit on the route has left; unbounded where none can tell. */
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
    const acquired = await acquireAll(
      route.remote.map((one) => ({ limiter: one.limiter, key: limiterKeyOf(one, key), cost })),
      request.id,
    );
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

/** The result of the local limits, and the permits taken for it. */
interface LocalResult {
  readonly result: CheckResult;
  readonly permits: readonly Permit[];
}

/** A limit on calls in flight is only peeked at: without a permit nothing would end the call. */
function checkLocal({ route, key, cost }: RoutedRequest): LocalResult {
  if (route.singleLimiter) {
    const decision = route.singleLimiter.check(key, cost);
    return { result: resultOf(route.singleLimiter, decision), permits: [] };
  }
  let free = Number.MAX_SAFE_INTEGER;
  for (const applied of route.concurrencyLimits) {
    const decision = applied.limiter.peek(limiterKeyOf(applied, key), cost);
    if (decision.verdict !== 'deny') {
      free = Math.min(free, remainingIn({ decision }) + cost); // a peek takes nothing
      continue;
    }
    applied.limiter.recordDecision(limiterKeyOf(applied, key), cost, decision, 0);
    return { result: { decision, limit: applied.name }, permits: [] };
  }
  const result = route.local?.checkNamed(key, cost) ?? ALLOWED;
  if (result.decision.verdict === 'deny' || free >= remainingIn(result))
    return { result, permits: [] };
  return { result: { decision: allow(free) }, permits: [] };
}

function acquireLocal({ route, key, cost }: RoutedRequest): LocalResult {
  const permit = route.localWithPermits?.tryAcquire(key, cost);
  if (!permit) return { result: ALLOWED, permits: [] };
  if (permit.verdict === 'allow') return { result: statusOf(route, key), permits: [permit] };
  return { result: { decision: decisionOfRefusal(permit), limit: permit.limit }, permits: [] };
}

/** What remains with the local limits after a permit was taken: a permit does not say. */
function statusOf({ applied, remote }: Route, key: string): CheckResult {
  const rules: NamedRuleStatus[] = [];
  let remaining = Number.MAX_SAFE_INTEGER;
  for (const each of applied) {
    if (each.limit.shadow || !(each.limiter instanceof SyncLimiter)) continue;
    for (const rule of each.limiter.inspect(limiterKeyOf(each, key)).rules) {
      rules.push(rule);
      remaining = Math.min(remaining, Math.max(0, rule.remaining));
    }
  }
  const decision = allow(remaining);
  return remote.length > 0 ? { decision } : { decision, rules };
}

const remainingIn = ({ decision }: CheckResult): number =>
  decision.verdict === 'allow' ? decision.remaining : 0;

/** Of a key in several limits. A key in cool-down has nothing left; a limit whose backend is unavailable does not tell. */
function leastRemaining(statuses: readonly KeyStatus[]): number {
  let least = Number.MAX_SAFE_INTEGER;
  for (const status of statuses) {
    if (!('rules' in status)) continue;
    const isShut = status.by === COOLDOWN || status.by === CLOSED;
    least = Math.min(least, isShut ? 0 : Math.max(0, status.remaining));
  }
  return least;
}

const resultOf = ({ name }: SyncLimiter, decision: Decision): CheckResult =>
  decision.verdict === 'deny' ? { decision, limit: name } : { decision };

/** True of a refusal that may leave something: a refused cost up to 1 leaves less than 1, which counts as 0. */
export const mayLeave = ({ decision, staticVerdict, reason }: CheckResult, cost: number): boolean =>
  decision.verdict === 'deny' && cost > 1 && !staticVerdict && !reason;

/** Lists and overload charge nothing. */
const isCharged = ({ decision, reason, staticVerdict }: CheckResult): boolean =>
  decision.verdict === 'allow' && reason === undefined && staticVerdict === undefined;

const isAllowResult = ({ decision }: CheckResult): boolean => decision.verdict === 'allow';
