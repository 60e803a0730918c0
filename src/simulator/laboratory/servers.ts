/**
 * Server models on virtual time. A server is a function that takes a call and replies later, or never.
 *
 *     client ──▶ network ──▶ quota, refusing, silent ──▶ queueServer | sharingServer
 *            ◀── reply ────────────────────────────────────┘
 *
 * Models are nested: what stands before a server takes the server as its last argument.
 */

import type { Millis } from '../../core/clock.ts';
import { Heap } from '../../core/heap.ts';
import type { Random } from '../../core/random.ts';
import type { Timeline } from '../timeline.ts';
import type { ServiceTime } from './service-times.ts';

/** What a model needs: virtual time and a seeded stream of numbers. */
export interface Simulation {
  readonly timeline: Timeline;
  readonly random: Random;
}

/** `busy` is a refusal, 429 or 503; `failed` is an error of the call. */
export type Reply = 'ok' | 'busy' | 'failed';
export type OnReply = (reply: Reply) => void;
export type Server = (onReply: OnReply) => void;

/** The time in which a server refuses a call. With the network, a refusal takes 5 ms. */
const REFUSAL_MS: Millis = 4;

/** Interval at which a server whose workers change over time looks at its queue. */
const POLL_MS: Millis = 50;

/** The number of workers by time, and by how many calls are served or wait. */
export type Workers = (now: Millis, load: number) => number;

export interface QueueOptions {
  readonly workers: number | Workers;
  readonly service: ServiceTime;
  /** Calls that may wait; beyond them calls are refused. Default: no bound. */
  readonly maxQueue?: number;
}

/** A FIFO queue before some workers: M/M/c if service times are exponential. */
export function queueServer({ timeline, random }: Simulation, options: QueueOptions): Server {
  const { workers, service, maxQueue = Infinity } = options;
  const queue: OnReply[] = [];
  let busy = 0;
  const hasFreeWorker = (): boolean =>
    busy < (typeof workers === 'number' ? workers : workers(timeline.now, busy + queue.length));

  const start = (onReply: OnReply): void => {
    busy++;
    timeline.scheduleAfter(service(random, timeline.now), () => {
      busy--;
      startWaiting();
      onReply('ok');
    });
  };
  const startWaiting = (): void => {
    while (queue.length > 0 && hasFreeWorker()) start(queue.shift() as OnReply);
  };
  const poll = (): void => {
    startWaiting();
    timeline.scheduleAfter(POLL_MS, poll);
  };
  if (typeof workers === 'function') poll();

  return (onReply) => {
    if (queue.length === 0 && hasFreeWorker()) start(onReply);
    else if (queue.length < maxQueue) queue.push(onReply);
    else refuse(timeline, onReply);
  };
}

export interface SharingOptions {
  readonly service: ServiceTime;
  /** The speed of each call while `calls` are served: 1 is as fast as alone. */
  speed(calls: number): number;
}

/**
 * Processor sharing: all calls are served at once, at a speed that depends on their number.
 *
 * Every call receives the same work per time, so a call ends when the work done for each since the start of the
 * simulation reaches a value that is known when the call arrives.
 */
export function sharingServer({ timeline, random }: Simulation, options: SharingOptions): Server {
  const { service, speed } = options;
  const calls = new Heap<{ readonly endsAtWork: number; readonly onReply: OnReply }>(
    (a, b) => a.endsAtWork < b.endsAtWork,
  );
  let work = 0;
  let updatedAt = 0;
  let version = 0;

  const advance = (): void => {
    if (calls.size > 0) work += (timeline.now - updatedAt) * speed(calls.size);
    updatedAt = timeline.now;
  };
  const scheduleNext = (): void => {
    const first = calls.peek();
    if (first === undefined) return;
    const scheduled = ++version;
    const waitMs = Math.max(0, first.endsAtWork - work) / speed(calls.size);
    timeline.scheduleAfter(waitMs, () => {
      if (scheduled !== version) return; // a call arrived meanwhile and changed the speed
      calls.pop();
      work = first.endsAtWork;
      updatedAt = timeline.now;
      scheduleNext();
      first.onReply('ok');
    });
  };

  return (onReply) => {
    advance();
    calls.push({ endsAtWork: work + service(random, timeline.now), onReply });
    scheduleNext();
  };
}

/** The speed of a call on so many cores. */
export const onCores =
  (cores: number): SharingOptions['speed'] =>
  (calls) =>
    Math.min(1, cores / calls);

/** Universal Scalability Law (Gunther): contention `sigma` for shared resources, coherence `kappa` for pairs of calls. */
export const universalScalability =
  (sigma: number, kappa: number): SharingOptions['speed'] =>
  (calls) =>
    1 / (1 + sigma * (calls - 1) + kappa * calls * (calls - 1));

/** Full speed up to `knee` calls; beyond it contention grows with the square of the excess. */
export const quadraticContention =
  (knee: number, scale: number): SharingOptions['speed'] =>
  (calls) =>
    1 / (1 + scale * (Math.max(0, calls - knee) / knee) ** 2);

export interface QuotaOptions {
  readonly perSecond: number;
  /** True: refused calls count towards the quota too. */
  readonly countsRefused: boolean;
}

/** A quota for every sliding second; calls beyond it are refused. */
export function quota(
  { timeline }: Simulation,
  { perSecond, countsRefused }: QuotaOptions,
  server: Server,
): Server {
  let counted: Millis[] = [];
  let expired = 0;
  return (onReply) => {
    while (counted[expired] <= timeline.now - 1000) expired++;
    if (expired > MAX_EXPIRED) [counted, expired] = [counted.slice(expired), 0];
    const isWithin = counted.length - expired < perSecond;
    if (isWithin || countsRefused) counted.push(timeline.now);
    if (isWithin) server(onReply);
    else refuse(timeline, onReply);
  };
}

/** Expired entries of a quota are removed in blocks of this size. */
const MAX_EXPIRED = 4096;

/** Refuses the calls for which `isRefused` holds. */
export const refusing =
  (
    { timeline, random }: Simulation,
    isRefused: (random: Random, now: Millis) => boolean,
    server: Server,
  ): Server =>
  (onReply) => {
    if (isRefused(random, timeline.now)) refuse(timeline, onReply);
    else server(onReply);
  };

/** A part of the calls are streams: they stay open for `openMs`, and use no worker. */
export const streaming =
  ({ timeline, random }: Simulation, part: number, openMs: Millis, server: Server): Server =>
  (finish) => {
    if (random() < part) timeline.scheduleAfter(openMs, () => finish('ok'));
    else server(finish);
  };

/** Loses the calls for which `isLost` holds when they arrive: they end with the client's timeout. */
export const losing =
  (
    { timeline, random }: Simulation,
    isLost: (random: Random, now: Millis) => boolean,
    server: Server,
  ): Server =>
  (onReply) => {
    if (!isLost(random, timeline.now)) server(onReply);
  };

/** Replies to a part of the calls that they failed, when they are done. */
export const failing =
  ({ random }: Simulation, part: number, server: Server): Server =>
  (onReply) =>
    server((reply) => onReply(reply === 'ok' && random() < part ? 'failed' : reply));

/** Holds replies from one time to another, and sends them then. */
export const holding =
  ({ timeline }: Simulation, fromMs: Millis, toMs: Millis, server: Server): Server =>
  (onReply) =>
    server((reply) => {
      if (timeline.now < fromMs || timeline.now >= toMs) onReply(reply);
      else timeline.scheduleAt(toMs, () => onReply(reply));
    });

/** Loses calls while so many are inside. */
export function dropping(maxInside: number, server: Server): Server {
  let inside = 0;
  return (onReply) => {
    if (inside >= maxInside) return;
    inside++;
    server((reply) => {
      inside--;
      onReply(reply);
    });
  };
}

/** Sends each call to one of two servers at random, as a load balancer does. */
export const balanced =
  ({ random }: Simulation, one: Server, other: Server): Server =>
  (onReply) =>
    (random() < 0.5 ? one : other)(onReply);

/** A network in front of a server. Each way takes half of a round trip, drawn for itself. */
export const network =
  ({ timeline, random }: Simulation, roundTrip: ServiceTime, server: Server): Server =>
  (onReply) => {
    const oneWay = (arrive: () => void): void =>
      timeline.scheduleAfter(roundTrip(random, timeline.now) / 2, arrive);
    oneWay(() => server((reply) => oneWay(() => onReply(reply))));
  };

/** Replies busy. */
export function refuse(timeline: Timeline, onReply: OnReply): void {
  timeline.scheduleAfter(REFUSAL_MS, () => onReply('busy'));
}

/** Adds a tenth of the workers every second of load above 80 %, removes one below 40 %. One for each run. */
export function autoscaled(min: number, max: number): Workers {
  let workers = min;
  let nextAt = 1000;
  return (now, load) => {
    if (now < nextAt) return workers;
    nextAt = now + 1000;
    if (load > 0.8 * workers) workers = Math.min(max, workers + Math.ceil(workers / 10));
    else if (load < 0.4 * workers) workers = Math.max(min, workers - 1);
    return workers;
  };
}
