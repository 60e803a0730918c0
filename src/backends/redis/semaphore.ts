/**
 * Calls in flight over a whole fleet: at most so many at once, counted by Redis.
 *
 * Whoever is let in holds a lease, an entry with an end in a sorted set. It is renewed while the call
 * is under way and removed when it settles; a holder that crashed stops renewing, and its place is free
 * again when the lease ends, by Redis's clock.
 *
 *     sluice:{name:key}:flights   id ─▶ ends at   id ─▶ ends at   …   as many entries as calls in flight
 *
 * Whoever waits in the line of all is told by the call that settles; what a line is, `fair-queue.ts` says.
 */

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { deny } from '../../core/decision.ts';
import { Underway } from '../../core/pending.ts';
import type { Policy, Settlement } from '../../policies/policy.ts';
import {
  type Answer,
  type LineAnswer,
  lineOfOne,
  type RemoteSetting,
  type RemoteShare,
} from '../remote-backend.ts';
import type { Answered } from './batcher.ts';
import { type Own, type Way, wayOf } from './context.ts';
import { type Held, nameByChance } from './fair-queue.ts';
import { FAIR, PROBE } from './lua-script.ts';
import { decisionOf } from './reply.ts';

/** How long a place is kept for a holder that says nothing. */
export const LEASE_MS: Millis = 10_000;

/**
 * The same way of talking as `lua-script.ts`: a key and a text for each errand.
 *
 *     n<id> <cost>     lets in: what is left · -1 never · -2 when a call settles
 *     e<id> <cost>     renews
 *     s<id> <cost>     settled: removes, and tells whoever is first in line
 *     l                how many are in flight
 *     p                could it be decided?
 *
 * and `f`, `x` and `b` of those who wait fairly, as there. Renewing is heard even if it is late, but does not begin
 * a lease again that is gone: its call may have settled by then.
 */
export const flightsScript = (most: number, isFair: boolean): string => `
local MOST, LEASE_MS = ${most}, ${LEASE_MS}
local ALLOW, DENY, NEVER, WHEN_SETTLED = 0, 2, -1, -2
local call, sub, match, ceil = redis.call, string.sub, string.match, math.ceil
local function exact(x) return string.format('%.17g', x) end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local by = tonumber(match(ARGV[1], '^by (.+)$'))
local isLate = by ~= nil and now > by -- whoever asked has gone: nobody is let in
local answers = { (isLate and 'late ' or '') .. exact(now) }

-- Forgets the leases that have ended.
local function endLeases(key)
  local ended = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(ended) ~= 'table' then return end
  if not string.find(ended.err, 'WRONGTYPE', 1, true) then error(ended.err, 0) end
  call('DEL', key) -- somebody else's: as an error it would look like an outage
end

local function look(key, cost)
  local left = MOST - call('ZCARD', key) - cost
  if cost > MOST then return DENY, NEVER end
  if left < 0 then return DENY, WHEN_SETTLED end
  return ALLOW, left
end

local function hold(key, id, cost)
  for n = 1, cost do
    if isLate then call('ZADD', key, 'XX', now + LEASE_MS, id .. '#' .. n)
    else call('ZADD', key, now + LEASE_MS, id .. '#' .. n) end
  end
  call('PEXPIRE', key, LEASE_MS)
end

local function letIn(key, id, cost)
  if isLate then return DENY, WHEN_SETTLED end
  local verdict, value = look(key, cost)
  if verdict == ALLOW then hold(key, id, cost) end
  return verdict, value
end

local function answer(verdict, value) return value end

${isFair ? FAIR : ''}
for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[#ARGV == 2 and 2 or i + 1]
  local op, rest = sub(text, 1, 1), sub(text, 2)
  local id, cost = match(rest, '(%S+) (%S+)')
  cost = tonumber(cost or '0')
  endLeases(key)
  local said = 0
  if op == 'n' then
    said = answer(letIn(key, id, cost))
  elseif op == 'e' then
    hold(key, id, cost)
  elseif op == 's' then
    for n = 1, cost do call('ZREM', key, id .. '#' .. n) end
    ${isFair ? 'tellFirst(key)' : ''}
  elseif op == 'l' then
    said = call('ZCARD', key)
  elseif op == 'p' then
    said = (function() ${PROBE} end)()
  ${isFair ? "elseif op == 'x' or not isLate then said = FAIR_OPS[op](rest, key) -- else a line is not touched" : ''}
  end
  answers[i + 1] = said
end
return answers
`;

const settled = (holder: string, cost: number): string => `s${holder} ${cost}`;

export class FlightsShare implements RemoteShare {
  readonly #way: Way;
  readonly #policy: Policy;
  readonly #clock: Clock;
  readonly #process: string;
  readonly #held = new Map<string, Held>();
  /** Asks and renewals that are not answered. */
  readonly #underway = new Underway();
  readonly enter: RemoteShare['enter'];
  readonly onUnavailable: RemoteShare['onUnavailable'];
  #given = 0;
  #renewal: (() => void) | undefined;
  #isClosed = false;

  constructor(policy: Policy, setting: RemoteSetting, own: Own) {
    this.onUnavailable = own.onUnavailable;
    const [most] = policy.formulas?.[0].numbers ?? [];
    const script = flightsScript(most, own.subscriber !== undefined);
    const hold = (holder: string, held: Held): void => this.#hold(holder, held);
    const there = { whole: script, plain: script, giveBack: settled, hold };
    this.#way = wayOf(policy, setting, own, there);
    this.#policy = policy;
    this.#clock = setting.clock;
    this.#process = nameByChance(setting.random);
    const { room } = this.#way;
    this.enter = room && ((key, cost, patience) => room.enter(key, Math.ceil(cost), patience));
  }

  get isReachable(): boolean {
    return this.#way.pipe.isReachable;
  }

  get waiting(): number {
    return this.#way.room?.size ?? 0;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.askNow(key, cost);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.#underway.add(this.#ask(key, Math.ceil(cost)));
  }

  async #ask(key: string, cost: number): Promise<Answer> {
    const { standIn } = this.#way;
    const holder = `${this.#process}/${++this.#given}`;
    try {
      const { told, at } = await this.#send(key, `n${holder} ${cost}`);
      const decision = decisionOf(told);
      if (decision.verdict === 'deny') return { decision, at };
      if (this.#isClosed) {
        await this.#send(key, settled(holder, cost)).catch(() => {});
        return { decision: deny(0), at };
      }
      this.#hold(holder, { key, cost, isMakeshift: false });
      return { decision, at, holder };
    } catch {
      const told = { decision: standIn.ask(key, cost), at: this.#clock.now(), isMakeshift: true };
      if (told.decision.verdict === 'deny') return told;
      this.#hold(holder, { key, cost, isMakeshift: true });
      return { ...told, holder };
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    return lineOfOne(await this.askNow(key, costs[0]));
  }

  async take(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const { decision } = await this.askNow(key, 1);
    return decision.verdict === 'deny' ? 0 : 1;
  }

  async settle(key: string, { holder }: Settlement): Promise<void> {
    const own = holder === undefined ? this.#oldestOf(key) : holder;
    const held = own === undefined ? undefined : this.#held.get(own);
    if (own === undefined || held === undefined) return;
    this.#held.delete(own);
    const { standIn, room } = this.#way;
    if (held.isMakeshift) {
      standIn.settle(key, held.cost);
      room?.hurry(key); // whoever waits here may have its place
      return;
    }
    await this.#send(held.key, settled(own, held.cost)).catch(() => {}); // its lease will end
  }

  /** Whoever settles by key alone settles the call that began first. */
  #oldestOf(key: string): string | undefined {
    for (const [holder, held] of this.#held) if (held.key === key) return holder;
    return undefined;
  }

  async hits(): Promise<void> {}

  async look(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { told, at } = await this.#send(key, 'l');
      const state = new Float64Array(this.#policy.width);
      this.#policy.start(state, 0, at);
      this.#policy.ask(state, 0, Number(told), at);
      return { state, at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    const { pipe, room } = this.#way;
    await room?.close();
    await this.#underway.ended();
    this.#renewal?.();
    const ends = this.#leases().map(([holder, { key, cost }]) =>
      this.#send(key, settled(holder, cost)).catch(() => {}),
    );
    this.#held.clear();
    await Promise.all(ends);
    pipe.stop();
  }

  /** What Redis knows of. */
  #leases(): [string, Held][] {
    return [...this.#held].filter(([, { isMakeshift }]) => !isMakeshift);
  }

  #hold(holder: string, held: Held): void {
    this.#held.set(holder, held);
    this.#renewal ??= this.#renewLater();
  }

  /** All leases in one trip, three times as often as they would end. */
  #renewLater(): () => void {
    const renew = (): void => {
      this.#renewal = undefined;
      for (const [holder, held] of this.#leases()) this.#underway.add(this.#renew(holder, held));
      if (this.#held.size > 0) this.#renewal = this.#renewLater();
    };
    return alarm(this.#clock, this.#clock.now() + LEASE_MS / 3, renew, false);
  }

  async #renew(holder: string, { key, cost }: Held): Promise<void> {
    try {
      await this.#send(key, `e${holder} ${cost}`);
      if (!this.#held.has(holder)) await this.#send(key, settled(holder, cost)); // sent twice, it may have come after
    } catch {
      // the next one may be heard, or the lease will end
    }
  }

  #send(key: string, text: string): Promise<Answered> {
    const { pipe, keyOf } = this.#way;
    return pipe.send(keyOf(key), text);
  }
}
