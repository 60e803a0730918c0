/**
 * Chance, like time, is handed in: the same seed, the same story.
 *
 * This file is the only one that picks it up from the world.
 */

/** A stream of numbers in [0, 1). */
export type Random = () => number;

/** Chance as the system has it. */
export const systemRandom: Random = () => Math.random();

/** One that nobody can guess, for names and proofs: slower, so not for every call. */
export const cryptoRandom: Random = () => {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high * 2 ** 20 + (low >>> 12)) / 2 ** 52;
};

/** Mulberry32: tiny, fast, and good enough to shake a queue. Not for secrets. */
export function seededRandom(seed: number): Random {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A waiting time of mean 1 for something that may happen at any moment. */
export const exponentialVariate = (random: Random): number => -Math.log(1 - random());
