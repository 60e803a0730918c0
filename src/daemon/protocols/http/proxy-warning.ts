/**
 * Warns of a proxy that names its client in a header which the configuration does not use.
 *
 * Each request then counts for the address of the proxy. All clients share one key, and an allow list with that address
 * exempts all of them. Clients can send such headers too, so the log gets one line in ten minutes.
 */

import type { Clock, Millis } from '../../../core/clock.ts';
import type { Log } from '../../../core/log.ts';

/** A header that names a client and is not used, and the option that would use it. */
export interface IgnoredHeader {
  readonly header: string;
  readonly from: string;
  readonly option: string;
}

const MIN_INTERVAL_MS: Millis = 600_000;

export function proxyWarning(log: Log, clock: Clock): (ignored: IgnoredHeader) => void {
  let lastAt = -Infinity;
  return ({ header, from, option }) => {
    const now = clock.now();
    if (now - lastAt < MIN_INTERVAL_MS) return;
    lastAt = now;
    const message =
      'a proxy names its client in a header that is not used: the address of the proxy is counted';
    log('warn', message, { header, from, set: option });
  };
}
