/**
 * How a key stands with the daemon's limits, in the words of this library.
 */

import type { Millis } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import { isRecord } from '../core/options.ts';
import type { RespValue } from './resp.ts';

/** One rule of a limit, and how a key stands with it. */
export interface InspectedRule {
  readonly name: string;
  readonly kind: string;
  readonly quota: number;
  readonly windowMs?: Millis;
  readonly remaining: number;
  /** 0 now, Infinity never; left out if a call in flight must settle. */
  readonly opensInMs?: Millis;
  readonly freshInMs?: Millis;
}

/** One limit of the daemon, and how a key stands with it. */
export interface InspectedLimit {
  readonly name: string;
  /** Set if whoever decides it is out of reach of the daemon: then nothing else is known. */
  readonly isAvailable?: false;
  readonly remaining?: number;
  readonly opensInMs?: Millis;
  /** What says no to one call right now. */
  readonly by?: string;
  /** Whichever of these apply, as `View` of the library has them. */
  readonly limit?: number;
  readonly inFlight?: number;
  readonly pool?: number;
  readonly poolSize?: number;
  readonly reserved?: number;
  readonly rttMs?: Millis;
  readonly partitions?: Readonly<Record<string, number>>;
  readonly rules?: readonly InspectedRule[];
}

/** All that the daemon knows of a key. */
export interface InspectedKey {
  readonly key: string;
  /** Set where a list decides, or nothing is for the key: then nothing is counted. */
  readonly verdict?: 'allow' | 'deny';
  readonly reason?: 'allow-list' | 'deny-list' | 'unmatched';
  /** The limit whose list it is; left out if it is for all. */
  readonly limit?: string;
  /** What on the list it is. */
  readonly by?: string;
  readonly limits: readonly InspectedLimit[];
}

export const toInspectedKey = (told: RespValue): InspectedKey =>
  restoreInfinity(told) as unknown as InspectedKey;

/** The wire has no Infinity: -1 of a time is never. */
function restoreInfinity(told: unknown): unknown {
  if (Array.isArray(told)) return told.map(restoreInfinity);
  if (!isRecord(told)) return told;
  return Object.fromEntries(
    Object.entries(told).map(([name, own]) => [
      name,
      name.endsWith('Ms') && own === -1 ? NEVER : restoreInfinity(own),
    ]),
  );
}
