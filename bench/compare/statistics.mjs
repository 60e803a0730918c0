/**
 * Ratios of paired measurements, and the verdict on a row.
 *
 * Both builds run in every round, so slow rounds cancel out within a ratio. The spread is a confidence interval for the
 * median of the ratios from order statistics: it needs no assumption on the distribution. The k lowest and k highest
 * ratios are left out, k as large as the confidence allows. With n rounds the interval misses the true median with
 * probability 2 · P(Binomial(n, ½) ≤ k).
 */

export const CONFIDENCE = 0.9;

/** A row below this ratio is slower. */
export const MIN_RATIO = 0.97;

/** The middle value, or the mean of both middle values. */
function middle(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The builds of a round in their order: a b, with two turns a b b a. The next round begins with the other build. */
export function orderOf(builds, round, turns = 1) {
  const first = round % 2 === 1 ? builds : builds.toReversed();
  return Array.from({ length: turns }, (_, n) => (n % 2 === 0 ? first : first.toReversed())).flat();
}

/** The mean of the turns of a round. */
export const meanOf = (turns) => ({
  cpuUs: turns.reduce((sum, { cpuUs }) => sum + cpuUs, 0) / turns.length,
  perSecond: turns.reduce((sum, { perSecond }) => sum + perSecond, 0) / turns.length,
});

/** How many of the lowest and of the highest values are outside the interval. */
function leftOut(count, confidence) {
  let probability = 0.5 ** count; // of Binomial(count, ½) = k
  let tail = probability;
  let k = 0;
  while (2 * tail <= 1 - confidence && 2 * (k + 1) < count) {
    k++;
    probability *= (count - k + 1) / k;
    tail += probability;
  }
  return Math.max(0, k - 1);
}

/** Median and confidence interval. With fewer than five values it is the whole range. */
export function summaryOf(values, confidence = CONFIDENCE) {
  const sorted = values.toSorted((a, b) => a - b);
  const k = leftOut(sorted.length, confidence);
  return { median: middle(sorted), low: sorted[k], high: sorted[sorted.length - 1 - k] };
}

/**
 * The verdict on paired measurements of a row: `slower` if the whole interval is below MIN_RATIO, `faster` if it is above 1,
 * else `same`. Each pair has the CPU time per call and the calls per second of both builds.
 */
export function compareRow(pairs) {
  if (pairs.length === 0) return { verdict: 'not in BASE' };
  const ratio = summaryOf(pairs.map(({ base, own }) => base.cpuUs / own.cpuUs));
  const throughput = summaryOf(pairs.map(({ base, own }) => own.perSecond / base.perSecond));
  const baseUs = middle(pairs.map(({ base }) => base.cpuUs));
  const ownUs = middle(pairs.map(({ own }) => own.cpuUs));
  const verdict = ratio.high < MIN_RATIO ? 'slower' : ratio.low > 1 ? 'faster' : 'same';
  return { verdict, ratio, throughput, baseUs, ownUs };
}
