/**
 * Operations of a limit on keys in etcd: each has a deadline, and each key has a queue of its own.
 *
 * An outage costs one deadline: then a circuit breaker rejects operations at once, until a probe succeeds. Lost
 * contention while etcd replies does not open the breaker, nor does a deadline that passes while this process stalls.
 */

import { afterReads, wasBlocked } from '../../core/call-deadline.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';
import { deny, NEVER } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import type { RemoteDecision } from '../remote-backend.ts';
import { decideUnavailable } from '../remote-limit.ts';
import type { OperationHandle } from './contended-queue.ts';

/** The decision while there is no quorum: fail closed or fail open. */
export type EtcdOnUnavailable = 'deny' | 'allow';

/** Decides the operations of one key. */
interface KeyQueue<Operation> {
  enqueue(operation: Operation): void;
  /** True if eviction loses nothing. */
  readonly isIdle: boolean;
}

export interface OperationsOptions<Queue> {
  readonly clock: Clock;
  readonly deadlineMs: Millis;
  readonly onUnavailable: EtcdOnUnavailable;
  probe(): Promise<unknown>;
  onAvailability(isAvailable: boolean, why: unknown): void;
  createQueue(key: string): Queue;
}

interface PendingOperation extends OperationHandle {
  readonly issuedAt: Millis;
}

const MAX_PENDING_OPERATIONS = 10_000;

/** etcd rejects keys of 0.5 MB, and up to `MAX_REGISTERS` keys stay in memory. */
const MAX_KEY_CHARS = 32_768;

/** Keys in memory. An evicted key costs an extra read, and its next permit may seem due later than it is. */
const MAX_REGISTERS = 10_000;

export class Operations<Fields extends object, Queue extends KeyQueue<Fields & OperationHandle>> {
  readonly #options: OperationsOptions<Queue>;
  readonly #queues = new Map<string, Queue>();
  readonly #pending: DeadlineSet<PendingOperation>;
  readonly #breaker: CircuitBreaker;
  readonly #rejectionPacer = new RejectionPacer();
  #lastReplyAt: Millis = -Infinity;
  #isClosed = false;

  constructor(options: OperationsOptions<Queue>) {
    const { clock, deadlineMs, probe, onAvailability } = options;
    this.#options = options;
    this.#pending = new DeadlineSet(clock, deadlineMs, this.#timeOut.bind(this));
    this.#breaker = new CircuitBreaker(clock, probe, onAvailability);
  }

  get isAvailable(): boolean {
    return !this.#breaker.isOpen;
  }

  /** Queues of the keys in memory. */
  get queues(): ReadonlyMap<string, Queue> {
    return this.#queues;
  }

  clear(): void {
    this.#queues.clear();
  }

  /** Resolves with the result of `accept`, called at once and only if the operation is in time. Rejects otherwise. */
  run<T>(key: string, fields: Fields, accept: (result: unknown) => T): Promise<T> {
    const reject = (reason?: string) =>
      this.#rejectionPacer.reject(new UnavailableError('etcd', reason));
    if (this.#breaker.isOpen) return reject();
    if (key.length > MAX_KEY_CHARS)
      return reject(`the key has more than ${MAX_KEY_CHARS} characters`);
    if (this.#pending.size >= MAX_PENDING_OPERATIONS)
      return reject(`more than ${MAX_PENDING_OPERATIONS} operations are pending`);
    return new Promise<T>((resolve, reject) => {
      const operation: Fields & PendingOperation = {
        ...fields,
        issuedAt: this.#options.clock.now(),
        isWaiting: true,
        resolve: (result) => {
          if (this.#complete(operation)) resolve(accept(result));
        },
        reject: (error) => {
          if (this.#complete(operation)) reject(error);
        },
      };
      this.#pending.add(operation);
      this.#queueOf(key).enqueue(operation);
    });
  }

  /**
   * The decision without a result. Only an outage fails open. A key that is too long, or more operations than etcd
   * decides in time, is no outage: clients could otherwise use it to bypass the limit.
   */
  undecided(key: string): RemoteDecision {
    const { clock, onUnavailable } = this.#options;
    const decidedAt = clock.now();
    if (key.length > MAX_KEY_CHARS) return { decision: deny(NEVER), decidedAt };
    const decision = decideUnavailable(this.#breaker.isOpen ? onUnavailable : 'deny');
    return { decision, decidedAt, fromFallback: true };
  }

  /** Called by queues for each reply of etcd. */
  onReply(): void {
    this.#lastReplyAt = this.#options.clock.now();
  }

  /** Called by queues for each failure: operations are rejected at once until a probe succeeds. */
  onFailure(error: unknown): void {
    if (!this.#isClosed) this.#breaker.trip(error);
  }

  close(): void {
    this.#isClosed = true;
    this.#breaker.stop();
  }

  /** Returns false if the operation was already completed. */
  #complete(operation: PendingOperation): boolean {
    const { isWaiting } = operation;
    operation.isWaiting = false;
    this.#pending.remove(operation);
    return isWaiting;
  }

  /** Reads replies that have arrived, then rejects the operation. */
  #timeOut(operation: PendingOperation): void {
    const { clock, deadlineMs } = this.#options;
    const { issuedAt } = operation;
    const isStall = wasBlocked(clock.now() - issuedAt - deadlineMs, deadlineMs);
    afterReads(() => {
      const error = new UnavailableError('etcd', `no decision within ${deadlineMs} ms`);
      // A later reply means that etcd is available and the operation only lost to contention.
      const isOutage = !isStall && this.#lastReplyAt < issuedAt;
      if (operation.isWaiting && isOutage) this.onFailure(error);
      operation.reject(error);
    });
  }

  #queueOf(key: string): Queue {
    const queue = this.#queues.get(key) ?? this.#options.createQueue(key);
    this.#queues.delete(key);
    this.#queues.set(key, queue); // moves it to the end: the least recently used key is evicted first
    if (this.#queues.size > MAX_REGISTERS) this.#evictIdle();
    return queue;
  }

  #evictIdle(): void {
    for (const [key, queue] of this.#queues) {
      if (!queue.isIdle) continue;
      this.#queues.delete(key);
      return;
    }
  }
}
