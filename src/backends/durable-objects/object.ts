/**
 * `SluiceObject`: the Durable Object class that decides limits; a Worker exports it and binds it.
 *
 *     export { SluiceObject } from 'sluice/durable-objects';
 *
 * State is in memory and in the object's storage. A change is written before the reply leaves (the platform's output
 * gate holds the reply until then). With `writeDelay`, changes are written together after that time. An object that is
 * evicted, moved or redeployed reads its state again.
 *
 *     request ──▶ read unknown keys ──▶ run the policies ──▶ write changed keys ──▶ reply
 *     alarm   ──▶ delete keys that decide like new ones; the last one deletes the object
 */

import { type Clock, type Millis, schedule, systemClock } from '../../core/clock.ts';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import type { Policy } from '../../policies/policy.ts';
import { applyOperation, type OperationContext } from './operations.ts';
import type { ObjectState, ObjectStorage } from './platform.ts';
import { decode, encode, MAX_OPERATIONS, PROTOCOL, type RequestMessage } from './protocol.ts';
import type { StoredKey } from './stored-key.ts';

/** The most keys in memory; the storage has all of them. */
const MAX_CACHED_KEYS = 10_000;

/** The most rules in memory: those of concurrent deployments, and of keys that an older deployment used last. */
const MAX_POLICIES = 32;

/** Keys that an alarm reads in one page. */
const SWEEP_PAGE = 500;

/** The least time between two alarms. */
const MIN_SWEEP_MS: Millis = 60_000;

const PREFIX = 'key:';

/** Sources of time and randomness, for tests. */
interface ObjectSources {
  readonly clock?: Clock;
  readonly random?: Random;
}

/** The Durable Object that decides limits. */
export class SluiceObject {
  /** Marks the class for `DurableObjectNamespace<SluiceObject>` of Cloudflare's types. */
  declare readonly __DURABLE_OBJECT_BRAND: never;
  readonly #storage: ObjectStorage;
  readonly #clock: Clock;
  readonly #random: Random;
  /** Cached keys; undefined: the key is not stored. */
  readonly #keys = new Map<string, StoredKey | undefined>();
  readonly #policies = new Map<string, Policy>();
  /** Changed keys that are not written yet. */
  readonly #unwritten = new Set<string>();
  #isWriteScheduled = false;
  /** Time of the alarm. Infinity: none is set; undefined: not read yet. */
  #alarmAt: Millis | undefined;

  constructor(
    state: ObjectState,
    _env?: unknown,
    { clock = systemClock, random = systemRandom }: ObjectSources = {},
  ) {
    this.#storage = state.storage;
    this.#clock = clock;
    this.#random = random;
  }

  /** Called by the platform for each request of a limiter. */
  async fetch(request: Request): Promise<Response> {
    let message: RequestMessage;
    try {
      message = decode(await request.text()) as RequestMessage;
      if (message.protocol !== PROTOCOL)
        throw new ConfigError('protocol', PROTOCOL, message.protocol);
      this.#policyOf(message.limit);
    } catch (error) {
      return new Response(errorMessageOf(error), { status: 400 });
    }
    await this.#load(message);
    return new Response(encode(this.#apply(message)));
  }

  /** Called by the platform: deletes keys that decide like new ones. */
  async alarm(): Promise<void> {
    await this.#writeAll();
    const now = this.#clock.now();
    let next = Infinity;
    let startAfter: string | undefined;
    for (;;) {
      const from = startAfter === undefined ? {} : { startAfter };
      const page = await this.#storage.list({ prefix: PREFIX, limit: SWEEP_PAGE, ...from });
      const deleted: string[] = [];
      for (const [name, value] of page) {
        startAfter = name;
        const { deletableAt } = value as StoredKey;
        if (deletableAt > now) next = Math.min(next, deletableAt);
        else deleted.push(name);
      }
      for (const name of deleted) this.#keys.delete(name.slice(PREFIX.length));
      for (const names of chunksOf(deleted)) await this.#storage.delete(names);
      if (page.size < SWEEP_PAGE) break;
    }
    this.#alarmAt = Infinity;
    if (next < Infinity) this.#setAlarm(next, now);
    else if (this.#unwritten.size === 0) await this.#storage.deleteAll();
  }

  async #load({ operations }: RequestMessage): Promise<void> {
    const keys = operations.map(({ key }) => key);
    const unknown = [...new Set(keys)].filter((key) => !this.#keys.has(key));
    this.#alarmAt ??= (await this.#storage.getAlarm()) ?? Infinity;
    if (unknown.length === 0) return;
    const found = await this.#storage.get(unknown.map((key) => PREFIX + key));
    for (const key of unknown)
      if (!this.#keys.has(key)) this.#keys.set(key, found.get(PREFIX + key) as StoredKey);
  }

  /** Runs all operations without a pause, so no other request is decided in between. */
  #apply({ limit, since, leaseMs, writeDelayMs, operations }: RequestMessage) {
    const now = this.#clock.now();
    const rule = { policy: this.#policyOf(limit), text: limit, since, leaseMs };
    const policyOf = (text: string): Policy => this.#policyOf(text);
    const context: OperationContext = { rule, now, policyOf };
    const replies = operations.map((operation) => {
      const { key } = operation;
      const { reply, isChanged, stored } = applyOperation(operation, this.#keys.get(key), context);
      this.#keys.delete(key); // re-inserted last: the least recently used key is evicted first
      this.#keys.set(key, stored);
      if (isChanged) this.#unwritten.add(key);
      return reply;
    });
    if (writeDelayMs > 0) this.#scheduleWrite(now + writeDelayMs);
    else this.#writeAll();
    this.#evict();
    return { protocol: PROTOCOL, at: now, replies };
  }

  #policyOf(limit: string): Policy {
    const known = this.#policies.get(limit);
    if (known) return known;
    const policy = createPolicy(decode(limit), this.#random);
    if (this.#policies.size >= MAX_POLICIES) {
      const [oldest] = this.#policies.keys();
      this.#policies.delete(oldest);
    }
    this.#policies.set(limit, policy);
    return policy;
  }

  #scheduleWrite(at: Millis): void {
    if (this.#isWriteScheduled || this.#unwritten.size === 0) return;
    this.#isWriteScheduled = true;
    const write = (): void => {
      this.#isWriteScheduled = false;
      this.#writeAll();
    };
    schedule(this.#clock, at, write, false);
  }

  /** Writes changes. No reply awaits it: the platform holds replies until writes are stored, or ends the object. */
  async #writeAll(): Promise<void> {
    const keys = [...this.#unwritten];
    this.#unwritten.clear();
    const written: Promise<unknown>[] = [];
    for (const chunk of chunksOf(keys)) {
      const isStored = (key: string): boolean => this.#keys.get(key) !== undefined;
      const kept = chunk.filter(isStored);
      const entries = kept.map((key) => [PREFIX + key, this.#keys.get(key)]);
      if (kept.length > 0) written.push(this.#storage.put(Object.fromEntries(entries)));
      const gone = chunk.filter((key) => !isStored(key)).map((key) => PREFIX + key);
      if (gone.length > 0) written.push(this.#storage.delete(gone));
      for (const key of kept) this.#planAlarm(this.#keys.get(key)?.deletableAt ?? Infinity);
    }
    await Promise.allSettled(written);
  }

  #planAlarm(deletableAt: Millis): void {
    const now = this.#clock.now();
    const alarmAt = this.#alarmAt ?? Infinity;
    if (Math.max(deletableAt, now) + MIN_SWEEP_MS < alarmAt) this.#setAlarm(deletableAt, now);
  }

  #setAlarm(at: Millis, now: Millis): void {
    this.#alarmAt = Math.ceil(Math.max(at, now + MIN_SWEEP_MS));
    this.#storage.setAlarm(this.#alarmAt).catch(() => {}); // handled like a failed write
  }

  #evict(): void {
    for (const key of this.#keys.keys()) {
      if (this.#keys.size <= MAX_CACHED_KEYS) return;
      if (!this.#unwritten.has(key)) this.#keys.delete(key);
    }
  }
}

function* chunksOf(keys: readonly string[]): Generator<string[]> {
  for (let from = 0; from < keys.length; from += MAX_OPERATIONS)
    yield keys.slice(from, from + MAX_OPERATIONS);
}
