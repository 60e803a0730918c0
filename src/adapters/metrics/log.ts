/**
 * Says in a log that a limit holds somebody back, without filling the log.
 *
 *     const stop = logLimiting(api, console);
 *     // limit "api": 1 denied; last key "alice", closed for another 100 ms
 *     // limit "api": 4213 denied within 5 s; last key "bob", closed for another 12 ms
 *     // limit "api": out of reach: "Redis is out of reach: no answer within 100 ms", onUnavailable answers: deny
 *     // limit "api": in reach again after 7.2 s
 *
 * A limiter is busiest when there is most to say, so the log is limited itself. Each limit has a line
 * of its own, and another for whether it can be reached, which must not wait behind the first: the first
 * event is told at once, what follows is counted and told in one line when `every` is over, and so on
 * until nothing happened for that long.
 *
 *     event      ×  × ××× ×                     ×
 *     line       1        ⌊5⌋                   1
 *     time    ───┼─────────┼─────────┼──────────┼──▶
 *                   every     every
 */

import { alarm, type Clock, type Millis } from '../../core/clock.ts';
import { WHEN_SETTLED } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, reasonOf, show } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { warn } from '../../core/process-warning.ts';
import type { LimitEvent, ReachEvent } from '../../limiter/events.ts';
import { type AnyLimiter, listOf, requireLimiter } from './watch.ts';

/** What can hold a call back, or go wrong with it. */
export type Limiting = 'denied' | 'waited' | 'lost' | 'reach';

const LIMITING: readonly Limiting[] = ['denied', 'waited', 'lost', 'reach'];

/** What a line says, for machines. The message says the same for people. */
export interface LimitingFields {
  readonly limit: string;
  /** How many events the line stands for, and of which kind. */
  readonly count: number;
  readonly denied: number;
  readonly waited: number;
  readonly lost: number;
  /** How often whoever decides went out of reach or came back; a line for these is for nothing else. */
  readonly reach: number;
  /** How that stands now, and why if it is out of reach. */
  readonly isReachable?: boolean;
  readonly reason?: string;
  /** Who answers until it is back. */
  readonly onUnavailable?: string;
  /** From the first of them to the last. */
  readonly spanMs: Millis;
  /** Whom the last one was about; nobody if it is about reach. */
  readonly key: string;
  /** Until when the last one that was denied is, on the limiter's clock; left out if nobody knows. */
  readonly until?: Millis;
}

type Write = (message: string, fields: LimitingFields) => unknown;

/** Whatever has `warn`, or else `info`: message first. `console` is one. */
export type Logger = { readonly warn: Write } | { readonly warn?: undefined; readonly info: Write };

/** How often there is a line, and for what. */
export interface LogOptions {
  /** At most one line for each limit in this time. Default 5 s. */
  readonly every?: Duration;
  /** What is worth a line. Default: denied, lost and reach. */
  readonly events?: readonly Limiting[];
}

const EVERY_MS_DEFAULT: Millis = 5000;

/** Logs what one limiter or several hold back. What comes back ends that, and tells the rest first. */
export function logLimiting(
  limiters: AnyLimiter | readonly AnyLimiter[],
  logger: Logger,
  options: LogOptions = {},
): () => void {
  const fields = new Fields('', options);
  const everyMs = fields.duration('every', EVERY_MS_DEFAULT);
  const events = readEvents(fields);
  fields.done();
  const write = writerOf(logger);
  const list = listOf(limiters);
  for (const [n, limiter] of list.entries()) requireLimiter(limiter, `limiters[${n}]`);

  // By the name in the event: limiters of one name are one limit, and each part of several is its own.
  const lines = new Map<string, Line>();
  const reaches = new Map<string, Line>();
  const lineOf = (isReach: boolean, name: string, clock: Clock): Line => {
    const own = isReach ? reaches : lines;
    const line = own.get(name) ?? new Line(name, clock, everyMs, write);
    own.set(name, line);
    return line;
  };
  const stops = list.map((limiter) =>
    limiter.on((event) => {
      const kind = kindOf(event);
      if (!kind || !events.includes(kind)) return;
      lineOf(kind === 'reach', event.limit, limiter.clock).note(kind, event);
    }),
  );
  return () => {
    for (const stop of stops) stop();
    for (const line of [...lines.values(), ...reaches.values()]) line.end();
    lines.clear();
    reaches.clear();
  };
}

function readEvents(fields: Fields): readonly Limiting[] {
  const given = fields.raw('events') ?? ['denied', 'lost', 'reach'];
  const isKind = (value: unknown): boolean => LIMITING.some((kind) => kind === value);
  if (Array.isArray(given) && given.length > 0 && given.every(isKind)) return given;
  return fields.fail('events', `a list out of ${LIMITING.join(', ')}`);
}

function kindOf(event: LimitEvent): Limiting | undefined {
  if (event.type === 'lost' || event.type === 'reach') return event.type;
  if (event.type !== 'decision') return undefined;
  const { decision, waitedMs } = event;
  if (decision.verdict === 'deny') return 'denied';
  return decision.verdict === 'wait' || waitedMs > 0 ? 'waited' : undefined;
}

/** Calls the logger, and sees to it that its mistakes stay its own, now or in a promise. */
function writerOf(logger: Logger): Write {
  const door = (['warn', 'info'] as const).find((name) => isWriter(logger, name));
  if (!door) throw new ConfigError('logger', 'an object with warn or info', logger);
  const failed = (error: unknown): void => warn('ADAPTER', `a logger of limits failed: ${error}`);
  return (message, fields) => {
    try {
      const done = (logger as Record<typeof door, Write>)[door](message, fields);
      if (done instanceof Promise) done.catch(failed);
    } catch (error) {
      failed(error);
    }
  };
}

const isWriter = (logger: unknown, name: string): boolean =>
  isRecord(logger) && typeof logger[name] === 'function';

/** What has happened since the last line. */
interface Tally {
  readonly counts: Record<Limiting, number>;
  readonly since: Millis;
  last: LimitEvent;
  /** How long the last one that was denied is to stay away, from when. */
  closed?: { readonly at: Millis; readonly retryAfterMs: Millis };
  /** Since when it was out of reach, if that is what it is back from. */
  outSince?: Millis | undefined;
}

const NOTHING: Readonly<Record<Limiting, number>> = { denied: 0, waited: 0, lost: 0, reach: 0 };

class Line {
  readonly #name: string;
  readonly #clock: Clock;
  readonly #everyMs: Millis;
  readonly #write: Write;
  #tally: Tally | undefined;
  #outSince: Millis | undefined;
  /** Set while a line was written less than `every` ago. */
  #cancel: (() => void) | undefined;

  constructor(name: string, clock: Clock, everyMs: Millis, write: Write) {
    this.#name = name;
    this.#clock = clock;
    this.#everyMs = everyMs;
    this.#write = write;
  }

  note(kind: Limiting, event: LimitEvent): void {
    this.#tally ??= { counts: { ...NOTHING }, since: event.at, last: event };
    this.#tally.counts[kind]++;
    this.#tally.last = event;
    if (event.type === 'decision' && event.decision.verdict === 'deny') {
      this.#tally.closed = { at: event.at, retryAfterMs: event.decision.retryAfterMs };
    }
    if (event.type === 'reach') {
      this.#tally.outSince = this.#outSince;
      this.#outSince = event.isReachable ? undefined : event.at;
    }
    if (!this.#cancel) this.#next();
  }

  /** Tells what is left to tell, and nothing more. */
  end(): void {
    this.#cancel?.();
    this.#tell();
  }

  #next(): void {
    if (!this.#tally) {
      this.#cancel = undefined;
      return;
    }
    // First the pause, then the line: a logger that asks this very limit must not start another.
    const until = this.#clock.now() + this.#everyMs;
    this.#cancel = alarm(this.#clock, until, () => this.#next(), false);
    this.#tell();
  }

  #tell(): void {
    const tally = this.#tally;
    if (!tally) return;
    this.#tally = undefined;
    const fields = fieldsOf(this.#name, tally);
    this.#write(messageOf(fields, tally, this.#clock.now()), fields);
  }
}

function fieldsOf(limit: string, { counts, since, last, closed }: Tally): LimitingFields {
  const until = closed && closed.retryAfterMs !== WHEN_SETTLED && closed.at + closed.retryAfterMs;
  return {
    limit,
    count: LIMITING.reduce((sum, kind) => sum + counts[kind], 0),
    ...counts,
    spanMs: Math.round(last.at - since),
    key: last.key,
    ...(last.type === 'reach' && { isReachable: last.isReachable }),
    ...(last.type === 'reach' && !last.isReachable && outOf(last)),
    ...(typeof until === 'number' && until < Infinity && { until: Math.ceil(until) }),
  };
}

const outOf = ({ reason, onUnavailable }: ReachEvent) => ({
  reason: reasonOf(reason),
  ...(onUnavailable && { onUnavailable }),
});

const seconds = (ms: Millis): string => `${Math.ceil(ms / 100) / 10} s`;

function messageOf(fields: LimitingFields, tally: Tally, now: Millis): string {
  const { limit, spanMs, key } = fields;
  const { closed } = tally;
  if (fields.reach > 0) return `limit ${show(limit)}: ${reachOf(fields, tally)}`;
  const what = LIMITING.filter((kind) => fields[kind] > 0).map((kind) => `${fields[kind]} ${kind}`);
  const within = spanMs > 0 ? ` within ${seconds(spanMs)}` : '';
  const until = closed ? `, ${opening(closed.at + closed.retryAfterMs - now, closed)}` : '';
  return `limit ${show(limit)}: ${what.join(', ')}${within}; last key ${show(key)}${until}`;
}

function reachOf(fields: LimitingFields, { last, outSince }: Tally): string {
  const { reach, isReachable, reason, onUnavailable, spanMs } = fields;
  const after = outSince === undefined ? '' : ` after ${seconds(last.at - outSince)}`;
  const times = reach > 1 ? `; ${reach} changes within ${seconds(spanMs)}` : '';
  if (isReachable) return `in reach again${after}${times}`;
  const then = onUnavailable === undefined ? '' : `, onUnavailable answers: ${onUnavailable}`;
  return `out of reach: ${show(reason)}${then}${times}`;
}

function opening(leftMs: Millis, { retryAfterMs }: { readonly retryAfterMs: Millis }): string {
  if (retryAfterMs === Infinity) return 'which can never fit';
  if (retryAfterMs === WHEN_SETTLED) return 'closed until a call settles';
  return leftMs > 0 ? `closed for another ${Math.ceil(leftMs)} ms` : 'open again by now';
}
