/**
 * Converts the keys of a limit in etcd when the limit gets other numbers: what was spent stays spent.
 *
 * Each key is swapped like a check, so a check in another process is neither lost nor counted twice, and its lease is
 * that of the new rule. The first process that changes the limit converts the keys and leaves a marker. While it converts,
 * others wait. If it dies, its marker ends with the lease, and another process converts all keys again.
 */

import { type Millis, schedule } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { KeyConverter } from '../../policies/policy.ts';
import { CasRegister, type RegisterContext } from './cas-register.ts';
import { NO_REVISION } from './store.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_SECONDS = 3600;

/** How long a process may convert keys before it is taken for dead. */
const BEGUN_TTL_SECONDS = 60;

/** Attempts to leave the marker while other processes write it, or convert keys. */
const MAX_ATTEMPTS = 400;
const RETRY_MS: Millis = 250;

/** Keys that are listed, and converted, at once. */
const PAGE_SIZE = 256;

/** `context` has the new rule, and `change` names the old and the new one. Rejects if etcd does not answer. */
export async function convertKeys(
  prefix: string,
  context: RegisterContext,
  convert: KeyConverter,
  change: string,
): Promise<void> {
  const done = `done ${change}`;
  const begun = `begun ${change}`;
  if (!(await mark(prefix, context, begun, BEGUN_TTL_SECONDS, done))) return;
  let after = '';
  for (;;) {
    const keys = await context.store.list(prefix, after, PAGE_SIZE);
    await Promise.all(keys.map((key) => convertKey(key, context, convert)));
    if (keys.length < PAGE_SIZE) break;
    after = keys[keys.length - 1];
  }
  await mark(prefix, context, done, MARKER_TTL_SECONDS, done);
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

/** Writes the marker, beside the keys. False if it is `done`; waits while another process has begun. */
async function mark(
  prefix: string,
  { store, clock }: RegisterContext,
  text: string,
  ttlSeconds: number,
  done: string,
): Promise<boolean> {
  const key = `${prefix.slice(0, -1)}:changed`;
  let leaseId = await store.grantLease(ttlSeconds);
  let revision = NO_REVISION;
  for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    const swapped = await store.compareAndSwap(key, revision, { text, leaseId });
    if (swapped.isMatch) return true;
    const current = swapped.current?.text;
    if (current === done && !swapped.isAmbiguous) return false;
    revision = swapped.current?.revision ?? NO_REVISION;
    if (text === done || !current?.startsWith('begun ')) continue;
    await new Promise<void>((later) => {
      schedule(clock, clock.now() + RETRY_MS, later, true);
    });
    revision = NO_REVISION; // it may write only where no marker is left
    leaseId = await store.grantLease(ttlSeconds);
  }
  throw new UnavailableError('etcd', 'another process changes the limit at the same time');
}
