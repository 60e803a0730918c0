import { defineConfig } from 'vitest/config';
import { WAIT_TIMEOUT_MS } from './test/support/wait-timeout.ts';

/** Files that spend most of their time waiting: for leases to expire, servers to fail over, or a browser. */
const WAITING = [
  'src/backends/pool/{etcd,redis,nats}-store.test.ts',
  'src/backends/pool/redis-{members,cluster}.test.ts',
  'src/backends/redis/{cluster,backend,modes,fair-queue}.test.ts',
  'src/backends/etcd/options.test.ts',
  'src/backends/durable-objects/backend.test.ts',
  'test/soak-{faults,pool,peers,etcd,groups}.test.ts',
  'test/daemon-{waiting,peers,pool}.test.ts',
  'test/{durable-objects,upstash-workers,page-browser,joint-kill,semaphore-kill}.test.ts',
  'test/{operator,gateways,service,monitoring,real-servers,demo}.test.ts',
];

export default defineConfig({
  test: {
    globalSetup: './test/support/setup.ts',
    setupFiles: './test/support/wait-for.ts',
    testTimeout: 60_000,
    hookTimeout: 60_000, // hooks start servers and daemons
    expect: { poll: { timeout: WAIT_TIMEOUT_MS } },
    projects: [
      {
        extends: true,
        test: {
          name: 'busy',
          include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
          exclude: WAITING,
          maxWorkers: 2, // many need a core for themselves
          sequence: { groupOrder: 1 },
        },
      },
      {
        extends: true,
        test: {
          name: 'waiting',
          include: WAITING,
          maxWorkers: 5,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
});
