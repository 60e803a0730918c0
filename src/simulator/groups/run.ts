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
import type { Door } from '../../backends/groups/transport.ts';
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
export interface Way {
  readonly between: readonly [string, string];
  readonly rttMs: Millis;
}

/** A region that nobody else can reach for a while. */
export interface Cut {
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
  readonly ways: readonly Way[];
  /** How much longer a way takes at most, as a part of it. */
  readonly jitter: number;
  readonly keep: number;
  readonly deadlineMs: Millis;
  readonly cuts: readonly Cut[];
  readonly spanMs: Millis;
  readonly seed: number;
}

export interface RegionsRun {
  /** By region, when each call that was let through began. */
  readonly admitted: ReadonlyMap<string, readonly Millis[]>;
  /** By region, how many were asked for. */
  readonly asked: ReadonlyMap<string, number>;
  /** How long it took to be told, on average. */
  readonly answerMs: number;
}

const KEY = 'all';

export function playRegions(design: Design, options: RegionsOptions): Promise<RegionsRun> {
  const world = new World(options);
  if (design === 'redis') return world.play(farBucket(world));
  return world.play(ownBuckets(world, design === 'groups'));
}

/** Asks for one call of a region; true if it may begin, and how long that took. */
type Ask = (region: string) => Promise<boolean>;

/** Where and when all this happens. */
class World {
  readonly clock = new VirtualClock(1_000_000);
  readonly options: RegionsOptions;
  readonly #startAt: Millis;
  readonly #chance: () => number;

  constructor(options: RegionsOptions) {
    this.options = options;
    this.#startAt = this.clock.now();
    this.#chance = seededRandom(options.seed);
  }

  isCut(region: string): boolean {
    const ms = this.clock.now() - this.#startAt;
    return this.options.cuts.some(
      (cut) => cut.region === region && ms >= cut.fromMs && ms < cut.toMs,
    );
  }

  /** One way between two regions; false if it leads nowhere. */
  async travel(from: string, to: string): Promise<boolean> {
    const { ways, jitter } = this.options;
    const isOfBoth = ({ between }: Way): boolean => between.includes(from) && between.includes(to);
    const { rttMs } = ways.find(isOfBoth) ?? this.options;
    if (this.isCut(from) || this.isCut(to)) return false;
    await sleep(this.clock, (rttMs / 2) * (1 + jitter * this.#chance()));
    return !this.isCut(from) && !this.isCut(to);
  }

  /** All calls of the whole span, in the order they come. */
  async play(ask: Ask): Promise<RegionsRun> {
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
    const asked = new Map(regions.map(({ name }) => [name, 0]));
    let answers = 0;
    let answersMs = 0;
    for (;;) {
      const at = Math.min(...next);
      if (at >= spanMs) break;
      const n = next.indexOf(at);
      const { name } = regions[n];
      next[n] = after(regions[n], at);
      await this.clock.pass(this.#startAt + at - this.clock.now());
      asked.set(name, (asked.get(name) ?? 0) + 1);
      void ask(name).then((isAllowed) => {
        const now = this.clock.now() - this.#startAt;
        answers++;
        answersMs += Math.max(0, now - at); // a sum of gaps may be a hair ahead
        if (isAllowed) admitted.get(name)?.push(now);
      });
    }
    await this.clock.pass(this.#startAt + spanMs - this.clock.now() + this.options.deadlineMs);
    return { admitted, asked, answerMs: answersMs / Math.max(1, answers) };
  }
}

/** Each region has a bucket, and steals from others if it may. */
function ownBuckets(world: World, areThieves: boolean): Ask {
  const { clock, options } = world;
  const { regions, rate, burst, keep, deadlineMs } = options;
  const claims = new Map(regions.map((region) => [region.name, region]));
  const doorOf = (from: string): Door => ({
    async steal(to, wants) {
      if (!areThieves || !(await world.travel(from, to))) return never();
      const given = (await places.get(to)?.give(wants)) ?? [];
      return (await world.travel(to, from)) ? given : never();
    },
  });
  const places = new Map(
    regions.map(({ name: own }) => {
      const group = { own, groups: claims, keep, deadlineMs };
      return [own, new Group(group, doorOf(own), clock)];
    }),
  );
  const limit = { bucket: { rate, burst } };
  const limiters = new Map(
    [...places].map(([own, group]) => [own, limiter({ limit, share: group.ownMaker(), clock })]),
  );
  return async (region) => limiters.get(region)?.ask(KEY).verdict === 'allow';
}

/** One bucket in the first region. */
function farBucket(world: World): Ask {
  const { clock, options } = world;
  const { rate, burst, deadlineMs } = options;
  const home = options.regions[0].name;
  const own = limiter({ limit: { bucket: { rate, burst } }, clock });
  return async (region) => {
    if (region === home) return own.ask(KEY).verdict === 'allow';
    const asked = async (): Promise<boolean> => {
      if (!(await world.travel(region, home))) return never();
      const isAllowed = own.ask(KEY).verdict === 'allow';
      return (await world.travel(home, region)) ? isAllowed : never();
    };
    return Promise.race([asked(), late(clock, deadlineMs)]).catch(() => false);
  };
}

const never = (): Promise<never> => new Promise(() => {});

const sleep = (clock: VirtualClock, ms: Millis): Promise<void> =>
  new Promise((wake) => {
    clock.wakeAt(clock.now() + ms, wake);
  });

const late = (clock: Clock, ms: Millis): Promise<never> =>
  new Promise((_, giveUp) => {
    clock.wakeAt?.(clock.now() + ms, () => giveUp(new Error(`no answer within ${ms} ms`)), false);
  });
