import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    globalSetup: './test/support/setup.ts',
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 30_000,
    maxWorkers: 2, // many wait for real servers and real time, also where there is but one core to spare
  },
});
