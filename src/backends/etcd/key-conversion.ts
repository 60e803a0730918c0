/**
 * Converts the keys of a limit in etcd when the limit gets other numbers: what was spent stays spent.
 *
 * Each key is swapped like a check, so a check in another process is neither lost nor counted twice, and its lease is
 * that of the new rule. The first process that changes the limit converts the keys and leaves a marker.
 */

import { UnavailableError } from '../../core/errors.ts';
import type { KeyConverter } from '../../policies/policy.ts';
import { CasRegister, type RegisterContext } from './cas-register.ts';
import { NO_REVISION } from './store.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_SECONDS = 3600;

/** Attempts to leave the marker while other processes write it. */
const MAX_ATTEMPTS = 8;

/** Keys that are listed, and converted, at once. */
const PAGE_SIZE = 256;

/** `context` has the new rule, and `change` names the old and the new one. Rejects if etcd does not answer. */
export async function convertKeys(
  prefix: string,
  context: RegisterContext,
  convert: KeyConverter,
  change: string,
): Promise<void> {
  if (!(await markChange(prefix, context, change))) return;
  let after = '';
  for (;;) {
    const keys = await context.store.list(prefix, after, PAGE_SIZE);
    await Promise.all(keys.map((key) => convertKey(key, context, convert)));
    if (keys.length < PAGE_SIZE) return;
    after = keys[keys.length - 1];
  }
}

function convertKey(key: string, context: RegisterContext, convert: KeyConverter): Promise<void> {
  return new Promise((resolve, reject) => {
    new CasRegister(key, context).enqueue({
      isWaiting: true,
      isCredit: false,
      apply: (state, { now }) => convert(state, 0, state.slice(), 0, now),
      resolve: () => resolve(),
      reject,
    });
  });
}

/** False if another process has made this change. The marker is beside the keys, not among them. */
async function markChange(
  prefix: string,
  { store }: RegisterContext,
  change: string,
): Promise<boolean> {
  const key = `${prefix.slice(0, -1)}:changed`;
  const replacement = { text: change, leaseId: await store.grantLease(MARKER_TTL_SECONDS) };
  let revision = NO_REVISION;
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const swapped = await store.compareAndSwap(key, revision, replacement);
    if (swapped.isMatch) return true;
    if (swapped.current?.text === change && !swapped.isAmbiguous) return false;
    revision = swapped.current?.revision ?? NO_REVISION;
  }
  throw new UnavailableError('etcd', 'other processes change the limit at the same time');
}
