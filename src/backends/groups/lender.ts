/**
 * What a group lets others steal: what is in its bucket above the line.
 *
 * So a group that is quiet gives, one that is busy has nothing to give, and one that becomes busy finds at once what it kept,
 * and from then on all that flows in.
 */

import type { GroupLimit } from './limits.ts';
import type { Want } from './transport.ts';

export class Giver {
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** Units given so far. */
  given = 0;

  constructor(limits: ReadonlyMap<string, GroupLimit>) {
    this.#limits = limits;
  }

  /** What each of them gets. It is taken before anybody is told. */
  give(wants: readonly Want[]): Promise<number[]> {
    return Promise.all(wants.map((want) => this.#giveOne(want)));
  }

  async #giveOne({ limit, key, units }: Want): Promise<number> {
    const given = units > 0 ? ((await this.#limits.get(limit)?.spare(key, units)) ?? 0) : 0;
    this.given += given;
    return given;
  }
}
