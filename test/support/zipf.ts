/** Traffic as the keys of real clients have it: few keys with most calls. */

/** Draws ranks 0 to n - 1, rank r with a probability in proportion to 1 / (r + 1). */
export function zipf(n: number, random: () => number): () => number {
  const sums = new Float64Array(n);
  for (let rank = 0, sum = 0; rank < n; rank++) sums[rank] = sum += 1 / (rank + 1);
  return () => {
    const at = random() * sums[n - 1];
    let [low, high] = [0, n - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sums[middle] < at) low = middle + 1;
      else high = middle;
    }
    return low;
  };
}
