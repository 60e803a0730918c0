/** Runs before each test file: gives `vi.waitFor` the timeout that `expect.poll` has from vitest.config.ts. */

import { vi } from 'vitest';
import { WAIT_TIMEOUT_MS } from './wait-timeout.ts';

const { waitFor } = vi;

vi.waitFor = (callback, options = {}) => {
  const chosen = typeof options === 'number' ? { timeout: options } : options;
  return waitFor(callback, { timeout: WAIT_TIMEOUT_MS, ...chosen });
};
