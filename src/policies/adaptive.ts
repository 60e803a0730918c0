/**
 * Adaptive concurrency: a learnt limit on calls in flight.
 *
 * For a service of unknown capacity: use all of it, overload none of it. Two rules learn it:
 *
 * - delay (the default): keeps a small queue, as Vegas and FAST TCP do, and tests every 10 s. See delay/delay.ts.
 * - aimd: Vector's rule, additive increase and multiplicative decrease on round-trip times. See aimd.ts.
 */

import { OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { controlLoop } from './aimd.ts';
import { type AimdOptions, readAimd } from './aimd-options.ts';
import { delay } from './delay/delay.ts';
import type { InFlightPolicy } from './partitions.ts';
import { UNDIVIDED } from './policy.ts';
import { readCallClasses } from './priorities.ts';

const RULES = ['delay', 'aimd'] as const;

/** Adaptive concurrency: as many calls in flight as the service can take. */
export interface AdaptiveOptions extends Omit<AimdOptions, 'initial' | 'max'> {
  /** How the limit is learnt. Default delay; `aimd` is Vector's rule. */
  readonly rule?: (typeof RULES)[number] | undefined;
  /** Calls allowed in flight at the start. Default 1. */
  readonly initial?: number | undefined;
  /** Upper bound of the limit. Default: 1000 with the rule delay, 200 with aimd. */
  readonly max?: number | undefined;
  /** Guaranteed parts of the limit: `{ live: 0.9, batch: 0.1 }`. Unused parts are lent to other partitions. */
  readonly partitions?: Readonly<Record<string, number>> | undefined;
  /** Levels of calls, the most important first: `['user', 'prefetch']`. Lower levels are refused first. */
  readonly priorities?: readonly string[] | undefined;
}

/** For a service that never queues. */
const DEFAULT_MAX = 1000;

const AIMD_ONLY = [
  'decreaseRatio',
  'alpha',
  'deviationScale',
  'slowStart',
  'decreaseOnSilence',
  'variant',
];

export function adaptive(
  options: AdaptiveOptions,
  random: Random,
  path = 'adaptive',
): InFlightPolicy {
  const reader = OptionReader.collecting(path, options);
  if (reader.names().includes('fixed')) {
    reader.report('fixed', 'left out: a fixed limit is written `concurrency: n`');
  }
  const rule = reader.oneOf('rule', RULES, 'delay');
  const policy = rule === 'aimd' ? readAimdRule(reader, random) : readDelayRule(reader, random);
  const withClasses = readCallClasses(reader);
  reader.finish();
  return withClasses(policy);
}

const readAimdRule = (reader: OptionReader, random: Random): InFlightPolicy =>
  controlLoop(readAimd(reader), random, UNDIVIDED);

function readDelayRule(reader: OptionReader, random: Random): InFlightPolicy {
  const max = reader.integer('max', 1, DEFAULT_MAX);
  const initial = reader.integer('initial', 1, 1);
  if (initial > max)
    reader.report('initial', `at most \`max\` (initial ${initial} exceeds max ${max})`);
  const jitter = reader.number('jitter', { min: 0, max: 1 }, 0);
  for (const name of AIMD_ONLY) if (reader.has(name)) reader.report(name, "beside `rule: 'aimd'`");
  return delay({ initial, max, jitter }, UNDIVIDED, random);
}
