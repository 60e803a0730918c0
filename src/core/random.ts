/** The only file that reads randomness from the system. It is an argument elsewhere: the same seed gives the same run. */

/** A stream of numbers in [0, 1). */
export type Random = () => number;

/** `Math.random`. */
export const systemRandom: Random = () => Math.random();

/** 32-bit words drawn from the system at once: one call for every number would take a microsecond. */
const drawn = new Uint32Array(256);
let used = drawn.length;

/** Cryptographically secure: ids, nonces, hash seeds. */
export const cryptoRandom: Random = () => {
  if (used === drawn.length) {
    crypto.getRandomValues(drawn);
    used = 0;
  }
  const high = drawn[used++];
  return (high * 2 ** 20 + (drawn[used++] >>> 12)) / 2 ** 52;
};

/**
 * The generator for what clients must not guess. A few numbers of `Math.random` reveal all that follow, so it is
 * replaced. Any other generator was chosen by the caller, for a run that can be repeated.
 */
export const secretRandom = (random: Random): Random =>
  random === systemRandom || random === Math.random ? cryptoRandom : random;

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
