/** For the tests that src/backends/peers/udp-transport.test.ts runs in a network namespace. */

import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: { include: ['test/support/multicast/inside.ts'], testTimeout: 30_000 },
});
