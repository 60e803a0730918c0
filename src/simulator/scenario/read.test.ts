import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { ConfigError } from '../../core/errors.ts';
import { readScenario } from './read.ts';

const LIMITS = { api: { bucket: { rate: '10/s' } } };
const CLIENTS = { caller: { rate: '1/s' } };

/** The messages of all mistakes. */
function mistakes(value: unknown): string[] {
  try {
    readScenario(value, 'test');
  } catch (error) {
    if (error instanceof ConfigError)
      return [error, ...error.additionalErrors].map(({ message }) => message);
    throw error;
  }
  return [];
}

const change = (fields: object): object => ({ limits: LIMITS, clients: CLIENTS, ...fields });

describe('scenario file', () => {
  test('defaults: one node, a minute, a round-robin balancer', () => {
    expect(readScenario(change({}), 'test')).toMatchObject({
      ...{ name: 'test', durationMs: 60_000, nodes: 1, seed: 1, warmUpMs: 0 },
      balancer: { order: 'round-robin', detectsMs: 1000 },
      ...{ server: undefined, faults: [], expect: [] },
      clients: [{ traffic: { shape: 'steady', perMs: 0.001 }, count: 1, waitMs: 0, retries: 0 }],
      limits: [{ name: 'api', backend: { kind: 'local' }, key: undefined }],
    });
  });

  test.each([
    ['no object', 3, 'expected an object with `limits` and `clients`, got 3'],
    ['no limits', { clients: CLIENTS }, 'expected `limits` to be an object with 1 to 20 names'],
    ['misspelt field', change({ node: 2 }), 'did you mean `nodes`?'],
    ['unknown balancer', change({ balancer: 'rnd' }), 'expected `balancer` to be one of'],
    ['a start without zone', change({ start: '2026-01-01' }), 'expected `start` to be a time with'],
    [
      'invalid rule',
      change({ limits: { api: { bucket: { rate: 'often' } } } }),
      'expected `limits.api.bucket.rate` to be a rate above 0',
    ],
    [
      'two rules',
      change({ limits: { api: { bucket: { rate: 1 }, concurrency: 1 } } }),
      'expected `limits.api` to be a limit with one of bucket',
    ],
    [
      'a rule that peers cannot share',
      change({ limits: { api: { concurrency: 1, peers: true } } }),
      'expected `limits.api` to be',
    ],
    [
      'a rule that Redis cannot run',
      change({ limits: { api: { adaptive: {}, redis: true } } }),
      'expected `limits.api` to be a rule that Redis can run',
    ],
    [
      'two backends',
      change({ limits: { api: { bucket: { rate: 1 }, redis: true, pool: true } } }),
      'expected `limits.api.pool` to be left out beside redis',
    ],
    [
      'a client without a rate',
      change({ clients: { a: {} } }),
      'expected `clients.a.rate` to be a rate above 0',
    ],
    [
      'a client with an unknown option',
      change({ clients: { a: { rate: 1, retrys: 1 } } }),
      'expected `clients.a.retrys` to be one of',
    ],
    [
      'an invalid wait',
      change({ clients: { a: { rate: 1, wait: 'long' } } }),
      'expected `clients.a.wait` to be true, false or a duration',
    ],
    [
      'too many calls',
      change({ clients: { a: { rate: '1000000/s' } } }),
      'expected `clients` to be clients that make at most 20000000 calls',
    ],
    [
      'a fault of no node',
      change({ faults: [{ at: '1s', crash: 2 }] }),
      'expected `faults[0].crash` to be a whole number of at least 1 and at most 1, got 2',
    ],
    [
      'two faults in one',
      change({ faults: [{ at: '1s', crash: 1, freeze: 1 }] }),
      'expected `faults[0]` to be an object with one of crash',
    ],
    [
      'an outage without a server',
      change({ faults: [{ at: '1s', outage: true }] }),
      'expected `faults[0].outage` to be left out without a limit in redis or pool',
    ],
    [
      'a range in the wrong order',
      change({ expect: [{ allowed: [2, 1] }] }),
      'expected `expect[0].allowed` to be a range of two numbers',
    ],
    ['an unknown figure', change({ expect: [{ alowed: [1, 2] }] }), 'did you mean `allowed`?'],
    [
      'an unknown client',
      change({ expect: [{ allowed: [1, 2], of: 'callr' }] }),
      'expected `expect[0].of` to be one of the clients caller',
    ],
    [
      'a figure of a server without one',
      change({ expect: [{ latencyP95: ['1s', '2s'] }] }),
      'expected `expect[0].latencyP95` to be left out without a `server`',
    ],
    [
      'a span beyond the end',
      change({ expect: [{ allowed: 1, to: '2m' }] }),
      'expected `expect[0].to` to be at most the duration, 60s',
    ],
    [
      'knee beside workers',
      change({ server: { workers: 2, knee: 4 } }),
      'expected `server.workers` to be left out beside `knee`',
    ],
  ])('%s is an error that names the field', (_name, value, message) => {
    expect(mistakes(value).join('\n')).toContain(message);
  });

  test('all mistakes are reported at once', () => {
    const found = mistakes({
      ...{ nodes: 0, limits: { api: { bucket: { rate: -1 } } }, clients: { a: { rate: 0 } } },
      expect: [{ allowed: 'x' }],
    });
    expect(found).toHaveLength(4);
  });

  test('every field is documented', () => {
    const docs = readFileSync('docs/reference/scenarios.md', 'utf8');
    const sources = ['', '-clients', '-limits', '-server', '-faults', '-expectations', '-times'];
    const fields = sources.flatMap((part) => {
      const text = readFileSync(`src/simulator/scenario/read${part}.ts`, 'utf8');
      const calls = text.matchAll(
        /\.(?:number|duration|durationOrInfinity|oneOf|optional|get|valueOr|rate|has)\(\s*'(\w+)'/g,
      );
      const times = text.matchAll(/(?:readMillis|boundedDuration)\(\w+, '(\w+)'/g);
      const faults = text.matchAll(/^ {2}(\w+)(?:: \(given|\(given)/gm);
      return [...calls, ...times, ...faults].map(([, name]) => name);
    });
    expect(fields.length).toBeGreaterThan(60);
    expect([...new Set(fields)].filter((name) => !docs.includes(`\`${name}\``))).toEqual([]);
  });
});
