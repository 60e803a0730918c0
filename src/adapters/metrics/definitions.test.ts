import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { HISTOGRAM_METRICS, METRICS } from './definitions.ts';

test('docs/reference/metrics.md: lists every metric under both names, and no others', () => {
  const rows = readFileSync('docs/reference/metrics.md', 'utf8').matchAll(
    /^\| `(sluice_\w+)` \| `(sluice[\w.]+)`(?: \((\w+)\))? \| (\w+) \|/gm,
  );
  const units: Record<string, string> = { By: '_bytes', s: '_seconds' };
  const documented = [...rows].map(([, prometheus, name, unit = '', kind]) => {
    const total = kind === 'counter' ? '_total' : '';
    expect(prometheus).toBe(`${name.replaceAll('.', '_')}${units[unit] ?? ''}${total}`);
    return [name, kind, unit].join(' ').trim();
  });
  const metrics = METRICS.map(({ name, kind, unit = '' }) => `${name} ${kind} ${unit}`.trim());
  const histograms = HISTOGRAM_METRICS.map(({ name, unit = '' }) =>
    `${name} histogram ${unit}`.trim(),
  );
  expect(documented).toEqual([...metrics, ...histograms]);
});
