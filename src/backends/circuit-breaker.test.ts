import { expect, test } from 'vitest';
import { RejectionPacer } from './circuit-breaker.ts';

test('circuit breaker: a caller that retries immediately does not starve the event loop', async () => {
  const refuser = new RejectionPacer();
  let isOver = false;
  setTimeout(() => {
    isOver = true;
  }, 1);
  let refused = 0;
  while (!isOver && refused < 1_000_000) {
    await refuser.reject(new Error('no')).catch(() => refused++);
  }
  expect(isOver).toBe(true);
});
