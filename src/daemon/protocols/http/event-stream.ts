/**
 * Streams the counters of every limit once a second as server-sent events.
 *
 *     event: snapshot                          at once: totals since the start
 *     data: {"at":…,"limits":{"api":{"allowed":12,…}},"total":{"allowed":12,…}}
 *
 *     event: second                            then: the differences to the event before
 *     data: {"at":…,"limits":{"api":{"allowed":3,"denied":1,…,"keys":2}},"total":{…}}
 *
 * Both have `denied`, the most denied keys of each limit in the last 10 to 20 s, and `recent`, the denials since the
 * event before. Limits in shadow mode are marked, and no part of the total.
 *
 * An event is encoded once for all subscribers, and only while there are some. A subscriber that does not
 * read is disconnected; after reconnecting, the snapshot has everything it missed.
 */

import { type Clock, type Millis, schedule } from '../../../core/clock.ts';
import type { RemoteStats } from '../../../limiter/async-limiter.ts';
import type { Stats } from '../../../limiter/limiter-interface.ts';
import type { LimitConfig } from '../../config/limits.ts';
import { shadowTest } from '../../config/shadow.ts';
import type { DenialRecorder } from '../../denials/denial-recorder.ts';
import type { LimiterEntry, LimiterRegistry } from '../../router/limiter-registry.ts';
import { HTTP_BOUNDS } from './bounds.ts';

/** The part of a response that is needed here; Node's `ServerResponse` has it. */
export interface Subscriber {
  write(text: string): unknown;
  end(): unknown;
  destroy(): unknown;
  readonly writableLength: number;
  once(event: 'close', callback: () => void): unknown;
}

const INTERVAL_MS: Millis = 1000;

/** A comment this often, for proxies that close idle connections. */
const KEEPALIVE_EVERY_TICKS = 15;

/** Unsent bytes beyond which a subscriber is disconnected. */
const MAX_UNSENT_BYTES = 1_048_576;

/** Bounds of the denials in one event. */
const MAX_FEED_LIMITS = 10;
const MAX_FEED_KEYS = 5;
const MAX_FEED_RECENT = 20;

type DenialFeed = Pick<DenialRecorder, 'top' | 'recent'>;

const NO_DENIALS: DenialFeed = { top: () => [], recent: () => [] };

type StatName = keyof Stats | keyof RemoteStats;

/** Sent as differences to the event before. */
const COUNTERS: readonly StatName[] = [
  'allowed',
  'denied',
  'waited',
  'cancelled',
  'expiredPermits',
  'fallback',
];

/** Sent as current values. */
const GAUGES: readonly StatName[] = ['keys', 'bytes', 'evicted', 'held', 'waiting'];

type StatValues = Record<string, number>;

export class EventStream {
  maxSubscribers = HTTP_BOUNDS.maxSubscribers;
  readonly #registry: LimiterRegistry;
  readonly #clock: Clock;
  readonly #denials: DenialFeed;
  readonly #limits: () => readonly LimitConfig[];
  readonly #subscribers = new Set<Subscriber>();
  /** The counters at the last tick. A limiter created since has none, so its counters start at 0. */
  #previous = new Map<LimiterEntry, StatValues>();
  /** When the last event was sent; a tick may be late. */
  #lastAt: Millis = 0;
  #ticks = 0;
  #cancelTick: (() => void) | undefined;

  constructor(
    registry: LimiterRegistry,
    clock: Clock,
    denials: DenialFeed = NO_DENIALS,
    limits: () => readonly LimitConfig[] = () => [],
  ) {
    this.#registry = registry;
    this.#denials = denials;
    this.#limits = limits;
    this.#clock = clock;
  }

  get isFull(): boolean {
    return this.#subscribers.size >= this.maxSubscribers;
  }

  /** Totals since the start: the first event of a subscriber. */
  snapshot(): string {
    const since = this.#clock.now() - INTERVAL_MS;
    return this.#event('snapshot', readStats(this.#registry.all), since);
  }

  add(subscriber: Subscriber): void {
    if (this.#subscribers.size === 0) this.#start();
    this.#subscribers.add(subscriber);
    subscriber.once('close', () => this.#remove(subscriber));
  }

  close(): void {
    for (const subscriber of this.#subscribers) subscriber.end();
    this.#subscribers.clear();
    this.#stopTicking();
  }

  #start(): void {
    this.#previous = readStats(this.#registry.all);
    this.#lastAt = this.#clock.now();
    this.#scheduleTick(this.#lastAt + INTERVAL_MS);
  }

  #scheduleTick(until: Millis): void {
    this.#cancelTick = schedule(this.#clock, until, () => this.#tick(until), false);
  }

  #tick(due: Millis): void {
    // After a delay of more than one interval, this event covers the missed ones.
    this.#scheduleTick(Math.max(due + INTERVAL_MS, this.#clock.now()));
    const now = readStats(this.#registry.all);
    const isKeepalive = ++this.#ticks % KEEPALIVE_EVERY_TICKS === 0;
    const text =
      this.#event('second', deltaSince(this.#previous, now), this.#lastAt) +
      (isKeepalive ? ': keep-alive\n\n' : '');
    this.#previous = now;
    this.#lastAt = this.#clock.now();
    for (const subscriber of this.#subscribers) this.#send(subscriber, text);
  }

  #send(subscriber: Subscriber, text: string): void {
    if (subscriber.writableLength <= MAX_UNSENT_BYTES) return void subscriber.write(text);
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

  #event(name: string, stats: ReadonlyMap<LimiterEntry, StatValues>, since: Millis): string {
    const isShadow = shadowTest(this.#limits());
    const limits = Object.fromEntries(
      [...stats].map(([{ name }, values]) => [
        name,
        isShadow(name) ? { ...values, shadow: true } : values,
      ]),
    );
    const active = [...stats].filter(([entry]) => !isShadow(entry.name));
    const total = sumStats(active.map(([, values]) => values));
    const now = this.#clock.now();
    const data = {
      at: Math.round(now),
      limits,
      total,
      denied: this.#denials.top('now', MAX_FEED_LIMITS, MAX_FEED_KEYS),
      recent: this.#denials.recent({ since, max: MAX_FEED_RECENT }),
    };
    return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  }
}

function readStats(entries: readonly LimiterEntry[]): Map<LimiterEntry, StatValues> {
  return new Map(entries.map((entry) => [entry, statsOf(entry)]));
}

/** Not every limiter has every value: a remote one has no keys here. */
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
    [...now].map(([entry, values]) => {
      const old = before.get(entry) ?? {};
      const counters = COUNTERS.filter((name) => name in values);
      const deltas = counters.map((name) => [name, values[name] - (old[name] ?? 0)]);
      return [entry, { ...values, ...Object.fromEntries(deltas) }];
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
