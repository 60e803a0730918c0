/**
 * The backends that a daemon offers, one line each. A new backend is a folder in `src/backends` and a line here.
 *
 * The order is that of error messages, help texts and metrics. Wrappers are applied last, wherever they stand.
 */

import type { BackendModule } from '../../backends/daemon-backend.ts';
import { etcdModule } from '../../backends/etcd/daemon.ts';
import { groupsModule } from '../../backends/groups/daemon.ts';
import { peersModule } from '../../backends/peers/daemon.ts';
import { poolModule } from '../../backends/pool/daemon.ts';
import { redisModule } from '../../backends/redis/daemon.ts';

export type { BackendModule, BackendPage, TextTable } from '../../backends/daemon-backend.ts';

export const BACKENDS: readonly BackendModule[] = [
  redisModule,
  etcdModule,
  peersModule,
  poolModule,
  groupsModule,
];
