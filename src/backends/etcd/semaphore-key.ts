/**
 * Counts the calls in flight of one key over all processes: etcd has an entry for each process with such calls.
 *
 *     …/concurrency/sink/3f9a…   5   under a lease of process 3f9a, which ends 10 s after it was requested
 *     …/concurrency/sink/71c0…   2   under a lease of process 71c0
 *
 * An entry is the number of units that its process has in flight, or more. The process writes it before it grants a call, in
 * a transaction which fails if any entry was written since they were added up. So the sum never exceeds the limit. Entries
 * that were deleted or have expired meanwhile only make the sum smaller.
 *
 * The number is absolute: a write without a reply is corrected by the next one. Each write compares the revision of the
 * entry, so that an earlier one which arrives late changes nothing.
 *
 * A lease is never kept alive. While calls are in flight, the entry is written again under a new lease, long before its
 * lease ends; those of several keys together (`renewTogether`). A lease that a quorum has granted ends no sooner than it
 * says; a keep-alive only says what one member believes.
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { ContendedQueue, type OperationHandle, type QueueContext } from './contended-queue.ts';
import type { Lease, LeaseCache } from './leases.ts';
import { type EntryRenewal, type EntrySet, type EntryStore, NO_REVISION } from './store.ts';

/** An entry that is not written again ends after this long. */
export const ENTRY_TTL_SECONDS = 10;
const ENTRY_TTL_MS: Millis = ENTRY_TTL_SECONDS * 1000;

/** An entry that ends sooner than this is written again, under a new lease. */
const MIN_LEFT_MS: Millis = (ENTRY_TTL_MS * 2) / 3;

/** How often that is looked for. */
export const RENEWAL_CHECK_MS: Millis = ENTRY_TTL_MS / 6;

/** Keys that are renewed together: etcd accepts 128 operations in a transaction, of 1.5 MiB. */
export const MAX_RENEWED_TOGETHER = 100;
const MAX_JOINT_KEY_CHARS = 1000;

/** Calls that one transaction grants, and fencing tokens of one revision. */
const MAX_GRANTS = 256;

/** What an operation wants of a key. */
export interface SemaphoreRequest {
  /** The units of each call that fits, in order, if so many units are in flight. */
  take(inFlight: number): readonly number[];
}

/** Calls that were granted, maybe none. */
export interface SemaphoreResult {
  readonly costs: readonly number[];
  /** Units in flight over all processes, those of these calls included. */
  readonly inFlight: number;
  /** The fencing token of the first call; each further one has the next. */
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
  /** What the entry must say. */
  readonly units: number;
}

const NO_ENTRY = { revision: NO_REVISION, units: 0 };

export class SemaphoreKey extends ContendedQueue<SemaphoreOperation> {
  readonly #prefix: string;
  readonly #entryKey: string;
  readonly #context: SemaphoreContext;
  /** Units in flight in this process. */
  readonly #held: () => number;
  /** The entry of this process, as last read. */
  #entry = NO_ENTRY;
  #unitsOfOthers = 0;
  /** Of the store, when the entries were read. */
  #revision = NO_REVISION;
  /** The last instant at which the known entries were certainly current. */
  #validAt: Millis = -Infinity;
  /** When the entry ends, on the local clock, or a little sooner; Infinity without one. */
  #endsAt: Millis = Infinity;
  /** True if a write may have happened, or may happen later. */
  #isInDoubt = false;

  /** `prefix` is that of the key's entries. */
  constructor(prefix: string, held: () => number, context: SemaphoreContext) {
    super(context);
    this.#prefix = prefix;
    this.#entryKey = prefix + context.processId;
    this.#held = held;
    this.#context = context;
  }

  /** True if etcd has no entry of this process, and needs none. */
  override get isIdle(): boolean {
    return super.isIdle && this.#held() === 0 && this.#entry.units === 0 && !this.#isInDoubt;
  }

  get endsAt(): Millis {
    return this.#endsAt;
  }

  /** True if the entry differs from the calls in flight, or has to be written again. */
  get isDue(): boolean {
    return this.#isInDoubt || this.#mustWrite(this.#held());
  }

  /** True, once, if the entry has ended: other processes may have the places of its calls. */
  expire(now: Millis): boolean {
    if (this.#endsAt > now) return false;
    this.#endsAt = Infinity;
    this.#entry = NO_ENTRY; // calls that still run are registered again
    this.#validAt = -Infinity;
    return true;
  }

  /** Takes the key out of use if all it needs is to be renewed; `endRenewal` follows. */
  beginRenewal(): boolean {
    const { units } = this.#entry;
    const isPlain = units > 0 && units === this.#held() && !this.#isInDoubt;
    return isPlain && this.#entryKey.length <= MAX_JOINT_KEY_CHARS && this.tryHold();
  }

  get renewal(): EntryRenewal {
    const { revision, units } = this.#entry;
    return { key: this.#entryKey, revision, text: String(units) };
  }

  /** `revision` is that of the renewed entry; without one it is unknown whether it was renewed. */
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
      // A lease request takes time: after it, the batch is decided again.
      if (plan.units > 0 && !lease) await requestLease(this.#context);
      else if (await this.#write(plan, lease)) this.#grant(plan);
      else await this.backOffAfter(++lost);
    }
  }

  /** Each operation gets what fits after those before it. */
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

  /** Only a grant depends on the entries of other processes. */
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
      leases.clear(); // the lease may be gone
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

  /** A caller that timed out gets nothing: the entry is then written again, with fewer units. */
  #grant({ grants }: Plan): void {
    if (this.#context.clock.now() >= this.#endsAt) return; // this process was stalled: its entry has ended
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

  /** A reply shows the entries at some time after the request was sent. */
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

/** Renews the entries of several keys by one transaction. False if it is not certain that it did. */
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

/** A value of any other form is foreign and is not overwritten. */
function unitsIn(text: string, key: string): number {
  if (/^[1-9]\d{0,15}$/.test(text)) return Number(text);
  throw new UnavailableError(`the entry ${key}`, 'it holds a foreign value');
}
