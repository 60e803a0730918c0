import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { runs } from '../../../test/support/runs.ts';
import { readPattern } from '../keys/pattern.ts';
import { readSnapshot } from '../snapshot.ts';
import { parseConfigText } from './file.ts';

const numRuns = runs(1000);
const timeout = 60_000 + numRuns;

const place = createTempDir();
afterAll(() => place.remove());

const WORDS = [
  ...['limits', 'listen', 'line', 'bucket', 'rate', 'burst', 'match', 'overrides', 'regex', 'glob'],
  ...[
    'allow',
    'deny',
    'always',
    'per',
    'shadow',
    'redis',
    'etcd',
    'endpoints',
    'url',
    'tls',
    'snapshot',
    'bounds',
    'http',
    'pool',
    'etcd',
    'nats',
    'dns',
    'environment',
    'size',
    'endpoints',
    'groups',
    'own',
    'weight',
  ],
  ...[
    '10/s',
    '127.0.0.1:0',
    '/x.sock',
    '*',
    'ip:*',
    '(a+)+',
    '1e999',
    '-1',
    'off',
    'null',
    '~',
    '.inf',
  ],
  ...[
    ': ',
    ', ',
    '\n',
    '\n  ',
    '{',
    '}',
    '[',
    ']',
    '- ',
    '&a',
    '*a',
    '<<',
    '"',
    "'",
    '|',
    '>',
    '#',
    '\t',
  ],
];

const yaml = fc.oneof(
  fc.array(fc.constantFrom(...WORDS), { maxLength: 40 }).map((words) => words.join('')),
  fc.string({ unit: 'binary', maxLength: 200 }),
);

/** Random values in fields that exist. */
const anything = fc.oneof(fc.anything({ maxDepth: 3 }), fc.constantFrom(...WORDS));
/** Every kind of store, with random values. */
const onePool = fc
  .tuple(
    fc.constantFrom('redis', 'nats', 'etcd', 'size', 'environment', 'dns'),
    fc.oneof(
      anything,
      fc.record(
        {
          ...{ url: anything, prefix: anything, deadline: anything },
          ...{ servers: anything, bucket: anything, endpoints: anything, auth: anything },
          ...{ tls: anything, size: anything, rank: anything, host: anything, every: anything },
        },
        { requiredKeys: [] },
      ),
    ),
    fc.record(
      { name: anything, memberTimeout: anything, staleFor: anything },
      { requiredKeys: [] },
    ),
  )
  .map(([where, value, options]) => ({ [where]: value, ...options }));

/** Groups, with random values. */
const someGroups = fc.record(
  {
    self: fc.oneof(anything, fc.constant('eu')),
    groups: fc.oneof(
      anything,
      fc.dictionary(
        fc.constantFrom('eu', 'us', 'a b', '__proto__', ''),
        fc.oneof(
          anything,
          fc.record({ weight: anything, min: anything, at: anything }, { requiredKeys: [] }),
          fc.constant({ at: 'http://us' }),
        ),
      ),
    ),
    key: fc.oneof(anything, fc.constant('sixteen letters or more')),
    ...{ listen: anything, reserve: anything, deadline: anything },
  },
  { requiredKeys: ['self', 'groups', 'key'] },
);

const nearly = fc.record(
  {
    listen: fc.oneof(anything, fc.record({ line: anything, resp: anything, http: anything })),
    limits: fc.dictionary(
      fc.constantFrom('a', 'b', 'a b', '__proto__', ''),
      fc.oneof(
        anything,
        fc.record({ bucket: anything, match: anything, overrides: anything }),
        fc.record({ bucket: fc.constant({ rate: 1 }), pool: fc.oneof(fc.boolean(), anything) }),
        fc.record({ bucket: fc.constant({ rate: 9 }), groups: fc.oneof(fc.boolean(), anything) }),
      ),
    ),
    http: anything,
    bounds: anything,
    snapshot: anything,
    admin: anything,
    allow: anything,
    pool: fc.oneof(anything, onePool),
    groups: fc.oneof(anything, someGroups),
  },
  { requiredKeys: [] },
);

const isHandled = (text: string): boolean => {
  const loaded = parseConfigText('fuzz.yaml', text);
  return (
    'config' in loaded ||
    loaded.problems.every((problem) => typeof problem === 'string' && problem !== '')
  );
};

describe('random input', () => {
  test('a configuration of random text is read or refused with a message', { timeout }, () => {
    fc.assert(fc.property(yaml, isHandled), { numRuns });
  });

  test('a configuration with random values is read or refused with a message', { timeout }, () => {
    fc.assert(
      fc.property(nearly, (value) => {
        let text: string;
        try {
          text = JSON.stringify(value) ?? '';
        } catch {
          return; // not representable in a file
        }
        expect(isHandled(text)).toBe(true);
      }),
      { numRuns },
    );
  });

  test('a pattern is read or refused with a message, and then matches any key or not', {
    timeout,
  }, () => {
    const source = fc.oneof(
      fc
        .array(
          fc.constantFrom('a', '(', ')', '*', '+', '?', '[', ']', '|', '\\', '{2}', '.', '^', '$'),
        )
        .map((own) => own.join('')),
      fc.string(),
    );
    const kind = fc.constantFrom('exact', 'prefix', 'glob', 'regex');
    fc.assert(
      fc.property(source, kind, fc.string({ unit: 'binary' }), (text, own, key) => {
        try {
          expect(typeof readPattern({ [own]: text }, 'match').matches(key)).toBe('boolean');
        } catch (error) {
          expect(error).toMatchObject({ name: 'ConfigError' });
        }
      }),
      { numRuns },
    );
  });

  test('a snapshot of random bytes is ignored', { timeout }, async () => {
    const file = join(place.path, 'state');
    const start = Buffer.from('sluice snapshot 1\n');
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 200 }), fc.boolean(), async (bytes, isBegun) => {
        writeFileSync(file, isBegun ? Buffer.concat([start, bytes]) : bytes);
        expect(await readSnapshot(file, 0, Infinity)).toHaveProperty('reason');
      }),
      { numRuns: Math.ceil(numRuns / 10) },
    );
  });
});
