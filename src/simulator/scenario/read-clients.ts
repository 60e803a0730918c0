import type { Millis } from '../../core/clock.ts';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import { ATTEMPT_OUTCOMES } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader, parseWaitMs } from '../../core/options.ts';
import { boundedDuration, readMillis, readSpan } from './read-times.ts';
import type { Client, Traffic } from './scenario.ts';

const SHAPES = ['steady', 'poisson', 'spike', 'sine', 'flappy', 'hog'] as const;

const MAX_COUNT = 60_000;
const MAX_KEYS = 1_000_000;
const MAX_COST = 1_000_000;
const MAX_RETRIES = 100;
const MAX_PARALLEL = 10_000;
const MAX_TIMES = 10_000;
/** A shorter pause would fill the run with refused calls of a hog. */
const MIN_HOG_PAUSE_MS: Millis = 0.1;

export function readClient(value: unknown, name: string, path: string, durationMs: Millis): Client {
  const fields = OptionReader.collecting(path, value, 'an object with `rate` or `shape: hog`');
  const client: Client = {
    name,
    traffic: readTraffic(fields),
    count: fields.number('count', { min: 1, max: MAX_COUNT, integer: true }, 1),
    keys: fields.number('keys', { min: 1, max: MAX_KEYS, integer: true }, 1),
    key: fields.optional('key', isNonEmptyString, 'a string of at least one character'),
    cost: fields.number('cost', { min: 0, max: MAX_COST }, 1),
    attempt: fields.has('attempt') ? fields.oneOf('attempt', ATTEMPT_OUTCOMES) : undefined,
    waitMs: fields.tryRead(() => readWait(fields)) ?? 0,
    retries: fields.number('retries', { min: 0, max: MAX_RETRIES, integer: true }, 0),
    backoffMs: boundedDuration(fields, 'backoff', 100),
    timeoutMs: fields.durationOrInfinity('timeout', Infinity),
    ...readSpan(fields, durationMs),
  };
  fields.finish();
  return client;
}

function readWait(fields: OptionReader): Millis {
  try {
    return parseWaitMs(fields.valueOr('wait', false));
  } catch (error) {
    throw error instanceof ConfigError ? error.prefixedWith(fields.path) : error;
  }
}

function readTraffic(fields: OptionReader): Traffic {
  const shape = fields.oneOf('shape', SHAPES, 'steady');
  if (shape === 'hog') {
    const everyMs = boundedDuration(fields, 'every', 10);
    if (everyMs < MIN_HOG_PAUSE_MS) fields.report('every', `at least ${MIN_HOG_PAUSE_MS} ms`);
    const range = { min: 1, max: MAX_PARALLEL, integer: true };
    return { shape, parallel: fields.number('parallel', range, 1), everyMs };
  }
  const { count, periodMs } = fields.rate('rate');
  const perMs = count / periodMs;
  if (shape === 'steady' || shape === 'poisson') return { shape, perMs };
  const everyMs = boundedDuration(fields, 'every', 10_000);
  if (shape === 'sine')
    return { shape, perMs, everyMs, swing: fields.number('swing', { min: 0, max: 1 }, 1) };
  const forMs = readMillis(fields, 'for', shape === 'spike' ? everyMs / 10 : everyMs / 2);
  if (!(forMs > 0 && forMs <= everyMs)) fields.report('for', 'above 0 and at most `every`');
  if (shape === 'flappy') return { shape, perMs, everyMs, forMs };
  const times = fields.number('times', { min: 1, max: MAX_TIMES }, 10);
  return { shape, perMs, everyMs, forMs, times };
}
