import { type Bounds, DEFAULT_BOUNDS } from '../../config/read.ts';

export interface HttpBounds extends Bounds {
  /** Checks in one batch. */
  readonly maxBatch: number;
  readonly maxSubscribers: number;
}

export const HTTP_BOUNDS: HttpBounds = { ...DEFAULT_BOUNDS, maxBatch: 1000, maxSubscribers: 100 };

/** Bytes of a request's headers, and their number: more get 431. */
export const MAX_HEADER_BYTES = 16_384;
export const MAX_HEADERS = 1000;

/** The idle bound as Node's timeouts take it: whole milliseconds, 0 for none. */
export const idleTimeoutOf = ({ idleMs }: HttpBounds): number =>
  idleMs === Infinity ? 0 : Math.ceil(idleMs);
