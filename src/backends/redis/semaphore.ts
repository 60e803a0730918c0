/**
 * Distributed semaphore: a concurrency limit over the whole fleet, counted by Redis.
 *
 * Every admitted call holds a lease, an entry with an expiry in a sorted set. The process renews it while the call runs
 * and removes it when the call settles. A process that crashed stops renewing, and its capacity is free again when the
 * lease expires, on Redis's clock.
 *
 *     sluice:{name:key}:concurrency   id ─▶ expires at   id ─▶ expires at   …   one entry for each call in flight
 *
 * With a fair queue (`fair-queue.ts`), the command that settles a call notifies the waiter at the head.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { deny } from '../../core/decision.ts';
import { PendingSet } from '../../core/pending.ts';
import type { Policy, Settlement } from '../../policies/policy.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import { randomId } from '../remote-limit.ts';
import { createRedisContext, type RedisConfig, type RedisContext } from './context.ts';
import type { ActiveLease } from './fair-queue.ts';
import { FAIR_QUEUE_LUA, PROBE_LUA } from './lua-script.ts';
import { decisionOf } from './reply.ts';

/** A lease that is not renewed ends after this long. */
export const LEASE_TTL_MS: Millis = 10_000;

/**
 * KEYS and ARGV as in `lua-script.ts`, with these commands:
 *
 *     n<id> <cost>     acquire a lease: remaining · -1 never · -2 when a call settles
 *     e<id> <cost>     renew
 *     s<id> <cost>     settle: remove the lease and notify the head of the fair queue
 *     l                count calls in flight
 *     p                probe
 *
 * and `f`, `x` and `b` of the fair queue. A late renewal extends a lease but does not create one: its call may have
 * settled by then.
 */
export const semaphoreScript = (most: number, isFair: boolean): string => `
local MOST, LEASE_TTL_MS = ${most}, ${LEASE_TTL_MS}
local ALLOW, DENY, NEVER, WHEN_SETTLED = 0, 2, -1, -2
local call, sub, match, ceil = redis.call, string.sub, string.match, math.ceil
local function exact(x) return string.format('%.17g', x) end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local deadline = tonumber(match(ARGV[1], '^by (.+)$'))
local isLate = deadline ~= nil and now > deadline -- the caller has timed out: no lease is granted
local replies = { (isLate and 'late ' or '') .. exact(now) }

local function expireLeases(key)
  local expired = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(expired) ~= 'table' then return end
  if not string.find(expired.err, 'WRONGTYPE', 1, true) then error(expired.err, 0) end
  call('DEL', key) -- a foreign value: as an error it would look like an outage
end

local function peek(key, cost)
  local remaining = MOST - call('ZCARD', key) - cost
  if cost > MOST then return DENY, NEVER end
  if remaining < 0 then return DENY, WHEN_SETTLED end
  return ALLOW, remaining
end

local function writeLease(key, id, cost)
  for n = 1, cost do
    if isLate then call('ZADD', key, 'XX', now + LEASE_TTL_MS, id .. '#' .. n)
    else call('ZADD', key, now + LEASE_TTL_MS, id .. '#' .. n) end
  end
  call('PEXPIRE', key, LEASE_TTL_MS)
end

local function admit(key, id, cost)
  if isLate then return DENY, WHEN_SETTLED end
  local verdict, value = peek(key, cost)
  if verdict == ALLOW then writeLease(key, id, cost) end
  return verdict, value
end

local function encodeDecision(verdict, value) return value end

${isFair ? FAIR_QUEUE_LUA : ''}
for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[#ARGV == 2 and 2 or i + 1]
  local op, rest = sub(text, 1, 1), sub(text, 2)
  local id, cost = match(rest, '(%S+) (%S+)')
  cost = tonumber(cost or '0')
  expireLeases(key)
  local reply = 0
  if op == 'n' then
    reply = encodeDecision(admit(key, id, cost))
  elseif op == 'e' then
    writeLease(key, id, cost)
  elseif op == 's' then
    for n = 1, cost do call('ZREM', key, id .. '#' .. n) end
    ${isFair ? 'notifyHead(key)' : ''}
  elseif op == 'l' then
    reply = call('ZCARD', key)
  elseif op == 'p' then
    reply = (function() ${PROBE_LUA} end)()
  ${isFair ? "elseif op == 'x' or not isLate then reply = QUEUE_COMMANDS[op](rest, key) -- late, the queue is not touched" : ''}
  end
  replies[i + 1] = reply
end
return replies
`;

const releaseCommand = (leaseId: string, cost: number): string => `s${leaseId} ${cost}`;

export class SemaphoreBackend implements RemoteBackend {
  readonly #context: RedisContext;
  readonly #policy: Policy;
  readonly #clock: Clock;
  readonly #processId: string;
  readonly #activeLeases = new Map<string, ActiveLease>();
  /** Checks and renewals without a reply. */
  readonly #pending = new PendingSet();
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  readonly onUnavailable: RemoteBackend['onUnavailable'];
  #lastLeaseNumber = 0;
  #cancelRenewal: (() => void) | undefined;
  #isClosed = false;

  constructor(policy: Policy, context: RemoteBackendContext, config: RedisConfig) {
    this.onUnavailable = config.onUnavailable;
    const [most] = policy.specs?.[0].params ?? [];
    const script = semaphoreScript(most, config.subscriber !== undefined);
    const trackLease = this.#trackLease.bind(this);
    const scripts = { full: script, checkOnly: script, releaseCommand, trackLease };
    this.#context = createRedisContext(policy, context, config, scripts);
    this.#policy = policy;
    this.#clock = context.clock;
    this.#processId = randomId(context.random);
    const { fairQueue } = this.#context;
    this.waitForPermit =
      fairQueue && ((key, cost, limits) => fairQueue.acquire(key, Math.ceil(cost), limits));
  }

  get isAvailable(): boolean {
    return this.#context.batcher.isAvailable;
  }

  get waiterCount(): number {
    return this.#context.fairQueue?.size ?? 0;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  checkNow(key: string, cost: number): Promise<RemoteDecision> {
    return this.#pending.add(this.#checkWithLease(key, Math.ceil(cost)));
  }

  async #checkWithLease(key: string, cost: number): Promise<RemoteDecision> {
    const { fallback } = this.#context;
    const leaseId = `${this.#processId}/${++this.#lastLeaseNumber}`;
    try {
      const { value, at } = await this.#context.send(key, `n${leaseId} ${cost}`);
      const decision = decisionOf(value);
      if (decision.verdict === 'deny') return { decision, decidedAt: at };
      if (this.#isClosed) {
        await this.#context.send(key, releaseCommand(leaseId, cost)).catch(() => {});
        return { decision: deny(0), decidedAt: at };
      }
      this.#trackLease(leaseId, { key, cost, fromFallback: false });
      return { decision, decidedAt: at, leaseId };
    } catch {
      const decision = fallback.check(key, cost);
      const undecided = { decision, decidedAt: this.#clock.now(), fromFallback: true };
      if (decision.verdict === 'deny') return undecided;
      this.#trackLease(leaseId, { key, cost, fromFallback: true });
      return { ...undecided, leaseId };
    }
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    return toBatchDecision(await this.checkNow(key, costs[0]));
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const { decision } = await this.checkNow(key, 1);
    return decision.verdict === 'deny' ? 0 : 1;
  }

  async settle(key: string, { leaseId }: Settlement): Promise<void> {
    const id = leaseId ?? this.#oldestLeaseOf(key) ?? '';
    const lease = this.#activeLeases.get(id);
    if (!lease) return;
    this.#activeLeases.delete(id);
    const { fallback, fairQueue } = this.#context;
    if (lease.fromFallback) {
      fallback.settle(key, lease.cost);
      fairQueue?.pollNow(key); // a waiter of this process may use the freed capacity
      return;
    }
    await this.#context.send(lease.key, releaseCommand(id, lease.cost)).catch(() => {}); // the lease expires
  }

  /** A settlement by key alone ends the call that began first. */
  #oldestLeaseOf(key: string): string | undefined {
    for (const [leaseId, lease] of this.#activeLeases) if (lease.key === key) return leaseId;
    return undefined;
  }

  async addHits(): Promise<void> {}

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { value, at } = await this.#context.send(key, 'l');
      const state = new Float64Array(this.#policy.width);
      this.#policy.init(state, 0, at);
      this.#policy.check(state, 0, Number(value), at);
      return { state, at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    const { batcher, fairQueue } = this.#context;
    await fairQueue?.close();
    await this.#pending.drained();
    this.#cancelRenewal?.();
    const releases = this.#leasesInRedis().map(([leaseId, { key, cost }]) =>
      this.#context.send(key, releaseCommand(leaseId, cost)).catch(() => {}),
    );
    this.#activeLeases.clear();
    await Promise.all(releases);
    batcher.stop();
  }

  #leasesInRedis(): [string, ActiveLease][] {
    return [...this.#activeLeases].filter(([, { fromFallback }]) => !fromFallback);
  }

  #trackLease(leaseId: string, lease: ActiveLease): void {
    this.#activeLeases.set(leaseId, lease);
    this.#cancelRenewal ??= this.#scheduleRenewal();
  }

  /** Renews all leases in one batch, three times within their lifetime. */
  #scheduleRenewal(): () => void {
    const renew = (): void => {
      this.#cancelRenewal = undefined;
      for (const [leaseId, lease] of this.#leasesInRedis())
        this.#pending.add(this.#renew(leaseId, lease));
      if (this.#activeLeases.size > 0) this.#cancelRenewal = this.#scheduleRenewal();
    };
    return schedule(this.#clock, this.#clock.now() + LEASE_TTL_MS / 3, renew, false);
  }

  async #renew(leaseId: string, { key, cost }: ActiveLease): Promise<void> {
    try {
      await this.#context.send(key, `e${leaseId} ${cost}`);
      if (!this.#activeLeases.has(leaseId))
        await this.#context.send(key, releaseCommand(leaseId, cost)); // the renewal may have arrived last
    } catch {
      // the next renewal may succeed, or the lease expires
    }
  }
}
