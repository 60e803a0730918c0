/**
 * Store interfaces: compare-and-swap of a single string or of one entry among those of several processes, and leases
 * that delete them.
 *
 * Swaps must be linearised across all servers of a cluster, with any of them failing. A rejected swap may have
 * succeeded, or may succeed later.
 */

/** The revision of a missing key. */
export const NO_REVISION = '0';

export interface StoredValue {
  readonly text: string;
  readonly revision: string;
}

export type SwapResult =
  | { readonly isMatch: true; readonly revision: string }
  /** Another process was faster; `current` is the present value, if any. */
  | {
      readonly isMatch: false;
      readonly current: StoredValue | undefined;
      /** True if an earlier attempt of this swap got no reply and may have succeeded. */
      readonly isAmbiguous: boolean;
    };

/** The new value, and the lease with which it expires. */
export interface Replacement {
  readonly text: string;
  readonly leaseId: string;
}

export interface RegisterStore {
  /** Writes `replacement` if the key still has that revision; without `replacement` it only compares. */
  compareAndSwap(key: string, revision: string, replacement?: Replacement): Promise<SwapResult>;
  /** Names of keys that begin with `prefix`, after the key `after`, in order, at most `max`. */
  list(prefix: string, after: string, max: number): Promise<readonly string[]>;
  /** Grants a lease of at least `seconds`; keys last written under it are deleted when it ends. */
  grantLease(seconds: number): Promise<string>;
  close(): void;
}

/** One of several entries under a prefix. */
export interface StoredEntry extends StoredValue {
  readonly key: string;
}

/** All entries under a prefix at this revision of the store. */
export interface EntrySet {
  readonly revision: string;
  readonly entries: readonly StoredEntry[];
}

export interface EntrySwap {
  /** Prefix of all entries; ends in a slash. */
  readonly prefix: string;
  /** Name of the entry that is written. */
  readonly key: string;
  /** The revision that the entry must still have. */
  readonly revision: string;
  /** Undefined: the entry is deleted. */
  readonly replacement: Replacement | undefined;
  /** If given, no entry under the prefix may have been written after this revision. Entries may have been deleted. */
  readonly unchangedSince: string | undefined;
}

/** An entry that is written again, unchanged, under another lease. */
export interface EntryRenewal {
  readonly key: string;
  readonly revision: string;
  readonly text: string;
}

export interface EntryStore extends Pick<RegisterStore, 'grantLease' | 'close'> {
  readEntries(prefix: string): Promise<EntrySet>;
  /** Writes or deletes one entry if the conditions hold; the result has the entries after that. */
  swapEntry(swap: EntrySwap): Promise<EntrySet & { readonly isMatch: boolean }>;
  /** Writes all entries under the lease; returns their new revision, or undefined if one has another revision by now. */
  renewEntries(entries: readonly EntryRenewal[], leaseId: string): Promise<string | undefined>;
}
