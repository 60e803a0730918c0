/** The seven published ramp tables, from test/vectors. */

import { readFileSync } from 'node:fs';
import type { RampMode } from '../../src/policies/ramp.ts';

export interface RampTable {
  readonly id: string;
  readonly mode: RampMode;
  readonly min: number;
  readonly max: number;
  readonly overSeconds: number;
  readonly thresholdPercent: number;
  /** `pool` tokens in that second, `used` of them; null: no call. */
  readonly rows: readonly { second: number; pool: number | null; used: number | null }[];
}

const file = new URL('../vectors/ramp-tables.json', import.meta.url);

export const { tables }: { tables: readonly RampTable[] } = JSON.parse(readFileSync(file, 'utf8'));
