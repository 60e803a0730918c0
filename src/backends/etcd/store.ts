/**
 * What is needed of a server that keeps registers: to replace a text only if nobody else has, and to forget by itself.
 *
 * Everybody must see the same order of swaps, whichever server of a cluster is asked and whoever fails meanwhile. A swap
 * that is rejected may have happened, or may happen yet.
 */

/** The revision of what is not there. */
export const NO_REVISION = '0';

export interface StoredValue {
  readonly text: string;
  readonly revision: string;
}

export type SwapResult =
  | { readonly isMatch: true; readonly revision: string }
  /** Somebody else was faster, and this is what is there now, if anything. */
  | {
      readonly isMatch: false;
      readonly current: StoredValue | undefined;
      /** It may have been this very swap: it was tried before, and that was not answered. */
      readonly isAmbiguous: boolean;
    };

/** What is put in place of a revision, and with which lease it goes. */
export interface Replacement {
  readonly text: string;
  readonly leaseId: string;
}

export interface RegisterStore {
  /** Puts it if the key still has that revision; without `put` it only looks whether it has. */
  compareAndSwap(key: string, revision: string, replacement?: Replacement): Promise<SwapResult>;
  /** A lease that ends in so many seconds, no sooner, and takes with it what was put under it last. */
  grantLease(seconds: number): Promise<string>;
  close(): void;
}
