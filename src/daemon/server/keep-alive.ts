/** How long a connection is idle before the system probes it; also for worker processes, which load little else. */

import type { Millis } from '../../core/clock.ts';

export const KEEP_ALIVE_MS: Millis = 30_000;
