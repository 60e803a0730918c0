/**
 * Format and names are those of the published figures. All parameters are validated before a run, and an error names
 * the path in the file. Unknown fields outside of parameters (a note, a source) are ignored.
 */

import type { Millis } from '../../core/clock.ts';
import { isString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { type NumberRange, OptionReader } from '../../core/options.ts';
import type { AdaptiveOptions } from '../../policies/adaptive.ts';

/** Position of the limiter among retry, measuring and timeout, from the outside in. */
const LAYERINGS = {
  /** A permit and a timing per attempt. */
  'retry(limiter(timeout(server)))': 'per-attempt',
  /** One permit and one timing for all attempts of a call. */
  'limiter(retry(timeout(server)))': 'whole-call',
  /** One permit for all attempts of a call, and a timing per attempt. */
  'limiter(retry(measure(timeout(server))))': 'measured-attempts',
} as const;

export type Layering = (typeof LAYERINGS)[keyof typeof LAYERINGS];

/** The first two retry delays in seconds; each further one is the sum of the two before. */
const BACKOFFS: Readonly<Record<string, readonly [number, number]>> = {
  fib_1_1_2_3_5: [1, 1],
  fib_1_2_3_5_8: [1, 2],
};

const MAX_REQUESTS = 1_000_000;

export interface Suite {
  readonly id: string;
  readonly layering: Layering;
  readonly backoff: readonly [number, number];
  readonly cases: readonly Case[];
}

/** The options of an adaptive limit, or a fixed number of calls in flight. */
export type ClientLimit = AdaptiveOptions | { readonly concurrency: number };

export interface Case {
  readonly name: string;
  readonly requests: number;
  readonly intervalMs: Millis;
  readonly server: ServerParams;
  readonly limit: ClientLimit;
  readonly expect: readonly ExpectedRange[];
}

export interface ServerParams {
  readonly delayS: number;
  readonly jitter: number;
  readonly failures: number;
  readonly failuresAfter: number;
  readonly byConcurrency: LoadResponse;
  readonly byRate: LoadResponse;
  /** Attempts in progress at once; more are queued. Default: unlimited. */
  readonly workers?: number;
  /** True if refused attempts do not count towards the rate. */
  readonly excludesRejected?: boolean;
}

/** Reaction to one kind of load: linear slowdown, exponential slowdown from the knee, refusal above the limit. */
export interface LoadResponse {
  readonly scale: number;
  readonly kneeStart: number | undefined;
  readonly kneeExp: number;
  readonly limit: number;
  readonly action: 'defer' | 'drop';
}

const STATS_BY_SIDE = {
  server: ['in_flight', 'rate'],
  controller: ['in_flight', 'concurrency_limit', 'observed_rtt', 'averaged_rtt'],
} as const;

const FIGURES = ['min', 'max', 'mode', 'mean'] as const;

const RANGE_NAMES = `named <side>.<stat>.<figure>: ${Object.entries(STATS_BY_SIDE)
  .map(([side, stats]) => `${side}.{${stats.join(',')}}`)
  .join(' or ')}, then ${FIGURES.join(', ')} (no mode of an rtt)`;

export interface ExpectedRange {
  /** The full name in the file: `controller.in_flight.max`. */
  readonly name: string;
  readonly stat: string;
  readonly figure: (typeof FIGURES)[number];
  readonly lo: number;
  readonly hi: number;
}

export function readSuites(file: unknown): Suite[] {
  const top = new OptionReader('', file, 'an object with a list of suites');
  return readList(top, 'suites').map((suite, n) =>
    readSuite(new OptionReader(`suites[${n}]`, suite)),
  );
}

function readSuite(fields: OptionReader): Suite {
  const layering = fields.oneOf('layering', Object.keys(LAYERINGS) as (keyof typeof LAYERINGS)[]);
  const backoff = fields.oneOf('backoff', Object.keys(BACKOFFS));
  const defaults = fields.has('defaults') ? fields.get('defaults') : {};
  const cases = readList(fields, 'cases').map((value, n) =>
    readCase(
      new OptionReader(`${fields.path}.cases[${n}]`, value),
      fields.pathOf('defaults'),
      defaults,
    ),
  );
  const id = fields.optional('id', isString, 'a string') ?? layering;
  return { id, layering: LAYERINGS[layering], backoff: BACKOFFS[backoff], cases };
}

function readCase(fields: OptionReader, defaultsPath: string, defaults: unknown): Case {
  const params = new OptionReader(fields.pathOf('params'), fields.get('params'));
  const test: Case = {
    name: fields.required('name', isString, 'a string'),
    requests: params.number('requests', { min: 1, max: MAX_REQUESTS, integer: true }),
    intervalMs: params.number('interval_s', { min: 0 }, 0) * 1000,
    server: readServer(params),
    limit: readLimit(params, defaultsPath, defaults),
    expect: readRanges(new OptionReader(fields.pathOf('expect'), fields.get('expect'))),
  };
  params.finish();
  return test;
}

function readServer(params: OptionReader): ServerParams {
  return {
    delayS: params.number('delay_s', { min: 0 }),
    jitter: params.number('jitter', { min: 0 }, 0),
    failures: params.integer('failures', 0, 0),
    failuresAfter: params.integer('failures_after', 0, 0),
    byConcurrency: readLoad(params, 'server_concurrency'),
    byRate: readLoad(params, 'server_rate'),
  };
}

function readLoad(params: OptionReader, name: string): LoadResponse {
  const load = new OptionReader(params.pathOf(name), params.get(name) ?? {});
  const scale = load.number('scale', { min: 0 }, 0);
  const result: LoadResponse = {
    scale,
    kneeStart: numberIfGiven(load, 'knee_start', { min: 0 }),
    kneeExp: numberIfGiven(load, 'knee_exp', { above: 0 }) ?? scale + 1,
    limit: numberIfGiven(load, 'limit', { min: 0 }) ?? Infinity,
    action: load.oneOf('action', ['defer', 'drop'], 'defer'),
  };
  load.finish();
  return result;
}

/** The options of the limit, by their names in the file. */
function readLimit(params: OptionReader, defaultsPath: string, defaults: unknown): ClientLimit {
  const base = readSettings(new OptionReader(defaultsPath, defaults));
  const overrides = new OptionReader(
    params.pathOf('arc_overrides'),
    params.get('arc_overrides') ?? {},
  );
  const settings = { ...base, ...readSettings(overrides) };
  if ((settings.initial ?? 1) > (settings.max ?? Infinity)) {
    overrides.throwFor('initial_concurrency', `at most max_concurrency_limit (${settings.max})`);
  }
  const concurrency = params.get('concurrency') ?? 'adaptive';
  if (concurrency === 'adaptive') return settings;
  if (Number.isInteger(concurrency) && (concurrency as number) >= 1) {
    return { concurrency: concurrency as number };
  }
  return params.throwFor('concurrency', '"adaptive" or a whole number of at least 1');
}

function readSettings(fields: OptionReader): AdaptiveOptions {
  const settings = {
    initial: numberIfGiven(fields, 'initial_concurrency', { min: 1, integer: true }),
    max: numberIfGiven(fields, 'max_concurrency_limit', { min: 1, integer: true }),
    decreaseRatio: numberIfGiven(fields, 'decrease_ratio', { above: 0, max: 0.999_999 }),
    alpha: numberIfGiven(fields, 'ewma_alpha', { above: 0, max: 1 }),
    deviationScale: numberIfGiven(fields, 'rtt_deviation_scale', { min: 0 }),
  };
  fields.finish();
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== undefined));
}

function readRanges(fields: OptionReader): ExpectedRange[] {
  return fields.names().map((name) => {
    const [side, stat, figure, ...rest] = name.split('.');
    const stats: readonly string[] = Object.hasOwn(STATS_BY_SIDE, side)
      ? STATS_BY_SIDE[side as keyof typeof STATS_BY_SIDE]
      : [];
    const known = FIGURES.find((candidate) => candidate === figure);
    const hasFigure = known !== undefined && !(known === 'mode' && stat?.endsWith('_rtt'));
    if (!stats.includes(stat) || !hasFigure || rest.length > 0) {
      throw new ConfigError(fields.pathOf(name), RANGE_NAMES, name);
    }
    const range = fields.get(name);
    const [lo, hi] = Array.isArray(range) && range.length === 2 ? range : [];
    if (typeof lo !== 'number' || typeof hi !== 'number' || !(lo <= hi)) {
      fields.throwFor(name, 'two numbers, the lower first');
    }
    return { name, stat: `${side}.${stat}`, figure: known, lo, hi };
  });
}

const readList = (fields: OptionReader, name: string): unknown[] =>
  fields.required(name, Array.isArray, 'a list');

/** The published files have `null` for a missing value. */
const numberIfGiven = (
  fields: OptionReader,
  name: string,
  range: NumberRange,
): number | undefined =>
  (fields.get(name) ?? null) === null ? undefined : fields.number(name, range);
