/**
 * Checks the words of the project: plain technical English, no metaphors in names, and the field's term where a
 * subject is explained.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { describe, expect, test } from 'vitest';

/** Pronouns that hide which component acts. */
const PRONOUNS = /\b(?:whoever|somebody|nobody|anybody|everybody)\b/i;

/** Lines with such a pronoun that may stand: quotations, for the most part. */
const MAX_PRONOUN_LINES = 10;

/** Words that name something else than what is meant. No file and no identifier has one of them as a part. */
const METAPHORS = new Set([
  ...['house', 'room', 'rooms', 'road', 'roads', 'door', 'doors', 'desk', 'desks', 'shelf'],
  ...['shelves', 'estate', 'company', 'voice', 'voices', 'stranger', 'strangers', 'thief'],
  ...['thieves', 'theft', 'steal', 'steals', 'stolen', 'tune', 'story', 'stories', 'errand'],
  ...['errands', 'makeshift', 'newcomer', 'teacher', 'fellow', 'fellows'],
]);

/** Where each subject is explained, and the term a reader searches for. */
const TERMS: readonly { readonly term: RegExp; readonly paths: readonly string[] }[] = [
  {
    term: /token bucket/i,
    paths: ['README.md', 'docs/reference/limits.md', 'src/policies/bucket.ts'],
  },
  {
    term: /sliding window/i,
    paths: ['README.md', 'docs/reference/limits.md', 'src/policies/window.ts'],
  },
  {
    term: /\bGCRA\b/,
    paths: ['docs/reference/limits.md', 'src/policies/gcra.ts', 'src/policies/spacing.ts'],
  },
  { term: /rate limit/i, paths: ['README.md', 'ARCHITECTURE.md', 'docs/reference/library.md'] },
  {
    term: /concurrency limit/i,
    paths: ['README.md', 'docs/reference/limits.md', 'src/policies/concurrency.ts'],
  },
  {
    term: /Retry-After/,
    paths: [
      'docs/reference/http-middleware.md',
      'docs/reference/fetch.md',
      'src/limiter/cooldowns.ts',
    ],
  },
  {
    term: /fail(?:s|ing)?[ -]open/i,
    paths: [
      'docs/reference/redis.md',
      'docs/reference/http-middleware.md',
      'docs/reference/client.md',
    ],
  },
  {
    term: /circuit breaker/i,
    paths: ['docs/reference/redis.md', 'src/backends/circuit-breaker.ts'],
  },
  { term: /gossip/i, paths: ['docs/reference/peers.md', 'src/backends/peers/protocol.ts'] },
  {
    term: /anti-entropy/i,
    paths: ['docs/reference/peers.md', 'src/backends/peers/anti-entropy.ts'],
  },
  { term: /quorum/i, paths: ['docs/reference/etcd.md', 'src/backends/etcd/backend.ts'] },
  {
    term: /jitter/i,
    paths: ['docs/explanation/adaptive.md', 'docs/reference/library.md', 'src/throttle/retry.ts'],
  },
  { term: /evict/i, paths: ['docs/reference/limits.md', 'src/backends/local/table.ts'] },
  {
    term: /overshoot/i,
    paths: [
      'docs/explanation/accuracy-of-peers.md',
      'docs/reference/peers.md',
      'src/simulator/peers/figures.ts',
    ],
  },
];

const filesIn = (root: string, extension: RegExp): string[] =>
  readdirSync(root, { recursive: true, encoding: 'utf8' })
    .map((path) => `${root}/${path.replaceAll('\\', '/')}`)
    .filter((path) => extension.test(path) && !path.includes('node_modules'));

const pages = readdirSync('.').filter((path) => path.endsWith('.md'));
const prose = [...filesIn('src', /\.ts$/), ...filesIn('docs', /\.md$/), ...pages];
const code = ['src', 'test', 'bench', 'demo', 'examples'].flatMap((root) =>
  filesIn(root, /\.(?:ts|mjs)$/),
);

/** The code of a file without comments, strings and regular expressions; what templates insert stays. */
const identifiersOf = (text: string): string[] =>
  text
    .replace(/\/\*[\s\S]*?\*\//g, ' ')
    .replace(/(^|[^:'"`\\])\/\/.*$/gm, '$1')
    .replace(/'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"/g, ' ')
    .replace(/`(?:[^`\\]|\\.)*`/g, (template) =>
      [...template.matchAll(/\$\{([^{}]*)\}/g)].map(([, inserted]) => inserted).join(' '),
    )
    .match(/[A-Za-z_$][\w$]*/g) ?? [];

/** The words a name is made of: `waitQueue`, `WAIT_QUEUE` and `wait-queue` are wait and queue. */
const wordsOf = (name: string): string[] =>
  name
    .replace(/([a-z0-9])([A-Z])/g, '$1 $2')
    .split(/[^A-Za-z]+/)
    .map((word) => word.toLowerCase());

const hasMetaphor = (name: string): boolean => wordsOf(name).some((word) => METAPHORS.has(word));

describe('vocabulary', () => {
  test('files are found', () => {
    expect(prose.length).toBeGreaterThan(300);
    expect(code.length).toBeGreaterThan(400);
  });

  test('a metaphor is found in a name, and not in a part of a word', () => {
    expect(['waitingRoom', 'LEFT_DOOR', 'http-desk'].filter(hasMetaphor)).toHaveLength(3);
    expect(['headroom', 'doorway', 'limiter'].filter(hasMetaphor)).toEqual([]);
  });

  test(`pronouns without a subject stand in at most ${MAX_PRONOUN_LINES} lines`, () => {
    const lines = prose.flatMap((path) =>
      readFileSync(path, 'utf8')
        .split('\n')
        .flatMap((line, n) => (PRONOUNS.test(line) ? [`${path}:${n + 1}: ${line.trim()}`] : [])),
    );
    expect(lines.length, lines.join('\n')).toBeLessThanOrEqual(MAX_PRONOUN_LINES);
  });

  test('no file name has a metaphor in it', () => {
    const named = [...code, ...filesIn('docs', /./)].filter((path) => hasMetaphor(basename(path)));
    expect(named).toEqual([]);
  });

  test('no identifier has a metaphor in it', () => {
    const named = code.flatMap((path) => {
      const names = new Set(identifiersOf(readFileSync(path, 'utf8')).filter(hasMetaphor));
      return [...names].map((name) => `${path}: ${name}`);
    });
    expect(named).toEqual([]);
  });

  test.each(TERMS)('$term stands where its subject is explained', ({ term, paths }) => {
    const missing = paths.filter((path) => !term.test(readFileSync(path, 'utf8')));
    expect(missing).toEqual([]);
  });
});
