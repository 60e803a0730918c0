/**
 * Lends the surplus of this group: units in its buckets above the reserve level.
 *
 * So an idle group lends, and a busy one has no surplus. A group that becomes busy has its reserve at once, and from then on
 * all that is refilled.
 */

import { ConfigError } from '../../core/errors.ts';
import type { GroupLimit } from './limits.ts';
import { type BorrowRequest, isBorrowRequest } from './transport.ts';

export class LocalLender {
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  #isClosed = false;
  /** Units lent so far. */
  lent = 0;

  constructor(limits: ReadonlyMap<string, GroupLimit>) {
    this.#limits = limits;
  }

  /** From now on nothing is granted. */
  close(): void {
    this.#isClosed = true;
  }

  /** Grants per request. The units are taken before the reply. Rejects with a ConfigError if a request is invalid. */
  async lend(requests: readonly BorrowRequest[]): Promise<number[]> {
    if (!Array.isArray(requests) || !requests.every(isBorrowRequest)) {
      const expected = 'a list of { limit, key, units } with whole units';
      throw new ConfigError('requests', expected, requests);
    }
    if (this.#isClosed) return requests.map(() => 0);
    return Promise.all(requests.map((request) => this.#lendOne(request)));
  }

  async #lendOne({ limit, key, units }: BorrowRequest): Promise<number> {
    const granted = units > 0 ? ((await this.#limits.get(limit)?.takeSurplus(key, units)) ?? 0) : 0;
    this.lent += granted;
    return granted;
  }
}
