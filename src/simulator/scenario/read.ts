/** Reports every mistake at once, with the path of its field. docs/reference/scenarios.md describes each field. */

import type { Millis } from '../../core/clock.ts';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader, readEach } from '../../core/options.ts';
import { readClient } from './read-clients.ts';
import { readExpectation } from './read-expectations.ts';
import { readFault } from './read-faults.ts';
import { readLimit } from './read-limits.ts';
import { readServer } from './read-server.ts';
import { boundedDuration, readMillis } from './read-times.ts';
import {
  BALANCERS,
  type Balancer,
  type Client,
  type Scenario,
  type ScenarioLimit,
  type ScenarioNetwork,
} from './scenario.ts';

const MAX_NODES = 200;
const MAX_LIMITS = 20;
const MAX_CALLERS = 60_000;
const MAX_LIST = 1000;
const MAX_SEED = 2 ** 31;

/** The log of a run has a row for each call. */
export const MAX_CALLS = 20_000_000;

/** A date in 2026, as on a real wall clock: times are large numbers with a resolution of 2^-12 ms. */
const DEFAULT_START = '2026-01-01T00:00:00Z';

/** Long enough for peers to finish their handshakes and for pool members to agree on their number. */
const DEFAULT_WARM_UP_MS: Millis = 5000;

const DEFAULT_DETECTS_MS: Millis = 1000;

const EXPECTED_SCENARIO = 'an object with `limits` and `clients`';

/** @throws {ConfigError} with every mistake. */
export function readScenario(value: unknown, name: string): Scenario {
  const fields = OptionReader.collecting('', value, EXPECTED_SCENARIO);
  const durationMs = boundedDuration(fields, 'duration', 60_000);
  const nodes = fields.number('nodes', { min: 1, max: MAX_NODES, integer: true }, 1);
  const limits = fields.tryRead(() => readLimits(fields, nodes)) ?? [];
  const clients = fields.tryRead(() => readClients(fields, durationMs)) ?? [];
  const shares = limits.some(({ backend: { kind } }) => kind === 'peers' || kind === 'pool');
  const scope = { nodes, durationMs, clients, limits, hasServer: fields.has('server') };
  const scenario: Scenario = {
    name: fields.optional('name', isNonEmptyString, 'a string of at least one character') ?? name,
    durationMs,
    startMs: readStart(fields),
    warmUpMs: readMillis(fields, 'warmUp', shares ? DEFAULT_WARM_UP_MS : 0),
    seed: fields.number('seed', { min: 0, max: MAX_SEED, integer: true }, 1),
    nodes,
    balancer: readBalancer(fields),
    limits,
    clients,
    server: fields.has('server')
      ? fields.tryRead(() => readServer(fields.get('server'), fields.pathOf('server')))
      : undefined,
    network: readNetwork(fields),
    faults: readList(fields, 'faults', (one, path) => readFault(one, path, scope)),
    expect: readList(fields, 'expect', (one, path) => readExpectation(one, path, scope)),
  };
  fields.finish();
  requireCallBudget(scenario);
  return scenario;
}

function readStart(fields: OptionReader): Millis {
  const text = fields.valueOr('start', DEFAULT_START);
  const startMs = typeof text === 'string' ? Date.parse(text) : Number.NaN;
  const isTime = typeof text === 'string' && /^\d{4}-\d\d-\d\dT.*(?:Z|[+-]\d\d:\d\d)$/.test(text);
  if (!isTime || Number.isNaN(startMs))
    fields.report('start', 'a time with its zone, such as "2026-01-31T23:59:00Z"');
  return startMs;
}

/** Reads the order alone, or an object. */
function readBalancer(fields: OptionReader): Balancer {
  const value = fields.valueOr('balancer', {});
  if (!isRecord(value))
    return { order: fields.oneOf('balancer', BALANCERS), detectsMs: DEFAULT_DETECTS_MS };
  const read = (): Balancer => {
    const inner = OptionReader.collecting(fields.pathOf('balancer'), value);
    const order = inner.oneOf('order', BALANCERS, 'round-robin');
    const detectsMs = inner.durationOrInfinity('detects', DEFAULT_DETECTS_MS);
    inner.finish();
    return { order, detectsMs };
  };
  return fields.tryRead(read) ?? { order: 'round-robin', detectsMs: DEFAULT_DETECTS_MS };
}

function readNetwork(fields: OptionReader): ScenarioNetwork {
  const read = (): ScenarioNetwork => {
    const network = OptionReader.collecting(
      fields.pathOf('network'),
      fields.valueOr('network', {}),
      'an object with delay, jitter or loss',
    );
    const result = {
      delayMs: readMillis(network, 'delay', 1),
      jitterMs: readMillis(network, 'jitter', 0),
      loss: network.number('loss', { min: 0, max: 0.9 }, 0),
    };
    network.finish();
    return result;
  };
  return fields.tryRead(read) ?? { delayMs: 1, jitterMs: 0, loss: 0 };
}

/** The entries of an object by name. @throws {ConfigError} if there is none, or more than `max`. */
function namedEntries(fields: OptionReader, name: string, max: number): [string, unknown][] {
  const value = fields.get(name);
  const expected = `an object with 1 to ${max} names`;
  if (!isRecord(value)) throw new ConfigError(fields.pathOf(name), expected, value);
  const entries = Object.entries(value);
  if (entries.length === 0 || entries.length > max)
    throw new ConfigError(fields.pathOf(name), expected, entries.length);
  return entries;
}

function readLimits(fields: OptionReader, nodes: number): readonly ScenarioLimit[] {
  const entries = namedEntries(fields, 'limits', MAX_LIMITS);
  const reader = new OptionReader(fields.pathOf('limits'), fields.get('limits'));
  return readEach(entries, ([name, one]) => readLimit(one, name, reader.pathOf(name), nodes));
}

function readClients(fields: OptionReader, durationMs: Millis): readonly Client[] {
  const entries = namedEntries(fields, 'clients', MAX_LIST);
  const reader = new OptionReader(fields.pathOf('clients'), fields.get('clients'));
  const clients = readEach(entries, ([name, one]) =>
    readClient(one, name, reader.pathOf(name), durationMs),
  );
  const callers = clients.reduce((sum, { count }) => sum + count, 0);
  if (callers > MAX_CALLERS)
    throw new ConfigError('clients', `at most ${MAX_CALLERS} of them by their \`count\``, callers);
  return clients;
}

function readList<T>(
  fields: OptionReader,
  name: string,
  read: (one: unknown, path: string) => T,
): readonly T[] {
  const list = fields.valueOr(name, []);
  if (!Array.isArray(list) || list.length > MAX_LIST) {
    fields.report(name, `a list of at most ${MAX_LIST}`);
    return [];
  }
  return (
    fields.tryRead(() => readEach(list, (one, n) => read(one, `${fields.pathOf(name)}[${n}]`))) ??
    []
  );
}

/** Estimates the number of calls, so that a mistyped rate fails at once and not after minutes. */
function requireCallBudget({ clients, durationMs }: Scenario): void {
  const calls = clients.reduce((sum, { traffic, count, fromMs, toMs }) => {
    const perMs =
      traffic.shape === 'hog' ? traffic.parallel / traffic.everyMs : meanRateOf(traffic);
    return sum + perMs * count * (Math.min(toMs, durationMs) - fromMs);
  }, 0);
  if (calls <= MAX_CALLS) return;
  const expected = `clients that make at most ${MAX_CALLS} calls in \`duration\``;
  throw new ConfigError('clients', expected, Math.round(calls));
}

function meanRateOf(traffic: Exclude<Client['traffic'], { shape: 'hog' }>): number {
  if (traffic.shape === 'flappy') return (traffic.perMs * traffic.forMs) / traffic.everyMs;
  if (traffic.shape !== 'spike') return traffic.perMs;
  const { perMs, forMs, everyMs, times } = traffic;
  return perMs * (1 + ((times - 1) * forMs) / everyMs);
}
