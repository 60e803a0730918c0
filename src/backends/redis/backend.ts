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

import { type Clock, type Millis, turnClock } from '../../core/clock.ts';
import type { OnUnavailable } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields } from '../../core/options.ts';
import type { Policy, Settlement } from '../../policies/policy.ts';
import {
  type Answer,
  type LineAnswer,
  lineOfOne,
  type RemoteSetting,
  type RemoteShare,
  type RemoteShareMaker,
} from '../remote-backend.ts';
import type { Answered } from './batcher.ts';
import { connectionOf, type RedisClient, subscriberOf } from './client.ts';
import { CHOICES, type Own, type Way, wayOf } from './context.ts';
import { Lead } from './lookahead.ts';
import { scriptOf } from './lua-script.ts';
import { LeaseShare, type Source } from './prefetch.ts';
import { decisionOf } from './reply.ts';
import { FlightsShare } from './semaphore.ts';

/** How a limit is kept in Redis, and what holds without it. */
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
export function redis(
  client: RedisClient,
  options: RedisOptions = {},
  path = 'share',
): RemoteShareMaker {
  const connection = connectionOf(client);
  const fields = Fields.patient(path, options);
  const prefix = fields.has('prefix') ? fields.raw('prefix') : 'sluice';
  if (typeof prefix !== 'string' || /[{}]/.test(prefix))
    fields.complain('prefix', 'a text without braces');
  const deadlineMs = fields.duration('deadline', 100);
  const given = fields.has('onUnavailable') ? fields.oneOf('onUnavailable', CHOICES) : undefined;
  const processes = fields.whole('processes', 1, 1);
  const isFair = fields.flag('fair', false);
  const lease = fields.has('lease') ? fields.whole('lease', 1) : undefined;
  if (isFair && lease !== undefined) fields.complain('lease', 'left out when fair is true');
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
      const chosen = { prefix: String(prefix), deadlineMs, onUnavailable, processes };
      const own: Own = { connection, subscriber, ...chosen };
      if (flights) return new FlightsShare(policy, setting, own);
      const share = new RedisShare(policy, setting, own);
      if (lease === undefined) return share;
      if (formulas.some(({ kind }) => kind !== 'bucket')) {
        throw new ConfigError('share.lease', 'left out unless the limit is made of buckets', lease);
      }
      return new LeaseShare(share, turnClock(setting.clock), lease);
    },
  };
}

class RedisShare implements Source {
  readonly #way: Way;
  readonly #clock: Clock;
  readonly #lead: Lead;
  readonly enter: RemoteShare['enter'];
  readonly onUnavailable: OnUnavailable;

  constructor(policy: Policy, setting: RemoteSetting, own: Own) {
    this.onUnavailable = own.onUnavailable;
    const { formulas = [], width } = policy;
    const whole = scriptOf(formulas, width, own.subscriber ? 'fair' : 'all');
    const plain = scriptOf(formulas, width, 'plain');
    const giveBack = (_id: string, cost: number, at: Millis) => `signored ${cost} ${cost} ${at}`;
    this.#way = wayOf(policy, setting, own, { whole, plain, giveBack });
    this.#clock = setting.clock;
    this.#lead = new Lead(formulas);
    const { room } = this.#way;
    this.enter = room && ((key, cost, patience) => room.enter(key, cost, patience));
  }

  get isReachable(): boolean {
    return this.#way.pipe.isReachable;
  }

  get waiting(): number {
    return this.#way.room?.size ?? 0;
  }

  #send(key: string, text: string): Promise<Answered> {
    const { pipe, keyOf } = this.#way;
    return pipe.send(keyOf(key), text);
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'a', cost);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'n', cost);
  }

  async #ask(key: string, letter: 'a' | 'n', cost: number): Promise<Answer> {
    try {
      const { told, at } = await this.#send(key, letter + cost);
      return { decision: decisionOf(told), at };
    } catch {
      return this.#makeshift(key, cost);
    }
  }

  /** What stands in for Redis says. */
  #makeshift(key: string, cost: number): Answer {
    const decision = this.#way.standIn.ask(key, cost);
    return { decision, at: this.#clock.now(), isMakeshift: true };
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    try {
      const aheadMs = this.#lead.ms;
      const since = this.#clock.now();
      const text = `q${aheadMs} ${costs.join(' ')}`;
      const { told, at } = await this.#send(key, text);
      this.#lead.seen(this.#clock.now() - since);
      const [count, dueIn, last] = String(told).split(' ');
      const granted = Number(count);
      const refused = granted < costs.length ? decisionOf(last) : undefined;
      return { granted, dueInMs: Number(dueIn), aheadMs, refused, at };
    } catch {
      return lineOfOne(this.#makeshift(key, costs[0]));
    }
  }

  async take(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    try {
      return await this.#take(key, most);
    } catch {
      return this.#way.standIn.ask(key, 1).verdict === 'deny' ? 0 : 1;
    }
  }

  takeThere(key: string, most: number): Promise<number> {
    return this.#take(key, most).catch(() => 0);
  }

  async #take(key: string, most: number): Promise<number> {
    return Number((await this.#send(key, `t${most}`)).told);
  }

  async spare(key: string, most: number, leave: number): Promise<number> {
    if (most < 1) return 0;
    const sent = this.#send(key, `t${most} ${leave}`);
    return sent.then(({ told }) => Number(told)).catch(() => 0);
  }

  async gain(key: string, units: number, upTo: number): Promise<void> {
    await this.#send(key, `g${units} ${upTo}`).catch(() => {});
  }

  /** What cannot be told is lost: then more was taken than was used, never less. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, dueAt } = settlement;
    const text = `s${outcome} ${cost} ${used} ${dueAt}`;
    await this.#send(key, text).catch(() => {});
  }

  async hits(key: string, count: number): Promise<void> {
    await this.#send(key, `h${count}`).catch(() => {});
  }

  async look(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { told, at } = await this.#send(key, 'l');
      return { state: Float64Array.from(String(told).split(' '), Number), at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    await this.#way.room?.close();
    this.#way.pipe.stop();
  }
}
