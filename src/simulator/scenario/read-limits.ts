import { PEER_DEFAULTS } from '../../backends/peers/context.ts';
import { described, isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { seededRandom } from '../../core/random.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import { QUEUE_ORDERS } from '../../limiter/wait-queue.ts';
import { createPolicy, LIMIT_KINDS, type Limit } from '../../policies/limit.ts';
import { specsOf } from '../../policies/rules.ts';
import { Timeline } from '../timeline.ts';
import { Links } from './links.ts';
import { NodeClock } from './node-clock.ts';
import { boundedDuration, readMillis } from './read-times.ts';
import { BACKEND_KINDS, type BackendSpec, type ScenarioLimit } from './scenario.ts';
import { createSharedBackend } from './shared-backends.ts';

const MAX_WAITERS = 1_000_000;
const MAX_FLUSH_THRESHOLD = 1_000_000;
const MAX_REPORTS = 10_000;

export function readLimit(
  value: unknown,
  name: string,
  path: string,
  nodes: number,
): ScenarioLimit {
  const fields = OptionReader.collecting(path, value, `an object with one of ${RULES}`);
  const backend = fields.tryRead(() => readBackend(fields)) ?? { kind: 'local' };
  const rule = fields.tryRead(() => readRule(fields));
  const limit: ScenarioLimit = {
    name,
    limit: rule ?? { concurrency: 1 },
    backend,
    key: fields.optional('key', isNonEmptyString, 'a string of at least one character'),
    queue: readQueue(fields),
  };
  fields.finish();
  requireShareable(limit, path, nodes);
  return limit;
}

const RULES = LIMIT_KINDS.join(', ');

/** Reads the only rule among the fields. */
function readRule(fields: OptionReader): Limit {
  const kinds = LIMIT_KINDS.filter((kind) => fields.has(kind));
  if (kinds.length !== 1) {
    const expected = `a limit with one of ${RULES} (several: \`all: [...]\`)`;
    throw new ConfigError(fields.path, expected, described(kinds.join(' and ') || 'none'));
  }
  const limit = { [kinds[0]]: fields.get(kinds[0]) };
  createPolicy(limit, seededRandom(0), fields.path);
  return limit as unknown as Limit;
}

function readQueue(fields: OptionReader): ScenarioLimit['queue'] {
  const queue = fields.tryRead(() => {
    const inner = OptionReader.collecting(fields.pathOf('queue'), fields.valueOr('queue', {}));
    const read = {
      max: inner.number('max', { min: 0, max: MAX_WAITERS, integer: true }, 10_000),
      order: inner.oneOf('order', QUEUE_ORDERS, 'fifo'),
    };
    inner.finish();
    return read;
  });
  return queue ?? { max: 0, order: 'fifo' };
}

/** Reads `peers: true`, or options such as `pool: { sync: 50ms }`. Without a backend the limit is local. */
function readBackend(fields: OptionReader): BackendSpec {
  const kinds = BACKEND_KINDS.filter((kind) => fields.valueOr(kind, false) !== false);
  if (kinds.length > 1) fields.throwFor(kinds[1], `left out beside ${kinds[0]}`);
  const [kind] = kinds;
  if (kind === undefined) return { kind: 'local' };
  const given = fields.get(kind);
  const expected = 'true or an object with its options';
  const options = OptionReader.collecting(
    fields.pathOf(kind),
    given === true ? {} : given,
    expected,
  );
  const spec = READERS[kind](options);
  options.finish();
  return spec;
}

const READERS: Readonly<
  Record<(typeof BACKEND_KINDS)[number], (options: OptionReader) => BackendSpec>
> = {
  redis: (options) => ({
    kind: 'redis',
    rttMs: readMillis(options, 'rtt', 1),
    deadlineMs: boundedDuration(options, 'deadline', 100),
    onUnavailable: options.oneOf('onUnavailable', ['deny', 'allow'] as const, 'deny'),
  }),
  peers: (options) => ({
    kind: 'peers',
    peers: {
      exchange: options.oneOf('exchange', ['eager', 'periodic'] as const, PEER_DEFAULTS.exchange),
      intervalMs: boundedDuration(options, 'interval', PEER_DEFAULTS.intervalMs),
      flushThreshold: options.number(
        'flushThreshold',
        { min: 1, max: MAX_FLUSH_THRESHOLD, integer: true },
        PEER_DEFAULTS.flushThreshold,
      ),
      maxReports: options.number(
        'maxReports',
        { min: 1, max: MAX_REPORTS, integer: true },
        PEER_DEFAULTS.maxReports,
      ),
      peerTimeoutMs: boundedDuration(options, 'peerTimeout', PEER_DEFAULTS.peerTimeoutMs),
    },
  }),
  pool: (options) => {
    const memberTimeoutMs = boundedDuration(options, 'memberTimeout', 2000);
    const syncMs = boundedDuration(options, 'sync', Math.min(100, memberTimeoutMs / 4));
    if (syncMs > memberTimeoutMs / 4)
      options.report('sync', 'at most a quarter of `memberTimeout`');
    return {
      kind: 'pool',
      syncMs,
      memberTimeoutMs,
      staleForMs: boundedDuration(options, 'staleFor', Math.max(10_000, 2 * syncMs)),
      onUnavailable: options.oneOf('onUnavailable', ['deny', 'allow', 'keep'] as const, 'deny'),
    };
  },
  groups: (options) => ({
    kind: 'groups',
    reserve: options.number('reserve', { min: 0, max: 1 }, 0.2),
    deadlineMs: boundedDuration(options, 'deadline', 1000),
  }),
};

/** Creates the limiter of one node, so that a rule its backend cannot share is reported as the library reports it. */
function requireShareable(limit: ScenarioLimit, path: string, nodes: number): void {
  const timeline = new Timeline();
  const clock = new NodeClock(timeline, () => {});
  const random = seededRandom(0);
  const links = new Links({ delayMs: 0, jitterMs: 0, loss: 0 }, nodes, random);
  const { name, queue, limit: rule, backend: spec } = limit;
  if (spec.kind === 'redis' && !specsOf(createPolicy(rule, random))) {
    const expected = 'a rule that Redis can run: it does not learn from its own calls';
    throw new ConfigError(path, expected, described(Object.keys(rule)[0]));
  }
  try {
    const shared = createSharedBackend(limit, { clock, random, links, nodes });
    const backend = shared.join(0, clock);
    createLimiter({ name, limit: rule, queue, clock, random, ...(backend && { backend }) });
  } catch (error) {
    throw error instanceof ConfigError ? error.prefixedWith(path, 'limit') : error;
  } finally {
    clock.kill();
  }
}
