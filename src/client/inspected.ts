/**
 * How a key stands with the daemon's limits, in the words of this library.
 */

import type { Millis } from '../clock.ts';
import { NEVER } from '../decision.ts';
import { isRecord } from '../options.ts';
import type { Told } from './wire.ts';

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

export interface InspectedLimit {
  readonly limit: string;
  readonly remaining: number;
  readonly opensInMs?: Millis;
  /** What says no to one call right now. */
  readonly by?: string;
  readonly inFlight?: number;
  readonly rules: readonly InspectedRule[];
}

export interface InspectedKey {
  readonly key: string;
  /** Set where a list decides, or nothing is for the key: then nothing is counted. */
  readonly allowed?: boolean;
  readonly reason?: string;
  readonly by?: string;
  readonly limits: readonly InspectedLimit[];
}

export const inspectedOf = (told: Told): InspectedKey => renamed(told) as unknown as InspectedKey;

/** `opens_in_ms` is opensInMs here, and -1 of a time is never. */
function renamed(told: unknown): unknown {
  if (Array.isArray(told)) return told.map(renamed);
  if (!isRecord(told)) return told;
  return Object.fromEntries(
    Object.entries(told).map(([name, own]) => [
      name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase()),
      name.endsWith('_ms') && own === -1 ? NEVER : renamed(own),
    ]),
  );
}
