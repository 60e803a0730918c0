/** Bounds on what HTTP clients can make the daemon hold. */

import type { Millis } from '../../../core/clock.ts';
import { REQUEST_BOUNDS, type RequestBounds } from './handler.ts';

export interface HttpBounds extends RequestBounds {
  /** Bytes of a request body. */
  readonly maxBody: number;
  /** Subscribers of the event stream at once. */
  readonly maxSubscribers: number;
  /** Connections at once. */
  readonly maxConnections: number;
  /** How long a connection may be idle between two requests; Infinity: no bound. */
  readonly idleMs: Millis;
  /** How long a client may take to send a request or to read a response. */
  readonly slowMs: Millis;
}

export const HTTP_BOUNDS: HttpBounds = {
  ...REQUEST_BOUNDS,
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
