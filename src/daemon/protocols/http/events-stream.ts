/**
 * The feed: once a second, what every limit did in that second, as server-sent events.
 *
 *     event: snapshot                          at once: everything since the start
 *     data: {"at":…,"limits":{"api":{"allowed":12,…}},"total":{"allowed":12,…}}
 *
 *     event: second                            from then on: what came since the one before
 *     data: {"at":…,"limits":{"api":{"allowed":3,"denied":1,…,"keys":2}},"total":{…}}
 *
 * The figures are made once for all who listen, and only while somebody does. Whoever does not read is
 * let go, and loses nothing it could not ask for again.
 */

import { type Clock, type Millis, schedule } from '../../../core/clock.ts';
import type { RemoteStats } from '../../../limiter/async-limiter.ts';
import type { Stats } from '../../../limiter/sync-limiter.ts';
import type { LimiterEntry, LimiterRegistry } from '../../router/limiter-registry.ts';

/** The least that is needed of a response; Node's own has it. */
export interface Subscriber {
  write(text: string): unknown;
  end(): unknown;
  destroy(): unknown;
  readonly writableLength: number;
  once(event: 'close', act: () => void): unknown;
}

export interface EventStreamCounts {
  readonly subscribers: number;
  /** Let go because they did not read. */
  readonly slow: number;
}

const INTERVAL_MS: Millis = 1000;

/** So often a line that says nothing, for proxies that close what they hold to be idle. */
const KEEPALIVE_EVERY_TICKS = 15;

/** What may wait for a listener that is slow to read. */
const MAX_UNSENT_BYTES = 1_048_576;

type StatName = keyof Stats | keyof RemoteStats;

/** What grows with time: told as the difference to the second before. */
const COUNTERS = [
  'allowed',
  'denied',
  'waited',
  'cancelled',
  'expiredPermits',
  'fallback',
] as const satisfies readonly StatName[];

/** What stands as it stands. */
const GAUGES = [
  'keys',
  'bytes',
  'evicted',
  'held',
  'waiting',
] as const satisfies readonly StatName[];

type StatValues = Record<string, number>;

export class EventStream {
  /** Who may listen at once. */
  maxSubscribers = 100;
  readonly #registry: LimiterRegistry;
  readonly #clock: Clock;
  readonly #subscribers = new Set<Subscriber>();
  /** What each limiter had counted a second ago. A limiter made anew begins at nothing. */
  #previous = new Map<LimiterEntry, StatValues>();
  #ticks = 0;
  #slow = 0;
  #cancelTick: (() => void) | undefined;

  constructor(registry: LimiterRegistry, clock: Clock) {
    this.#registry = registry;
    this.#clock = clock;
  }

  get isFull(): boolean {
    return this.#subscribers.size >= this.maxSubscribers;
  }

  get counts(): EventStreamCounts {
    return { subscribers: this.#subscribers.size, slow: this.#slow };
  }

  /** Everything since the start: what a listener hears first. */
  snapshot(): string {
    return this.#event('snapshot', readStats(this.#registry.all));
  }

  add(subscriber: Subscriber): void {
    if (this.#subscribers.size === 0) this.#start();
    this.#subscribers.add(subscriber);
    subscriber.once('close', () => this.#remove(subscriber));
  }

  /** Says good-bye to everybody. */
  close(): void {
    for (const subscriber of this.#subscribers) subscriber.end();
    this.#subscribers.clear();
    this.#stopTicking();
  }

  #start(): void {
    this.#previous = readStats(this.#registry.all);
    this.#scheduleTick(this.#clock.now() + INTERVAL_MS);
  }

  #scheduleTick(until: Millis): void {
    this.#cancelTick = schedule(this.#clock, until, () => this.#tick(until), false);
  }

  #tick(due: Millis): void {
    // Late by more than a beat: whatever was missed is in this one.
    this.#scheduleTick(Math.max(due + INTERVAL_MS, this.#clock.now()));
    const now = readStats(this.#registry.all);
    const isBeat = ++this.#ticks % KEEPALIVE_EVERY_TICKS === 0;
    const text =
      this.#event('second', deltaSince(this.#previous, now)) + (isBeat ? ': beat\n\n' : '');
    this.#previous = now;
    for (const subscriber of this.#subscribers) this.#send(subscriber, text);
  }

  #send(subscriber: Subscriber, text: string): void {
    if (subscriber.writableLength <= MAX_UNSENT_BYTES) return void subscriber.write(text);
    this.#slow++;
    this.#remove(subscriber);
    subscriber.destroy();
  }

  #remove(subscriber: Subscriber): void {
    this.#subscribers.delete(subscriber);
    if (this.#subscribers.size === 0) this.#stopTicking();
  }

  #stopTicking(): void {
    this.#cancelTick?.();
    this.#cancelTick = undefined;
    this.#previous.clear();
  }

  #event(name: string, stats: ReadonlyMap<LimiterEntry, StatValues>): string {
    const limits = Object.fromEntries([...stats].map(([own, its]) => [own.name, its]));
    const data = {
      at: Math.round(this.#clock.now()),
      limits,
      total: sumStats([...stats.values()]),
    };
    return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  }
}

function readStats(entries: readonly LimiterEntry[]): Map<LimiterEntry, StatValues> {
  return new Map(entries.map((own) => [own, statsOf(own)]));
}

/** Not every limiter has all figures: one that somebody else decides has no keys here. */
function statsOf({ limiter }: LimiterEntry): StatValues {
  const stats = limiter.stats() as unknown as Readonly<Record<string, unknown>>;
  const known = [...COUNTERS, ...GAUGES].filter((name) => typeof stats[name] === 'number');
  return Object.fromEntries(known.map((name) => [name, stats[name] as number]));
}

function deltaSince(
  before: ReadonlyMap<LimiterEntry, StatValues>,
  now: ReadonlyMap<LimiterEntry, StatValues>,
): Map<LimiterEntry, StatValues> {
  return new Map(
    [...now].map(([own, figures]) => {
      const old = before.get(own) ?? {};
      const grown = COUNTERS.filter((name) => name in figures);
      const more = grown.map((name) => [name, figures[name] - (old[name] ?? 0)]);
      return [own, { ...figures, ...Object.fromEntries(more) }];
    }),
  );
}

function sumStats(all: readonly StatValues[]): StatValues {
  const total: StatValues = {};
  for (const stats of all) {
    for (const name in stats) total[name] = (total[name] ?? 0) + stats[name];
  }
  return total;
}
