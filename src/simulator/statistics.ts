/** What many numbers have in common: their middle, how far they stray, whether they move together. */

export const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

export const mean = (values: readonly number[]): number => sum(values) / values.length;

export function standardDeviation(values: readonly number[]): number {
  const middle = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
}

/**
 * The mean correlation over all pairs. With every series brought to mean 0 and deviation 1, the
 * variance of their sum is n + n (n - 1) times it, so no pair needs to be looked at.
 */
export function meanPairwiseCorrelation(series: readonly (readonly number[])[]): number {
  const moving = series.filter((values) => standardDeviation(values) > 0).map(standardised);
  const n = moving.length;
  if (n < 2) return 0;
  const total = moving[0].map((_, at) => sum(moving.map((values) => values[at])));
  return (standardDeviation(total) ** 2 - n) / (n * (n - 1));
}

function standardised(values: readonly number[]): number[] {
  const [middle, spread] = [mean(values), standardDeviation(values)];
  return values.map((value) => (value - middle) / spread);
}

/** Jain's index of fairness. */
export function jainIndex(shares: readonly number[]): number {
  const squares = sum(shares.map((share) => share ** 2));
  return squares === 0 ? 1 : sum(shares) ** 2 / (shares.length * squares);
}
