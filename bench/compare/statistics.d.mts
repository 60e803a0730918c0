export const CONFIDENCE: number;
export const MIN_RATIO: number;

export interface Summary {
  readonly median: number;
  readonly low: number;
  readonly high: number;
}

export interface Figures {
  readonly cpuUs: number;
  readonly perSecond: number;
}

export interface Comparison {
  readonly verdict: 'slower' | 'same' | 'faster' | 'not in BASE';
  readonly ratio?: Summary;
  readonly throughput?: Summary;
  readonly baseUs?: number;
  readonly ownUs?: number;
}

export function orderOf<T>(builds: readonly T[], round: number, turns?: number): T[];
export function meanOf(turns: readonly Figures[]): Figures;
export function summaryOf(values: readonly number[], confidence?: number): Summary;
export function compareRow(pairs: readonly { base: Figures; own: Figures }[]): Comparison;
