/** Parts that the sinks of the catalogue are made of. */

import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, type Random } from '../../core/random.ts';
import {
  type QueueOptions,
  queueServer,
  quota,
  refusing,
  type SharingOptions,
  sharingServer,
} from './servers.ts';
import { exponential, type ServiceTime } from './service-times.ts';
import type { Arrivals, CreateServer, Sink, SinkClass } from './sink.ts';

export type Details = Omit<Sink, 'name' | 'kind' | 'description' | 'server'>;

export const sink = (
  kind: SinkClass,
  name: string,
  description: string,
  server: CreateServer,
  details: Details = {},
): Sink => ({ kind, name, description, server, ...details });

/** Some workers with a FIFO queue. */
export const queue =
  (workers: QueueOptions['workers'], service: ServiceTime, maxQueue = Infinity): CreateServer =>
  (simulation) =>
    queueServer(simulation, { workers, service, maxQueue });

export const sharing =
  (speed: SharingOptions['speed'], service: ServiceTime): CreateServer =>
  (simulation) =>
    sharingServer(simulation, { speed, service });

/** Refuses calls beyond a quota; the server behind it has workers for every call. */
export const withQuota =
  (perSecond: number, countsRefused = false): CreateServer =>
  (simulation) =>
    quota(simulation, { perSecond, countsRefused }, queue(Infinity, MS_100)(simulation));

export const refusedWhen =
  (isRefused: (random: Random, now: Millis) => boolean, server: CreateServer): CreateServer =>
  (simulation) =>
    refusing(simulation, isRefused, server(simulation));

export const MS_100 = exponential(100);
export const MM20 = queue(20, MS_100);
export const MM40 = queue(40, MS_100);
export const STEADY_20 = sink('steady', 'mm20', 'M/M/20: 20 workers, 100 ms', MM20);

/** What a sink becomes, to compare with. */
export const steadyQueue = (workers: number, meanMs: Millis): Sink => {
  const description = `${workers} workers, ${meanMs} ms`;
  return sink('steady', `mm${workers}`, description, queue(workers, exponential(meanMs)));
};

export const isWithin = (fromMs: Millis, toMs: Millis, now: Millis): boolean =>
  now >= fromMs && now < toMs;

/** Bursts at random times, `perSecond` calls on average. */
export const bursts =
  (meanBurst: number, perSecond: number): Arrivals =>
  (random) => ({
    waitMs: (1000 * meanBurst * exponentialVariate(random)) / perSecond,
    count: Math.max(1, Math.round(meanBurst * exponentialVariate(random))),
  });

/** Single calls at random times (Poisson), with a rate that depends on time. */
export const poisson =
  (perSecond: (now: Millis) => number): Arrivals =>
  (random, now) => ({ waitMs: (1000 * exponentialVariate(random)) / perSecond(now), count: 1 });
