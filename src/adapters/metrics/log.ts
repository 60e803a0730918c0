/**
 * Logs calls that a limit refuses or delays, decreases of a limit by back-pressure, and changes of a backend's
 * availability, at a bounded rate.
 *
 *     const stop = logLimiting(api, console);
 *     // limit "api": 1 denied; last key "alice", retry in 100 ms
 *     // limit "api": 4213 denied within 5 s; last key "bob", retry in 12 ms
 *     // limit "api": unavailable: "Redis is unavailable: no reply within 100 ms", onUnavailable: deny
 *     // limit "api": available again after 7.2 s
 *     // limit "sink": decreased by back-pressure 3 times within 4.1 s; last key "db", from 14 to 12
 *
 * A limiter has most to report under overload, so the log is limited itself. The first event of a limit is logged at
 * once. Later events are counted and logged in one line when `every` is over, and so on until none came for that long.
 * Availability and decreases are logged separately: their lines must not wait behind those of refusals.
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
import { formatLine } from '../../core/log.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { toPrintableLine } from '../../core/printable.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import type { AvailabilityEvent, LimitChangedEvent, LimitEvent } from '../../limiter/events.ts';
import { internalsOf } from '../../limiter/internals.ts';
import { type AnyLimiter, requireLimiter, toLimiterList } from './collector.ts';

const LIMITING_KINDS = ['denied', 'waited', 'expired', 'availability', 'decreased'] as const;

/** Kinds with lines of their own. */
const SEPARATE_KINDS: readonly string[] = ['availability', 'decreased'];

/** The kinds of events that are logged. */
export type LimitingKind = (typeof LIMITING_KINDS)[number];

/**
 * The structured fields of a log line: events by kind, and more. The message says the same as text. A line counts
 * changes of the backend's availability, decreases of the limit, or the other kinds.
 */
export interface LimitingFields extends Readonly<Record<LimitingKind, number>> {
  readonly limit: string;
  /** How many events the line stands for. */
  readonly count: number;
  /** Whether the backend is available now, and why not. */
  readonly isAvailable?: boolean;
  readonly reason?: string;
  /** The fallback while the backend is unavailable. */
  readonly onUnavailable?: string;
  /** From the first event to the last. */
  readonly spanMs: Millis;
  /** The key of the last event; empty for availability. */
  readonly key: string;
  /** The key's limit before and after the last decrease, its cause, and the calls per second that refusals left. */
  readonly from?: number;
  readonly to?: number;
  readonly cause?: string;
  readonly pacePerSecond?: number;
  /** The rule that denied the last call, if the limit has several. */
  readonly rule?: string;
  /** When the last denied call may be retried, on the limiter's clock; left out if that is unknown. */
  readonly until?: Millis;
}

type LogWrite = (message: string, fields: LimitingFields) => unknown;

/** An object with `warn`, or else `info`, that takes the message first. `console` gets message and fields as one string. */
export type Logger =
  | { readonly warn: LogWrite }
  | { readonly warn?: undefined; readonly info: LogWrite };

/** Options of `logLimiting`. */
export interface LogOptions {
  /** The minimum interval between lines of one limit. Default 5 s. */
  readonly every?: Duration | undefined;
  /** Which kinds of events to log. Default: all but waited. */
  readonly events?: readonly LimitingKind[] | undefined;
}

const DEFAULT_EVERY_MS: Millis = 5000;

/** Logs events of one or several limiters. The returned function logs what is pending and stops. */
export function logLimiting(
  limiters: AnyLimiter | readonly AnyLimiter[],
  logger: Logger,
  options: LogOptions = {},
): () => void {
  const reader = new OptionReader('', options);
  const everyMs = reader.duration('every', DEFAULT_EVERY_MS);
  const kinds = readKinds(reader);
  reader.finish();
  const write = safeWriterOf(logger);
  const list = toLimiterList(limiters);
  for (const [n, limiter] of list.entries()) requireLimiter(limiter, `limiters[${n}]`);

  // By the name in the event: limiters of one name are one limit, and the parts of a composite limit are several.
  const aggregators = new Map<string, LogAggregator>();
  const aggregatorOf = (kind: LimitingKind, name: string, clock: Clock): LogAggregator => {
    const id = `${SEPARATE_KINDS.includes(kind) ? kind : 'limiting'} ${name}`;
    const aggregator = aggregators.get(id) ?? createAggregator(name, clock, everyMs, write);
    aggregators.set(id, aggregator);
    return aggregator;
  };
  const stops = list.map((limiter) =>
    limiter.on((event) => {
      const kind = limitingKindOf(event);
      if (!kind || !kinds.includes(kind)) return;
      aggregatorOf(kind, event.limit, internalsOf(limiter).clock).record(kind, event);
    }),
  );
  return () => {
    for (const stop of stops) stop();
    for (const aggregator of aggregators.values()) aggregator.flush();
    aggregators.clear();
  };
}

function readKinds(reader: OptionReader): readonly LimitingKind[] {
  const given = reader.get('events') ?? LIMITING_KINDS.filter((kind) => kind !== 'waited');
  const isKind = (value: unknown): boolean => LIMITING_KINDS.some((kind) => kind === value);
  if (Array.isArray(given) && given.length > 0 && given.every(isKind)) return given;
  return reader.throwFor('events', `a list of ${LIMITING_KINDS.join(', ')}`);
}

function limitingKindOf(event: LimitEvent): LimitingKind | undefined {
  if (event.type === 'expired' || event.type === 'availability') return event.type;
  if (event.type === 'limit-changed') return isBackPressure(event) ? 'decreased' : undefined;
  if (event.type !== 'decision') return undefined;
  const { decision, waitedMs } = event;
  if (decision.verdict === 'deny') return 'denied';
  return decision.verdict === 'wait' || waitedMs > 0 ? 'waited' : undefined;
}

/** Other causes move a limit all the time. */
const isBackPressure = ({ cause }: LimitChangedEvent): boolean =>
  cause === 'back-pressure' || cause === 'refusal' || cause === 'silence';

/** Calls the logger; what it throws or rejects with becomes a process warning. */
function safeWriterOf(logger: Logger): LogWrite {
  const method = (['warn', 'info'] as const).find((name) => hasMethod(logger, name));
  if (!method) throw new ConfigError('logger', 'an object with warn or info', logger);
  const isConsole: boolean = logger === globalThis.console;
  const failed = (error: unknown): void =>
    emitProcessWarning('LOGGER', `the logger of logLimiting failed: ${errorMessageOf(error)}`);
  return (message, fields) => {
    try {
      const done = isConsole
        ? console[method](consoleLine(message, fields))
        : (logger as Record<typeof method, LogWrite>)[method](message, fields);
      if (done instanceof Promise) done.catch(failed);
    } catch (error) {
      failed(error);
    }
  };
}

/** `console` prints an object over many lines, and reads `%s` in the text before it: it gets one string. */
function consoleLine(message: string, fields: LimitingFields): string {
  const counted = Object.entries(fields).filter(
    ([name, value]) => value !== 0 || !LIMITING_KINDS.some((kind) => kind === name),
  );
  return toPrintableLine(formatLine(message, Object.fromEntries(counted)));
}

const hasMethod = (logger: unknown, name: string): boolean =>
  isRecord(logger) && typeof logger[name] === 'function';

/** The events since the last line. */
interface Tally {
  readonly counts: Record<LimitingKind, number>;
  readonly since: Millis;
  lastEvent: LimitEvent;
  /** The last denied call. */
  lastDenial?: {
    readonly at: Millis;
    readonly retryAfterMs: Millis;
    readonly isClosed: boolean;
    readonly rule: string | undefined;
  };
  /** When the outage began that has ended. */
  unavailableSince?: Millis | undefined;
}

type LogAggregator = ReturnType<typeof createAggregator>;

function createAggregator(name: string, clock: Clock, everyMs: Millis, write: LogWrite) {
  let tally: Tally | undefined;
  let unavailableSince: Millis | undefined;
  /** Set while the last line is younger than `every`. */
  let cancelTimer: (() => void) | undefined;

  const emit = (): void => {
    if (!tally) return;
    const fields = logFieldsOf(name, tally);
    const message = messageOf(fields, tally, clock.now());
    tally = undefined;
    write(message, fields);
  };
  // The timer comes before the line: a logger that calls this very limit must not start a second one.
  const emitOrIdle = (): void => {
    cancelTimer = tally && schedule(clock, clock.now() + everyMs, emitOrIdle, false);
    emit();
  };
  return {
    record(kind: LimitingKind, event: LimitEvent): void {
      tally ??= {
        counts: { denied: 0, waited: 0, expired: 0, availability: 0, decreased: 0 },
        since: event.at,
        lastEvent: event,
      };
      tally.counts[kind]++;
      tally.lastEvent = event;
      if (event.type === 'decision' && event.decision.verdict === 'deny') {
        const { retryAfterMs, reason, rule } = event.decision;
        tally.lastDenial = { at: event.at, retryAfterMs, isClosed: reason === 'closed', rule };
      }
      if (event.type === 'availability') {
        tally.unavailableSince = unavailableSince;
        unavailableSince = event.isAvailable ? undefined : event.at;
      }
      if (!cancelTimer) emitOrIdle();
    },
    /** Logs the pending events at once and stops the timer. */
    flush(): void {
      cancelTimer?.();
      emit();
    },
  };
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
    ...(lastEvent.type === 'availability' && availabilityFieldsOf(lastEvent)),
    ...(lastEvent.type === 'limit-changed' && adjustmentFieldsOf(lastEvent)),
    ...(lastDenial?.rule !== undefined && { rule: lastDenial.rule }),
    ...(typeof until === 'number' && until < Infinity && { until: Math.ceil(until) }),
  };
}

const availabilityFieldsOf = ({ isAvailable, reason, onUnavailable }: AvailabilityEvent) => ({
  isAvailable,
  ...(!isAvailable && { reason: errorMessageOf(reason) }),
  ...(onUnavailable && { onUnavailable }),
});

const adjustmentFieldsOf = ({ from, to, cause, pacePerSecond }: LimitChangedEvent) => ({
  from,
  to,
  cause,
  ...(pacePerSecond !== undefined && { pacePerSecond }),
});

const formatSeconds = (ms: Millis): string => `${Math.ceil(ms / 100) / 10} s`;

function messageOf(fields: LimitingFields, tally: Tally, now: Millis): string {
  const { limit, spanMs, key } = fields;
  const { lastDenial } = tally;
  if (fields.availability > 0)
    return `limit ${preview(limit)}: ${availabilityMessage(fields, tally)}`;
  const within = spanMs > 0 ? ` within ${formatSeconds(spanMs)}` : '';
  if (fields.decreased > 0) {
    const times = fields.decreased > 1 ? ` ${fields.decreased} times` : '';
    const { from, to, pacePerSecond: pace } = fields;
    const paced = pace === undefined ? '' : `, pace ${formatLimit(pace)}/s`;
    const change = `from ${formatLimit(from)} to ${formatLimit(to)}${paced}`;
    return `limit ${preview(limit)}: decreased by back-pressure${times}${within}; last key ${preview(key)}, ${change}`;
  }
  const counts = LIMITING_KINDS.filter((kind) => fields[kind] > 0).map(
    (kind) => `${fields[kind]} ${kind}`,
  );
  const by = fields.rule === undefined ? '' : `, by ${fields.rule}`;
  const retry = lastDenial ? `${by}, ${formatRetry(lastDenial, now)}` : '';
  return `limit ${preview(limit)}: ${counts.join(', ')}${within}; last key ${preview(key)}${retry}`;
}

/** The limit of `busy` is not whole. */
const formatLimit = (limit = 0): string => String(Math.round(limit * 100) / 100);

function availabilityMessage(
  fields: LimitingFields,
  { lastEvent, unavailableSince }: Tally,
): string {
  const { availability, isAvailable, reason, onUnavailable, spanMs } = fields;
  const after =
    unavailableSince === undefined
      ? ''
      : ` after ${formatSeconds(lastEvent.at - unavailableSince)}`;
  const changes =
    availability > 1 ? `; ${availability} changes within ${formatSeconds(spanMs)}` : '';
  if (isAvailable) return `available again${after}${changes}`;
  const fallback = onUnavailable === undefined ? '' : `, onUnavailable: ${onUnavailable}`;
  return `unavailable: ${preview(reason)}${fallback}${changes}`;
}

function formatRetry(
  { at, retryAfterMs, isClosed }: NonNullable<Tally['lastDenial']>,
  now: Millis,
): string {
  const remainingMs = at + retryAfterMs - now;
  if (isClosed) return 'the limiter is closed';
  if (retryAfterMs === Infinity) return 'its cost can never fit';
  if (retryAfterMs === WHEN_SETTLED) return 'retry when a call settles';
  return remainingMs > 0 ? `retry in ${Math.ceil(remainingMs)} ms` : 'retry now';
}
