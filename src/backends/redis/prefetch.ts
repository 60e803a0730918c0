/**
 * A stock of permits taken ahead, for limits that are asked more often than Redis can answer.
 *
 * With `lease: 100` a process takes a hundred permits of a key in one trip and spends them here, at
 * the speed of a local limit. What it costs is said plainly: permits that were taken and not yet
 * spent are spent later than Redis thinks, so in any span of time up to `lease` more may happen for
 * each process than the limit says, and never more than that. What is not spent within a second is
 * given back, and so is the rest when the limiter is closed.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision } from '../../core/decision.ts';
import { RemoteShareAround } from '../delegating-remote-backend.ts';
import { type Answer, type LineAnswer, lineOfOne, type RemoteShare } from '../remote-backend.ts';

/** The most keys with a stock at once; the one that has had one for longest makes room. */
const STOCKS_MAX = 10_000;

/** How long a permit may lie about. */
const FRESH_MS: Millis = 1000;

interface Stock {
  left: number;
  filledAt: Millis;
  /** The trip that is under way for it. */
  filling: Promise<void> | undefined;
}

/** Where permits come from. */
export interface Source extends RemoteShare {
  spare: NonNullable<RemoteShare['spare']>;
  gain: NonNullable<RemoteShare['gain']>;
  /** As `take`, and none while Redis is out of reach: what stands in for it has nothing to take ahead. */
  takeThere(key: string, most: number): Promise<number>;
}

export class LeaseShare extends RemoteShareAround<Source> {
  readonly #clock: Clock;
  readonly #size: number;
  readonly #stocks = new Map<string, Stock>();

  constructor(inner: Source, clock: Clock, size: number) {
    super(inner);
    this.#clock = clock;
    this.#size = size;
  }

  /** The answer without a trip, if the stock has it. */
  askHere(key: string, cost: number): Decision | undefined {
    const stock = this.#stocks.get(key);
    if (stock === undefined || stock.left < cost || !this.#isFresh(stock)) return undefined;
    stock.left -= cost;
    return allow(stock.left);
  }

  override ask(key: string, cost: number): Promise<Answer> {
    return this.askNow(key, cost);
  }

  override async askNow(key: string, cost: number): Promise<Answer> {
    // Twice at most: others who waited for the same trip may have emptied the stock before us.
    for (let trip = 0; trip < 2 && cost <= this.#size; trip++) {
      const decision = this.askHere(key, cost);
      if (decision) return { decision, at: this.#clock.now() };
      await this.#fill(key);
    }
    const decision = this.askHere(key, cost);
    return decision ? { decision, at: this.#clock.now() } : super.askNow(key, cost);
  }

  override async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    return lineOfOne(await this.askNow(key, costs[0]));
  }

  /** One trip at a time for a key, whoever asks. */
  #fill(key: string): Promise<void> {
    const stock = this.#stocks.get(key) ?? this.#newStock(key);
    stock.filling ??= this.#refill(key, stock).finally(() => {
      stock.filling = undefined;
    });
    return stock.filling;
  }

  async #refill(key: string, stock: Stock): Promise<void> {
    if (!this.#isFresh(stock)) this.#giveBack(key, stock);
    stock.left += await this.inner.takeThere(key, this.#size - Math.ceil(stock.left));
    stock.filledAt = this.#clock.now();
  }

  #newStock(key: string): Stock {
    if (this.#stocks.size >= STOCKS_MAX) {
      const [[oldest, stock]] = this.#stocks;
      this.#stocks.delete(oldest);
      this.#empty(oldest, stock);
    }
    const stock: Stock = { left: 0, filledAt: this.#clock.now(), filling: undefined };
    this.#stocks.set(key, stock);
    return stock;
  }

  #isFresh({ filledAt }: Stock): boolean {
    return this.#clock.now() - filledAt <= FRESH_MS;
  }

  #giveBack(key: string, stock: Stock): Promise<void> {
    const cost = stock.left;
    stock.left = 0;
    if (cost <= 0) return Promise.resolve();
    return this.inner.settle(key, { outcome: 'ignored', cost, dueAt: Number.NaN });
  }

  /** Gives back what it has, and what is on its way. */
  async #empty(key: string, stock: Stock): Promise<void> {
    await stock.filling;
    await this.#giveBack(key, stock);
  }

  spare(key: string, most: number, leave: number): Promise<number> {
    return this.inner.spare(key, most, leave);
  }

  gain(key: string, units: number, upTo: number): Promise<void> {
    return this.inner.gain(key, units, upTo);
  }

  override async close(): Promise<void> {
    await Promise.all([...this.#stocks].map(([key, stock]) => this.#empty(key, stock)));
    this.#stocks.clear();
    await super.close();
  }
}
