import { isRecord } from '../../core/options.ts';

/** The most requests per call of `borrow`; demand for further keys waits for the group's own refill. */
export const MAX_BORROW_REQUESTS = 1000;

/** A request for tokens of a limit's key. */
export interface BorrowRequest {
  readonly limit: string;
  readonly key: string;
  readonly tokens: number;
}

export const isBorrowRequest = (value: unknown): value is BorrowRequest =>
  isRecord(value) &&
  typeof value.limit === 'string' &&
  typeof value.key === 'string' &&
  Number.isSafeInteger(value.tokens);

/** Carries borrow requests to other groups. */
export interface GroupTransport {
  /**
   * Borrows from a group; resolves to the granted tokens per request. The lender has taken them before it replies.
   * Rejects if the group is unavailable or the reply is late; tokens granted in that case are lost.
   */
  borrow(group: string, requests: readonly BorrowRequest[]): Promise<readonly number[]>;
}
