import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, type Random } from '../../core/random.ts';
import type { Traffic } from './scenario.ts';

/** The time of the next call after `at`; both count from the first instant of the scenario. */
export type NextCall = (at: Millis) => Millis;

/** Undefined for a hog: its next call follows the end of the previous one. */
export function nextCallOf(traffic: Traffic, random: Random): NextCall | undefined {
  switch (traffic.shape) {
    case 'hog':
      return undefined;
    case 'steady':
      return steady(traffic.perMs, random);
    case 'poisson': {
      const { perMs } = traffic;
      return (at) => at + exponentialVariate(random) / perMs;
    }
    case 'spike': {
      const { perMs, everyMs, forMs, times } = traffic;
      return thinned(perMs * times, random, (at) => (at % everyMs < forMs ? 1 : 1 / times));
    }
    case 'sine': {
      const { perMs, everyMs, swing } = traffic;
      const level = (at: Millis): number => 1 + swing * Math.sin((2 * Math.PI * at) / everyMs);
      return thinned(perMs * (1 + swing), random, (at) => level(at) / (1 + swing));
    }
    case 'flappy': {
      const { perMs, everyMs, forMs } = traffic;
      return flappy(perMs, everyMs, forMs, random);
    }
  }
}

/** Equal intervals with a random phase: clients that start together would form one burst. */
function steady(perMs: number, random: Random): NextCall {
  const phase = random();
  let n = 0;
  return () => (n++ + phase) / perMs;
}

/** Thinning: a Poisson process at the highest rate, of which the fraction `level` (0 to 1) is kept. */
function thinned(maxPerMs: number, random: Random, level: (at: Millis) => number): NextCall {
  return (from) => {
    for (let at = from; ; ) {
      at += exponentialVariate(random) / maxPerMs;
      if (random() < level(at)) return at;
    }
  };
}

/** A Poisson process whose clock runs only while the client is on. */
function flappy(perMs: number, everyMs: Millis, forMs: Millis, random: Random): NextCall {
  return (from) => {
    let at = from + exponentialVariate(random) / perMs;
    const cyclesOf = (time: Millis): number => Math.floor(time / everyMs);
    const wasOn = Math.min(from % everyMs, forMs) + cyclesOf(from) * forMs;
    const on = wasOn + (at - from);
    at = Math.floor(on / forMs) * everyMs + (on % forMs);
    return at;
  };
}
