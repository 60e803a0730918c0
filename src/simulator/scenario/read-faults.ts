import type { Millis } from '../../core/clock.ts';
import { readOnlyField } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader, requireNumber } from '../../core/options.ts';
import { boundedDuration, readMillis } from './read-times.ts';
import type { Fault, ScenarioLimit } from './scenario.ts';

/** The nodes, limits and times that a fault or an expectation can refer to. */
export interface FaultScope {
  readonly nodes: number;
  readonly durationMs: Millis;
  readonly limits: readonly ScenarioLimit[];
  readonly hasServer: boolean;
}

/** A fault without its times. */
type What = Fault extends infer F ? (F extends Fault ? Omit<F, 'atMs' | 'forMs'> : never) : never;

const MAX_FACTOR = 1000;

export function readFault(value: unknown, path: string, scope: FaultScope): Fault {
  const fields = OptionReader.collecting(path, value, `an object with \`at\` and one of ${NAMES}`);
  const atMs = readMillis(fields, 'at');
  if (atMs > scope.durationMs) fields.report('at', `at most ${scope.durationMs / 1000}s`);
  const readers = Object.fromEntries(
    Object.entries(READERS).map(([name, read]) => [
      name,
      (given: unknown, at: string) => read(given, at, scope),
    ]),
  );
  const what = readOnlyField(fields, readers);
  // A restart is short; all other faults last until the scenario ends them.
  const forMs = fields.has('for')
    ? boundedDuration(fields, 'for')
    : what?.kind === 'restart'
      ? RESTART_MS
      : Infinity;
  fields.finish();
  return { ...(what as What), atMs, forMs } as Fault;
}

const RESTART_MS: Millis = 1000;

type ReadWhat = (given: unknown, path: string, scope: FaultScope) => What;

const READERS: Readonly<Record<string, ReadWhat>> = {
  crash: (given, path, scope) => ({ kind: 'crash', node: nodeOf(given, path, scope) }),
  freeze: (given, path, scope) => ({ kind: 'freeze', node: nodeOf(given, path, scope) }),
  restart: (given, path, scope) => ({ kind: 'restart', node: nodeOf(given, path, scope) }),
  partition(given, path, scope) {
    if (!Array.isArray(given) || given.length === 0 || given.length > scope.nodes)
      throw new ConfigError(path, 'a list of nodes that are cut off, such as [1]', given);
    return { kind: 'partition', nodes: given.map((one, n) => nodeOf(one, `${path}[${n}]`, scope)) };
  },
  outage(given, path, { limits }) {
    if (given !== true) throw new ConfigError(path, 'true', given);
    if (!limits.some(({ backend: { kind } }) => kind === 'redis' || kind === 'pool'))
      throw new ConfigError(path, 'left out without a limit in redis or pool', given);
    return { kind: 'outage' };
  },
  slow(given, path, scope) {
    requireNumber(path, given, { above: 0, max: MAX_FACTOR });
    requireServer(path, given, scope);
    return { kind: 'slow', factor: given as number };
  },
  refuse(given, path, scope) {
    if (given !== true) throw new ConfigError(path, 'true', given);
    requireServer(path, given, scope);
    return { kind: 'refuse' };
  },
};

const NAMES = Object.keys(READERS).join(', ');

function requireServer(path: string, given: unknown, { hasServer }: FaultScope): void {
  if (!hasServer) throw new ConfigError(path, 'left out without a `server`', given);
}

/** Returns the index of a node; the first node is number 1. */
function nodeOf(given: unknown, path: string, { nodes }: FaultScope): number {
  requireNumber(path, given, { min: 1, max: nodes, integer: true });
  return (given as number) - 1;
}
