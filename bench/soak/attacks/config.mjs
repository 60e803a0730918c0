/**
 * Attacks the configuration: texts that are too deep, too wide or full of aliases, and names with a meaning in JavaScript.
 *
 * Each text is parsed twice, as a reload would. The parser must refuse it or read it, in bounded time, and the prototypes
 * of the process must stay as they are.
 */

import { seededRandom } from '../../../dist/core/random.js';
import { parseConfigText } from '../../../dist/daemon/config/file.js';

/** Far above what a refusal takes on a busy machine, far below what a text without bounds takes. */
const MAX_PARSE_MS = 5000;

const list = (n, make) => Array.from({ length: n }, (_, at) => make(at));
const NAMES = ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'limits', 'x', '<<', ''];

/** By shape: a text of the given size. */
const SHAPES = {
  'flow lists': (n) => `limits: ${'['.repeat(n)}${']'.repeat(n)}`,
  'open flow lists': (n) => `limits: ${'['.repeat(n)}`,
  'flow objects': (n) => `limits: ${'{a: '.repeat(n)}1${'}'.repeat(n)}`,
  'open flow keys': (n) => '{? '.repeat(n),
  'block lists': (n) => `${'- '.repeat(n)}1`,
  'block keys': (n) => `${'? '.repeat(n)}1`,
  'block objects': (n) => list(Math.min(n, 3000), (at) => `${' '.repeat(at)}a:`).join('\n'),
  'chain of aliases': (n) =>
    `a: &a0 [x]\n${list(n, (at) => `a${at}: &a${at + 1} [*a${at}]`).join('\n')}`,
  'alias bomb': (n) =>
    `a: &a0 [x]\n${list(n, (at) => `a${at}: &a${at + 1} [${`*a${at}, `.repeat(9)}]`).join('\n')}`,
  'alias to itself': () => 'limits: &a { a: *a }',
  'merge keys': (n) => `a: &a { x: 1 }\n${list(n, (at) => `b${at}: { <<: *a }`).join('\n')}`,
  'many fields': (n) => list(n, (at) => `k${at}: 1`).join('\n'),
  'one field, many times': (n) => 'limits: {}\n'.repeat(n),
  'many documents': (n) => '---\n'.repeat(n),
  'open string': (n) => `limits: "${'\\x41'.repeat(n)}`,
};

export async function attack({ rounds, seed }) {
  const random = seededRandom(seed);
  const oneOf = (items) => items[Math.floor(random() * items.length)];
  /** An object of odd names, a few levels deep. */
  const oddNames = (depth) =>
    `{ ${list(3, () => `${JSON.stringify(oneOf(NAMES))}: ${depth > 0 && random() < 0.6 ? oddNames(depth - 1) : oneOf(['1', 'null', '[]', 'x'])}`).join(', ')} }`;
  const shapes = Object.values(SHAPES);
  const counts = { texts: 0, refused: 0, slowestMs: 0 };
  const prototype = Object.getOwnPropertyNames(Object.prototype).join();
  for (let n = 0; n < rounds; n++) {
    const shape = shapes[n % (shapes.length + 1)];
    const text = shape ? shape(Math.ceil(10 ** (random() * 4))) : `limits: ${oddNames(4)}`;
    for (let times = 0; times < 2; times++) {
      const startedAt = performance.now();
      const result = parseConfigText('attack.yaml', text);
      const ms = performance.now() - startedAt;
      counts.texts++;
      if ('problems' in result) counts.refused++;
      counts.slowestMs = Math.max(counts.slowestMs, Math.round(ms));
      if (ms > MAX_PARSE_MS) throw new Error(`${ms} ms for ${text.slice(0, 80)}`);
      if (Object.getOwnPropertyNames(Object.prototype).join() !== prototype || {}.x !== undefined)
        throw new Error(`polluted prototype: ${text.slice(0, 200)}`);
    }
  }
  return counts;
}
