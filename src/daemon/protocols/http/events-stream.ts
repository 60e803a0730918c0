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

import { alarm, type Clock, type Millis } from '../../../core/clock.ts';
import type { Shelf, Shelved } from '../../router/limiter-registry.ts';

/** The least that is needed of a response; Node's own has it. */
export interface Listener {
  write(text: string): unknown;
  end(): unknown;
  destroy(): unknown;
  readonly writableLength: number;
  once(event: 'close', act: () => void): unknown;
}

export interface FeedCounts {
  readonly listeners: number;
  /** Let go because they did not read. */
  readonly slow: number;
}

const EVERY_MS: Millis = 1000;

/** So often a line that says nothing, for proxies that close what they hold to be idle. */
const BEAT_EVERY = 15;

/** What may wait for a listener that is slow to read. */
const BEHIND_BYTES_MAX = 1_048_576;

/** What grows with time: told as the difference to the second before. */
const COUNTERS = ['allowed', 'denied', 'waited', 'left', 'lost', 'makeshift'] as const;

/** What stands as it stands. */
const GAUGES = ['keys', 'bytes', 'evicted', 'held', 'waiting'] as const;

type Figures = Record<string, number>;

export class Feed {
  /** Who may listen at once. */
  listenersMax = 100;
  readonly #shelf: Shelf;
  readonly #clock: Clock;
  readonly #listeners = new Set<Listener>();
  /** What each limiter had counted a second ago. A limiter made anew begins at nothing. */
  #before = new Map<Shelved, Figures>();
  #beats = 0;
  #slow = 0;
  #stop: (() => void) | undefined;

  constructor(shelf: Shelf, clock: Clock) {
    this.#shelf = shelf;
    this.#clock = clock;
  }

  get isFull(): boolean {
    return this.#listeners.size >= this.listenersMax;
  }

  get counts(): FeedCounts {
    return { listeners: this.#listeners.size, slow: this.#slow };
  }

  /** Everything since the start: what a listener hears first. */
  snapshot(): string {
    return this.#event('snapshot', read(this.#shelf.all));
  }

  add(listener: Listener): void {
    if (this.#listeners.size === 0) this.#begin();
    this.#listeners.add(listener);
    listener.once('close', () => this.#remove(listener));
  }

  /** Says good-bye to everybody. */
  close(): void {
    for (const listener of this.#listeners) listener.end();
    this.#listeners.clear();
    this.#rest();
  }

  #begin(): void {
    this.#before = read(this.#shelf.all);
    this.#sleep(this.#clock.now() + EVERY_MS);
  }

  #sleep(until: Millis): void {
    this.#stop = alarm(this.#clock, until, () => this.#tick(until), false);
  }

  #tick(due: Millis): void {
    // Late by more than a beat: whatever was missed is in this one.
    this.#sleep(Math.max(due + EVERY_MS, this.#clock.now()));
    const now = read(this.#shelf.all);
    const isBeat = ++this.#beats % BEAT_EVERY === 0;
    const text = this.#event('second', since(this.#before, now)) + (isBeat ? ': beat\n\n' : '');
    this.#before = now;
    for (const listener of this.#listeners) this.#tell(listener, text);
  }

  #tell(listener: Listener, text: string): void {
    if (listener.writableLength <= BEHIND_BYTES_MAX) return void listener.write(text);
    this.#slow++;
    this.#remove(listener);
    listener.destroy();
  }

  #remove(listener: Listener): void {
    this.#listeners.delete(listener);
    if (this.#listeners.size === 0) this.#rest();
  }

  #rest(): void {
    this.#stop?.();
    this.#stop = undefined;
    this.#before.clear();
  }

  #event(name: string, figures: ReadonlyMap<Shelved, Figures>): string {
    const limits = Object.fromEntries([...figures].map(([own, its]) => [own.name, its]));
    const data = { at: Math.round(this.#clock.now()), limits, total: sum([...figures.values()]) };
    return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
  }
}

function read(shelved: readonly Shelved[]): Map<Shelved, Figures> {
  return new Map(shelved.map((own) => [own, figuresOf(own)]));
}

/** Not every limiter has all figures: one that somebody else decides has no keys here. */
function figuresOf({ engine }: Shelved): Figures {
  const stats = engine.stats() as unknown as Readonly<Record<string, unknown>>;
  const known = [...COUNTERS, ...GAUGES].filter((name) => typeof stats[name] === 'number');
  return Object.fromEntries(known.map((name) => [name, stats[name] as number]));
}

function since(
  before: ReadonlyMap<Shelved, Figures>,
  now: ReadonlyMap<Shelved, Figures>,
): Map<Shelved, Figures> {
  return new Map(
    [...now].map(([own, figures]) => {
      const old = before.get(own) ?? {};
      const grown = COUNTERS.filter((name) => name in figures);
      const more = grown.map((name) => [name, figures[name] - (old[name] ?? 0)]);
      return [own, { ...figures, ...Object.fromEntries(more) }];
    }),
  );
}

function sum(all: readonly Figures[]): Figures {
  const total: Figures = {};
  for (const figures of all) {
    for (const name in figures) total[name] = (total[name] ?? 0) + figures[name];
  }
  return total;
}
