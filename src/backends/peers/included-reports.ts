/**
 * Which reports of each node a page of a state transfer includes: without it, a receiver cannot tell the hits of the page
 * from the hits that reports bring.
 *
 *     origin A   1 2 3 4 5 6 7         highest 7, nothing missing
 *     origin B   1 2 3 · 5             highest 5, missing 4
 *
 * An origin without reports is not listed. A page has space for a number of origins; if there are more, the list is not
 * complete, and nothing is known of the others.
 */

import type { NodeId } from './messages.ts';

/** Origins in a page at most. */
export const MAX_ORIGINS = 64;

/** Ranges of missing reports of one origin at most. */
export const MAX_MISSING_RANGES = 16;

/** Reports of one node. */
export interface ReportSet {
  readonly origin: NodeId;
  readonly highest: number;
  /** Pairs of first sequence number and count. */
  readonly missing: readonly number[];
}

export interface IncludedReports {
  /** False if further origins have reports that are included. */
  readonly isComplete: boolean;
  readonly sets: readonly ReportSet[];
}

export const isIn = ({ highest, missing }: ReportSet, seq: number): boolean => {
  if (seq > highest) return false;
  for (let n = 0; n < missing.length; n += 2)
    if (seq >= missing[n] && seq < missing[n] + missing[n + 1]) return false;
  return true;
};

/** The included reports of one page, by origin. */
export class PageContents {
  /** False if reports of further origins are included. */
  readonly isComplete: boolean;
  readonly #sets: ReadonlyMap<NodeId, ReportSet>;

  constructor({ isComplete, sets }: IncludedReports) {
    this.isComplete = isComplete;
    this.#sets = new Map(sets.map((set) => [set.origin, set]));
  }

  get sets(): Iterable<ReportSet> {
    return this.#sets.values();
  }

  /** Whether it is known which reports of the origin are included. */
  isKnown(origin: NodeId): boolean {
    return this.isComplete || this.#sets.has(origin);
  }

  has(origin: NodeId, seq: number): boolean {
    const set = this.#sets.get(origin);
    return set !== undefined && isIn(set, seq);
  }

  /** All reports up to this one are included. */
  contiguousTo(origin: NodeId): number {
    const set = this.#sets.get(origin);
    if (!set) return 0;
    const { highest, missing } = set;
    return missing.length > 0 ? Math.min(highest, missing[0] - 1) : highest;
  }
}
