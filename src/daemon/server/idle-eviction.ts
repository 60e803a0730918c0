/**
 * Makes space at the maximum number of connections: the one that has been idle for longest is closed. So clients that
 * only hold connections cannot exclude others.
 *
 * Only a sample is looked at, the next one each time, so that a flood of new connections costs no more than it must.
 */

import type { Millis } from '../../core/clock.ts';

export interface EvictableConnection {
  /** When it last received anything; undefined while a request is pending. */
  readonly idleSince: Millis | undefined;
}

const SAMPLE_SIZE = 64;

/** A connection idle for less may have a request in transit. */
const MIN_IDLE_MS: Millis = 1000;

export class IdleEviction<T extends EvictableConnection> {
  /** Those that were looked at move to the end. An iterator kept here would keep connections that have closed. */
  readonly #open: Set<T>;

  /** A live view of the open connections. */
  constructor(open: Set<T>) {
    this.#open = open;
  }

  /** The connection to close; undefined if none of the sample is idle. */
  choose(now: Millis): T | undefined {
    let chosen: T | undefined;
    let since = now - MIN_IDLE_MS;
    let looks = Math.min(SAMPLE_SIZE, this.#open.size);
    for (const connection of this.#open) {
      if (looks-- === 0) break;
      this.#open.delete(connection);
      this.#open.add(connection);
      if (connection.idleSince === undefined || connection.idleSince > since) continue;
      since = connection.idleSince;
      chosen = connection;
    }
    return chosen;
  }
}
