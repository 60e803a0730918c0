import { defineConfig } from 'vitest/config';
import base, { SYSTEM_TESTS } from './vitest.config.ts';

export default defineConfig({
  test: {
    ...base.test,
    include: [SYSTEM_TESTS],
    exclude: ['node_modules/**'],
    maxWorkers: 3,
  },
});
