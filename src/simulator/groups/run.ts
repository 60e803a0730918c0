/**
 * A limit over regions far apart, on virtual time, kept in three ways:
 *
 *     groups    each region has its part, and steals from others: the code of production
 *     even      each region has its part, and that is that
 *     redis     one bucket in the first region; the others ask it from afar
 *
 * Calls come by chance, at a pace for each region. The network between regions takes its time, and regions can be cut off for a
 * while. Every call that is let through counts at the instant it begins.
 */

import { Group } from '../../backends/groups/membership.ts';
import type { GroupTransport } from '../../backends/groups/transport.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';

export const DESIGNS = ['groups', 'even', 'redis'] as const;
export type Design = (typeof DESIGNS)[number];

export interface Region {
  readonly name: string;
  /** Calls a second that are asked for there. */
  readonly load: number;
  /** So often, for so long, all of them come at once and so many times as many. */
  readonly pulse?: { readonly everyMs: Millis; readonly forMs: Millis; readonly times: number };
  readonly weight: number;
  readonly min: number;
}

/** There and back between two regions. */
export interface Link {
  readonly between: readonly [string, string];
  readonly rttMs: Millis;
}

/** A region that nobody else can reach for a while. */
export interface RegionOutage {
  readonly region: string;
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

export interface RegionsOptions {
  readonly regions: readonly Region[];
  readonly rate: number;
  readonly burst: number;
  /** There and back between any two of them, */
  readonly rttMs: Millis;
  /** save these. */
  readonly links: readonly Link[];
  /** How much longer a way takes at most, as a part of it. */
  readonly jitter: number;
  readonly reserve: number;
  readonly deadlineMs: Millis;
  readonly outages: readonly RegionOutage[];
  readonly spanMs: Millis;
  readonly seed: number;
}

export interface RegionsRun {
  /** By region, when each call that was let through began. */
  readonly admitted: ReadonlyMap<string, readonly Millis[]>;
  /** By region, how many were asked for. */
  readonly requested: ReadonlyMap<string, number>;
  /** How long it took to be told, on average. */
  readonly meanLatencyMs: number;
}

const KEY = 'all';

export function simulateRegions(design: Design, options: RegionsOptions): Promise<RegionsRun> {
  const world = new RegionSimulation(options);
  if (design === 'redis') return world.run(centralBucket(world));
  return world.run(regionalBuckets(world, design === 'groups'));
}

/** Asks for one call of a region; true if it may begin, and how long that took. */
type RegionCheck = (region: string) => Promise<boolean>;

/** Where and when all this happens. */
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
      (cut) => cut.region === region && ms >= cut.fromMs && ms < cut.toMs,
    );
  }

  /** One way between two regions; false if it leads nowhere. */
  async transmit(from: string, to: string): Promise<boolean> {
    const { links, jitter } = this.options;
    const isOfBoth = ({ between }: Link): boolean => between.includes(from) && between.includes(to);
    const { rttMs } = links.find(isOfBoth) ?? this.options;
    if (this.isIsolated(from) || this.isIsolated(to)) return false;
    await sleep(this.clock, (rttMs / 2) * (1 + jitter * this.#random()));
    return !this.isIsolated(from) && !this.isIsolated(to);
  }

  /** All calls of the whole span, in the order they come. */
  async run(check: RegionCheck): Promise<RegionsRun> {
    const { regions, spanMs } = this.options;
    const random = seededRandom(this.options.seed + 1);
    /** When a region is next asked after an instant: at the pace of its pulses, of which most calls do not come in between. */
    const after = ({ load, pulse }: Region, from: Millis): Millis => {
      const { everyMs, forMs, times } = pulse ?? { everyMs: 1, forMs: 1, times: 1 };
      for (let at = from; ; ) {
        at += load > 0 ? (-Math.log(1 - random()) * 1000) / (load * times) : Infinity;
        if (at >= spanMs || at % everyMs < forMs || random() < 1 / times) return at;
      }
    };
    const next = regions.map((region) => after(region, 0));
    const admitted = new Map(regions.map(({ name }) => [name, [] as Millis[]]));
    const requested = new Map(regions.map(({ name }) => [name, 0]));
    let answers = 0;
    let answersMs = 0;
    for (;;) {
      const at = Math.min(...next);
      if (at >= spanMs) break;
      const n = next.indexOf(at);
      const { name } = regions[n];
      next[n] = after(regions[n], at);
      await this.clock.advanceAsync(this.#startAt + at - this.clock.now());
      requested.set(name, (requested.get(name) ?? 0) + 1);
      void check(name).then((isAllowed) => {
        const now = this.clock.now() - this.#startAt;
        answers++;
        answersMs += Math.max(0, now - at); // a sum of gaps may be a hair ahead
        if (isAllowed) admitted.get(name)?.push(now);
      });
    }
    await this.clock.advanceAsync(
      this.#startAt + spanMs - this.clock.now() + this.options.deadlineMs,
    );
    return { admitted, requested, meanLatencyMs: answersMs / Math.max(1, answers) };
  }
}

/** Each region has a bucket, and steals from others if it may. */
function regionalBuckets(world: RegionSimulation, canBorrow: boolean): RegionCheck {
  const { clock, options } = world;
  const { regions, rate, burst, reserve, deadlineMs } = options;
  const claims = new Map(regions.map((region) => [region.name, region]));
  const transportOf = (from: string): GroupTransport => ({
    async borrow(to, wants) {
      if (!canBorrow || !(await world.transmit(from, to))) return neverSettles();
      const given = (await places.get(to)?.lend(wants)) ?? [];
      return (await world.transmit(to, from)) ? given : neverSettles();
    },
  });
  const places = new Map(
    regions.map(({ name: own }) => {
      const group = { self: own, groups: claims, reserve, deadlineMs };
      return [own, new Group(group, transportOf(own), clock)];
    }),
  );
  const limit = { bucket: { rate, burst } };
  const limiters = new Map(
    [...places].map(([own, group]) => [
      own,
      limiter({ limit, backend: group.createLocalFactory(), clock }),
    ]),
  );
  return async (region) => limiters.get(region)?.check(KEY).verdict === 'allow';
}

/** One bucket in the first region. */
function centralBucket(world: RegionSimulation): RegionCheck {
  const { clock, options } = world;
  const { rate, burst, deadlineMs } = options;
  const home = options.regions[0].name;
  const own = limiter({ limit: { bucket: { rate, burst } }, clock });
  return async (region) => {
    if (region === home) return own.check(KEY).verdict === 'allow';
    const asked = async (): Promise<boolean> => {
      if (!(await world.transmit(region, home))) return neverSettles();
      const isAllowed = own.check(KEY).verdict === 'allow';
      return (await world.transmit(home, region)) ? isAllowed : neverSettles();
    };
    return Promise.race([asked(), rejectAfter(clock, deadlineMs)]).catch(() => false);
  };
}

const neverSettles = (): Promise<never> => new Promise(() => {});

const sleep = (clock: VirtualClock, ms: Millis): Promise<void> =>
  new Promise((wake) => {
    clock.wakeAt(clock.now() + ms, wake);
  });

const rejectAfter = (clock: Clock, ms: Millis): Promise<never> =>
  new Promise((_, giveUp) => {
    clock.wakeAt?.(clock.now() + ms, () => giveUp(new Error(`no answer within ${ms} ms`)), false);
  });
