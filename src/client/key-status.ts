import type { Millis } from '../core/clock.ts';
import { NEVER } from '../core/decision.ts';
import { isRecord } from '../core/options.ts';
import type { RespValue } from './resp.ts';

/** One rule of a limit, and the state of a key under it. */
export interface InspectedRule {
  readonly name: string;
  readonly kind: string;
  readonly quota: number;
  readonly windowMs?: Millis;
  readonly remaining: number;
  /** When a call fits again: 0 now, Infinity never; left out if a call in flight must settle first. */
  readonly opensInMs?: Millis;
  readonly freshInMs?: Millis;
}

/** One limit of the daemon, and the state of a key under it. */
export interface InspectedLimit {
  readonly name: string;
  /** Set if the backend of the limit is unavailable to the daemon: then nothing else is known. */
  readonly isAvailable?: false;
  readonly remaining?: number;
  readonly opensInMs?: Millis;
  /** The rule that refuses a call now. */
  readonly by?: string;
  /** As far as they apply, the fields of `KeyState` of the library. */
  readonly limit?: number;
  readonly inFlight?: number;
  readonly level?: number;
  readonly poolSize?: number;
  readonly resetsAt?: Millis;
  readonly reserved?: number;
  readonly rttMs?: Millis;
  readonly baseRttMs?: Millis;
  readonly ratePerSecond?: number;
  readonly knee?: number;
  readonly headroom?: number;
  readonly pacePerSecond?: number;
  readonly cause?: string;
  readonly failures?: number;
  readonly locks?: number;
  readonly lockedMs?: Millis;
  readonly backPressure?: true;
  readonly partitions?: Readonly<Record<string, number>>;
  readonly rules?: readonly InspectedRule[];
}

/** The state of a key under all limits of the daemon that match it. */
export interface InspectedKey {
  readonly key: string;
  /** Set where an allow or deny list decides, or no limit matches: then nothing is counted. */
  readonly verdict?: 'allow' | 'deny';
  readonly reason?: 'allow-list' | 'deny-list' | 'unmatched' | 'banned';
  /** The limit that the list belongs to; left out for a global list. */
  readonly limit?: string;
  /** The matching entry of the list. */
  readonly by?: string;
  readonly limits: readonly InspectedLimit[];
}

export const toInspectedKey = (reply: RespValue): InspectedKey =>
  restoreInfinity(reply) as unknown as InspectedKey;

/** RESP integers have no Infinity: a time of -1 is never. */
function restoreInfinity(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(restoreInfinity);
  if (!isRecord(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, member]) => [
      name,
      name.endsWith('Ms') && member === -1 ? NEVER : restoreInfinity(member),
    ]),
  );
}
