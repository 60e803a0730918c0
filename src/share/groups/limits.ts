/** The limits that a process has divided among groups, as its own group's buckets. */

/** One group's bucket of a limit. */
export interface GroupLimit {
  readonly name: string;
  /** What its own calls can have at once. */
  readonly burst: number;
  /** What is left of it for a key; below zero while in debt. */
  remaining(key: string): number | Promise<number>;
  /** Takes up to so many whole units. */
  take(key: string, most: number): number | Promise<number>;
  /** Units came from elsewhere: what does not fit is gone. */
  add(key: string, units: number): void;
}
