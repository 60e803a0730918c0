import type { TableSnapshot } from './backend.ts';

/** Slices with the entries of some keys each; the return value is the debt of evicted keys. */
export type TableSlices = Generator<Float64Array, Float64Array | undefined>;

/** Collects all slices into a snapshot. */
export function collectSlices(slices: TableSlices): TableSnapshot {
  const found: Float64Array[] = [];
  let slice = slices.next();
  for (; !slice.done; slice = slices.next()) found.push(slice.value);
  const entries = new Float64Array(found.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const each of found) {
    entries.set(each, at);
    at += each.length;
  }
  return { entries, debtUntil: slice.value };
}
