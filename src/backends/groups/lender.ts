/**
 * Lends the surplus of this group: tokens in its buckets above the reserve level.
 *
 * So an idle group lends, and a busy one has no surplus. A group that becomes busy has its reserve at once, and from then on
 * all that is refilled.
 */

import type { GroupLimit } from './limits.ts';
import type { BorrowRequest } from './transport.ts';

export class Lender {
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** Tokens lent so far. */
  lent = 0;

  constructor(limits: ReadonlyMap<string, GroupLimit>) {
    this.#limits = limits;
  }

  /** Grants per request. The tokens are taken before the reply. */
  lend(requests: readonly BorrowRequest[]): Promise<number[]> {
    return Promise.all(requests.map((request) => this.#lendOne(request)));
  }

  async #lendOne({ limit, key, tokens }: BorrowRequest): Promise<number> {
    const granted =
      tokens > 0 ? ((await this.#limits.get(limit)?.takeSurplus(key, tokens)) ?? 0) : 0;
    this.lent += granted;
    return granted;
  }
}
