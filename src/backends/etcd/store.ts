/**
 * Interfaces of a store: compare-and-swap of strings, alone or among the entries of several processes, and leases that
 * delete them.
 *
 * Swaps must be linearised across all servers of a cluster, whichever fails meanwhile. A rejected swap may have happened,
 * or may happen later.
 */

/** The revision of a missing key. */
export const NO_REVISION = '0';

export interface StoredValue {
  readonly text: string;
  readonly revision: string;
}

export type SwapResult =
  | { readonly isMatch: true; readonly revision: string }
  /** Another process was faster; `current` is the value now, if any. */
  | {
      readonly isMatch: false;
      readonly current: StoredValue | undefined;
      /** True if an earlier attempt of this very swap was not answered and may have succeeded. */
      readonly isAmbiguous: boolean;
    };

/** The new value and the lease it expires with. */
export interface Replacement {
  readonly text: string;
  readonly leaseId: string;
}

export interface RegisterStore {
  /** Writes `replacement` if the key still has that revision; without one it only compares. */
  compareAndSwap(key: string, revision: string, replacement?: Replacement): Promise<SwapResult>;
  /** Names of keys that begin with `prefix`, after the key `after`, in order, at most `max`. */
  list(prefix: string, after: string, max: number): Promise<readonly string[]>;
  /** A lease that ends no sooner than in `seconds`; keys last written under it are deleted then. */
  grantLease(seconds: number): Promise<string>;
  close(): void;
}

/** One of several entries under a prefix. */
export interface StoredEntry extends StoredValue {
  readonly key: string;
}

/** All entries under a prefix, as they were at this revision of the store. */
export interface EntrySet {
  readonly revision: string;
  readonly entries: readonly StoredEntry[];
}

export interface EntrySwap {
  /** Of all entries; ends in a slash. */
  readonly prefix: string;
  /** Of the entry that is written. */
  readonly key: string;
  /** The revision that it must still have. */
  readonly revision: string;
  /** Undefined: the entry is deleted. */
  readonly replacement: Replacement | undefined;
  /** If given, no entry under the prefix may have been written after this revision. It may have been deleted. */
  readonly unchangedSince: string | undefined;
}

/** An entry as it is, to be written again under another lease. */
export interface EntryRenewal {
  readonly key: string;
  readonly revision: string;
  readonly text: string;
}

export interface EntryStore extends Pick<RegisterStore, 'grantLease' | 'close'> {
  readEntries(prefix: string): Promise<EntrySet>;
  /** Writes or deletes one entry, if the conditions hold; the entries are those afterwards. */
  swapEntry(swap: EntrySwap): Promise<EntrySet & { readonly isMatch: boolean }>;
  /** Writes all entries under the lease; returns their new revision, or undefined if one has another revision by now. */
  renewEntries(entries: readonly EntryRenewal[], leaseId: string): Promise<string | undefined>;
}
