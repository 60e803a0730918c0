/**
 * Counts the calls in flight of one key over all processes: etcd has an entry for each process with calls in flight.
 *
 *     …/concurrency/sink/3f9a…   5   under a lease of process 3f9a, which ends 10 s after it was requested
 *     …/concurrency/sink/71c0…   2   under a lease of process 71c0
 *
 * An entry is at least the number of units that its process has in flight. The process writes it before it grants a
 * call, in a transaction that fails if any entry was written since they were added up. So the sum never exceeds the
 * limit. Entries that were deleted or have expired meanwhile only reduce the sum.
 *
 * The number is absolute: the next write corrects a write without a reply. Each write compares the revision of the
 * entry, so an earlier write that arrives late changes nothing.
 *
 * A lease is never kept alive. While calls are in flight, the entry is written again under a new lease, long before its
 * lease ends; entries of several keys together (`renewTogether`). A lease granted by a quorum lasts at least as long as
 * it says; a keep-alive only reflects the view of one member.
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { ContendedQueue, type OperationHandle, type QueueContext } from './contended-queue.ts';
import type { Lease, LeaseCache } from './leases.ts';
import { type EntryRenewal, type EntrySet, type EntryStore, NO_REVISION } from './store.ts';

/** Lifetime of an entry that is not written again. */
export const ENTRY_TTL_SECONDS = 10;
const ENTRY_TTL_MS: Millis = ENTRY_TTL_SECONDS * 1000;

/** An entry with less time left is written again, under a new lease. */
const MIN_LEFT_MS: Millis = (ENTRY_TTL_MS * 2) / 3;

/** Interval of the check for due entries. */
export const RENEWAL_CHECK_MS: Millis = ENTRY_TTL_MS / 6;

/** The most keys that are renewed together: etcd accepts 128 operations and 1.5 MiB per transaction. */
export const MAX_RENEWED_TOGETHER = 100;
const MAX_JOINT_KEY_CHARS = 1000;

/** The most calls that one transaction grants: the number of fencing tokens of one revision. */
const MAX_GRANTS = 256;

export interface SemaphoreRequest {
  /** Returns the units of each call that fits, in order, with `inFlight` units in flight. */
  take(inFlight: number): readonly number[];
}

/** The granted calls, possibly none. */
export interface SemaphoreResult {
  readonly costs: readonly number[];
  /** Units in flight over all processes, including these calls. */
  readonly inFlight: number;
  /** The fencing token of the first call; each further call has the next one. */
  readonly token: number;
}

type SemaphoreOperation = SemaphoreRequest & OperationHandle;

export interface SemaphoreContext extends QueueContext {
  readonly store: EntryStore;
  readonly leases: LeaseCache;
  readonly processId: string;
}

interface Plan {
  readonly grants: readonly {
    readonly operation: SemaphoreOperation;
    readonly costs: readonly number[];
  }[];
  /** The required value of the entry. */
  readonly units: number;
}

const NO_ENTRY = { revision: NO_REVISION, units: 0 };

export class SemaphoreKey extends ContendedQueue<SemaphoreOperation> {
  readonly #prefix: string;
  readonly #entryKey: string;
  readonly #context: SemaphoreContext;
  /** Units in flight in this process. */
  readonly #held: () => number;
  /** The entry of this process at the last read. */
  #entry = NO_ENTRY;
  #unitsOfOthers = 0;
  /** The store's revision at which the entries were read. */
  #revision = NO_REVISION;
  /** The last instant at which the known entries were certainly current. */
  #validAt: Millis = -Infinity;
  /** The end of the entry on the local clock, or slightly earlier; Infinity without an entry. */
  #endsAt: Millis = Infinity;
  /** True if a write has an unknown outcome: it may have succeeded, or may still arrive. */
  #isInDoubt = false;

  /** `prefix` of the key's entries. */
  constructor(prefix: string, held: () => number, context: SemaphoreContext) {
    super(context);
    this.#prefix = prefix;
    this.#entryKey = prefix + context.processId;
    this.#held = held;
    this.#context = context;
  }

  /** True if etcd has no entry of this process and needs none. */
  override get isIdle(): boolean {
    return super.isIdle && this.#held() === 0 && this.#entry.units === 0 && !this.#isInDoubt;
  }

  get endsAt(): Millis {
    return this.#endsAt;
  }

  /** True if the entry differs from the calls in flight, or has to be renewed. */
  get isDue(): boolean {
    return this.#isInDoubt || this.#mustWrite(this.#held());
  }

  /** Returns true, once, if the entry has ended: other processes may use the slots of its calls. */
  expire(now: Millis): boolean {
    if (this.#endsAt > now) return false;
    this.#endsAt = Infinity;
    this.#entry = NO_ENTRY; // calls that still run are registered again
    this.#validAt = -Infinity;
    return true;
  }

  /** Takes the key out of use if it only needs a renewal; `endRenewal` follows. */
  beginRenewal(): boolean {
    const { units } = this.#entry;
    const isPlain = units > 0 && units === this.#held() && !this.#isInDoubt;
    return isPlain && this.#entryKey.length <= MAX_JOINT_KEY_CHARS && this.tryHold();
  }

  get renewal(): EntryRenewal {
    const { revision, units } = this.#entry;
    return { key: this.#entryKey, revision, text: String(units) };
  }

  /** `revision`: that of the renewed entry; undefined if the outcome of the renewal is unknown. */
  endRenewal(revision: string | undefined, endsAt: Millis): void {
    this.#validAt = -Infinity; // the other entries were not read
    if (revision === undefined) this.#isInDoubt = true;
    else {
      this.#entry = { ...this.#entry, revision };
      this.#endsAt = endsAt;
    }
    this.release();
  }

  protected async decideBatch(operations: readonly SemaphoreOperation[]): Promise<void> {
    const { clock } = this.#context;
    const startedAt = clock.now();
    for (let lost = 0; ; ) {
      if (this.isStale(this.#validAt)) await this.#refresh();
      const waiting = operations.filter(({ isWaiting }) => isWaiting);
      const plan = this.#plan(waiting);
      if (plan.grants.length === 0 && !this.#mustWrite(plan.units)) {
        if (waiting.length === 0 || this.#validAt >= startedAt) return this.#grantNothing(waiting);
        await this.#refresh();
        continue;
      }
      const lease = findLease(this.#context);
      // A lease request takes time, so the batch is decided again after it.
      if (plan.units > 0 && !lease) await requestLease(this.#context);
      else if (await this.#write(plan, lease)) this.#grant(plan);
      else await this.backOffAfter(++lost);
    }
  }

  /** Each operation gets the calls that fit after the operations before it. */
  #plan(operations: readonly SemaphoreOperation[]): Plan {
    let units = this.#held();
    let calls = 0;
    const grants: Plan['grants'][number][] = [];
    for (const operation of operations) {
      const costs = operation.take(this.#unitsOfOthers + units);
      if (costs.length === 0 || calls + costs.length > MAX_GRANTS) continue;
      grants.push({ operation, costs });
      units += sumOf(costs);
      calls += costs.length;
    }
    return { grants, units };
  }

  #mustWrite(units: number): boolean {
    const isOld = this.#endsAt - this.#context.clock.now() < MIN_LEFT_MS;
    return units !== this.#entry.units || (units > 0 && isOld);
  }

  /** Writes the entry. Only a grant depends on the entries of other processes. */
  async #write({ grants, units }: Plan, lease: Lease | undefined): Promise<boolean> {
    const { store, clock, leases, rtt } = this.#context;
    const sentAt = clock.now();
    this.#isInDoubt = true;
    const swapping = store.swapEntry({
      prefix: this.#prefix,
      key: this.#entryKey,
      revision: this.#entry.revision,
      replacement: units > 0 && lease ? { text: String(units), leaseId: lease.id } : undefined,
      unchangedSince: grants.length > 0 ? this.#revision : undefined,
    });
    const swapped = await swapping.catch((error: unknown) => {
      leases.clear(); // the lease may no longer exist
      this.#validAt = -Infinity;
      throw error;
    });
    rtt.observe(clock.now() - sentAt);
    this.#observe(swapped, sentAt);
    if (!swapped.isMatch) {
      this.noteLost();
      return false;
    }
    this.noteWon();
    this.#endsAt = units > 0 && lease ? lease.endsAt : Infinity;
    return true;
  }

  /** Resolves the grants. A caller that timed out gets none: the entry is then written again, with fewer units. */
  #grant({ grants }: Plan): void {
    if (this.#context.clock.now() >= this.#endsAt) return; // this process was stalled and its entry has ended
    let token = Number(this.#revision) * MAX_GRANTS;
    for (const { operation, costs } of grants) {
      const inFlight = this.#unitsOfOthers + this.#held() + sumOf(costs);
      operation.resolve({ costs, inFlight, token } satisfies SemaphoreResult);
      token += costs.length;
    }
  }

  #grantNothing(operations: readonly SemaphoreOperation[]): void {
    const inFlight = this.#unitsOfOthers + this.#held();
    for (const { resolve } of operations) resolve({ costs: [], inFlight, token: 0 });
  }

  async #refresh(): Promise<void> {
    const { store, clock } = this.#context;
    const sentAt = clock.now();
    this.#observe(await store.readEntries(this.#prefix), sentAt);
  }

  /** A reply shows the entries at some time after `sentAt`. */
  #observe({ revision, entries }: EntrySet, sentAt: Millis): void {
    this.#context.onReply();
    let unitsOfOthers = 0;
    let entry = NO_ENTRY;
    for (const { key, text, revision: writtenAt } of entries) {
      const units = unitsIn(text, key);
      if (key === this.#entryKey) entry = { revision: writtenAt, units };
      else unitsOfOthers += units;
    }
    this.#unitsOfOthers = unitsOfOthers;
    this.#entry = entry;
    this.#revision = revision;
    this.#validAt = sentAt;
    this.#isInDoubt = false;
  }
}

/** Renews the entries of several keys in one transaction. Returns false unless it certainly succeeded. */
export async function renewTogether(
  keys: readonly SemaphoreKey[],
  context: SemaphoreContext,
): Promise<boolean> {
  let revision: string | undefined;
  let endsAt: Millis = Infinity;
  try {
    if (!findLease(context)) await requestLease(context);
    const lease = findLease(context);
    if (lease) {
      const entries = keys.map(({ renewal }) => renewal);
      const { store, inFlightLimit } = context;
      revision = await inFlightLimit.run(() => store.renewEntries(entries, lease.id));
      endsAt = lease.endsAt;
      context.onReply();
    }
  } catch (error) {
    context.leases.clear();
    context.onFailure(error);
  }
  for (const key of keys) key.endRenewal(revision, endsAt);
  return revision !== undefined;
}

const leasedUntil = ({ clock }: SemaphoreContext): Millis =>
  clock.now() + MIN_LEFT_MS + RENEWAL_CHECK_MS;

const findLease = (context: SemaphoreContext): Lease | undefined =>
  context.leases.findValidUntil(leasedUntil(context), ENTRY_TTL_SECONDS);

const requestLease = (context: SemaphoreContext): Promise<void> =>
  context.leases.request(leasedUntil(context), ENTRY_TTL_SECONDS);

const sumOf = (costs: readonly number[]): number => costs.reduce((sum, cost) => sum + cost, 0);

/** Parses an entry. @throws {UnavailableError} for any other form: it is foreign and must not be overwritten. */
function unitsIn(text: string, key: string): number {
  if (/^[1-9]\d{0,15}$/.test(text)) return Number(text);
  throw new UnavailableError(`the entry ${key}`, 'it holds a foreign value');
}
