import { described } from '../../core/config-helpers.ts';
import { parseDuration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { suggestName } from '../../core/suggestion.ts';
import { termsOf } from './limit-terms.ts';
import type { FaultScope } from './read-faults.ts';
import { readSpan } from './read-times.ts';
import { type Client, type Expectation, FIGURE_NAMES, type FigureName } from './scenario.ts';

export interface ExpectationScope extends FaultScope {
  readonly clients: readonly Client[];
}

const EXPECTED = 'an object with a figure and its range, such as { allowed: [95, 105] }';

/** Figures whose range is written as two durations. */
const TIMES: readonly FigureName[] = ['waitP50', 'waitP95', 'waitMax', 'latencyP50', 'latencyP95'];

const OF_LIMITS: readonly FigureName[] = ['overshoot', 'utilisation'];

const OF_SERVERS: readonly FigureName[] = [
  ...(['ok', 'busy', 'timeouts', 'latencyP50', 'latencyP95'] as const),
  ...(['inFlight', 'maxInFlight', 'serverUse'] as const),
];

export function readExpectation(
  value: unknown,
  path: string,
  scope: ExpectationScope,
): Expectation {
  const fields = OptionReader.collecting(path, value, EXPECTED);
  const figures = FIGURE_NAMES.filter((name) => fields.has(name));
  const span = readSpan(fields, scope.durationMs);
  const names = scope.clients.map(({ name }) => name);
  const of = fields.get('of') as string | undefined;
  if (of !== undefined && names.length > 0 && !names.includes(of))
    fields.report('of', `one of the clients ${names.join(', ')}`, suggestName(of, names));
  const [figure] = figures;
  if (figures.length !== 1 && fields.names().every((name) => fields.knownNames().includes(name)))
    throw new ConfigError(path, EXPECTED, described(figures.join(' and ') || 'no figure'));
  const range = figure && fields.tryRead(() => readRange(fields, figure));
  if (figure) requireFigure(fields, figure, scope);
  fields.finish();
  return { figure, of, ...span, ...(range as { min: number; max: number }) };
}

function requireFigure(fields: OptionReader, figure: FigureName, scope: ExpectationScope): void {
  if (OF_SERVERS.includes(figure) && !scope.hasServer)
    fields.report(figure, 'left out without a `server`');
  const hasRate = scope.limits.some(({ limit }) => termsOf(limit).length > 0);
  if (OF_LIMITS.includes(figure) && scope.limits.length > 0 && !hasRate)
    fields.report(figure, 'left out without a limit of bucket, spacing or window');
}

/** `[min, max]`, or one value for both. */
function readRange(
  fields: OptionReader,
  figure: FigureName,
): { readonly min: number; readonly max: number } {
  const given = fields.get(figure);
  const isTime = TIMES.includes(figure);
  const parse = (one: unknown): number | undefined => {
    if (one === Infinity || one === -Infinity) return one;
    if (isTime) return parseDuration(one);
    return typeof one === 'number' && !Number.isNaN(one) ? one : undefined;
  };
  const bounds = Array.isArray(given) ? given : [given, given];
  const [min, max] = bounds.map(parse);
  const what = isTime ? 'two durations such as [0s, 6s]' : 'two numbers such as [95, 105]';
  if (bounds.length !== 2 || min === undefined || max === undefined || min > max)
    throw new ConfigError(fields.pathOf(figure), `a range of ${what}, or one value`, given);
  return { min, max };
}
