/** What strangers may take of the daemon over HTTP. */

import type { Millis } from '../../../core/clock.ts';
import { DESK_BOUNDS, type DeskBounds } from './handler.ts';

export interface HttpBounds extends DeskBounds {
  /** Bytes of a body. */
  readonly bodyMax: number;
  /** Who may listen to the feed at once. */
  readonly feedMax: number;
  /** Connections at once. */
  readonly connectionsMax: number;
  /** How long a connection that stays open may be silent between two requests; Infinity: for ever. */
  readonly idleMs: Millis;
  /** How long a client may take to send a request, or not read its answer. */
  readonly slowMs: Millis;
}

export const HTTP_BOUNDS: HttpBounds = {
  ...DESK_BOUNDS,
  bodyMax: 1_048_576,
  feedMax: 100,
  connectionsMax: 10_000,
  idleMs: Infinity,
  slowMs: 10_000,
};

/** Bytes of all headers of a request, and how many there may be. */
export const HEADER_BYTES_MAX = 16_384;
export const HEADERS_MAX = 100;

/** As Node counts an idle connection: in whole milliseconds; 0: for ever. */
export const idleTimeoutOf = ({ idleMs }: HttpBounds): number =>
  idleMs === Infinity ? 0 : Math.ceil(idleMs);
