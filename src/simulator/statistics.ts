export const sum = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0);

export const mean = (values: readonly number[]): number => sum(values) / values.length;

export function standardDeviation(values: readonly number[]): number {
  const middle = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
}

/**
 * The mean correlation over all pairs of series. Constant series do not count.
 *
 * With every series standardised (mean 0, deviation 1), the variance of their sum is n + n (n - 1) times that mean.
 * This takes linear time instead of a loop over all pairs.
 */
export function meanPairwiseCorrelation(series: readonly (readonly number[])[]): number {
  const varying = series.filter((values) => standardDeviation(values) > 0).map(standardised);
  const n = varying.length;
  if (n < 2) return 0;
  const total = varying[0].map((_, at) => sum(varying.map((values) => values[at])));
  return (standardDeviation(total) ** 2 - n) / (n * (n - 1));
}

function standardised(values: readonly number[]): number[] {
  const [middle, spread] = [mean(values), standardDeviation(values)];
  return values.map((value) => (value - middle) / spread);
}

/** Jain's fairness index: 1 if all n amounts are equal, 1/n if one gets everything. */
export function jainIndex(amounts: readonly number[]): number {
  const squares = sum(amounts.map((amount) => amount ** 2));
  return squares === 0 ? 1 : sum(amounts) ** 2 / (amounts.length * squares);
}
