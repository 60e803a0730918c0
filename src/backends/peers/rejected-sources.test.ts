import { expect, test } from 'vitest';
import { type RejectedSource, RejectedSources } from './rejected-sources.ts';

const HOUR_MS = 3_600_000;

function tracker() {
  const reports: RejectedSource[] = [];
  return { reports, sources: new RejectedSources('auth_failed', (one) => reports.push(one)) };
}

test('rejected sources: each is reported once an hour, however many datagrams it sends', () => {
  const { reports, sources } = tracker();
  for (let now = 0; now < 2 * HOUR_MS; now += 1000)
    for (const from of ['a', 'b']) sources.record(from, 0, now);
  expect(reports.map(({ from }) => from)).toEqual(['a', 'b', 'a', 'b']);
  expect(sources.views(2 * HOUR_MS)).toMatchObject([
    { from: 'a', datagrams: 7200, ageMs: 1000 },
    { from: 'b', datagrams: 7200, ageMs: 1000 },
  ]);
});

test('rejected sources: forged addresses cause a bounded number of reports an hour', () => {
  const { reports, sources } = tracker();
  for (let n = 0; n < 100_000; n++) sources.record(`forged ${n}`, 0, n);
  expect(reports.length).toBe(64);
  expect(sources.views(100_000).length).toBe(64);
  sources.record('real', 0, HOUR_MS + 100_000);
  expect(reports.at(-1)).toMatchObject({ from: 'real' });
  expect(sources.views(HOUR_MS + 100_000).length).toBe(1);
});
