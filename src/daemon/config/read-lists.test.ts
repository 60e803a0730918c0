import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { runAtOnce } from '../../core/steps.ts';
import { BACKENDS } from '../backends/registry.ts';
import { dryRunRegistry } from '../router/limiter-registry.ts';
import { RouteTable } from '../router/routes.ts';
import { type LoadResult, parseConfigText, readPlainConfig } from './file.ts';
import type { Config } from './read.ts';
import { buffersOf, listsOf, ReadLists, withoutLists } from './read-lists.ts';

const folder = createTempDir();
afterAll(folder.remove);
writeFileSync(join(folder.path, 'blocked.txt'), 'mallory\n10.0.0.0/8\nip:2001:db8::/32\n');
writeFileSync(join(folder.path, 'plans.csv'), 'acme,pro\nümlaut,free\n');

const TEXT = `
deny: [{ file: blocked.txt }, 'bot-*', { regex: 'x+' }]
allow: [probe]
planFile: plans.csv
plans: { free: { bucket: { rate: 1/s } }, pro: { bucket: { rate: 9/s } } }
limits:
  api:
    bucket: { rate: 5/s }
    plans: true
    allow: [{ exact: 'a*b' }]
    deny: [{ prefix: 'api-' }]
    overrides:
      - { match: [vip, 'team:*'], bucket: { rate: 100/s } }
      - { match: [ümlaut-vip, 192.168.0.0/16], name: inner, bucket: { rate: 50/s } }
      - { match: whale, plan: pro }
  total: { bucket: { rate: 1000/s }, per: limit, always: true }
`;

const KEYS = [
  ...['mallory', '10.1.2.3', 'ip:2001:db8::7', 'bot-7', 'xx', 'probe', 'acme', 'ümlaut', 'a*b'],
  ...['api-1', 'vip', 'team:red', 'ümlaut-vip', '192.168.3.4', 'whale', 'someone', 'a', 'axb'],
].map((key) => Buffer.from(key, 'utf8').toString('latin1'));

function configOf(loaded: LoadResult): Config {
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  return loaded.config;
}

/** The route of every key, in words. */
function routesOf(config: Config) {
  const table = new RouteTable(config, dryRunRegistry(config.limits));
  return KEYS.map((key) => {
    const { staticVerdict, applied } = table.find(key);
    const overrides = applied.map(({ limit }) => table.matchOf(limit, key).override);
    return { key, staticVerdict, names: applied.map(({ name }) => name), overrides };
  });
}

test('lists that a thread has read: every key has the same route as without a thread', () => {
  const loaded = parseConfigText(join(folder.path, 'sluice.yaml'), TEXT);
  const here = configOf(loaded);
  if (!('plain' in loaded)) throw new Error('not loaded');
  const { value } = loaded.plain;
  const expected = routesOf(here);
  const message = { lists: listsOf(here), value: withoutLists(value) };
  expect(JSON.stringify(message.value)).not.toMatch(/vip|mallory|blocked|probe/);
  const sent = structuredClone(message, { transfer: buffersOf(message.lists) });
  writeFileSync(join(folder.path, 'plans.csv'), 'not read again'); // nor is any other file of a list
  const lists = new ReadLists(sent.lists);
  const plain = { value: sent.value, folder: folder.path };
  const there = configOf(runAtOnce(readPlainConfig(plain, BACKENDS, lists)));
  expect(routesOf(there)).toEqual(expected);
  expect(there.limits[0].overrides.length).toBe(3);
  expect(there.limits[0].overrides.patternCounts()).toEqual([2, 2, 1]);
  expect(
    new Set(expected.map(({ names, staticVerdict }) => names[0] ?? staticVerdict?.reason)),
  ).toEqual(
    new Set([
      'deny-list',
      'allow-list',
      'api',
      'api[pro]',
      'api[free]',
      'api[inner]',
      'api[bucket 100/s]',
      'total',
    ]),
  );
});
