import type { limiter } from '../../../src/index.ts';

export function attack(options: {
  readonly rounds: number;
  readonly seed: number;
  readonly limiter?: typeof limiter;
}): Promise<{ readonly rounds: number; readonly keys: number; readonly refusedVictims: number }>;
