/**
 * What a group lets others steal: what is in its bucket above the line.
 *
 * So a group that is quiet gives, one that is busy has nothing to give, and one that becomes busy finds at once what it kept,
 * and from then on all that flows in.
 */

import type { GroupLimit } from './limits.ts';
import type { BorrowRequest } from './transport.ts';

export class LocalLender {
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** Units given so far. */
  lent = 0;

  constructor(limits: ReadonlyMap<string, GroupLimit>) {
    this.#limits = limits;
  }

  /** What each of them gets. It is taken before anybody is told. */
  lend(wants: readonly BorrowRequest[]): Promise<number[]> {
    return Promise.all(wants.map((want) => this.#lendOne(want)));
  }

  async #lendOne({ limit, key, units }: BorrowRequest): Promise<number> {
    const given = units > 0 ? ((await this.#limits.get(limit)?.takeSurplus(key, units)) ?? 0) : 0;
    this.lent += given;
    return given;
  }
}
