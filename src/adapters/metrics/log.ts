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

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { WHEN_SETTLED } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError, errorMessageOf, preview } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { AvailabilityEvent, LimitEvent } from '../../limiter/events.ts';
import { internalsOf } from '../../limiter/internals.ts';
import { type AnyLimiter, requireLimiter, toLimiterList } from './watch.ts';

/** What can hold a call back, or go wrong with it. */
export type LimitingKind = 'denied' | 'waited' | 'expired' | 'availability';

const LIMITING_KINDS: readonly LimitingKind[] = ['denied', 'waited', 'expired', 'availability'];

/** What a line says, for machines. The message says the same for people. */
export interface LimitingFields {
  readonly limit: string;
  /** How many events the line stands for, and of which kind. */
  readonly count: number;
  readonly denied: number;
  readonly waited: number;
  readonly expired: number;
  /** How often whoever decides went out of reach or came back; a line for these is for nothing else. */
  readonly availability: number;
  /** How that stands now, and why if it is out of reach. */
  readonly isAvailable?: boolean;
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

type LogWrite = (message: string, fields: LimitingFields) => unknown;

/** Whatever has `warn`, or else `info`: message first. `console` is one. */
export type Logger =
  | { readonly warn: LogWrite }
  | { readonly warn?: undefined; readonly info: LogWrite };

/** How often there is a line, and for what. */
export interface LogOptions {
  /** At most one line for each limit in this time. Default 5 s. */
  readonly every?: Duration;
  /** What is worth a line. Default: denied, lost and reach. */
  readonly events?: readonly LimitingKind[];
}

const DEFAULT_EVERY_MS: Millis = 5000;

/** Logs what one limiter or several hold back. What comes back ends that, and tells the rest first. */
export function logLimiting(
  limiters: AnyLimiter | readonly AnyLimiter[],
  logger: Logger,
  options: LogOptions = {},
): () => void {
  const fields = new OptionReader('', options);
  const everyMs = fields.duration('every', DEFAULT_EVERY_MS);
  const events = readKinds(fields);
  fields.finish();
  const write = safeWriterOf(logger);
  const list = toLimiterList(limiters);
  for (const [n, limiter] of list.entries()) requireLimiter(limiter, `limiters[${n}]`);

  // By the name in the event: limiters of one name are one limit, and each part of several is its own.
  const lines = new Map<string, LogAggregator>();
  const reaches = new Map<string, LogAggregator>();
  const lineOf = (isReach: boolean, name: string, clock: Clock): LogAggregator => {
    const own = isReach ? reaches : lines;
    const line = own.get(name) ?? new LogAggregator(name, clock, everyMs, write);
    own.set(name, line);
    return line;
  };
  const stops = list.map((limiter) =>
    limiter.on((event) => {
      const kind = limitingKindOf(event);
      if (!kind || !events.includes(kind)) return;
      lineOf(kind === 'availability', event.limit, internalsOf(limiter).clock).record(kind, event);
    }),
  );
  return () => {
    for (const stop of stops) stop();
    for (const line of [...lines.values(), ...reaches.values()]) line.flush();
    lines.clear();
    reaches.clear();
  };
}

function readKinds(fields: OptionReader): readonly LimitingKind[] {
  const given = fields.get('events') ?? ['denied', 'expired', 'availability'];
  const isKind = (value: unknown): boolean => LIMITING_KINDS.some((kind) => kind === value);
  if (Array.isArray(given) && given.length > 0 && given.every(isKind)) return given;
  return fields.throwFor('events', `a list out of ${LIMITING_KINDS.join(', ')}`);
}

function limitingKindOf(event: LimitEvent): LimitingKind | undefined {
  if (event.type === 'expired' || event.type === 'availability') return event.type;
  if (event.type !== 'decision') return undefined;
  const { decision, waitedMs } = event;
  if (decision.verdict === 'deny') return 'denied';
  return decision.verdict === 'wait' || waitedMs > 0 ? 'waited' : undefined;
}

/** Calls the logger, and sees to it that its mistakes stay its own, now or in a promise. */
function safeWriterOf(logger: Logger): LogWrite {
  const door = (['warn', 'info'] as const).find((name) => hasMethod(logger, name));
  if (!door) throw new ConfigError('logger', 'an object with warn or info', logger);
  const failed = (error: unknown): void =>
    emitProcessWarning('ADAPTER', `a logger of limits failed: ${error}`);
  return (message, fields) => {
    try {
      const done = (logger as Record<typeof door, LogWrite>)[door](message, fields);
      if (done instanceof Promise) done.catch(failed);
    } catch (error) {
      failed(error);
    }
  };
}

const hasMethod = (logger: unknown, name: string): boolean =>
  isRecord(logger) && typeof logger[name] === 'function';

/** What has happened since the last line. */
interface Tally {
  readonly counts: Record<LimitingKind, number>;
  readonly since: Millis;
  lastEvent: LimitEvent;
  /** How long the last one that was denied is to stay away, from when. */
  lastDenial?: { readonly at: Millis; readonly retryAfterMs: Millis };
  /** Since when it was out of reach, if that is what it is back from. */
  unavailableSince?: Millis | undefined;
}

const ZERO_COUNTS: Readonly<Record<LimitingKind, number>> = {
  denied: 0,
  waited: 0,
  expired: 0,
  availability: 0,
};

class LogAggregator {
  readonly #name: string;
  readonly #clock: Clock;
  readonly #everyMs: Millis;
  readonly #write: LogWrite;
  #tally: Tally | undefined;
  #unavailableSince: Millis | undefined;
  /** Set while a line was written less than `every` ago. */
  #cancelTimer: (() => void) | undefined;

  constructor(name: string, clock: Clock, everyMs: Millis, write: LogWrite) {
    this.#name = name;
    this.#clock = clock;
    this.#everyMs = everyMs;
    this.#write = write;
  }

  record(kind: LimitingKind, event: LimitEvent): void {
    this.#tally ??= { counts: { ...ZERO_COUNTS }, since: event.at, lastEvent: event };
    this.#tally.counts[kind]++;
    this.#tally.lastEvent = event;
    if (event.type === 'decision' && event.decision.verdict === 'deny') {
      this.#tally.lastDenial = { at: event.at, retryAfterMs: event.decision.retryAfterMs };
    }
    if (event.type === 'availability') {
      this.#tally.unavailableSince = this.#unavailableSince;
      this.#unavailableSince = event.isAvailable ? undefined : event.at;
    }
    if (!this.#cancelTimer) this.#emitOrIdle();
  }

  /** Tells what is left to tell, and nothing more. */
  flush(): void {
    this.#cancelTimer?.();
    this.#emit();
  }

  #emitOrIdle(): void {
    if (!this.#tally) {
      this.#cancelTimer = undefined;
      return;
    }
    // First the pause, then the line: a logger that asks this very limit must not start another.
    const until = this.#clock.now() + this.#everyMs;
    this.#cancelTimer = schedule(this.#clock, until, () => this.#emitOrIdle(), false);
    this.#emit();
  }

  #emit(): void {
    const tally = this.#tally;
    if (!tally) return;
    this.#tally = undefined;
    const fields = logFieldsOf(this.#name, tally);
    this.#write(messageOf(fields, tally, this.#clock.now()), fields);
  }
}

function logFieldsOf(
  limit: string,
  { counts, since, lastEvent, lastDenial }: Tally,
): LimitingFields {
  const until =
    lastDenial &&
    lastDenial.retryAfterMs !== WHEN_SETTLED &&
    lastDenial.at + lastDenial.retryAfterMs;
  return {
    limit,
    count: LIMITING_KINDS.reduce((sum, kind) => sum + counts[kind], 0),
    ...counts,
    spanMs: Math.round(lastEvent.at - since),
    key: lastEvent.key,
    ...(lastEvent.type === 'availability' && { isAvailable: lastEvent.isAvailable }),
    ...(lastEvent.type === 'availability' &&
      !lastEvent.isAvailable &&
      unavailableFieldsOf(lastEvent)),
    ...(typeof until === 'number' && until < Infinity && { until: Math.ceil(until) }),
  };
}

const unavailableFieldsOf = ({ reason, onUnavailable }: AvailabilityEvent) => ({
  reason: errorMessageOf(reason),
  ...(onUnavailable && { onUnavailable }),
});

const formatSeconds = (ms: Millis): string => `${Math.ceil(ms / 100) / 10} s`;

function messageOf(fields: LimitingFields, tally: Tally, now: Millis): string {
  const { limit, spanMs, key } = fields;
  const { lastDenial } = tally;
  if (fields.availability > 0)
    return `limit ${preview(limit)}: ${availabilityMessage(fields, tally)}`;
  const what = LIMITING_KINDS.filter((kind) => fields[kind] > 0).map(
    (kind) => `${fields[kind]} ${kind}`,
  );
  const within = spanMs > 0 ? ` within ${formatSeconds(spanMs)}` : '';
  const until = lastDenial
    ? `, ${formatReopening(lastDenial.at + lastDenial.retryAfterMs - now, lastDenial)}`
    : '';
  return `limit ${preview(limit)}: ${what.join(', ')}${within}; last key ${preview(key)}${until}`;
}

function availabilityMessage(
  fields: LimitingFields,
  { lastEvent, unavailableSince }: Tally,
): string {
  const { availability, isAvailable, reason, onUnavailable, spanMs } = fields;
  const after =
    unavailableSince === undefined
      ? ''
      : ` after ${formatSeconds(lastEvent.at - unavailableSince)}`;
  const times = availability > 1 ? `; ${availability} changes within ${formatSeconds(spanMs)}` : '';
  if (isAvailable) return `available again${after}${times}`;
  const then = onUnavailable === undefined ? '' : `, onUnavailable answers: ${onUnavailable}`;
  return `unavailable: ${preview(reason)}${then}${times}`;
}

function formatReopening(
  leftMs: Millis,
  { retryAfterMs }: { readonly retryAfterMs: Millis },
): string {
  if (retryAfterMs === Infinity) return 'which can never fit';
  if (retryAfterMs === WHEN_SETTLED) return 'closed until a call settles';
  return leftMs > 0 ? `closed for another ${Math.ceil(leftMs)} ms` : 'open again by now';
}
