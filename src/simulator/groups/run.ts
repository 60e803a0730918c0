/**
 * One limit over distant regions on virtual time, in three designs:
 *
 *     groups    each region has its fraction of the limit, and borrows from other regions: the production code
 *     even      each region has only its fraction
 *     central   one bucket in the first region; other regions reach it over the network
 *
 * Calls arrive at random, with a rate per region. The network between regions has a delay, and a region can be
 * partitioned for a while. An allowed call counts at the time it starts.
 */

import { Group } from '../../backends/groups/group.ts';
import type { GroupTransport } from '../../backends/groups/transport.ts';
import type { Millis } from '../../core/clock.ts';
import { withDeadline } from '../../core/deadline.ts';
import { seededRandom } from '../../core/random.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';

export const DESIGNS = ['groups', 'even', 'central'] as const;
export type Design = (typeof DESIGNS)[number];

export interface Region {
  readonly name: string;
  /** Demand in calls per second. */
  readonly load: number;
  /** Bursts of demand: every `everyMs`, the rate is `times` as high for `forMs`. */
  readonly pulse?: { readonly everyMs: Millis; readonly forMs: Millis; readonly times: number };
  readonly weight: number;
  readonly min: number;
}

/** Round-trip time between two regions. */
export interface Link {
  readonly between: readonly [string, string];
  readonly rttMs: Millis;
}

/** A network partition of one region. */
export interface RegionOutage {
  readonly region: string;
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

export interface RegionsOptions {
  readonly regions: readonly Region[];
  readonly rate: number;
  readonly burst: number;
  /** Round-trip time between any two regions without an entry in `links`. */
  readonly rttMs: Millis;
  readonly links: readonly Link[];
  /** Jitter: a delay takes up to this fraction longer. */
  readonly jitter: number;
  readonly reserve: number;
  readonly deadlineMs: Millis;
  readonly outages: readonly RegionOutage[];
  readonly spanMs: Millis;
  readonly seed: number;
}

export interface RegionsRun {
  /** Start times of admitted calls, by region. */
  readonly admitted: ReadonlyMap<string, readonly Millis[]>;
  /** Calls by region, admitted or not. */
  readonly requested: ReadonlyMap<string, number>;
  /** Mean time to a decision. */
  readonly meanLatencyMs: number;
}

const KEY = 'all';

export function simulateRegions(design: Design, options: RegionsOptions): Promise<RegionsRun> {
  const world = new RegionSimulation(options);
  if (design === 'central') return world.run(centralBucket(world));
  return world.run(regionalBuckets(world, design === 'groups'));
}

/** Decides one call of a region; true if it is allowed. */
type RegionCheck = (region: string) => Promise<boolean>;

/** The clock and the network of a run. */
class RegionSimulation {
  readonly clock = new VirtualClock(1_000_000);
  readonly options: RegionsOptions;
  readonly #startAt: Millis;
  readonly #random: () => number;

  constructor(options: RegionsOptions) {
    this.options = options;
    this.#startAt = this.clock.now();
    this.#random = seededRandom(options.seed);
  }

  isIsolated(region: string): boolean {
    const ms = this.clock.now() - this.#startAt;
    return this.options.outages.some(
      (outage) => outage.region === region && ms >= outage.fromMs && ms < outage.toMs,
    );
  }

  /** Takes the one-way delay between two regions; false if the message is lost. */
  async transmit(from: string, to: string): Promise<boolean> {
    const { links, jitter } = this.options;
    const connects = ({ between }: Link): boolean => between.includes(from) && between.includes(to);
    const { rttMs } = links.find(connects) ?? this.options;
    if (this.isIsolated(from) || this.isIsolated(to)) return false;
    await sleep(this.clock, (rttMs / 2) * (1 + jitter * this.#random()));
    return !this.isIsolated(from) && !this.isIsolated(to);
  }

  /** Simulates all calls of the span in order. */
  async run(check: RegionCheck): Promise<RegionsRun> {
    const { regions, spanMs } = this.options;
    const random = seededRandom(this.options.seed + 1);
    /** Returns the time of the next call after `from`: drawn at the pulse rate and thinned out between pulses. */
    const nextCallAfter = ({ load, pulse }: Region, from: Millis): Millis => {
      const { everyMs, forMs, times } = pulse ?? { everyMs: 1, forMs: 1, times: 1 };
      for (let at = from; ; ) {
        at += load > 0 ? (-Math.log(1 - random()) * 1000) / (load * times) : Infinity;
        if (at >= spanMs || at % everyMs < forMs || random() < 1 / times) return at;
      }
    };
    const next = regions.map((region) => nextCallAfter(region, 0));
    const admitted = new Map(regions.map(({ name }) => [name, [] as Millis[]]));
    const requested = new Map(regions.map(({ name }) => [name, 0]));
    let decisions = 0;
    let latencyMs = 0;
    for (;;) {
      const at = Math.min(...next);
      if (at >= spanMs) break;
      const n = next.indexOf(at);
      const { name } = regions[n];
      next[n] = nextCallAfter(regions[n], at);
      await this.clock.advanceAsync(this.#startAt + at - this.clock.now());
      requested.set(name, (requested.get(name) ?? 0) + 1);
      void check(name).then((isAllowed) => {
        const now = this.clock.now() - this.#startAt;
        decisions++;
        latencyMs += Math.max(0, now - at); // rounding may put `now` slightly before `at`
        if (isAllowed) admitted.get(name)?.push(now);
      });
    }
    await this.clock.advanceAsync(
      this.#startAt + spanMs - this.clock.now() + this.options.deadlineMs,
    );
    return { admitted, requested, meanLatencyMs: latencyMs / Math.max(1, decisions) };
  }
}

/** One bucket per region, with or without borrowing. */
function regionalBuckets(world: RegionSimulation, canBorrow: boolean): RegionCheck {
  const { clock, options } = world;
  const { regions, rate, burst, reserve, deadlineMs } = options;
  const weights = new Map(regions.map((region) => [region.name, region]));
  const transportOf = (from: string): GroupTransport => ({
    async borrow(to, requests) {
      if (!canBorrow || !(await world.transmit(from, to))) return neverSettles();
      const grants = (await groups.get(to)?.lend(requests)) ?? [];
      return (await world.transmit(to, from)) ? grants : neverSettles();
    },
  });
  const groups = new Map(
    regions.map(({ name: self }) => {
      const resolved = { self, groups: weights, reserve, deadlineMs };
      return [self, new Group(resolved, transportOf(self), clock)];
    }),
  );
  const limit = { bucket: { rate, burst } };
  const limiters = new Map(
    [...groups].map(([name, group]) => [
      name,
      limiter({ name: 'api', limit, backend: group.createLocalFactory(), clock }),
    ]),
  );
  return async (region) => limiters.get(region)?.check(KEY).verdict === 'allow';
}

function centralBucket(world: RegionSimulation): RegionCheck {
  const { clock, options } = world;
  const { rate, burst, deadlineMs } = options;
  const home = options.regions[0].name;
  const central = limiter({ limit: { bucket: { rate, burst } }, clock });
  return async (region) => {
    if (region === home) return central.check(KEY).verdict === 'allow';
    const checkRemotely = async (): Promise<boolean> => {
      if (!(await world.transmit(region, home))) return neverSettles();
      const isAllowed = central.check(KEY).verdict === 'allow';
      return (await world.transmit(home, region)) ? isAllowed : neverSettles();
    };
    return withDeadline(clock, deadlineMs, home, checkRemotely).catch(() => false);
  };
}

const neverSettles = (): Promise<never> => new Promise(() => {});

const sleep = (clock: VirtualClock, ms: Millis): Promise<void> =>
  new Promise((wake) => {
    clock.wakeAt(clock.now() + ms, wake);
  });
