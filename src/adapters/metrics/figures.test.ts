import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { METRICS, RTT_DURATION, WAIT_DURATION } from './figures.ts';

test('every figure stands in the documentation by both its names, and no other does', () => {
  const rows = readFileSync('docs/metrics.md', 'utf8').matchAll(
    /^\| `(sluice_\w+)` \| `(sluice[\w.]+)`(?: \((\w+)\))? \| (\w+) \|/gm,
  );
  const units: Record<string, string> = { By: '_bytes', s: '_seconds' };
  const documented = [...rows].map(([, prometheus, name, unit = '', kind]) => {
    const total = kind === 'counter' ? '_total' : '';
    expect(prometheus).toBe(`${name.replaceAll('.', '_')}${units[unit] ?? ''}${total}`);
    return [name, kind, unit].join(' ').trim();
  });
  const numbers = METRICS.map(({ name, kind, unit = '' }) => `${name} ${kind} ${unit}`.trim());
  const timings = [WAIT_DURATION, RTT_DURATION].map(({ name }) => `${name} histogram s`);
  expect(documented).toEqual([...numbers, ...timings]);
});
