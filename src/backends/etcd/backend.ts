/**
 * A share where a register decides, linearised: everybody swaps it, and nobody's clock counts for others.
 *
 * Strict: no two permits begin closer than the rule says, on any clock that goes at the right speed, whoever decides, however
 * wrong the clocks are set and whichever server dies. A permit that comes too late to be used is lost (`delayed-rule.ts`), and so is
 * one whose swap has an unknown outcome (`cas-register.ts`). Without a quorum nothing can be swapped, and everybody is
 * refused within the deadline.
 */

import { atEndOfTurn, type Clock, type Millis } from '../../core/clock.ts';
import { Outstanding } from '../../core/deadline-set.ts';
import { allow, type Decision, deny, wait } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { Breaker, Refuser } from '../circuit-breaker.ts';
import {
  type Answer,
  jitterMsMax,
  type LineAnswer,
  lineOfOne,
  type RemoteSetting,
  type RemoteShare,
} from '../remote-backend.ts';
import { type Desk, type Errand, Register } from './cas-register.ts';
import { Clocks } from './clock-offsets.ts';
import {
  everyMsOf,
  type Grant,
  type LineTold,
  type Moment,
  Rule,
  type Told,
} from './delayed-rule.ts';
import { keysOf, ownName } from './keys.ts';
import { Leases } from './leases.ts';
import { Trips } from './rtt-estimator.ts';
import { Turns } from './semaphore.ts';
import { NO_REVISION, type RegisterServer } from './store.ts';

/** What a call is told while there is no quorum. */
export type OnNoQuorum = 'deny' | 'allow';

export interface RegisterOptions {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  /** How long after its place opened a permit may begin. */
  readonly slackMs: Millis;
  readonly onUnavailable: OnNoQuorum;
}

/** What somebody is told who is refused because nobody can decide: that may have changed by then. */
const UNAVAILABLE_RETRY_MS: Millis = 500;

/** Timers are late by a millisecond or two; a busy process by a few more. */
const TIMER_MS: Millis = 5;

/** The most that is asked and not answered. */
const ERRANDS_MAX = 10_000;

/** The longest key: etcd would not take one of half a million bytes, and many of them are remembered. */
const KEY_CHARS_MAX = 32_768;

/** Registers that are remembered. One that is not costs a look, and may seem to open later than it does. */
const REGISTERS_MAX = 10_000;

interface Dated extends Errand {
  readonly heldAt: Millis;
}

export class RegisterShare implements RemoteShare {
  readonly #desk: Desk;
  readonly #clock: Clock;
  readonly #rule: Rule;
  readonly #options: RegisterOptions;
  readonly onUnavailable: OnNoQuorum;
  readonly #keyOf: (key: string) => string;
  readonly #aheadMs: Millis;
  readonly #registers = new Map<string, Register>();
  readonly #errands: Outstanding<Dated>;
  readonly #breaker: Breaker;
  readonly #refuser = new Refuser();
  #heardAt: Millis = -Infinity;
  #isClosed = false;

  constructor(
    policy: Policy,
    setting: RemoteSetting,
    server: RegisterServer,
    options: RegisterOptions,
  ) {
    const { clock, random } = setting;
    this.#clock = clock;
    this.#options = options;
    this.onUnavailable = options.onUnavailable;
    this.#rule = new Rule(policy, options.slackMs);
    this.#keyOf = keysOf(options.prefix, setting, policy);
    const everyMs = everyMsOf(policy);
    this.#aheadMs = everyMs > 0 ? TIMER_MS + jitterMsMax(everyMs) : 0;
    this.#errands = new Outstanding(clock, options.deadlineMs, (errand) => this.#giveUp(errand));
    this.#breaker = new Breaker(
      clock,
      () => server.swap(this.#keyOf(''), NO_REVISION),
      setting.onReach,
    );
    const trips = new Trips(options.deadlineMs);
    this.#desk = {
      policy: this.#rule.policy,
      server,
      clock,
      random,
      id: ownName(),
      clocks: new Clocks(),
      leases: new Leases(server, clock, trips),
      trips,
      turns: new Turns(),
      heard: () => {
        this.#heardAt = clock.now();
      },
      lost: (error) => this.#lose(error),
    };
  }

  get policy(): Policy {
    return this.#rule.policy;
  }

  get isReachable(): boolean {
    return !this.#breaker.isOpen;
  }

  ask(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, cost, true);
  }

  askNow(key: string, cost: number): Promise<Answer> {
    return this.#ask(key, cost, false);
  }

  async #ask(key: string, cost: number, mayReserve: boolean): Promise<Answer> {
    try {
      const told = await this.#send(
        key,
        (state, moment): Told => this.#rule.ask(state, cost, moment, mayReserve),
      );
      const at = this.#clock.now();
      return { decision: decisionAt(told, at), at, latest: latestOf(told) };
    } catch {
      return this.#makeshift();
    }
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const aheadMs = this.#aheadMs > 0 ? this.#aheadMs + this.#desk.trips.mostMs : 0;
    try {
      const told = await this.#send(
        key,
        (state, moment): LineTold => this.#rule.line(state, costs, moment, aheadMs),
      );
      return { ...lineAt(told, this.#clock.now()), aheadMs };
    } catch {
      return lineOfOne(this.#makeshift());
    }
  }

  async take(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    try {
      const told = await this.#send(
        key,
        (state, moment): Told => this.#rule.take(state, most, moment),
      );
      return told.verdict === 'grant' && isInTime(told, this.#clock.now()) ? told.remaining : 0;
    } catch {
      return this.#makeshift().decision.verdict === 'allow' ? 1 : 0;
    }
  }

  async spare(key: string, most: number, leave: number): Promise<number> {
    const act = (state: State, moment: Moment): Told => {
      const spare = this.#rule.policy.available(state, 0, moment.now) - leave;
      return this.#rule.take(state, Math.min(most, Math.floor(spare)), moment);
    };
    const told = await this.#send(key, act).catch(() => undefined);
    return told?.verdict === 'grant' ? told.remaining : 0;
  }

  async gain(key: string, units: number, upTo: number): Promise<void> {
    const { policy } = this.#rule;
    const act = (state: State, { now }: Moment): void => policy.gain?.(state, 0, units, upTo, now);
    await this.#send(key, act, true).catch(() => {}); // lost, as if it had not come
  }

  /** What cannot be told is lost: what was not used stays taken. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost } = settlement;
    const isGift = outcome === 'ignored' || used < cost;
    const act = (state: State, { now }: Moment): void => this.#rule.settle(state, settlement, now);
    await this.#send(key, act, isGift).catch(() => {});
  }

  async hits(key: string, count: number): Promise<void> {
    await this.#send(key, (state, { now }) => this.#rule.hits(state, count, now)).catch(() => {});
  }

  async look(key: string): Promise<{ state: State; at: Millis } | undefined> {
    // As it stands when this is known: a permit is reserved until it begins.
    const look = (state: State, { now, tripMs }: Moment) => ({
      state: state.slice(),
      at: now + tripMs,
    });
    return this.#send(key, look).catch(() => undefined);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#breaker.stop();
    this.#desk.server.close();
  }

  #makeshift(): Answer {
    const decision = this.onUnavailable === 'allow' ? allow(0) : deny(UNAVAILABLE_RETRY_MS);
    return { decision, at: this.#clock.now(), isMakeshift: true };
  }

  /** Rejects if nobody can decide in time. */
  #send<T>(key: string, act: (state: State, moment: Moment) => T, isGift = false): Promise<T> {
    if (this.#breaker.isOpen) return this.#refuser.refuse(new UnavailableError('etcd'));
    if (key.length > KEY_CHARS_MAX)
      return this.#refuser.refuse(new UnavailableError('etcd', 'the key is too long'));
    if (this.#errands.size >= ERRANDS_MAX)
      return this.#refuser.refuse(new UnavailableError('etcd', 'too much is asked at once'));
    return new Promise<T>((resolve, reject) => {
      const errand: Dated = {
        heldAt: this.#clock.now(),
        isWaiting: true,
        isGift,
        act,
        resolve: (told) => this.#end(errand) && resolve(told as T),
        reject: (error) => this.#end(errand) && reject(error),
      };
      this.#errands.add(errand);
      this.#registerOf(key).add(errand);
    });
  }

  /** False if it was over already. */
  #end(errand: Dated): boolean {
    const { isWaiting } = errand;
    errand.isWaiting = false;
    this.#errands.remove(errand);
    return isWaiting;
  }

  /** If it was this process that was busy, the answer is there and is read before the turn is over. */
  #giveUp(errand: Dated): void {
    atEndOfTurn(() => {
      const { deadlineMs } = this.#options;
      const error = new UnavailableError('etcd', `no decision within ${deadlineMs} ms`);
      // Where others were faster all the time, it has answered, and will again.
      if (errand.isWaiting && this.#heardAt < errand.heldAt) this.#lose(error);
      errand.reject(error);
    });
  }

  /** Nobody is sent there until it answers again. */
  #lose(error: unknown): void {
    if (!this.#isClosed) this.#breaker.open(error);
  }

  #registerOf(key: string): Register {
    const register = this.#registers.get(key) ?? new Register(this.#keyOf(key), this.#desk);
    this.#registers.delete(key);
    this.#registers.set(key, register); // the one used last is the last to go
    if (this.#registers.size > REGISTERS_MAX) this.#forgetOne();
    return register;
  }

  #forgetOne(): void {
    for (const [key, register] of this.#registers) {
      if (!register.isIdle) continue;
      this.#registers.delete(key);
      return;
    }
  }
}

const latestOf = (told: Told): Millis => (told.verdict === 'grant' ? told.latest : Infinity);

const isInTime = ({ latest }: Grant, now: Millis): boolean => now <= latest;

function decisionAt(told: Told, now: Millis): Decision {
  if (told.verdict === 'deny') return told;
  if (!isInTime(told, now)) return told.missed;
  return told.dueAt > now ? wait(told.dueAt - now) : allow(told.remaining);
}

/**
 * Of two, the first may have come too late for its place and the second is early for the next: then one of them begins in
 * between, where nobody else does.
 */
function lineAt(told: LineTold, at: Millis): LineAnswer {
  const decisions = told.map((one) => decisionAt(one, at));
  const refused = decisions.find(({ verdict }) => verdict === 'deny');
  const granted = decisions.filter(({ verdict }) => verdict !== 'deny').length;
  const latests = told.map(latestOf).filter((_, n) => decisions[n].verdict !== 'deny');
  const last = decisions[granted - 1];
  const dueInMs = last?.verdict === 'wait' ? last.waitMs : 0;
  return { granted, dueInMs, latests, refused, at };
}
