/**
 * The history of one limit: rings of numbers in typed arrays, one per measure. Its memory is fixed when it is created.
 *
 *     allowed  … 12 14 13 │ 90 88 …       the bar is the position of the newest sample, the same in all rings
 *     denied   …  0  0  1 │  4  7 …
 */

/** Calls a second; then values at the instant of the sample, not a number where they are unknown. */
export const MEASURES = [
  'allowed',
  'waited',
  'denied',
  'use',
  'limit',
  'inFlight',
  'rttMs',
  'tokens',
] as const;

type Measure = (typeof MEASURES)[number];

/** The values of one sample; what is left out is unknown. */
export type Sample = Partial<Record<Measure, number | undefined>>;

/** Samples of each ring: an hour. */
export const MAX_SAMPLES = 720;

/** Beyond this precision no chart shows a difference, and numbers of few digits are short in JSON. */
const PRECISION = 1000;

export class Series {
  readonly #values = new Float32Array(MEASURES.length * MAX_SAMPLES).fill(Number.NaN);

  get bytes(): number {
    return this.#values.byteLength;
  }

  set(slot: number, sample: Sample): void {
    for (const [n, name] of MEASURES.entries())
      this.#values[n * MAX_SAMPLES + slot] = sample[name] ?? Number.NaN;
  }

  /** The values at these slots by measure, null where unknown; measures that are unknown in all of them are left out. */
  read(slots: readonly number[]): Readonly<Record<string, readonly (number | null)[]>> {
    const found: Record<string, (number | null)[]> = {};
    for (const [n, name] of MEASURES.entries()) {
      const values = slots.map((slot) => this.#values[n * MAX_SAMPLES + slot]);
      if (values.every(Number.isNaN)) continue;
      found[name] = values.map((value) =>
        Number.isNaN(value) ? null : Math.round(value * PRECISION) / PRECISION,
      );
    }
    return found;
  }
}
