/**
 * Converts the keys of a limit in etcd when the limit gets other numbers: spent tokens stay spent.
 *
 * Each key is swapped like a check, so a check in another process is neither lost nor counted twice, and the key's
 * lease is that of the new rule. The first process that changes the limit converts the keys while others wait:
 *
 *     …:changing     the converting process, until its lease ends; `free` afterwards
 *     …:changed      begun <id of the change> <change>, then done <change>
 *
 * If it dies, its lease ends and another process continues with that id. Each converted register stores the id, so none
 * is converted twice. A process with a different change converts all registers again, from its own old rule.
 *
 * A window with other steps uses other registers, because a process that has not changed yet cannot read its counts.
 * They are copied. Until all processes have changed, both windows count, each for the processes that use it.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import type { KeyConverter, State } from '../../policies/policy.ts';
import { randomId } from '../remote-limit.ts';
import { CasRegister, type RegisterContext, type RegisterOperation } from './cas-register.ts';
import { NO_REVISION, type RegisterStore } from './store.ts';

/** How long the same change by another process converts nothing. */
const MARKER_TTL_SECONDS = 3600;

/** How long after its last page of keys a converting process is considered dead. */
const LOCK_TTL_SECONDS = 15;

/** Attempts to start while another process converts keys. */
const MAX_ATTEMPTS = 2400;
const RETRY_MS: Millis = 250;

/** Keys that are listed and converted at once. */
const PAGE_SIZE = 256;

const FREE = 'free';

/** Names of the registers before and after the change, and the rules by which they are read and written. */
export interface RegisterChange {
  readonly from: RegisterContext;
  readonly to: RegisterContext;
  readonly prefix: string;
  readonly newPrefix: string;
  readonly convert: KeyConverter;
  /** Identifies the old and the new rule. */
  readonly change: string;
}

/** Converts all keys of a limit. Rejects if etcd does not reply. */
export async function convertKeys(registers: RegisterChange): Promise<void> {
  const { prefix, newPrefix, to, change } = registers;
  const { store } = to;
  const lock = new Lock(store, to.clock, `${prefix.slice(0, -1)}:changing`);
  const marker = `${prefix.slice(0, -1)}:changed`;
  const isDone = async (): Promise<boolean> => (await read(store, marker)) === `done ${change}`;
  if (!(await lock.acquire(isDone))) return;
  try {
    const changeId = begunId(await read(store, marker), change) ?? randomId(cryptoRandom);
    await write(store, marker, `begun ${changeId} ${change}`);
    const convertOne = (key: string): Promise<unknown> =>
      newPrefix === prefix
        ? convertKey(key, registers, changeId)
        : copyKey(key, newPrefix + key.slice(prefix.length), registers);
    for (let after = ''; ; ) {
      const keys = await store.list(prefix, after, PAGE_SIZE);
      await Promise.all(keys.map(convertOne));
      await lock.renew();
      if (keys.length < PAGE_SIZE) break;
      after = keys[keys.length - 1];
    }
    await write(store, marker, `done ${change}`);
  } finally {
    await lock.release().catch(() => {}); // otherwise its lease ends
  }
}

/** The id of this change, if a process has started it. */
function begunId(marker: string, change: string): string | undefined {
  const [, id, begun] = /^begun (\S+) (.*)$/.exec(marker) ?? [];
  return begun === change ? id : undefined;
}

const convertKey = (key: string, { to, convert }: RegisterChange, changeId: string) =>
  apply(key, to, {
    changeId,
    apply: (state, { now }, isNew) => {
      if (!isNew) convert(state, 0, state.slice(), 0, now);
    },
  });

/** Copies a register. Where both registers exist, the one that allows less is kept. */
async function copyKey(
  key: string,
  newKey: string,
  { from, to, convert }: RegisterChange,
): Promise<void> {
  const before = (await apply(key, from, {
    apply: (state, _moment, isNew) => (isNew ? undefined : state.slice()),
  })) as State | undefined;
  if (!before) return;
  await apply(newKey, to, {
    apply: (state, { now }, isNew) => {
      const copy = new Float64Array(to.policy.width);
      convert(copy, 0, before, 0, now);
      const allows = (each: State): number => to.policy.available(each.slice(), 0, now);
      if (isNew || allows(copy) < allows(state)) state.set(copy);
    },
  });
}

function apply(
  key: string,
  context: RegisterContext,
  operation: Pick<RegisterOperation, 'apply' | 'changeId'>,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    new CasRegister(key, context).enqueue({
      ...operation,
      isWaiting: true,
      isCredit: false,
      resolve,
      reject,
    });
  });
}

async function read(store: RegisterStore, key: string): Promise<string> {
  const swapped = await store.compareAndSwap(key, NO_REVISION);
  return swapped.isMatch ? '' : (swapped.current?.text ?? '');
}

/** Overwrites the marker. Only the process with the lock writes it, so the last writer is right. */
async function write(store: RegisterStore, key: string, text: string): Promise<void> {
  const leaseId = await store.grantLease(MARKER_TTL_SECONDS);
  for (let revision = NO_REVISION; ; ) {
    const swapped = await store.compareAndSwap(key, revision, { text, leaseId });
    if (swapped.isMatch || swapped.current?.text === text) return;
    revision = swapped.current?.revision ?? NO_REVISION;
  }
}

/** Excludes other converting processes; ends with its lease if this process dies. */
class Lock {
  readonly #store: RegisterStore;
  readonly #clock: Clock;
  readonly #key: string;
  readonly #owner = randomId(cryptoRandom);
  #revision = NO_REVISION;

  constructor(store: RegisterStore, clock: Clock, key: string) {
    this.#store = store;
    this.#clock = clock;
    this.#key = key;
  }

  /** Returns false if the change is done; waits while another process converts. */
  async acquire(isDone: () => Promise<boolean>): Promise<boolean> {
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      if (await isDone()) return false;
      if (await this.#write(this.#owner)) {
        if (!(await isDone())) return true;
        await this.release();
        return false;
      }
      await new Promise<void>((later) => {
        schedule(this.#clock, this.#clock.now() + RETRY_MS, later, true);
      });
    }
    throw new UnavailableError('etcd', 'another process changes the limit at the same time');
  }

  async renew(): Promise<void> {
    if (!(await this.#write(this.#owner))) throw new UnavailableError('etcd', 'it was too slow');
  }

  async release(): Promise<void> {
    await this.#write(FREE);
  }

  /** Returns false if another process has the lock. */
  async #write(text: string): Promise<boolean> {
    const leaseId = await this.#store.grantLease(LOCK_TTL_SECONDS);
    for (;;) {
      const swapped = await this.#store.compareAndSwap(this.#key, this.#revision, {
        text,
        leaseId,
      });
      if (swapped.isMatch) {
        this.#revision = swapped.revision;
        return true;
      }
      const { current } = swapped;
      if (current && current.text !== FREE && current.text !== this.#owner) return false;
      this.#revision = current?.revision ?? NO_REVISION;
    }
  }
}
