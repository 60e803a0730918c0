/**
 * Traffic of the playground: when calls arrive, and which client sends each.
 *
 *     steady  ││││││││││    poisson  │ ││  │││ │    spike  ▁▁█▁▁▁█▁▁    sine  ▃▅▇▅▃▁▃▅    flappy  █▁█▁█▁
 *     hog     all clients send the same; in the middle half of the run, the first one sends `factor` times as much
 *
 * All kinds except steady are Poisson processes with a rate that depends on time. They are drawn by thinning:
 * candidates arrive at the peak rate, and each is kept with probability rate / peak.
 */

import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, type Random } from '../../core/random.ts';
import { choice, type Fields, number, type Settings } from './fields.ts';

export const TRAFFIC = choice(
  'Traffic',
  {
    steady: 'steady',
    poisson: 'random (Poisson)',
    spike: 'spikes',
    sine: 'sine wave',
    flappy: 'flappy (on and off)',
    hog: 'a hog among clients',
  },
  'poisson',
);

const RATE = number('Calls offered', '/s', [1, 1000, 1], 100, { isLogarithmic: true });
const CLIENTS = number('Clients', '', [1, 100, 1], 10);
const PERIOD = number('Period', 's', [1, 60, 1], 20);

const COMMON: Fields = { rate: RATE, clients: CLIENTS };

export const TRAFFIC_FIELDS: Readonly<Record<string, Fields>> = {
  steady: COMMON,
  poisson: COMMON,
  spike: {
    ...COMMON,
    factor: number('Spike', 'times the rate', [2, 20, 1], 5),
    period: PERIOD,
  },
  sine: { ...COMMON, depth: number('Depth', '%', [0, 100, 1], 80), period: PERIOD },
  flappy: { ...COMMON, period: PERIOD },
  hog: { ...COMMON, factor: number('Hog', 'times the others', [2, 50, 1], 20) },
};

export const clientsOf = ({ clients }: Settings): number => clients as number;

/** A spike lasts this part of a period, in its middle. */
const SPIKE_PART = 0.2;

/** Arrivals per second at an instant, over all clients. */
export function rateAt(settings: Settings, now: Millis): number {
  const rate = settings.rate as number;
  const { factor, period, depth, seconds } = settings as Readonly<Record<string, number>>;
  const phase = (now / 1000 / period) % 1;
  switch (settings.traffic) {
    case 'spike':
      return Math.abs(phase - 0.5) < SPIKE_PART / 2 ? rate * factor : rate;
    case 'sine':
      return rate * (1 + (depth / 100) * Math.sin(2 * Math.PI * phase));
    case 'flappy':
      return phase < 0.5 ? rate : 0;
    case 'hog':
      return isHogActive(now, seconds)
        ? (rate * (clientsOf(settings) - 1 + factor)) / clientsOf(settings)
        : rate;
    default:
      return rate;
  }
}

const isHogActive = (now: Millis, seconds: number): boolean =>
  now >= 250 * seconds && now < 750 * seconds;

/** The highest rate that `rateAt` returns. */
function peakRate({ traffic, rate, factor, depth }: Settings): number {
  const base = rate as number;
  if (traffic === 'spike' || traffic === 'hog') return base * (factor as number);
  return traffic === 'sine' ? base * (1 + (depth as number) / 100) : base;
}

export interface Arrival {
  readonly at: Millis;
  /** Index of the client, from 0; the hog is 0. */
  readonly client: number;
}

/** The calls of a run in order of time, as an endless sequence. Equal seeds give equal calls. */
export function* arrivals(settings: Settings, random: Random): Generator<Arrival, never> {
  const clients = clientsOf(settings);
  if (settings.traffic === 'steady') {
    const intervalMs = 1000 / (settings.rate as number);
    for (let n = 0; ; n++) yield { at: n * intervalMs, client: n % clients };
  }
  const peak = peakRate(settings);
  const seconds = settings.seconds as number;
  const factor = settings.factor as number;
  for (let at = 0; ; ) {
    at += (1000 * exponentialVariate(random)) / peak;
    if (random() * peak >= rateAt(settings, at)) continue;
    const isHog = settings.traffic === 'hog' && isHogActive(at, seconds);
    const weight = isHog ? factor : 1; // of the first client
    const drawn = Math.floor(random() * (clients - 1 + weight));
    yield { at, client: Math.max(0, drawn - (weight - 1)) };
  }
}
