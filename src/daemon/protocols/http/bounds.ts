/** Bounds on what HTTP clients can make the daemon hold. */

import type { Bounds } from '../../config/read.ts';

export interface HttpBounds extends Omit<Bounds, 'maxThrottleKeys' | 'drainMs'> {
  /** Checks in one batch. */
  readonly maxBatch: number;
  readonly maxSubscribers: number;
}

export const HTTP_BOUNDS: HttpBounds = {
  maxKey: 1024,
  maxBatch: 1000,
  maxBody: 1_048_576,
  maxSubscribers: 100,
  maxConnections: 10_000,
  idleMs: Infinity,
  slowMs: 10_000,
};

/** Bytes and number of a request's headers. */
export const MAX_HEADER_BYTES = 16_384;
export const MAX_HEADERS = 100;

/** The idle bound as Node's timeouts take it: whole milliseconds, 0 for none. */
export const idleTimeoutOf = ({ idleMs }: HttpBounds): number =>
  idleMs === Infinity ? 0 : Math.ceil(idleMs);
