export interface FloodFigures {
  readonly floods: number;
  readonly asks: number;
  /** Requests of the other client that were allowed in one flood, at most. */
  readonly allowed: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly maxMs: number;
}

export const BURST: number;
export const FLOODS: Readonly<Record<string, readonly [protocol: string, bytes: string]>>;

export function attack(options: {
  /** The number of floods. */
  readonly rounds: number;
  readonly seed: number;
  readonly names?: readonly string[];
  readonly asks?: number;
}): Promise<FloodFigures>;
