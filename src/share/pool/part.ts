/** A member's part of a whole number, in one second. */

import type { Claim } from './agreement.ts';

/** Whoever has a rank gets its turn at what is left after an even division: it goes round by rank and second. */
export function partOf(limit: number, { size, rank }: Claim, second: number): number {
  if (size === 0) return 0;
  const even = Math.floor(limit / size);
  if (rank < 0) return even;
  const turn = (((rank + second) % size) + size) % size; // also before the origin of time
  return turn < limit - even * size ? even + 1 : even;
}
