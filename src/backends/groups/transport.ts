/** How one group reaches another: the least there is to it. */

/** So much is wanted for a key of a limit. */
export interface BorrowRequest {
  readonly limit: string;
  readonly key: string;
  readonly units: number;
}

/** The way to other groups. */
export interface GroupTransport {
  /**
   * Steals from a group: for each want what it gives, which is taken there before it is told. Rejects if the group cannot be
   * reached or does not answer in time; what it may have given then is nobody's.
   */
  borrow(group: string, wants: readonly BorrowRequest[]): Promise<readonly number[]>;
}
