/**
 * The only file that reads randomness from the system.
 *
 * Randomness is an argument everywhere else: the same seed gives the same run.
 */

/** A stream of numbers in [0, 1). */
export type Random = () => number;

/** `Math.random`. */
export const systemRandom: Random = () => Math.random();

/** Cryptographically secure, for ids and nonces. Too slow for every call. */
export const cryptoRandom: Random = () => {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high * 2 ** 20 + (low >>> 12)) / 2 ** 52;
};

/** Mulberry32: small, fast, good enough for jitter. Not for secrets. */
export function seededRandom(seed: number): Random {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = Math.imul(a ^ (a >>> 15), a | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Exponentially distributed with mean 1: the interval between events of a Poisson process. */
export const exponentialVariate = (random: Random): number => -Math.log(1 - random());
