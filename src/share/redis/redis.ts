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

import type { Clock, Millis } from '../../clock.ts';
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
import { type Connection, connectionOf, type RedisClient } from './client.ts';
import { Lead } from './lead.ts';
import { Pipe } from './pipe.ts';

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
  fields.done();
  return {
    isRemote: true,
    make(policy, setting) {
      const { formulas } = policy;
      if (formulas === undefined) {
        const kinds = 'made of bucket, spacing and ramp when it is shared through Redis';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      const isStrict = formulas.some(({ kind }) => kind === 'spacing');
      const onUnavailable = given ?? (isStrict ? 'deny' : 'local');
      const own = { prefix: String(prefix), deadlineMs, onUnavailable, processes };
      return new RedisShare(connection, policy, setting, own);
    },
  };
}

interface Own {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
}

/** What somebody is told who is refused because Redis is out of reach: it may be back by then. */
const UNREACHABLE_RETRY_MS = 500;

class RedisShare implements RemoteShare {
  readonly #policy: Policy;
  readonly #pipe: Pipe;
  readonly #prefix: string;
  readonly #clock: Clock;
  readonly #standIn: StandIn;
  readonly #lead: Lead;

  constructor(connection: Connection, policy: Policy, setting: RemoteSetting, own: Own) {
    const { clock, onReach } = setting;
    const { deadlineMs } = own;
    this.#policy = policy;
    this.#clock = clock;
    this.#prefix = `${own.prefix}:{${setting.name}:`;
    this.#standIn = standInOf(policy, setting, own);
    this.#lead = new Lead(policy.formulas ?? []);
    this.#pipe = new Pipe(connection, policy.formulas ?? [], { clock, deadlineMs, onReach });
  }

  get isReachable(): boolean {
    return this.#pipe.isReachable;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'a', cost);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, 'n', cost);
  }

  async #ask(key: string, letter: 'a' | 'n', cost: number): Promise<Answer> {
    try {
      const { reply, at, now } = await this.#pipe.send(this.#keyOf(key), letter, [cost], 2);
      return { decision: decisionOf(reply, at), at: now };
    } catch {
      return { decision: this.#standIn(key, cost), at: this.#clock.now(), isMakeshift: true };
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    try {
      const aheadMs = this.#lead.ms;
      const rest = [aheadMs, costs.length, ...costs];
      const since = this.#clock.now();
      const { reply, at, now } = await this.#pipe.send(this.#keyOf(key), 'q', rest, 4);
      this.#lead.seen(this.#clock.now() - since);
      const [granted, dueInMs] = [Number(reply[at]), Number(reply[at + 1])];
      const refused = granted < costs.length ? decisionOf(reply, at + 2) : undefined;
      return { granted, dueInMs, aheadMs, refused, at: now };
    } catch {
      const decision = this.#standIn(key, costs[0]);
      const isIn = decision.verdict !== 'deny';
      const told = isIn ? { granted: 1, refused: undefined } : { granted: 0, refused: decision };
      return { ...told, dueInMs: 0, aheadMs: 0, at: this.#clock.now(), isMakeshift: true };
    }
  }

  async take(key: string, most: number): Promise<number> {
    try {
      const { reply, at } = await this.#pipe.send(this.#keyOf(key), 't', [most], 2);
      return Number(reply[at + 1]);
    } catch {
      return this.#standIn(key, 1).verdict === 'deny' ? 0 : 1;
    }
  }

  /** What cannot be told is lost: then more was taken than was used, never less. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, dueAt } = settlement;
    await this.#pipe.send(this.#keyOf(key), 's', [outcome, cost, used, dueAt], 0).catch(() => {});
  }

  async hits(key: string, count: number): Promise<void> {
    await this.#pipe.send(this.#keyOf(key), 'h', [count], 0).catch(() => {});
  }

  async look(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    const { width } = this.#policy;
    try {
      const { reply, at, now } = await this.#pipe.send(this.#keyOf(key), 'l', [], width);
      return { state: Float64Array.from(reply.slice(at, at + width), Number), at: now };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    this.#pipe.stop();
  }

  /** In braces, so that whatever else belongs to this key can live beside it. */
  #keyOf(key: string): string {
    return `${this.#prefix}${key}}`;
  }
}

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
