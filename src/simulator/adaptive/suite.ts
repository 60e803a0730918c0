/**
 * Files of cases for the adaptive limit: traffic, a server, and the ranges that must come out.
 *
 * The format is that of the published figures, so its names are written as they stand there. What a
 * run depends on is checked before anything runs, and a mistake is named by its path in the file;
 * remarks beside it (a note, a source) are left alone.
 */

import type { Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields } from '../../core/options.ts';
import type { AdaptiveOptions } from '../../policies/adaptive.ts';

/** Where the limiter stands among retry, measuring and time-out, from the outside in. */
const LAYERINGS = {
  /** Each attempt takes a permit and is timed. */
  'retry(limiter(timeout(server)))': 'per-attempt',
  /** One permit and one timing for the whole sequence of retries. */
  'limiter(retry(timeout(server)))': 'whole-call',
  /** One permit for the whole sequence, every attempt timed and judged on its own. */
  'limiter(retry(measure(timeout(server))))': 'measured-attempts',
} as const;

export type Layering = (typeof LAYERINGS)[keyof typeof LAYERINGS];

/** The first seconds of waiting between retries; then each is the sum of the two before. */
const BACKOFFS: Readonly<Record<string, readonly [number, number]>> = {
  fib_1_1_2_3_5: [1, 1],
  fib_1_2_3_5_8: [1, 2],
};

/** The most events of a case. */
const REQUESTS_MAX = 1_000_000;

export interface Suite {
  readonly id: string;
  readonly layering: Layering;
  readonly backoff: readonly [number, number];
  readonly cases: readonly Case[];
}

export interface Case {
  readonly name: string;
  readonly requests: number;
  readonly intervalMs: Millis;
  readonly server: ServerParams;
  readonly limit: AdaptiveOptions;
  readonly expect: readonly Range[];
}

export interface ServerParams {
  readonly delayS: number;
  readonly jitter: number;
  readonly failures: number;
  readonly failuresAfter: number;
  readonly byLevel: Load;
  readonly byRate: Load;
  /** So many are worked on at once and the others queue; as many as come if left out. */
  readonly workers?: number;
  /** True if what was refused does not count into its rate. */
  readonly forgives?: boolean;
}

/** How the server takes one kind of load: slower, then steeply slower, then no more. */
export interface Load {
  readonly scale: number;
  readonly kneeStart: number | undefined;
  readonly kneeExp: number;
  readonly limit: number;
  readonly action: 'defer' | 'drop';
}

const SIDES = {
  server: ['in_flight', 'rate'],
  controller: ['in_flight', 'concurrency_limit', 'observed_rtt', 'averaged_rtt'],
} as const;

const FIGURES = ['min', 'max', 'mode', 'mean'] as const;

const RANGE_NAMES = `named <side>.<stat>.<figure>: ${Object.entries(SIDES)
  .map(([side, stats]) => `${side}.{${stats.join(',')}}`)
  .join(' or ')}, then ${FIGURES.join(', ')} (no mode of an rtt)`;

export interface Range {
  /** As written: `controller.in_flight.max`. */
  readonly name: string;
  readonly stat: string;
  readonly figure: (typeof FIGURES)[number];
  readonly lo: number;
  readonly hi: number;
}

export function readSuites(file: unknown): Suite[] {
  const top = new Fields('', file, 'an object with a list of suites');
  return list(top, 'suites').map((suite, n) => readSuite(new Fields(`suites[${n}]`, suite)));
}

function readSuite(fields: Fields): Suite {
  const layering = fields.oneOf('layering', Object.keys(LAYERINGS) as (keyof typeof LAYERINGS)[]);
  const backoff = fields.oneOf('backoff', Object.keys(BACKOFFS));
  const defaults = fields.has('defaults') ? fields.raw('defaults') : {};
  const cases = list(fields, 'cases').map((value, n) =>
    readCase(new Fields(`${fields.path}.cases[${n}]`, value), fields.at('defaults'), defaults),
  );
  const id = fields.has('id') ? text(fields, 'id') : layering;
  return { id, layering: LAYERINGS[layering], backoff: BACKOFFS[backoff], cases };
}

function readCase(fields: Fields, defaultsPath: string, defaults: unknown): Case {
  const params = new Fields(fields.at('params'), fields.raw('params'));
  const test: Case = {
    name: text(fields, 'name'),
    requests: params.number('requests', { min: 1, max: REQUESTS_MAX, whole: true }),
    intervalMs: params.number('interval_s', { min: 0 }, 0) * 1000,
    server: readServer(params),
    limit: readLimit(params, defaultsPath, defaults),
    expect: readRanges(new Fields(fields.at('expect'), fields.raw('expect'))),
  };
  params.done();
  return test;
}

function readServer(params: Fields): ServerParams {
  return {
    delayS: params.number('delay_s', { min: 0 }),
    jitter: params.number('jitter', { min: 0 }, 0),
    failures: params.whole('failures', 0, 0),
    failuresAfter: params.whole('failures_after', 0, 0),
    byLevel: readLoad(params, 'server_concurrency'),
    byRate: readLoad(params, 'server_rate'),
  };
}

function readLoad(params: Fields, name: string): Load {
  const load = new Fields(params.at(name), params.raw(name) ?? {});
  const scale = load.number('scale', { min: 0 }, 0);
  const result: Load = {
    scale,
    kneeStart: isGiven(load, 'knee_start') ? load.number('knee_start', { min: 0 }) : undefined,
    kneeExp: isGiven(load, 'knee_exp') ? load.number('knee_exp', { above: 0 }) : scale + 1,
    limit: isGiven(load, 'limit') ? load.number('limit', { min: 0 }) : Infinity,
    action: load.oneOf('action', ['defer', 'drop'], 'defer'),
  };
  load.done();
  return result;
}

/** The settings of the limit under the names the cases use. */
function readLimit(params: Fields, defaultsPath: string, defaults: unknown): AdaptiveOptions {
  const base = readSettings(new Fields(defaultsPath, defaults));
  const overrides = new Fields(params.at('arc_overrides'), params.raw('arc_overrides') ?? {});
  const settings = { ...base, ...readSettings(overrides) };
  if ((settings.initial ?? 1) > (settings.max ?? Infinity)) {
    overrides.fail('initial_concurrency', `at most max_concurrency_limit (${settings.max})`);
  }
  const concurrency = params.raw('concurrency') ?? 'adaptive';
  if (concurrency === 'adaptive') return settings;
  if (Number.isInteger(concurrency) && (concurrency as number) >= 1) {
    const { initial: _, max: __, ...measuring } = settings;
    return { ...measuring, fixed: concurrency as number };
  }
  return params.fail('concurrency', '"adaptive" or a whole number of at least 1');
}

function readSettings(fields: Fields): AdaptiveOptions {
  const given = (name: string, range: Parameters<Fields['number']>[1]) =>
    isGiven(fields, name) ? fields.number(name, range) : undefined;
  const settings = {
    initial: given('initial_concurrency', { min: 1, whole: true }),
    max: given('max_concurrency_limit', { min: 1, whole: true }),
    decreaseRatio: given('decrease_ratio', { above: 0, max: 0.999_999 }),
    alpha: given('ewma_alpha', { above: 0, max: 1 }),
    deviationScale: given('rtt_deviation_scale', { min: 0 }),
  };
  fields.done();
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== undefined));
}

function readRanges(fields: Fields): Range[] {
  return fields.names().map((name) => {
    const [side, stat, figure, ...rest] = name.split('.');
    const stats: readonly string[] = Object.hasOwn(SIDES, side)
      ? SIDES[side as keyof typeof SIDES]
      : [];
    const known = FIGURES.find((candidate) => candidate === figure);
    const hasFigure = known !== undefined && !(known === 'mode' && stat?.endsWith('_rtt'));
    if (!stats.includes(stat) || !hasFigure || rest.length > 0) {
      throw new ConfigError(fields.at(name), RANGE_NAMES, name);
    }
    const range = fields.raw(name);
    const [lo, hi] = Array.isArray(range) && range.length === 2 ? range : [];
    if (typeof lo !== 'number' || typeof hi !== 'number' || !(lo <= hi)) {
      fields.fail(name, 'two numbers, the lower one first');
    }
    return { name, stat: `${side}.${stat}`, figure: known, lo, hi };
  });
}

function list(fields: Fields, name: string): unknown[] {
  const value = fields.raw(name);
  return Array.isArray(value) ? value : fields.fail(name, 'a list');
}

function text(fields: Fields, name: string): string {
  const value = fields.raw(name);
  return typeof value === 'string' ? value : fields.fail(name, 'a text');
}

/** The published files write `null` for "not given". */
const isGiven = (fields: Fields, name: string): boolean => (fields.raw(name) ?? null) !== null;
