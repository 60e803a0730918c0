/**
 * The way to Redis and back: whatever is asked in one tick travels as one call.
 *
 *     ask ask ask ──▶ end of the tick ──▶ EVALSHA, all of them ──▶ answers, each to its own
 *
 * A call to a script costs Redis more than deciding a dozen asks, and the client more than Redis; so
 * calls are what must be few. Every call has a deadline. One that misses it, or fails, opens the
 * breaker, and until Redis answers again nobody waits for it. On a cluster each slot has a breaker of
 * its own: a node that is away takes only its own keys with it, and is asked for one of them again.
 *
 * A call also says on Redis's clock until when somebody waits for it. One that was held up on the way,
 * by a Redis that stood still or a client that kept it, then takes nothing for those who have gone.
 */

import { type Clock, type Millis, onImmediate, onNextTick } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';
import { UnavailableError } from '../../core/errors.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import type { RedisConnection, ScriptReply } from './client.ts';
import type { ReplyValue } from './reply.ts';
import { SLOT_COUNT, slotOf } from './slot.ts';

/** The most asks in one call: Redis does nothing else while it runs one. */
const MAX_BATCH_SIZE = 512;

/** The most asks on their way at once. Those beyond wait here, where waiting for one another is not being late. */
const MAX_IN_FLIGHT = 16 * MAX_BATCH_SIZE;

/** When so many slots of a cluster are out of reach, all of them are taken to be. */
const MAX_UNAVAILABLE_SLOTS = 64;

/** One thing to ask, and who waits for the answer. */
interface PendingCommand {
  readonly key: string;
  /** Where the key lives on a cluster; 0 elsewhere. */
  readonly slot: number;
  readonly command: string;
  readonly resolve: (answer: TimedReply) => void;
  readonly reject: (error: unknown) => void;
}

/** An answer, and the time it was given on Redis's clock. */
export interface TimedReply {
  readonly value: ReplyValue;
  readonly at: Millis;
}

/** What decides: plain asks alone need less of it, and a shorter script is a faster one. */
export interface Scripts {
  readonly full: string;
  readonly checkOnly: string;
}

/** What is told and not asked (settled, hits, left): it is heard even if it comes late. */
const isOneWay = ({ command }: PendingCommand): boolean => /^[shx]/.test(command);

/** A call under way. */
interface ScriptCall {
  readonly issuedAt: Millis;
  readonly onTimeout: () => unknown;
}

const isLateReply = ([first]: ScriptReply): boolean => String(first).startsWith('late ');

const redisTimeOf = ([first]: ScriptReply): Millis => Number(String(first).replace('late ', ''));

export class ScriptBatcher {
  readonly #connection: RedisConnection;
  readonly #scripts: Scripts;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  /**
   * How far Redis's clock is ahead of ours: never less, and more by no more than a trip. One for each slot
   * of a cluster, whose nodes have clocks of their own.
   */
  readonly #clockOffsetMs: Float64Array;
  /** Those that are not answered yet. */
  readonly #calls: DeadlineSet<ScriptCall>;
  readonly #onAvailability: (isAvailable: boolean, why: unknown) => void;
  /** The slots that are out of reach. */
  readonly #openBreakers = new Map<number, CircuitBreaker>();
  #buffered: PendingCommand[] = [];
  /** What travels together, in the order it goes. */
  #batches: (readonly PendingCommand[])[] = [];
  #inFlightCount = 0;
  readonly #rejectionPacer = new RejectionPacer();

  constructor(
    connection: RedisConnection,
    scripts: Scripts,
    settings: {
      readonly clock: Clock;
      readonly deadlineMs: Millis;
      readonly onAvailability: (isAvailable: boolean, why: unknown) => void;
    },
  ) {
    this.#connection = connection;
    this.#scripts = scripts;
    this.#clock = settings.clock;
    this.#deadlineMs = settings.deadlineMs;
    this.#onAvailability = settings.onAvailability;
    const { clock, deadlineMs } = settings;
    this.#calls = new DeadlineSet(clock, deadlineMs, ({ onTimeout }) => onTimeout());
    this.#clockOffsetMs = new Float64Array(connection.isCluster ? SLOT_COUNT : 1).fill(Number.NaN);
  }

  get isAvailable(): boolean {
    return this.#openBreakers.size === 0;
  }

  /** Rejects with an UnavailableError if there is no answer in time. */
  send(key: string, text: string): Promise<TimedReply> {
    const slot = this.#connection.isCluster ? slotOf(key) : 0;
    if (this.#isUnavailable(slot))
      return this.#rejectionPacer.reject(new UnavailableError('Redis'));
    return new Promise((resolve, reject) => {
      this.#buffered.push({ key, slot, command: text, resolve, reject });
      if (this.#buffered.length === 1) onNextTick(() => this.#flush());
    });
  }

  stop(): void {
    for (const breaker of this.#openBreakers.values()) breaker.stop();
  }

  #isUnavailable(slot: number): boolean {
    return (
      this.#openBreakers.size > 0 &&
      (this.#openBreakers.has(slot) || this.#openBreakers.size >= MAX_UNAVAILABLE_SLOTS)
    );
  }

  /** Nobody is sent there until this very key could be decided again. */
  #openBreaker({ key, slot }: PendingCommand, why: unknown): void {
    if (this.#isUnavailable(slot)) return;
    const isFirst = this.#openBreakers.size === 0;
    const changed = (isBack: boolean): void => {
      if (isBack && this.#openBreakers.delete(slot) && this.#openBreakers.size === 0)
        this.#onAvailability(true, undefined);
    };
    const breaker = new CircuitBreaker(
      this.#clock,
      () => this.#runScript(slot, this.#scripts.full, [key], ['p']),
      changed,
    );
    this.#openBreakers.set(slot, breaker);
    breaker.trip(why);
    if (isFirst) this.#onAvailability(false, why);
  }

  #flush(): void {
    const commands = this.#buffered;
    this.#buffered = [];
    for (const together of this.#groupBySlot(commands)) {
      for (let from = 0; from < together.length; from += MAX_BATCH_SIZE) {
        this.#batches.push(together.slice(from, from + MAX_BATCH_SIZE));
      }
    }
    this.#dispatch();
  }

  #dispatch(): void {
    let sent = 0;
    for (; sent < this.#batches.length && this.#inFlightCount < MAX_IN_FLIGHT; sent++) {
      const commands = this.#batches[sent];
      if (this.#isUnavailable(commands[0].slot)) {
        for (const { reject } of commands) reject(new UnavailableError('Redis'));
        continue;
      }
      this.#inFlightCount += commands.length;
      this.#sendBatch(commands).then(() => {
        this.#inFlightCount -= commands.length;
        if (this.#batches.length > 0) this.#dispatch();
      });
    }
    this.#batches = this.#batches.slice(sent);
  }

  /** On a cluster, only what lives in one slot may travel together. */
  #groupBySlot(commands: readonly PendingCommand[]): Iterable<readonly PendingCommand[]> {
    if (!this.#connection.isCluster) return [commands];
    const bySlot = new Map<number, PendingCommand[]>();
    for (const command of commands) {
      const others = bySlot.get(command.slot);
      if (others) others.push(command);
      else bySlot.set(command.slot, [command]);
    }
    return bySlot.values();
  }

  async #sendBatch(commands: readonly PendingCommand[], isAgain = false): Promise<void> {
    const texts = commands.map(({ command }) => command);
    const isUniform = texts.every((text) => text === texts[0]);
    const isPlain = texts.every((text) => text.startsWith('a'));
    const script = isPlain ? this.#scripts.checkOnly : this.#scripts.full;
    try {
      const keys = commands.map(({ key }) => key);
      const reply = await this.#runScript(
        commands[0].slot,
        script,
        keys,
        isUniform ? [texts[0]] : texts,
      );
      if (isLateReply(reply)) return await this.#resendBatch(commands, isAgain);
      const at = Number(reply[0]);
      for (let n = 0; n < commands.length; n++) commands[n].resolve({ value: reply[n + 1], at });
    } catch (error) {
      this.#openBreaker(commands[0], error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { reject } of commands) reject(unavailable);
    }
  }

  /** Too late and yet in time: Redis's clock was stepped. Now it is known, and those who ask try again. */
  async #resendBatch(commands: readonly PendingCommand[], isAgain: boolean): Promise<void> {
    if (isAgain) throw new UnavailableError('Redis', 'its clock runs away');
    for (const command of commands)
      if (isOneWay(command)) command.resolve({ value: 0, at: Number.NaN });
    const asking = commands.filter((command) => !isOneWay(command));
    if (asking.length > 0) await this.#sendBatch(asking, true);
  }

  #runScript(
    slot: number,
    script: string,
    keys: readonly string[],
    texts: readonly string[],
  ): Promise<ScriptReply> {
    const since = this.#clock.now();
    const by = since + this.#clockOffsetMs[slot] + this.#deadlineMs;
    const args = [Number.isNaN(by) ? '' : `by ${by}`, ...texts];
    return new Promise((resolve, reject) => {
      const late = (): void =>
        reject(new UnavailableError('Redis', `no answer within ${this.#deadlineMs} ms`));
      // If it was this process that was busy, the answer is there and is read before the turn is over.
      const onTimeout = (): unknown => onImmediate(late);
      const call = { issuedAt: since, onTimeout };
      this.#calls.add(call);
      this.#connection.run(script, keys, args).then(
        (reply) => {
          this.#calls.remove(call);
          this.#clockOffsetMs[slot] = redisTimeOf(reply) - since;
          resolve(reply);
        },
        (error) => {
          this.#calls.remove(call);
          reject(error);
        },
      );
    });
  }
}
