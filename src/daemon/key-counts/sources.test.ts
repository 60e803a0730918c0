import { expect, test } from 'vitest';
import { Sources } from './sources.ts';

test('sources: one that shares a record gets its own once another is idle, also if it alone calls', () => {
  let now = 0;
  const sources = new Sources({ now: () => now }, () => ({ lastAt: now }));
  for (let n = 0; n < 101; n++) sources.keysOf(`limit-${n}`);
  expect(sources.all.at(-1)?.about).toEqual({ reason: 'further-limits' });
  now = 600_001;
  sources.keysOf('limit-100');
  expect(sources.all.at(-1)?.about).toEqual({ limit: 'limit-100' });
});
