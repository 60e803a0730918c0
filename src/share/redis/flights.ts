/**
 * Calls in flight over a whole fleet: at most so many at once, counted by Redis.
 *
 * Whoever is let in holds a lease, an entry with an end in a sorted set. It is renewed while the call
 * is under way and removed when it settles; a holder that crashed stops renewing, and its place is free
 * again when the lease ends, by Redis's clock.
 *
 *     sluice:{name:key}   id ─▶ ends at     id ─▶ ends at     …        as many entries as calls in flight
 */

import { alarm, type Clock, type Millis } from '../../clock.ts';
import type { Decision } from '../../decision.ts';
import type { Policy, Settlement } from '../../policy/policy.ts';
import type { Random } from '../../random.ts';
import type { Answer, LineAnswer, RemoteShare } from '../remote.ts';
import { decisionOf } from './call.ts';
import type { Subscriber } from './client.ts';
import { FairRoom } from './fair.ts';
import type { Pipe } from './pipe.ts';
import { FAIR } from './script.ts';

/** How long a place is kept for a holder that says nothing. */
export const LEASE_MS: Millis = 10_000;

/**
 * The same way of talking as `script.ts`: a key and a text for each errand.
 *
 *     n<id> <cost>     lets in: what is left · -1 never · -2 when a call settles
 *     e<id> <cost>     renews
 *     s<id> <cost>     settled: removes, and tells whoever is first in line
 *     l                how many are in flight
 *
 * and `f`, `x` and `b` of those who wait fairly, as there.
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

local function look(key, cost)
  local left = MOST - call('ZCARD', key) - cost
  if cost > MOST then return DENY, NEVER end
  if isLate or left < 0 then return DENY, WHEN_SETTLED end
  return ALLOW, left
end

local function hold(key, id, cost)
  for n = 1, cost do call('ZADD', key, now + LEASE_MS, id .. '#' .. n) end
  call('PEXPIRE', key, LEASE_MS)
end

local function letIn(key, id, cost)
  local verdict, value = look(key, cost)
  if verdict == ALLOW then hold(key, id, cost) end
  return verdict, value
end

local FAIR_OPS, tellFirst = {}, nil
${isFair ? FAIR_FLIGHTS : ''}
for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[#ARGV == 2 and 2 or i + 1]
  local op, rest = sub(text, 1, 1), sub(text, 2)
  local id, cost = match(rest, '(%S+) (%S+)')
  cost = tonumber(cost or '0')
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  local said = 0
  if op == 'n' then
    local _, value = letIn(key, id, cost)
    said = value
  elseif op == 'e' then
    hold(key, id, cost)
  elseif op == 's' then
    for n = 1, cost do call('ZREM', key, id .. '#' .. n) end
    if tellFirst then tellFirst(key) end
  elseif op == 'l' then
    said = call('ZCARD', key)
  elseif op == 'x' or not isLate then -- else a line is not touched
    said = FAIR_OPS[op]({ key = key, id = id }, rest, key)
  end
  answers[i + 1] = said
end
return answers
`;

/** The line of `script.ts`, where what opens a place is not time but a call that settles. */
const FAIR_FLIGHTS = `
local function askNow(s, cost) return letIn(s.key, s.id, cost) end
local function answer(verdict, value) return value end
local asked
local rule = { width = 0, ask = function(s, o, cost) return look(asked, cost) end }
${FAIR}
for op, act in pairs(FAIR_OPS) do
  FAIR_OPS[op] = function(s, rest, key)
    asked = key
    return act(s, rest, key)
  end
end
tellFirst = function(key)
  asked = key
  tell(key, {}, firstOf(lineOf(key)))
end
`;

interface Held {
  readonly key: string;
  readonly cost: number;
}

export interface FlightsOptions {
  readonly pipe: Pipe;
  readonly policy: Policy;
  readonly clock: Clock;
  readonly random: Random;
  readonly keyOf: (key: string) => string;
  /** Decides while Redis is out of reach. */
  readonly standIn: (key: string, cost: number) => Decision;
  /** Hears whose turn it is, where those who wait stand in one line. */
  readonly subscriber: Subscriber | undefined;
  readonly waitersMax: number;
}

const settled = (holder: string, cost: number): string => `s${holder} ${cost}`;

export class FlightsShare implements RemoteShare {
  readonly #options: FlightsOptions;
  readonly #process: string;
  readonly #held = new Map<string, Held>();
  readonly #room: FairRoom | undefined;
  readonly enter: RemoteShare['enter'];
  #given = 0;
  #renewal: (() => void) | undefined;

  constructor(options: FlightsOptions) {
    this.#options = options;
    this.#process = `${options.random().toString(36).slice(2)}${options.random().toString(36).slice(2)}`;
    const { subscriber, keyOf } = options;
    const room = subscriber && new FairRoom({ ...options, subscriber, giveBack: settled });
    this.#room = room;
    this.enter =
      room &&
      (async (key, cost, patience) => {
        const whole = Math.ceil(cost);
        const entry = await room.enter(keyOf(key), whole, patience);
        if (entry.verdict === 'allow' && entry.holder)
          this.#hold(entry.holder, { key, cost: whole });
        return entry;
      });
  }

  get waiting(): number {
    return this.#room?.size ?? 0;
  }

  get isReachable(): boolean {
    return this.#options.pipe.isReachable;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.askNow(key, cost);
  }

  async askNow(key: string, cost: number): Promise<Answer> {
    const { pipe, keyOf, standIn, clock } = this.#options;
    const holder = `${this.#process}/${++this.#given}`;
    const whole = Math.ceil(cost);
    try {
      const { told, at } = await pipe.send(keyOf(key), `n${holder} ${whole}`);
      const decision = decisionOf(told);
      if (decision.verdict === 'deny') return { decision, at };
      this.#hold(holder, { key, cost: whole });
      return { decision, at, holder };
    } catch {
      return { decision: standIn(key, cost), at: clock.now(), isMakeshift: true };
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const { decision, holder, ...told } = await this.askNow(key, costs[0]);
    const isIn = decision.verdict !== 'deny';
    const holders = holder === undefined ? [] : [holder];
    return { granted: isIn ? 1 : 0, refused: isIn ? undefined : decision, holders, ...told };
  }

  async take(key: string, most: number): Promise<number> {
    const { decision } = await this.askNow(key, Math.min(most, 1));
    return decision.verdict === 'deny' ? 0 : 1;
  }

  async settle(key: string, { holder }: Settlement): Promise<void> {
    const own = holder === undefined ? this.#oldestOf(key) : holder;
    const held = own === undefined ? undefined : this.#held.get(own);
    if (own === undefined || held === undefined) return;
    this.#held.delete(own);
    const { pipe, keyOf } = this.#options;
    await pipe.send(keyOf(held.key), settled(own, held.cost)).catch(() => {}); // its lease will end
  }

  /** Whoever settles by key alone settles the call that began first. */
  #oldestOf(key: string): string | undefined {
    for (const [holder, held] of this.#held) if (held.key === key) return holder;
    return undefined;
  }

  async hits(): Promise<void> {}

  async look(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    const { pipe, keyOf, policy } = this.#options;
    try {
      const { told, at } = await pipe.send(keyOf(key), 'l');
      const state = new Float64Array(policy.width);
      policy.start(state, 0, at);
      policy.ask(state, 0, Number(told), at);
      return { state, at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    await this.#room?.close();
    this.#renewal?.();
    const { pipe, keyOf } = this.#options;
    const ends = [...this.#held].map(([holder, { key, cost }]) =>
      pipe.send(keyOf(key), settled(holder, cost)).catch(() => {}),
    );
    this.#held.clear();
    await Promise.all(ends);
    pipe.stop();
  }

  #hold(holder: string, held: Held): void {
    this.#held.set(holder, held);
    this.#renewal ??= this.#renewLater();
  }

  /** All leases in one trip, three times as often as they would end. */
  #renewLater(): () => void {
    const { clock, pipe, keyOf } = this.#options;
    const renew = (): void => {
      this.#renewal = undefined;
      for (const [holder, { key, cost }] of this.#held) {
        pipe.send(keyOf(key), `e${holder} ${cost}`).catch(() => {});
      }
      if (this.#held.size > 0) this.#renewal = this.#renewLater();
    };
    return alarm(clock, clock.now() + LEASE_MS / 3, renew, false);
  }
}
