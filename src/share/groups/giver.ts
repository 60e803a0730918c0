/**
 * What a group lets others steal: what is in its bucket above what it keeps for its own calls.
 *
 *     burst ┤▒▒▒▒▒▒▒▒  others may have this
 *           │▒▒▒▒▒▒▒▒
 *      keep ┤████████  only its own
 *           │████████
 *         0 ┴────────
 *
 * So a group that is quiet gives, one that is busy has nothing to give, and one that becomes busy finds at once what it kept,
 * and from then on all that flows in.
 */

import type { Want } from './door.ts';
import type { GroupLimit } from './limits.ts';

export class Giver {
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** What part of its burst a group keeps. */
  readonly #keep: number;
  /** Units given so far. */
  given = 0;

  constructor(limits: ReadonlyMap<string, GroupLimit>, keep: number) {
    this.#limits = limits;
    this.#keep = keep;
  }

  /** What each of them gets. It is taken before anybody is told. */
  give(wants: readonly Want[]): Promise<number[]> {
    return Promise.all(wants.map((want) => this.#giveOne(want)));
  }

  async #giveOne({ limit: name, key, units }: Want): Promise<number> {
    const limit = this.#limits.get(name);
    if (!limit) return 0;
    const spare = Math.floor((await limit.remaining(key)) - limit.burst * this.#keep);
    const most = Math.min(spare, units);
    if (!(most > 0)) return 0;
    const given = await limit.take(key, most);
    this.given += given;
    return given;
  }
}
