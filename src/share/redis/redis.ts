/**
 * Redis decides: one count for everybody, atomically, on Redis's clock.
 *
 *     import { redis } from 'sluice/redis';
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, share: redis(client) });
 *     if ((await api.ask('token')).verdict === 'allow') call();
 *
 * When Redis cannot be reached, a call is answered at once by what `onUnavailable` says: refused,
 * let through, or decided here by this process's part of the limit.
 */

import { type Clock, type Millis, turnClock } from '../../clock.ts';
import { allow, type Decision, deny, NEVER } from '../../decision.ts';
import type { Duration } from '../../duration.ts';
import { ConfigError } from '../../errors.ts';
import { Fields } from '../../options.ts';
import type { Policy, Settlement } from '../../policy/policy.ts';
import { LocalShare } from '../local.ts';
import type {
  Answer,
  LineAnswer,
  RemoteSetting,
  RemoteShare,
  RemoteShareMaker,
} from '../remote.ts';
import { decisionOf } from './call.ts';
import {
  type Connection,
  connectionOf,
  type RedisClient,
  type Subscriber,
  subscriberOf,
} from './client.ts';
import { FairRoom } from './fair.ts';
import { FlightsShare, flightsScript } from './flights.ts';
import { Lead } from './lead.ts';
import { LeaseShare } from './lease.ts';
import { Pipe } from './pipe.ts';
import { scriptOf } from './script.ts';

const CHOICES = ['allow', 'deny', 'local'] as const;

/** What a call is told while Redis is out of reach. */
export type OnUnavailable = (typeof CHOICES)[number];

export interface RedisOptions {
  /** What all keys in Redis begin with. Default `sluice`. */
  readonly prefix?: string;
  /** How long a call waits for Redis. Default 100 ms. */
  readonly deadline?: Duration;
  /** Default: `deny` where a limit has a spacing, else `local`. */
  readonly onUnavailable?: OnUnavailable;
  /** One line for all processes, first come first served. Opens a second connection to listen. */
  readonly fair?: boolean;
  /** Takes so many permits at once and spends them here: fast, and off by up to so many. Buckets only. */
  readonly lease?: number;
  /** How many processes share the limit: `local` gives each of them so much less. Default 1. */
  readonly processes?: number;
}

/** Shares a limit through the user's own connection, of node-redis or ioredis. */
export function redis(client: RedisClient, options: RedisOptions = {}): RemoteShareMaker {
  const connection = connectionOf(client);
  const fields = new Fields('share', options);
  const prefix = fields.has('prefix') ? fields.raw('prefix') : 'sluice';
  if (typeof prefix !== 'string' || /[{}]/.test(prefix))
    fields.fail('prefix', 'a text without braces');
  const deadlineMs = fields.duration('deadline', 100);
  const given = fields.has('onUnavailable') ? fields.oneOf('onUnavailable', CHOICES) : undefined;
  const processes = fields.whole('processes', 1, 1);
  const isFair = fields.flag('fair', false);
  const lease = fields.has('lease') ? fields.whole('lease', 1) : undefined;
  if (isFair && lease !== undefined) fields.fail('lease', 'left out when fair is true');
  fields.done();
  return {
    isRemote: true,
    make(policy, setting) {
      const { formulas } = policy;
      if (formulas === undefined) {
        const kinds =
          'made of bucket, spacing, ramp or a fixed adaptive when it is shared through Redis';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      const [flights] = formulas.filter(({ kind }) => kind === 'flights');
      if (flights && (formulas.length > 1 || lease !== undefined)) {
        const expected = 'alone, and not leased, when it counts calls in flight';
        throw new ConfigError('limit', expected, policy.kind);
      }
      const isStrict = formulas.some(({ kind }) => kind === 'spacing');
      const onUnavailable = given ?? (isStrict ? 'deny' : 'local');
      const subscriber = isFair ? subscriberOf(client) : undefined;
      const own = { prefix: String(prefix), deadlineMs, onUnavailable, processes, subscriber };
      if (flights) return flightsShare(connection, policy, setting, own);
      const share = new RedisShare(connection, policy, setting, own);
      if (lease === undefined) return share;
      if (formulas.some(({ kind }) => kind !== 'bucket')) {
        throw new ConfigError('share.lease', 'left out unless the limit is made of buckets', lease);
      }
      return new LeaseShare(share, turnClock(setting.clock), lease);
    },
  };
}

interface Own {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  readonly subscriber: Subscriber | undefined;
}

/** What somebody is told who is refused because Redis is out of reach: it may be back by then. */
const UNREACHABLE_RETRY_MS = 500;

class RedisShare implements RemoteShare {
  readonly #pipe: Pipe;
  readonly #keyOf: (key: string) => string;
  readonly #clock: Clock;
  readonly #standIn: StandIn;
  readonly #lead: Lead;
  readonly #room: FairRoom | undefined;
  readonly enter: RemoteShare['enter'];

  constructor(connection: Connection, policy: Policy, setting: RemoteSetting, own: Own) {
    const { clock, onReach } = setting;
    const { deadlineMs } = own;
    this.#clock = clock;
    this.#keyOf = keysOf(own.prefix, setting.name);
    this.#standIn = standInOf(policy, setting, own);
    this.#lead = new Lead(policy.formulas ?? []);
    const isFair = own.subscriber !== undefined;
    const { formulas = [], width } = policy;
    const whole = scriptOf(formulas, width, isFair ? 'fair' : 'all');
    const scripts = { whole, plain: scriptOf(formulas, width, 'plain') };
    this.#pipe = new Pipe(connection, scripts, { clock, deadlineMs, onReach });
    this.#room = this.#roomOf(setting, own.subscriber);
    const room = this.#room;
    this.enter = room && ((key, cost, patience) => room.enter(this.#keyOf(key), cost, patience));
  }

  #roomOf(setting: RemoteSetting, subscriber: Subscriber | undefined): FairRoom | undefined {
    if (subscriber === undefined) return undefined;
    const { clock, random, waitersMax } = setting;
    const [pipe, standIn] = [this.#pipe, this.#standIn];
    const giveBack = (_id: string, cost: number, at: Millis) => `signored ${cost} ${cost} ${at}`;
    return new FairRoom({ pipe, clock, random, subscriber, waitersMax, standIn, giveBack });
  }

  get isReachable(): boolean {
    return this.#pipe.isReachable;
  }

  get waiting(): number {
    return this.#room?.size ?? 0;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'a', cost);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'n', cost);
  }

  async #ask(key: string, letter: 'a' | 'n', cost: number): Promise<Answer> {
    try {
      const { told, at } = await this.#pipe.send(this.#keyOf(key), letter + cost);
      return { decision: decisionOf(told), at };
    } catch {
      return { decision: this.#standIn(key, cost), at: this.#clock.now(), isMakeshift: true };
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    try {
      const aheadMs = this.#lead.ms;
      const since = this.#clock.now();
      const text = `q${aheadMs} ${costs.join(' ')}`;
      const { told, at } = await this.#pipe.send(this.#keyOf(key), text);
      this.#lead.seen(this.#clock.now() - since);
      const [count, dueIn, last] = String(told).split(' ');
      const granted = Number(count);
      const refused = granted < costs.length ? decisionOf(last) : undefined;
      return { granted, dueInMs: Number(dueIn), aheadMs, refused, at };
    } catch {
      const decision = this.#standIn(key, costs[0]);
      const isIn = decision.verdict !== 'deny';
      const told = isIn ? { granted: 1, refused: undefined } : { granted: 0, refused: decision };
      return { ...told, at: this.#clock.now(), isMakeshift: true };
    }
  }

  async take(key: string, most: number): Promise<number> {
    try {
      return Number((await this.#pipe.send(this.#keyOf(key), `t${most}`)).told);
    } catch {
      return this.#standIn(key, 1).verdict === 'deny' ? 0 : 1;
    }
  }

  /** What cannot be told is lost: then more was taken than was used, never less. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, dueAt } = settlement;
    const text = `s${outcome} ${cost} ${used} ${dueAt}`;
    await this.#pipe.send(this.#keyOf(key), text).catch(() => {});
  }

  async hits(key: string, count: number): Promise<void> {
    await this.#pipe.send(this.#keyOf(key), `h${count}`).catch(() => {});
  }

  async look(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { told, at } = await this.#pipe.send(this.#keyOf(key), 'l');
      return { state: Float64Array.from(String(told).split(' '), Number), at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    await this.#room?.close();
    this.#pipe.stop();
  }
}

function flightsShare(
  connection: Connection,
  policy: Policy,
  setting: RemoteSetting,
  own: Own,
): RemoteShare {
  const { clock, random, onReach, waitersMax } = setting;
  const { deadlineMs, subscriber } = own;
  const [most] = policy.formulas?.[0].numbers ?? [];
  const script = flightsScript(most, subscriber !== undefined);
  const scripts = { whole: script, plain: script };
  const pipe = new Pipe(connection, scripts, { clock, deadlineMs, onReach });
  const keyOf = keysOf(own.prefix, setting.name);
  return new FlightsShare({
    pipe,
    policy,
    clock,
    random,
    keyOf,
    standIn: standInOf(policy, setting, own),
    subscriber,
    waitersMax,
  });
}

/** In braces, so that whatever else belongs to a key can live beside it. */
const keysOf =
  (prefix: string, name: string) =>
  (key: string): string =>
    `${prefix}:{${name}:${key}}`;

/** Decides while Redis is out of reach. */
type StandIn = (key: string, cost: number) => Decision;

function standInOf(policy: Policy, { clock, random, keysMax }: RemoteSetting, own: Own): StandIn {
  switch (own.onUnavailable) {
    case 'deny':
      return () => deny(UNREACHABLE_RETRY_MS);
    case 'allow':
      return () => allow(0);
    case 'local': {
      const local = new LocalShare(policy, { clock, random, keysMax });
      // A part of the limit is the whole limit at a higher price, as far as that can be paid at all.
      return (key, cost) => {
        const priced = local.askNow(key, cost * own.processes, clock.now());
        const isTooDear = priced.verdict === 'deny' && priced.retryAfterMs === NEVER;
        return isTooDear ? local.askNow(key, cost, clock.now()) : priced;
      };
    }
  }
}
