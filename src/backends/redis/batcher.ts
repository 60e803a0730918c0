/**
 * Sends commands to Redis in batches: all commands of one tick travel as one script call.
 *
 *     command command command ──▶ end of the tick ──▶ one EVALSHA ──▶ one reply for each command
 *
 * A script call costs Redis more than a dozen decisions, and the client more than Redis, so calls must be few. Every call
 * has a deadline. A call that fails or misses it opens a circuit breaker, and commands are rejected at once until Redis
 * answers again. In a cluster each slot has its own breaker: a lost node affects only its own keys, and is probed with
 * one of them.
 *
 * A call carries its deadline on Redis's clock. A call that arrives later, because Redis or the client stalled, then takes
 * nothing for callers that have timed out.
 */

import { type Clock, type Millis, onNextTick } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import { CallDeadlines } from './call-deadlines.ts';
import type { RedisConnection, ScriptReply } from './client.ts';
import type { ReplyValue } from './reply.ts';
import { SLOT_COUNT, slotOf } from './slot.ts';

/** Commands in one call: Redis does nothing else while it runs a script. */
const MAX_BATCH_SIZE = 512;

/** Commands in flight. Further ones wait here, where queueing does not count against their deadline. */
const MAX_IN_FLIGHT = 16 * MAX_BATCH_SIZE;

/** With this many unavailable slots, the whole cluster counts as unavailable. */
const MAX_UNAVAILABLE_SLOTS = 64;

interface PendingCommand {
  readonly key: string;
  /** The hash slot of the key in a cluster; 0 without one. */
  readonly slot: number;
  readonly command: string;
  readonly resolve: (reply: TimedReply) => void;
  readonly reject: (error: unknown) => void;
}

/** A reply and its time on Redis's clock. */
export interface TimedReply {
  readonly value: ReplyValue;
  readonly at: Millis;
}

/** Batches that hold nothing but `a` (check) use the shorter and faster script. */
export interface Scripts {
  readonly full: string;
  readonly checkOnly: string;
}

/** Commands without a decision (settle, hits, leave queue): Redis executes them even when they are late. */
const isOneWay = ({ command }: PendingCommand): boolean => /^[shx]/.test(command);

const isLateReply = ([first]: ScriptReply): boolean => String(first).startsWith('late ');

const redisTimeOf = ([first]: ScriptReply): Millis => Number(String(first).replace('late ', ''));

export class ScriptBatcher {
  readonly #connection: RedisConnection;
  readonly #scripts: Scripts;
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  /**
   * Upper bound on how far Redis's clock is ahead of the local one, too high by one round trip at most. One for each
   * slot of a cluster, because every node has its own clock.
   */
  readonly #clockOffsetMs: Float64Array;
  readonly #calls: CallDeadlines;
  readonly #onAvailability: (isAvailable: boolean, why: unknown) => void;
  /** By slot. */
  readonly #openBreakers = new Map<number, CircuitBreaker>();
  #buffered: PendingCommand[] = [];
  /** Ready to be sent, oldest first. */
  #batches: (readonly PendingCommand[])[] = [];
  #inFlightCount = 0;
  #isClosed = false;
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
    this.#calls = new CallDeadlines(settings.clock, settings.deadlineMs);
    this.#clockOffsetMs = new Float64Array(connection.isCluster ? SLOT_COUNT : 1).fill(Number.NaN);
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get isAvailable(): boolean {
    return this.#openBreakers.size === 0;
  }

  /** Rejects with an UnavailableError if there is no reply in time. */
  send(key: string, command: string): Promise<TimedReply> {
    const slot = this.#connection.isCluster ? slotOf(key) : 0;
    if (this.#isUnavailable(slot))
      return this.#rejectionPacer.reject(new UnavailableError('Redis'));
    return new Promise((resolve, reject) => {
      this.#buffered.push({ key, slot, command, resolve, reject });
      if (this.#buffered.length === 1) onNextTick(() => this.#flush());
    });
  }

  /** Calls in flight may still fail: that opens no breaker. */
  stop(): void {
    this.#isClosed = true;
    for (const breaker of this.#openBreakers.values()) breaker.stop();
  }

  #isUnavailable(slot: number): boolean {
    return (
      this.#openBreakers.size > 0 &&
      (this.#openBreakers.has(slot) || this.#openBreakers.size >= MAX_UNAVAILABLE_SLOTS)
    );
  }

  /** No command is sent to this slot until a probe with this key succeeds. */
  #openBreaker({ key, slot }: PendingCommand, why: unknown): void {
    if (this.#isClosed || this.#isUnavailable(slot)) return;
    const isFirst = this.#openBreakers.size === 0;
    const onChange = (isAvailable: boolean): void => {
      if (isAvailable && this.#openBreakers.delete(slot) && this.#openBreakers.size === 0)
        this.#onAvailability(true, undefined);
    };
    const probe = () => this.#runScript(slot, this.#scripts.full, [key], ['p']);
    const breaker = new CircuitBreaker(this.#clock, probe, onChange);
    this.#openBreakers.set(slot, breaker);
    breaker.trip(why);
    if (isFirst) this.#onAvailability(false, why);
  }

  #flush(): void {
    const commands = this.#buffered;
    this.#buffered = [];
    for (const group of this.#groupBySlot(commands)) {
      for (let from = 0; from < group.length; from += MAX_BATCH_SIZE) {
        this.#batches.push(group.slice(from, from + MAX_BATCH_SIZE));
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

  /** A cluster runs a script only on keys of one slot. */
  #groupBySlot(commands: readonly PendingCommand[]): Iterable<readonly PendingCommand[]> {
    if (!this.#connection.isCluster) return [commands];
    const bySlot = new Map<number, PendingCommand[]>();
    for (const command of commands) {
      const group = bySlot.get(command.slot);
      if (group) group.push(command);
      else bySlot.set(command.slot, [command]);
    }
    return bySlot.values();
  }

  async #sendBatch(commands: readonly PendingCommand[], isRetry = false): Promise<void> {
    const texts = commands.map(({ command }) => command);
    const isUniform = texts.every((text) => text === texts[0]);
    const isCheckOnly = texts.every((text) => text.startsWith('a'));
    const script = isCheckOnly ? this.#scripts.checkOnly : this.#scripts.full;
    try {
      const keys = commands.map(({ key }) => key);
      const args = isUniform ? [texts[0]] : texts;
      const reply = await this.#runScript(commands[0].slot, script, keys, args);
      if (isLateReply(reply)) return await this.#resendBatch(commands, isRetry);
      const at = Number(reply[0]);
      for (let n = 0; n < commands.length; n++) commands[n].resolve({ value: reply[n + 1], at });
    } catch (error) {
      this.#openBreaker(commands[0], error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { reject } of commands) reject(unavailable);
    }
  }

  /** A late call whose reply arrived in time: Redis's clock was stepped. Its offset is known now, so checks are retried once. */
  async #resendBatch(commands: readonly PendingCommand[], isRetry: boolean): Promise<void> {
    if (isRetry) throw new Error('its clock changes faster than calls arrive');
    for (const command of commands)
      if (isOneWay(command)) command.resolve({ value: 0, at: Number.NaN });
    const checks = commands.filter((command) => !isOneWay(command));
    if (checks.length > 0) await this.#sendBatch(checks, true);
  }

  #runScript(
    slot: number,
    script: string,
    keys: readonly string[],
    texts: readonly string[],
  ): Promise<ScriptReply> {
    const sentAt = this.#clock.now();
    const deadline = sentAt + this.#clockOffsetMs[slot] + this.#deadlineMs;
    const args = [Number.isNaN(deadline) ? '' : `by ${deadline}`, ...texts];
    const call = this.#connection.run(script, keys, args).then((reply) => {
      this.#clockOffsetMs[slot] = redisTimeOf(reply) - sentAt;
      return reply;
    });
    return this.#calls.run(call);
  }
}
