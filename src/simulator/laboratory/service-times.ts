import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, type Random } from '../../core/random.ts';

export type ServiceTime = (random: Random, now: Millis) => Millis;

export const constant =
  (ms: Millis): ServiceTime =>
  () =>
    ms;

export const exponential =
  (meanMs: Millis): ServiceTime =>
  (random) =>
    meanMs * exponentialVariate(random);

/** A heavy tail: the logarithm is normally distributed with deviation `sigma`. */
export const logNormal =
  (meanMs: Millis, sigma: number): ServiceTime =>
  (random) =>
    meanMs * Math.exp(sigma * normalVariate(random) - sigma ** 2 / 2);

/** A fraction `share` of the calls takes one time, the rest the other. */
export const mixture =
  (share: number, one: ServiceTime, other: ServiceTime): ServiceTime =>
  (random, now) =>
    (random() < share ? one : other)(random, now);

/** `service` times a factor that depends on the time at which the call starts. */
export const scaled =
  (service: ServiceTime, factor: (now: Millis) => number): ServiceTime =>
  (random, now) =>
    factor(now) * service(random, now);

/** All work stands still for the first `pauseMs` of every `everyMs`, as in a garbage collection. */
export const pausing =
  (everyMs: Millis, pauseMs: Millis, service: ServiceTime): ServiceTime =>
  (random, now) => {
    const intoCycle = now % everyMs;
    const untilWork = Math.max(0, pauseMs - intoCycle);
    const worked = Math.max(0, intoCycle - pauseMs); // in the cycle of the start
    const work = service(random, now);
    const furtherPauses = Math.floor((worked + work) / (everyMs - pauseMs));
    return untilWork + work + furtherPauses * pauseMs;
  };

/** A cache that is filled by misses and emptied every `emptiedMs`. One for each run, because it counts its calls. */
export function cached(hit: ServiceTime, miss: ServiceTime, emptiedMs: Millis): ServiceTime {
  let [epoch, served] = [0, 0];
  return (random, now) => {
    if (Math.floor(now / emptiedMs) > epoch) [epoch, served] = [Math.floor(now / emptiedMs), 0];
    const isMiss = random() < Math.exp(-served++ / CALLS_TO_FILL);
    return (isMiss ? miss : hit)(random, now);
  };
}

/** After so many calls, a fraction 1/e of them still misses the cache. */
const CALLS_TO_FILL = 500;

/** Box and Muller's transform. */
const normalVariate = (random: Random): number =>
  Math.sqrt(2 * exponentialVariate(random)) * Math.cos(2 * Math.PI * random());
