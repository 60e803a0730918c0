/**
 * Sends commands to Redis in batches: one script call carries all commands of one tick.
 *
 *     command command command ──▶ end of the tick ──▶ one EVALSHA ──▶ one reply for each command
 *
 * A script call costs Redis more than a dozen decisions, and the client more than Redis, so calls must be few. Every
 * call has a deadline. A call that fails or misses it opens a circuit breaker: commands are rejected at once until
 * Redis replies again. In a cluster each slot has its own breaker: a lost node affects only its own keys and is probed
 * with one of them.
 *
 * A call carries its deadline on Redis's clock. A call that arrives later, because Redis or the client stalled, takes
 * nothing for callers that have timed out. Until Redis's clock is known, the deadline is 0: the first call takes
 * nothing, its reply contains the time, and its commands are sent again.
 *
 * A client may repeat a call after a reconnect although Redis has executed it. A call that returns or counts tokens
 * therefore has an id, and the script executes its commands once.
 */

import {
  type BatchClock,
  batchClock,
  type Clock,
  type Millis,
  onNextTick,
} from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import { randomId } from '../remote-limit.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import { CallDeadlines, MAX_PATIENT_DEADLINES } from './call-deadlines.ts';
import type { RedisConnection, ScriptReply } from './client.ts';
import { RESERVATION_TTL_MS } from './lua-reservations.ts';
import {
  isReservedError,
  NOT_EXECUTED,
  type OnReply,
  type ReplyValue,
  redisTimeOf,
  type TimedReply,
} from './reply.ts';
import { SLOT_COUNT, slotOf } from './slot.ts';

/** The most commands in one call: Redis does nothing else while it runs a script. */
const MAX_BATCH_SIZE = 512;

/** The most commands in flight. Further commands wait here, and this wait does not count against their deadline. */
const MAX_IN_FLIGHT = 16 * MAX_BATCH_SIZE;

/** How often a patient batcher resends a batch that reached Redis late. */
const MAX_PATIENT_RETRIES = 3;

/** With this many unavailable slots, the whole cluster counts as unavailable. */
const MAX_UNAVAILABLE_SLOTS = 64;

/** A command, or a function that creates it when it is sent. */
export type CommandText = string | (() => string);

const textOf = ({ command }: PendingCommand): string =>
  typeof command === 'string' ? command : command();

interface PendingCommand {
  readonly key: string;
  /** All keys of a joint check, which is one command with several keys. */
  readonly jointKeys?: readonly string[] | undefined;
  /** The hash slot of the key in a cluster; 0 without one. */
  readonly slot: number;
  readonly command: CommandText;
  readonly onReply: OnReply;
  readonly onFailure: (error: unknown) => void;
}

/** Batches that contain only `a` (check) use the shorter, faster script. */
export interface Scripts {
  readonly full: string;
  readonly checkOnly: string;
  /** Script for commands with several keys. */
  readonly joint?: string;
  /** True if the full script executes `s`, `h` and `g` once per call id; otherwise they must be idempotent. */
  readonly hasCallIds?: boolean;
}

/** Commands without a decision (settle, hits, report, leave queue, undo). Redis executes them even if they are late. */
const isOneWay = (command: PendingCommand): boolean => /^[shrxu]/.test(textOf(command));

/** Commands that would count twice if Redis executed them twice: settle, hits, report, credit. */
const countsOnce = (text: string): boolean => /^[shrg]/.test(text);

const keysOf = ({ key, jointKeys = [key] }: PendingCommand): readonly string[] => jointKeys;

/** Groups commands by their number of keys: joint checks have their own script and equal numbers of keys per call. */
function splitJoint(commands: readonly PendingCommand[]): readonly (readonly PendingCommand[])[] {
  const byLength = new Map<number, PendingCommand[]>();
  for (const command of commands) {
    const length = command.jointKeys?.length ?? 0;
    const group = byLength.get(length);
    if (group) group.push(command);
    else byLength.set(length, [command]);
  }
  return [...byLength.values()];
}

/** Delivers a reply. An error of one caller does not affect the others. */
function deliver(command: PendingCommand, value: ReplyValue, at: Millis): void {
  try {
    command.onReply(value, at);
  } catch (error) {
    command.onFailure(error);
  }
}

export class ScriptBatcher {
  readonly #connection: RedisConnection;
  #scripts: Scripts;
  /** Read once for all replies of a batch. */
  readonly clock: BatchClock;
  readonly #deadlineMs: Millis;
  /**
   * Upper bound on how far Redis's clock is ahead of the local one, at most one round trip too high. One bound per slot
   * of a cluster, because every node has its own clock. NaN before the first reply.
   */
  readonly #clockOffsetMs: Float64Array;
  /** The first estimate for another slot. If it is too low, the call is late and sent again. */
  #lastOffsetMs: Millis = Number.NaN;
  /**
   * Never seeded: a call with the id of another call would not be executed. Created at the first use, because
   * Cloudflare Workers have no random numbers outside a request.
   */
  #id: string | undefined;
  #lastCallNumber = 0;
  /** Until this time keys may have reservations, which only the full script can read. */
  #isReservedUntil: Millis = -Infinity;
  readonly #calls: CallDeadlines;
  readonly #onAvailability: (isAvailable: boolean, why: unknown) => void;
  readonly #onLateReplies: ((rttMs: Millis) => void) | undefined;
  /** Arrival of the first late reply in this outage. */
  #firstLateAt: Millis = Infinity;
  /** Open circuit breakers by slot. */
  readonly #openBreakers = new Map<number, CircuitBreaker>();
  #buffered: PendingCommand[] = [];
  /** True if a joint check is buffered. */
  #hasJoint = false;
  /** Batches that are ready to be sent, oldest first. */
  #batches: (readonly PendingCommand[])[] = [];
  #inFlightCount = 0;
  #isClosed = false;
  readonly rtt = new RttEstimator();
  readonly #rejectionPacer = new RejectionPacer();

  constructor(
    connection: RedisConnection,
    scripts: Scripts,
    settings: {
      readonly clock: Clock;
      readonly deadlineMs: Millis;
      readonly isPatient?: boolean;
      readonly onAvailability: (isAvailable: boolean, why: unknown) => void;
      /** Called in an outage that is caused by late replies. */
      readonly onLateReplies?: (rttMs: Millis) => void;
    },
  ) {
    this.#connection = connection;
    this.#scripts = scripts;
    this.clock = batchClock(settings.clock);
    this.#deadlineMs = settings.deadlineMs;
    this.#onAvailability = settings.onAvailability;
    this.#onLateReplies = settings.onLateReplies;
    const { clock, deadlineMs, isPatient } = settings;
    this.#calls = new CallDeadlines(clock, deadlineMs, undefined, isPatient);
    this.#clockOffsetMs = new Float64Array(connection.isCluster ? SLOT_COUNT : 1).fill(Number.NaN);
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get isAvailable(): boolean {
    return this.#openBreakers.size === 0;
  }

  /** Sends a command. Rejects with an UnavailableError without a reply in time. */
  send(key: string, command: CommandText, jointKeys?: readonly string[]): Promise<TimedReply> {
    return new Promise((resolve, reject) => {
      this.submit(key, command, (value, at) => resolve({ value, at }), reject, jointKeys);
    });
  }

  /** `send` without a promise, which would make a check 20 % more expensive. */
  submit(
    key: string,
    command: CommandText,
    onReply: OnReply,
    onFailure: (error: unknown) => void,
    jointKeys?: readonly string[],
  ): void {
    const slot = this.#connection.isCluster ? slotOf(key) : 0;
    if (this.#isUnavailable(slot)) {
      this.#rejectionPacer.reject(new UnavailableError('Redis')).catch(onFailure);
      return;
    }
    if (jointKeys) this.#hasJoint = true;
    this.#buffered.push({ key, jointKeys, slot, command, onReply, onFailure });
    if (this.#buffered.length === 1) onNextTick(() => this.#flush());
  }

  /** Converts a local instant to Redis's clock, at most one round trip too late; NaN before the first reply. */
  toRedisTime(key: string, at: Millis): Millis {
    return at + this.#offsetOf(this.#connection.isCluster ? slotOf(key) : 0);
  }

  /** Sets the scripts of later calls, after the limit's numbers have changed. */
  useScripts(scripts: Scripts): void {
    this.#scripts = scripts;
  }

  /** Stops. Calls in flight may still fail; this opens no breaker. */
  stop(): void {
    this.#isClosed = true;
    for (const breaker of this.#openBreakers.values()) breaker.stop();
  }

  #isUnavailable(slot: number): boolean {
    if (this.#openBreakers.size === 0) return false;
    const own = this.#openBreakers.get(slot);
    if (own || this.#openBreakers.size < MAX_UNAVAILABLE_SLOTS) return own?.isOpen ?? false;
    const [oldest] = this.#openBreakers.values();
    return oldest.isOpen; // starts a due probe where no timer does
  }

  /** Sends no commands to this slot until a probe with this key succeeds. */
  #openBreaker({ key, slot }: PendingCommand, why: unknown): void {
    if (this.#isClosed || this.#isUnavailable(slot)) return;
    const isFirst = this.#openBreakers.size === 0;
    const onChange = (isAvailable: boolean): void => {
      if (!isAvailable || !this.#openBreakers.delete(slot) || this.#openBreakers.size > 0) return;
      this.#firstLateAt = Infinity;
      this.#onAvailability(true, undefined);
    };
    const probe = () => this.#runScript(slot, this.#scripts.full, [key], ['p']);
    const breaker = new CircuitBreaker(this.clock, probe, onChange);
    this.#openBreakers.set(slot, breaker);
    breaker.trip(why);
    if (isFirst) this.#onAvailability(false, why);
  }

  #flush(): void {
    const commands = this.#buffered;
    this.#buffered = [];
    const bySlot = this.#groupBySlot(commands);
    const groups = this.#hasJoint ? bySlot.flatMap(splitJoint) : bySlot;
    this.#hasJoint = false;
    for (const group of groups) {
      const size = Math.ceil(MAX_BATCH_SIZE / (group[0].jointKeys?.length ?? 1));
      for (let from = 0; from < group.length; from += size) {
        this.#batches.push(group.slice(from, from + size));
      }
    }
    this.#dispatch();
  }

  #dispatch(): void {
    let sent = 0;
    for (; sent < this.#batches.length && this.#inFlightCount < MAX_IN_FLIGHT; sent++) {
      const commands = this.#batches[sent];
      if (this.#isUnavailable(commands[0].slot)) {
        for (const { onFailure } of commands) onFailure(new UnavailableError('Redis'));
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

  /** Groups commands by slot: a cluster runs a script only on keys of one slot. */
  #groupBySlot(commands: readonly PendingCommand[]): readonly (readonly PendingCommand[])[] {
    if (!this.#connection.isCluster) return [commands];
    const bySlot = new Map<number, PendingCommand[]>();
    for (const command of commands) {
      const group = bySlot.get(command.slot);
      if (group) group.push(command);
      else bySlot.set(command.slot, [command]);
    }
    return [...bySlot.values()];
  }

  async #sendBatch(commands: readonly PendingCommand[], retries = 0, since = this.clock.now()) {
    const texts = commands.map(textOf);
    const isUniform = texts.every((text) => text === texts[0]);
    const args = isUniform ? [texts[0]] : texts;
    const isCheckOnly =
      args.every((text) => text.startsWith('a')) && !(this.clock.now() < this.#isReservedUntil);
    const script = this.#scriptFor(commands[0], isCheckOnly);
    try {
      const isJoint = commands[0].jointKeys !== undefined;
      const keys = isJoint ? commands.flatMap(keysOf) : commands.map(({ key }) => key);
      const callId = isCheckOnly ? '' : this.#callIdOf(args);
      const { slot } = commands[0];
      const reply = await this.#runScript(slot, script, keys, args, callId, since);
      const at = Number(reply[0]); // NaN if late
      if (Number.isNaN(at)) return await this.#resendBatch(commands, reply, retries, since);
      this.clock.freeze();
      try {
        for (let n = 0; n < commands.length; n++) deliver(commands[n], reply[n + 1], at);
      } finally {
        this.clock.unfreeze();
      }
    } catch (error) {
      if (isCheckOnly && isReservedError(error)) {
        this.#isReservedUntil = this.clock.now() + RESERVATION_TTL_MS;
        await this.#sendBatch(commands, retries, since);
        return;
      }
      this.#openBreaker(commands[0], error);
      const unavailable = new UnavailableError('Redis', error);
      for (const { onFailure } of commands) onFailure(unavailable);
    }
  }

  /**
   * Sends commands again that a late call did not execute. Their callers still wait: Redis's clock was unknown or has
   * been stepped, and is known now, or Redis was busy.
   */
  async #resendBatch(
    commands: readonly PendingCommand[],
    reply: ScriptReply,
    retries: number,
    since: Millis,
  ): Promise<void> {
    if (retries === (this.#calls.isPatient ? MAX_PATIENT_RETRIES : 1))
      throw new Error(`calls reach it after their deadline, ${retries + 1} times in a row`);
    const isDone = (command: PendingCommand, n: number): boolean =>
      isOneWay(command) && reply[n + 1] !== NOT_EXECUTED;
    for (const command of commands.filter(isDone)) command.onReply(0, Number.NaN);
    const rest = commands.filter((command, n) => !isDone(command, n));
    if (rest.length > 0) await this.#sendBatch(rest, retries + 1, since);
  }

  #scriptFor({ jointKeys }: PendingCommand, isCheckOnly: boolean): string {
    const { checkOnly, full, joint } = this.#scripts;
    if (isCheckOnly) return checkOnly;
    return jointKeys && joint !== undefined ? joint : full;
  }

  /** Returns the id of a call; empty if the call may be executed twice. */
  #callIdOf(texts: readonly string[]): string {
    const needsId = this.#scripts.hasCallIds === true && texts.some(countsOnce);
    if (!needsId) return '';
    this.#id ??= randomId(cryptoRandom);
    return `${this.#id}/${++this.#lastCallNumber}`;
  }

  #runScript(
    slot: number,
    script: string,
    keys: readonly string[],
    texts: readonly string[],
    callId = '',
    since = this.clock.now(),
  ): Promise<ScriptReply> {
    const sentAt = this.clock.now();
    const offsetMs = this.#offsetOf(slot);
    const deadline = Number.isNaN(offsetMs) ? 0 : sentAt + offsetMs + this.#calls.silenceMsOf(slot);
    const time = callId === '' ? `by ${deadline}` : `by ${deadline} ${callId}`;
    const call = this.#connection.run(script, keys, [time, ...texts]);
    const inTime = this.#calls.run(call, slot, since, (reply) => {
      this.#learnOffset(slot, redisTimeOf(reply), sentAt);
      return reply;
    });
    this.#connection.waitUntil?.(inTime.catch(() => {}));
    return inTime;
  }

  #offsetOf(slot: number): Millis {
    const known = this.#clockOffsetMs[slot];
    return Number.isNaN(known) ? this.#lastOffsetMs : known;
  }

  /** A reply shows that Redis's clock is ahead by at most `at - sentAt` and at least `at - now`. */
  #learnOffset(slot: number, at: Millis, sentAt: Millis): void {
    const now = this.clock.now();
    this.rtt.observe(now - sentAt);
    const known = this.#clockOffsetMs[slot];
    if (now - sentAt > this.#deadlineMs) this.#noteLateReply(sentAt, now);
    const maxMs = this.#deadlineMs * (Number.isNaN(known) ? MAX_PATIENT_DEADLINES : 1);
    if (now - sentAt > maxMs) return; // too imprecise
    if (!(known >= at - now && known <= at - sentAt)) this.#clockOffsetMs[slot] = at - sentAt;
    this.#lastOffsetMs = this.#clockOffsetMs[slot];
  }

  /** After a stall, all late replies arrive at once. A late reply to a call sent after one shows that Redis is slow. */
  #noteLateReply(sentAt: Millis, now: Millis): void {
    if (this.isAvailable) return;
    if (sentAt > this.#firstLateAt) this.#onLateReplies?.(now - sentAt);
    this.#firstLateAt = Math.min(this.#firstLateAt, now);
  }
}
