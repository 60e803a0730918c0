/** What strangers may take of the daemon over HTTP. */

import type { Millis } from '../../../core/clock.ts';
import { CHECK_BOUNDS, type CheckBounds } from './handler.ts';

export interface HttpBounds extends CheckBounds {
  /** Bytes of a body. */
  readonly maxBody: number;
  /** Who may listen to the feed at once. */
  readonly maxSubscribers: number;
  /** Connections at once. */
  readonly maxConnections: number;
  /** How long a connection that stays open may be silent between two requests; Infinity: for ever. */
  readonly idleMs: Millis;
  /** How long a client may take to send a request, or not read its answer. */
  readonly slowMs: Millis;
}

export const HTTP_BOUNDS: HttpBounds = {
  ...CHECK_BOUNDS,
  maxBody: 1_048_576,
  maxSubscribers: 100,
  maxConnections: 10_000,
  idleMs: Infinity,
  slowMs: 10_000,
};

/** Bytes of all headers of a request, and how many there may be. */
export const MAX_HEADER_BYTES = 16_384;
export const MAX_HEADERS = 100;

/** As Node counts an idle connection: in whole milliseconds; 0: for ever. */
export const idleTimeoutOf = ({ idleMs }: HttpBounds): number =>
  idleMs === Infinity ? 0 : Math.ceil(idleMs);
