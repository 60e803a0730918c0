import { configDefaults, defineConfig } from 'vitest/config';
import { LongestFirst } from './test/setup/longest-first.ts';
import { MachineReporter } from './test/setup/reporter.ts';
import { WAIT_TIMEOUT_MS } from './test/support/wait-timeout.ts';

/** Tests that need a browser, a gateway, another runtime, minutes, or a machine that is not too slow: test/README.md. */
export const SYSTEM_TESTS = '**/*.system.test.ts';

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    exclude: [...configDefaults.exclude, SYSTEM_TESTS],
    globalSetup: './test/setup/lend-servers.ts',
    setupFiles: './test/setup/each-file.ts',
    reporters: ['default', new MachineReporter()],
    sequence: { sequencer: LongestFirst },
    maxWorkers: 4, // many files wait most of the time
    testTimeout: 240_000, // a busy machine takes thirty times as long as a quiet one
    hookTimeout: 240_000,
    expect: { poll: { timeout: WAIT_TIMEOUT_MS } },
  },
});
