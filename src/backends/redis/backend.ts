import type { Clock, Millis } from '../../core/clock.ts';
import {
  type AttemptOutcome,
  allow,
  type Decision,
  type OnUnavailable,
} from '../../core/decision.ts';
import { cryptoRandom } from '../../core/random.ts';
import { converterBetween, type Policy, type Settlement } from '../../policies/policy.ts';
import { layoutOf, specsOf } from '../../policies/rules.ts';
import { everyMsOf, lookaheadMs } from '../lookahead.ts';
import {
  type BatchDecision,
  type JointDecision,
  type JointPartRequest,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import type { Scripts } from './batcher.ts';
import {
  createRedisContext,
  fleetOrderOf,
  type RedisConfig,
  type RedisContext,
  requireWidth,
} from './context.ts';
import { chargeTogether, type JointCall, type JointPart, singlePart } from './joint.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { rulesText } from './lua-joint.ts';
import { RESERVATION_TTL_MS } from './lua-reservations.ts';
import { scriptOf } from './lua-script.ts';
import type { PrefetchSource } from './prefetch.ts';
import { decisionOf, type OnReply, type ReplyValue } from './reply.ts';
import { wasSent } from './unsent-commands.ts';

export class RedisBackend implements PrefetchSource {
  readonly #context: RedisContext;
  readonly #clock: Clock;
  /** The order of its queue in Redis, if it has one. */
  readonly #order: FleetOrder | undefined;
  #policy: Policy;
  #everyMs: Millis;
  /** The rules as text, for joint checks. */
  #rulesText: string;
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  readonly onUnavailable: OnUnavailable;

  constructor(policy: Policy, context: RemoteBackendContext, config: RedisConfig) {
    this.onUnavailable = config.onUnavailable;
    this.#order = config.subscriber && fleetOrderOf(context);
    this.#policy = policy;
    this.#context = createRedisContext(policy, context, config, scriptsOf(policy, this.#order));
    this.#clock = context.clock;
    this.#everyMs = everyMsOf(policy);
    this.#rulesText = rulesText(specsOf(policy));
    const { fairQueue } = this.#context;
    this.waitForPermit = fairQueue && ((key, cost, limits) => fairQueue.acquire(key, cost, limits));
  }

  get isAvailable(): boolean {
    return this.#context.batcher.isAvailable;
  }

  get waiterCount(): number {
    return this.#context.fairQueue?.size ?? 0;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, `a${cost}`, cost);
  }

  checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.#check(key, `${isWaiting ? 'w' : 'n'}${cost}`, cost, isWaiting);
  }

  async checkOnce(
    key: string,
    cost: number,
    { id, forMs, mayReserve }: Parameters<NonNullable<RemoteBackend['checkOnce']>>[2],
  ): Promise<RemoteDecision> {
    const op = `i${mayReserve ? 'a' : 'n'}${Math.ceil(forMs)} ${cost} ${id}`;
    return { ...(await this.#check(key, op, cost)), callId: id };
  }

  #check(key: string, command: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return new Promise((resolve, reject) => {
      const onReply: OnReply = (value, at) => {
        const decision = this.#read(value);
        this.#context.fallback.observe(key, cost, decision, isWaiting);
        resolve({ decision, decidedAt: at });
      };
      const onFailure = () => {
        try {
          resolve(this.#fallbackDecision(key, cost, isWaiting));
        } catch (error) {
          reject(error);
        }
      };
      const { batcher, redisKeyOf } = this.#context;
      batcher.submit(redisKeyOf(key), command, onReply, onFailure);
    });
  }

  #read(reply: ReplyValue): Decision {
    return decisionOf(reply, this.#context.ruleNames);
  }

  #fallbackDecision(key: string, cost: number, isWaiting: boolean): RemoteDecision {
    const decision = this.#context.fallback.check(key, cost, isWaiting);
    return { decision, decidedAt: this.#clock.now(), fromFallback: true };
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    try {
      // One round trip for the reply and one for the next check: permits that open meanwhile would be lost.
      const aheadMs = lookaheadMs(this.#everyMs, 2 * this.#context.batcher.rtt.meanMs);
      const { value, at } = await this.#context.send(key, `q${aheadMs} ${costs.join(' ')}`);
      const [count, dueIn, last] = String(value).split(' '); // dueIn is empty if no permit was granted ahead
      const granted = Number(count);
      const lastDecision = this.#read(last);
      const lastCost = costs[Math.min(granted, costs.length - 1)];
      this.#context.fallback.observe(key, lastCost, lastDecision, true);
      const refusal = granted < costs.length ? lastDecision : undefined;
      const remaining = lastDecision.verdict === 'allow' ? lastDecision.remaining : undefined;
      const dueInMs = dueIn === '' ? [] : dueIn.split(',').map(Number);
      return { granted, dueInMs, lookaheadMs: aheadMs, refusal, remaining, decidedAt: at };
    } catch {
      return toBatchDecision(this.#fallbackDecision(key, costs[0], true));
    }
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const fallback = () => (this.#context.fallback.check(key, 1).verdict === 'deny' ? 0 : 1);
    return this.#take(key, most).catch(fallback);
  }

  takeRemote(key: string, most: number): Promise<number> {
    return this.#take(key, most).catch(() => 0);
  }

  async takeSurplus(key: string, most: number, leave: number): Promise<number> {
    return most < 1 ? 0 : this.#take(key, most, ` ${leave}`).catch(() => 0);
  }

  async #take(key: string, most: number, leave = ''): Promise<number> {
    const taken = Number((await this.#context.send(key, `t${most}${leave}`)).value);
    if (taken < most) this.#context.fallback.observe(key, taken, allow(Number(leave)));
    return taken;
  }

  async credit(key: string, tokens: number, upTo: number): Promise<void> {
    await this.#context.send(key, `g${tokens} ${upTo}`).catch(() => {});
  }

  /** Settles. A lost settlement makes the limit stricter, never looser. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, dueAt, callId } = settlement;
    const id = callId === undefined ? '' : ` ${callId}`;
    await this.#context.send(key, `s${outcome} ${cost} ${used} ${dueAt}${id}`).catch(() => {});
  }

  /** Reports an attempt. If the report is lost, the attempt counts as a failure. */
  async report(key: string, report: AttemptOutcome | 'refusal', count: number): Promise<void> {
    this.#context.fallback.report?.(key, report, count);
    await this.#context.send(key, `r${report} ${count}`).catch(() => {});
  }

  async reserve(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    const reservationId = String(Math.floor(cryptoRandom() * Number.MAX_SAFE_INTEGER));
    const sentAt = this.#clock.now();
    try {
      const command = `v${reservationId} ${cost}${isWaiting ? ' w' : ''}`;
      const { value, at } = await this.#context.send(key, command);
      const decision = this.#read(value);
      this.#context.fallback.observe(key, cost, decision, isWaiting);
      return { decision, decidedAt: at, ...(decision.verdict === 'allow' && { reservationId }) };
    } catch (error) {
      // The reservation expires if Redis has executed it; the command may release it earlier.
      if (wasSent(error))
        this.#context.unsent.keep(key, `u${reservationId}`, sentAt + RESERVATION_TTL_MS);
      return this.#fallbackDecision(key, cost, isWaiting);
    }
  }

  async confirm(key: string, reservationId: string): Promise<boolean> {
    return Number((await this.#context.send(key, `k${reservationId}`)).value) === 1;
  }

  async cancel(key: string, reservationId: string): Promise<void> {
    const until = this.#clock.now() + RESERVATION_TTL_MS;
    await this.#context.unsent.send(key, `u${reservationId}`, until);
  }

  cancelFallback(key: string, cost: number): void {
    this.#context.fallback.undo(key, cost);
  }

  chargeTogether(
    parts: readonly JointPartRequest[],
    isWaiting = false,
  ): Promise<JointDecision> | undefined {
    return chargeTogether(parts, isWaiting ? 'q' : 'n');
  }

  jointCall(key: string, cost: number, isWaiting: boolean): JointCall {
    return singlePart(this.jointPart(key, cost, isWaiting));
  }

  /** `isBesideLease`: the next part is the lease of its limit. */
  jointPart(key: string, cost: number, isWaiting: boolean, isBesideLease = false): JointPart {
    return {
      context: this.#context,
      redisKey: this.#context.redisKeyOf(key),
      text: `${cost} ${isBesideLease ? '+' : '-'} ${this.#rulesText}`,
      read: (reply, at) => {
        const decision = this.#read(reply);
        this.#context.fallback.observe(key, cost, decision, isWaiting);
        return { decision, decidedAt: at };
      },
      undecided: () => this.#fallbackDecision(key, cost, isWaiting),
      undo: () => this.cancelFallback(key, cost),
    };
  }

  async forget(key: string): Promise<void> {
    await this.#context.send(key, 'z');
    this.#context.fallback.forget?.(key);
  }

  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    const convert = converterBetween(this.#policy, policy);
    // A window with other steps has keys with other names. A queue in Redis stays with its key.
    const isAlike = layoutOf(policy) === layoutOf(this.#policy);
    if (!convert || (!isAlike && this.#order !== undefined)) return undefined;
    requireWidth(policy);
    return async () => {
      await this.#context.change(policy, scriptsOf(policy, this.#order), convert);
      this.#policy = policy;
      this.#everyMs = everyMsOf(policy);
      this.#rulesText = rulesText(specsOf(policy));
    };
  }

  toServerTime(key: string, at: Millis): Millis {
    return this.#context.toRedisTime(key, at);
  }

  async addHits(key: string, count: number): Promise<void> {
    await this.#context.send(key, `h${count}`).catch(() => {});
  }

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { value, at } = await this.#context.send(key, 'l');
      return { state: Float64Array.from(String(value).split(' '), Number), at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    await this.#context.fairQueue?.close();
    await this.#context.close();
  }
}

const scriptsOf = (policy: Policy, order: FleetOrder | undefined): Scripts => ({
  full: scriptOf(policy, order ? `${order}-queue` : 'all'),
  checkOnly: scriptOf(policy, 'check-only'),
  hasCallIds: true,
});
