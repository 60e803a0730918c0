/** For what src/backends/peers/udp-transport.test.ts runs inside a network of its own. */

import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: { include: ['test/support/multicast/inside.ts'], testTimeout: 30_000 },
});
