/** The numbers of docs/how-to/llm-api.md stay below those of the provider that the page assumes. */

import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { limiter } from '../src/index.ts';
import { VirtualClock } from '../src/testing/index.ts';
import { readPage } from './support/snippets/pages.ts';

const PAGE = 'docs/how-to/llm-api.md';
const STEP_MS = 100;
const STEPS_PER_MINUTE = 60_000 / STEP_MS;

/** A row of the page's table: provider, rate, burst, at most in a minute. */
const rowOf = (name: string): number[] => {
  const row = readFileSync(PAGE, 'utf8').match(new RegExp(`^\\| ${name} \\|(.+)\\|$`, 'm'));
  return (row?.[1] ?? '').split('|').map((cell) => Number(cell.replaceAll(',', '')));
};

/** The most that a bucket admits within a minute, to callers that take whatever is left. */
function mostInAMinute(rate: number, burst: number): number {
  const clock = new VirtualClock();
  const limit = limiter({ limit: { bucket: { rate: `${rate}/m`, burst } }, clock });
  const taken: number[] = [];
  for (let step = 0; step < 3 * STEPS_PER_MINUTE; step++) {
    taken.push(limit.takeUpTo('', Infinity));
    clock.advance(STEP_MS);
  }
  const minutes = taken
    .slice(0, -STEPS_PER_MINUTE)
    .map((_, from) =>
      taken.slice(from, from + STEPS_PER_MINUTE).reduce((sum, each) => sum + each, 0),
    );
  return Math.max(...minutes);
}

test.each(['requests', 'tokens'])(`${PAGE}: %s stay below the provider's number`, (name) => {
  const [program] = readPage(PAGE).blocks;
  const used = new RegExp(`'llm-${name}'.*rate: '(\\d+)/m', burst: (\\d+)`).exec(program.text);
  const [provider, rate, burst, most] = rowOf(name);
  expect(used?.slice(1).map(Number)).toEqual([rate, burst]);
  expect(most).toBe(rate + burst);
  expect(most).toBeLessThan(provider);
  const admitted = mostInAMinute(rate, burst);
  expect(admitted).toBeLessThanOrEqual(most);
  expect(admitted).toBeGreaterThan(0.98 * most); // the callers took what there was
});
