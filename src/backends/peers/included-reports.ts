/**
 * The reports of each node that a page of a state transfer includes: without this list, a receiver cannot distinguish
 * the hits of the page from the hits of reports.
 *
 *     origin A   1 2 3 4 5 6 7         highest 7, nothing missing
 *     origin B   1 2 3 · 5             highest 5, missing 4
 *
 * Origins without reports are not listed. A page has space for a limited number of origins. If there are more, the list
 * is incomplete, and nothing is known about the others.
 */

import type { NodeId } from './messages.ts';

/** The most origins in a page. */
export const MAX_ORIGINS = 64;

/** The most ranges of missing reports of one origin. */
export const MAX_MISSING_RANGES = 16;

/** Reports of one node. */
export interface ReportSet {
  readonly origin: NodeId;
  readonly highest: number;
  /** Pairs of first sequence number and count. */
  readonly missing: readonly number[];
}

export interface IncludedReports {
  /** False if the page includes reports of further origins. */
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
  /** False if the page includes reports of further origins. */
  readonly isComplete: boolean;
  readonly #sets: ReadonlyMap<NodeId, ReportSet>;

  constructor({ isComplete, sets }: IncludedReports) {
    this.isComplete = isComplete;
    this.#sets = new Map(sets.map((set) => [set.origin, set]));
  }

  get sets(): Iterable<ReportSet> {
    return this.#sets.values();
  }

  /** Whether the included reports of the origin are known. */
  isKnown(origin: NodeId): boolean {
    return this.isComplete || this.#sets.has(origin);
  }

  has(origin: NodeId, seq: number): boolean {
    const set = this.#sets.get(origin);
    return set !== undefined && isIn(set, seq);
  }

  /** The highest report up to which all reports are included. */
  contiguousTo(origin: NodeId): number {
    const set = this.#sets.get(origin);
    if (!set) return 0;
    const { highest, missing } = set;
    return missing.length > 0 ? Math.min(highest, missing[0] - 1) : highest;
  }
}
