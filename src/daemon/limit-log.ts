import { type LimitingFields, logLimiting } from '../adapters/metrics/log.ts';
import { tableBytes } from '../backends/local/table.ts';
import { UNLIMITED } from '../core/decision.ts';
import { errorMessageOf } from '../core/errors.ts';
import type { Log } from '../core/log.ts';
import { SyncLimiter } from '../limiter/sync-limiter.ts';
import { MEMORY } from './config/memory.ts';
import { toKeyText } from './keys/binary-key.ts';
import type { LimiterEntry } from './router/limiter-registry.ts';

/** The record of a token bucket; other rules take more memory. */
const BUCKET = { width: 2 };

/** The field `bytes` includes the limits before this one. */
const TOO_MANY_KEYS = 'keys up to maxKeys may not fit into memory: lower maxKeys, or leave it out';

export class LimitLog {
  readonly #log: Log;
  /** Functions that end the log of a limit's decreases. */
  readonly #decreaseLogs = new Map<LimiterEntry, () => void>();

  constructor(log: Log) {
    this.#log = log;
  }

  add(created: readonly LimiterEntry[]): void {
    let bytes = 0;
    for (const entry of created) {
      const { name: limit, limiter, rule } = entry;
      if (limiter instanceof SyncLimiter) {
        bytes += rule.maxKeys === undefined ? 0 : tableBytes(rule.maxKeys, BUCKET);
        if (rule.maxKeys !== undefined && bytes > MEMORY.total / 2)
          this.#log('warn', TOO_MANY_KEYS, { limit, bytes, memory: MEMORY.total });
        if (learns(limiter)) this.#decreaseLogs.set(entry, logDecreases(limiter, this.#log));
        continue;
      }
      limiter.on((event) => {
        if (event.type !== 'availability') return;
        const { isAvailable, onUnavailable = '' } = event;
        if (isAvailable) return this.#log('info', 'limit available again', { limit });
        const reason = errorMessageOf(event.reason);
        this.#log('warn', 'limit unavailable', { limit, onUnavailable, reason });
      });
    }
  }

  /** Logs what is pending of limiters that are removed. */
  remove(removed: readonly LimiterEntry[]): void {
    for (const entry of removed) {
      this.#decreaseLogs.get(entry)?.();
      this.#decreaseLogs.delete(entry);
    }
  }

  stop(): void {
    this.remove([...this.#decreaseLogs.keys()]);
  }
}

/** True for a limit that may move: a listener on any other one would only slow it down. */
const learns = (limiter: SyncLimiter): boolean => limiter.inspect('').limit !== undefined;

/** Logs decreases by back-pressure at a bounded rate. The returned function logs what is pending. */
function logDecreases(limiter: SyncLimiter, log: Log): () => void {
  const round = (limit = 0): number => Math.round(limit * 100) / 100;
  const warn = (_message: string, fields: LimitingFields): void =>
    log('warn', 'limit decreased by back-pressure', {
      limit: fields.limit,
      key: toKeyText(fields.key),
      from: fields.from === UNLIMITED ? 'unlimited' : round(fields.from),
      to: round(fields.to),
      ...(fields.pacePerSecond !== undefined && { pace: round(fields.pacePerSecond) }),
      cause: fields.cause ?? '',
      times: fields.decreased,
    });
  return logLimiting(limiter, { warn }, { events: ['decreased'] });
}
