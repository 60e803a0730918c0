/**
 * Calls in flight over a whole fleet: at most so many at once, counted by Redis.
 *
 * Whoever is let in holds a lease, an entry with an end in a sorted set. It is renewed while the call
 * is under way and removed when it settles; a holder that crashed stops renewing, and its place is free
 * again when the lease ends, by Redis's clock.
 *
 *     sluice:{name:key}:flights   id ─▶ ends at   id ─▶ ends at   …   as many entries as calls in flight
 */

import { alarm, type Clock, type Millis } from '../../clock.ts';
import type { Decision } from '../../decision.ts';
import type { Policy, Settlement } from '../../policy/policy.ts';
import type { Random } from '../../random.ts';
import type { Answer, LineAnswer, RemoteShare } from '../remote.ts';
import { decisionOf } from './call.ts';
import type { Pipe } from './pipe.ts';
import { PROBE } from './script.ts';

/** How long a place is kept for a holder that says nothing. */
export const LEASE_MS: Millis = 10_000;

/**
 * The same way of talking as `script.ts`: a key and a text for each errand.
 *
 *     n<id> <cost>     lets in: what is left · -1 never · -2 when a call settles
 *     e<id> <cost>     renews
 *     s<id> <cost>     settled: removes
 *     l                how many are in flight
 *     p                could it be decided?
 */
export const flightsScript = (most: number): string => `
local MOST, LEASE_MS = ${most}, ${LEASE_MS}
local call, sub, match = redis.call, string.sub, string.match
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local by = tonumber(match(ARGV[1], '^by (.+)$'))
local isLate = by ~= nil and now > by -- whoever asked has gone: nobody is let in
local answers = { (isLate and 'late ' or '') .. string.format('%.17g', now) }

for i = 1, #KEYS do
  local key, text = KEYS[i], ARGV[#ARGV == 2 and 2 or i + 1]
  local op, id, cost = sub(text, 1, 1), match(sub(text, 2), '(%S+) (%S+)')
  cost = tonumber(cost or '0')
  local ended = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(ended) == 'table' then
    if not string.find(ended.err, 'WRONGTYPE', 1, true) then return ended end
    call('DEL', key) -- somebody else's: as an error it would look like an outage
  end
  if op == 'n' then
    local inFlight = call('ZCARD', key)
    if cost > MOST then
      answers[i + 1] = -1
    elseif isLate or inFlight + cost > MOST then
      answers[i + 1] = -2
    else
      for n = 1, cost do call('ZADD', key, now + LEASE_MS, id .. '#' .. n) end
      call('PEXPIRE', key, LEASE_MS)
      answers[i + 1] = MOST - inFlight - cost
    end
  elseif op == 'e' then
    for n = 1, cost do call('ZADD', key, now + LEASE_MS, id .. '#' .. n) end
    call('PEXPIRE', key, LEASE_MS)
    answers[i + 1] = 0
  elseif op == 's' then
    for n = 1, cost do call('ZREM', key, id .. '#' .. n) end
    answers[i + 1] = 0
  elseif op == 'p' then
    answers[i + 1] = (function() ${PROBE} end)()
  else
    answers[i + 1] = call('ZCARD', key)
  end
end
return answers
`;

interface Held {
  readonly key: string;
  readonly cost: number;
  /** True if it was let in here, while Redis was out of reach. */
  readonly isMakeshift: boolean;
}

/** Counts calls in flight while Redis is out of reach: what it lets in is settled with it. */
export interface FlightsStandIn {
  ask(key: string, cost: number): Decision;
  settle(key: string, cost: number): void;
}

export interface FlightsOptions {
  readonly pipe: Pipe;
  readonly policy: Policy;
  readonly clock: Clock;
  readonly random: Random;
  readonly keyOf: (key: string) => string;
  readonly standIn: FlightsStandIn;
}

export class FlightsShare implements RemoteShare {
  readonly #options: FlightsOptions;
  readonly #process: string;
  readonly #held = new Map<string, Held>();
  #given = 0;
  #renewal: (() => void) | undefined;

  constructor(options: FlightsOptions) {
    this.#options = options;
    this.#process = `${options.random().toString(36).slice(2)}${options.random().toString(36).slice(2)}`;
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
      this.#hold(holder, { key, cost: whole, isMakeshift: false });
      return { decision, at, holder };
    } catch {
      const told = { decision: standIn.ask(key, whole), at: clock.now(), isMakeshift: true };
      if (told.decision.verdict === 'deny') return told;
      this.#hold(holder, { key, cost: whole, isMakeshift: true });
      return { ...told, holder };
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const { decision, holder, ...told } = await this.askNow(key, costs[0]);
    const isIn = decision.verdict !== 'deny';
    const holders = holder === undefined ? [] : [holder];
    return { granted: isIn ? 1 : 0, refused: isIn ? undefined : decision, holders, ...told };
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
    const { pipe, keyOf, standIn } = this.#options;
    if (held.isMakeshift) return standIn.settle(key, held.cost);
    await pipe.send(keyOf(held.key), `s${own} ${held.cost}`).catch(() => {}); // its lease will end
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
    this.#renewal?.();
    const { pipe, keyOf } = this.#options;
    const ends = this.#leases().map(([holder, { key, cost }]) =>
      pipe.send(keyOf(key), `s${holder} ${cost}`).catch(() => {}),
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
    const { clock, pipe, keyOf } = this.#options;
    const renew = (): void => {
      this.#renewal = undefined;
      for (const [holder, { key, cost }] of this.#leases()) {
        pipe.send(keyOf(key), `e${holder} ${cost}`).catch(() => {});
      }
      if (this.#held.size > 0) this.#renewal = this.#renewLater();
    };
    return alarm(clock, clock.now() + LEASE_MS / 3, renew, false);
  }
}
