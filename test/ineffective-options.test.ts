import { describe, expect, test } from 'vitest';
import { redis } from '../src/backends/redis/index.ts';
import { parseConfigText } from '../src/daemon/config/file.ts';
import { type LimiterOptions, limiter } from '../src/limiter/limiter.ts';

/** Never called: limits are only created. */
const CLIENT: object = { evalsha: async () => null, on: () => {}, duplicate: () => CLIENT };

const errorOf = (create: () => unknown): string => {
  try {
    create();
    return '';
  } catch (error) {
    return (error as Error).message;
  }
};

const inLibrary = (options: object, backend?: unknown): string =>
  errorOf(() => limiter({ ...options, ...(backend ? { backend } : {}) } as LimiterOptions));

function inDaemon(limit: object, others: object = {}): string {
  const loaded = parseConfigText('f', JSON.stringify({ limits: { a: { ...limit, ...others } } }));
  return 'problems' in loaded ? loaded.problems.join('\n') : '';
}

const PLACES = {
  library: (limit: object) => inLibrary({ limit }),
  'library, redis': (limit: object) =>
    inLibrary({ limit, name: 'a' }, redis(CLIENT as unknown as Parameters<typeof redis>[0])),
  daemon: (limit: object) => inDaemon(limit),
  'daemon, redis': (limit: object) => inDaemon(limit, { redis: { url: 'redis://127.0.0.1:1' } }),
  'daemon, shadow': (limit: object) => inDaemon(limit, { shadow: true }),
  'daemon, override': (limit: object) =>
    inDaemon({ bucket: { rate: 1 } }, { overrides: [{ match: 'b', ...limit }] }),
  'daemon, per: limit': (limit: object) => inDaemon(limit, { per: 'limit' }),
  'daemon, maxKeys': (limit: object) => inDaemon(limit, { maxKeys: 10 }),
  'daemon, per: limit, maxKeys': (limit: object) => inDaemon(limit, { per: 'limit', maxKeys: 10 }),
};

type Place = keyof typeof PLACES;
const ALL_PLACES = Object.keys(PLACES) as Place[];
const IN_DAEMON = ALL_PLACES.filter((place) => place.startsWith('daemon'));
const OVER_REDIS: readonly Place[] = ['library, redis', 'daemon, redis'];
const SHARED_MAX_KEYS: Place = 'daemon, per: limit, maxKeys';

const PARTS = { partitions: { live: 0.5 } };
const LEVELS = { priorities: ['user', 'prefetch'] };
const spacing = { spacing: { every: '1s' } };
const reserving = { spacing: { every: '1s', reserve: 2 } };

/** Each limit, and the places that refuse it: as without the option, and because of it. */
const TABLE: readonly (readonly [object, readonly Place[]])[] = [
  [{ bucket: { rate: 1 } }, []],
  [spacing, []],
  [{ spacing: { every: '1s', reserve: 0 } }, []],
  [{ spacing: { every: '1s', expire: '1s' } }, []],
  [{ ramp: { min: 1, max: 2, over: '1s' } }, []],
  [{ quota: { limit: 1, per: 'day' } }, []],
  [{ window: { limit: 1, per: '1s' } }, []],
  [{ concurrency: 2 }, ['daemon, shadow']],
  [{ adaptive: {} }, [...OVER_REDIS, 'daemon, shadow']],
  [{ adaptive: { rule: 'aimd', alpha: 0.5 } }, [...OVER_REDIS, 'daemon, shadow']],
  [{ adaptive: { alpha: 0.5 } }, ALL_PLACES],
  [{ busy: {} }, [...OVER_REDIS, 'daemon, shadow']],
  [{ all: [{ bucket: { rate: 1 } }, { adaptive: {} }] }, [...OVER_REDIS, 'daemon, shadow']],
  [reserving, IN_DAEMON],
  [{ all: [{ bucket: { rate: 1 } }, reserving] }, IN_DAEMON],
  [{ concurrency: { limit: 2, ...PARTS } }, ['library, redis', ...IN_DAEMON]],
  [{ adaptive: PARTS }, ['library, redis', ...IN_DAEMON]],
  [{ concurrency: { limit: 2, ...LEVELS } }, ['library, redis', ...IN_DAEMON]],
  [{ adaptive: LEVELS }, ['library, redis', ...IN_DAEMON]],
  [{ all: [{ bucket: { rate: 1 } }, { adaptive: PARTS }] }, ['library, redis', ...IN_DAEMON]],
];

describe('options without effect', () => {
  for (const [limit, refused] of TABLE) {
    const expected = new Set<Place>([...refused, SHARED_MAX_KEYS]);
    test(`${JSON.stringify(limit)}: is refused where it would do nothing, and nowhere else`, () => {
      const found = ALL_PLACES.filter((place) => PLACES[place](limit) !== '');
      expect(found).toEqual(ALL_PLACES.filter((place) => expected.has(place)));
    });
  }

  test('each error names the option, the reason and the alternative', () => {
    expect(PLACES.daemon({ all: [spacing, reserving] })).toContain(
      'expected `limits.a.all[1].spacing.reserve` to be left out: a daemon reserves nothing; ' +
        'a client waits with `wait`, or retries after the time in the refusal, got 2',
    );
    expect(PLACES['daemon, override']({ adaptive: PARTS })).toContain(
      'expected `limits.a.overrides[0].adaptive.partitions` to be left out: no protocol of a daemon names ' +
        'a partition; write one limit for each, got {"live":0.5}',
    );
    expect(PLACES.daemon({ adaptive: LEVELS })).toContain(
      'expected `limits.a.adaptive.priorities` to be left out: no protocol of a daemon names ' +
        'a level; write one limit for each, got ["user","prefetch"]',
    );
    expect(PLACES['daemon, override']({ adaptive: { slowStart: true } })).toContain(
      "expected `limits.a.overrides[0].adaptive.slowStart` to be beside `rule: 'aimd'`, got true",
    );
    expect(PLACES['daemon, shadow']({ all: [spacing, { busy: {} }] })).toContain(
      'expected `limits.a.shadow` to be false beside busy: it needs the outcome of calls and gets none ' +
        'in shadow mode; try it on some keys with `match`, got true',
    );
    expect(PLACES['daemon, per: limit, maxKeys'](spacing)).toContain(
      'expected `limits.a.maxKeys` to be left out when all keys have one count together (per: limit), got 10',
    );
    expect(PLACES['library, redis']({ concurrency: { limit: 2, ...PARTS } })).toContain(
      'expected `limit` to be without partitions when its backend decides elsewhere: its calls cannot ' +
        'name one; write one limit for each, got ["live"]',
    );
    expect(PLACES['library, redis']({ concurrency: { limit: 2, ...LEVELS } })).toContain(
      'expected `limit` to be without priorities when its backend decides elsewhere',
    );
  });
});
