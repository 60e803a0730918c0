import { isRecord } from '../../core/options.ts';
import type { Limit } from '../../policies/limit.ts';
import { choice, type Fields, number, type Settings, type TextField } from './fields.ts';

export type Side = 'a' | 'b';
export const SIDES: readonly Side[] = ['a', 'b'];

/** The settings of a limit, by name without the prefix of its side. */
type LimitSettings = Readonly<Record<string, number & string>>;

interface LimitKind {
  readonly label: string;
  readonly fields: Fields;
  /** Left out: there is no limit. */
  readonly limit?: (values: LimitSettings) => Limit;
}

const log = { isLogarithmic: true } as const;
const RATE = number('Rate', '/s', [1, 1000, 1], 10, log);
const BURST = number('Burst', 'calls', [1, 1000, 1], 20, log);
const IN_FLIGHT = number('In flight', 'calls', [1, 200, 1], 10, log);

const WRITTEN: TextField = {
  kind: 'text',
  label: 'Limit as JSON',
  hint: 'As the option limit of the library has it.',
  maxChars: 600,
  initial: '{ "all": [{ "bucket": { "rate": "80/s" } }, { "concurrency": 12 }] }',
};

const KINDS: Readonly<Record<string, LimitKind>> = {
  none: { label: 'no limit', fields: {} },
  bucket: {
    label: 'bucket (token bucket)',
    fields: { rate: RATE, burst: BURST },
    limit: ({ rate, burst }) => ({ bucket: { rate: `${rate}/s`, burst } }),
  },
  window: {
    label: 'window (sliding window)',
    fields: {
      limit: number('Limit', 'calls', [1, 10_000, 1], 100, log),
      per: number('Per', 's', [1, 60, 1], 10),
    },
    limit: ({ limit, per }) => ({ window: { limit, per: `${per}s` } }),
  },
  quota: {
    label: 'quota (fixed window)',
    fields: {
      limit: number('Limit', 'calls', [1, 10_000, 1], 100, log),
      per: number('Per', 's', [1, 60, 1], 10),
    },
    limit: ({ limit, per }) => ({ quota: { limit, per: `${per}s` } }),
  },
  spacing: {
    label: 'spacing (minimum interval)',
    fields: { every: number('One call every', 'ms', [1, 10_000, 1], 100, log) },
    limit: ({ every }) => ({ spacing: { every } }),
  },
  ramp: {
    label: 'ramp (growing rate)',
    fields: {
      min: number('From', '/s', [1, 1000, 1], 5, log),
      max: number('To', '/s', [1, 1000, 1], 100, log),
      over: number('Over', 's', [1, 120, 1], 40),
      mode: choice(
        'Grows',
        {
          scheduled: 'with time',
          relaxed: 'while it is used at all',
          'only-if-used': 'only if used up',
          'go-back-n': 'only if used up, falls if not',
        },
        'scheduled',
      ),
    },
    limit: ({ min, max, over, mode }) => ({ ramp: { min, max, over: `${over}s`, mode } as never }),
  },
  concurrency: {
    label: 'concurrency (calls in flight)',
    fields: { inFlight: IN_FLIGHT },
    limit: ({ inFlight }) => ({ concurrency: inFlight }),
  },
  adaptive: {
    label: 'adaptive (learnt calls in flight)',
    fields: { rule: choice('Rule', { delay: 'delay', aimd: 'aimd' }, 'delay') },
    limit: ({ rule }) => ({ adaptive: { rule } as never }),
  },
  busy: {
    label: 'busy (halves when refused)',
    fields: {
      recoverRate: number('Recovers by', 'times a second', [0.1, 10, 0.1], 3),
    },
    limit: ({ recoverRate }) => ({ busy: { recoverRate } }),
  },
  both: {
    label: 'bucket and concurrency',
    fields: { rate: RATE, burst: BURST, inFlight: IN_FLIGHT },
    limit: ({ rate, burst, inFlight }) => ({
      all: [{ bucket: { rate: `${rate}/s`, burst } }, { concurrency: inFlight }],
    }),
  },
  lockout: {
    label: 'bucket with lock-out',
    fields: {
      rate: RATE,
      burst: BURST,
      after: number('Locks after', 'refusals', [1, 1000, 1], 20, log),
      lock: number('For', 's', [1, 120, 1], 10),
    },
    limit: ({ rate, burst, after, lock }) => ({
      all: [
        { bucket: { rate: `${rate}/s`, burst } },
        { lockout: { after, within: '10s', lock: `${lock}s`, on: 'refusal' } },
      ],
    }),
  },
  written: {
    label: 'any limit, as JSON',
    fields: { json: WRITTEN },
    limit: ({ json }) => parseLimit(json),
  },
};

function parseLimit(text: string): Limit {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`expected a limit as JSON, such as ${WRITTEN.initial}`);
  }
  if (!isRecord(value)) throw new Error('expected a limit: an object with one key');
  return value as Limit;
}

export const LIMIT_KIND = choice(
  'Kind',
  Object.fromEntries(Object.entries(KINDS).map(([name, { label }]) => [name, label])),
  'bucket',
);

/** Fields of every kind of limit except `none`. */
const COMMON: Fields = {
  scope: choice(
    'Counts',
    { client: 'each client by itself', all: 'all clients together' },
    'client',
  ),
  wait: number('Waits up to', 'ms', [0, 10_000, 10], 0, {
    hint: '0: calls are refused at once.',
  }),
};

/** The fields of a limit of this kind, by name without the prefix of its side. */
export const limitFields = (kind: string): Fields => {
  if (!Object.hasOwn(KINDS, kind)) return {};
  const { fields, limit } = KINDS[kind];
  return limit ? { ...fields, ...COMMON } : fields;
};

/** The option `limit` of the library; undefined for no limit. @throws for JSON that is none. */
export function limitOf(settings: Settings, side: Side): Limit | undefined {
  const kind = KINDS[settings[side]];
  const values = Object.fromEntries(
    Object.keys(kind.fields).map((name) => [name, settings[`${side}.${name}`]]),
  );
  return kind.limit?.(values as LimitSettings);
}
