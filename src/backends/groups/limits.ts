/**
 * The limits that a process has divided among groups, as its own group's buckets.
 *
 *     burst ┤▒▒▒▒▒▒▒▒  others may steal this
 *           │▒▒▒▒▒▒▒▒
 *      line ┤████████  only its own: below the line it steals, up to the line
 *           │████████
 *         0 ┴────────
 *
 * One line for both, so that nothing is stolen twice: what lies above it has flowed in here.
 */

/** One group's bucket of a limit. */
export interface GroupLimit {
  readonly name: string;
  /** What it keeps for its own calls, and steals up to. */
  readonly reserveLevel: number;
  /** Takes up to so many whole units of what is above the line. */
  takeSurplus(key: string, most: number): number | Promise<number>;
  /** Units came from elsewhere: they fill it up to the line, and what does not fit is gone. */
  credit(key: string, units: number): void;
}
