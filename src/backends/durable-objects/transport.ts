/**
 * Sends operations to Durable Objects: one request carries all operations of one tick for one object.
 *
 * On Cloudflare Workers a tick belongs to one request, and calls of one request must not depend on another one: a
 * request that ends cancels its subrequests. Operations of several requests are never sent together, and each call has
 * its own deadline timer.
 *
 * A call that fails or misses its deadline opens the circuit breaker of its object only. Cloudflare retries calls that
 * did not reach their object, so there are no retries here.
 */

import { withDeadline } from '../../core/call-deadline.ts';
import { type Clock, type Millis, onNextTick } from '../../core/clock.ts';
import { RejectedError, UnavailableError } from '../../core/errors.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import type { ObjectNamespace } from './platform.ts';
import {
  decode,
  encode,
  MAX_OPERATIONS,
  type Operation,
  PROTOCOL,
  type Replies,
  type ReplyMessage,
  type RuleMessage,
} from './protocol.ts';

/** With this many unavailable objects, all objects count as unavailable. */
const MAX_UNAVAILABLE_OBJECTS = 64;

/** The host is irrelevant: a stub sends every request to its object. */
const OBJECT_URL = 'https://sluice/';

const COMPONENT = 'the Durable Object';

export interface ObjectReply<Op extends keyof Replies> {
  readonly reply: Replies[Op];
  /** The time of the decision, on the object's clock. */
  readonly at: Millis;
}

interface PendingOperation {
  readonly operation: Operation;
  readonly resolve: (reply: ObjectReply<never>) => void;
  readonly reject: (error: unknown) => void;
}

interface Batch {
  readonly rule: RuleMessage;
  readonly pending: PendingOperation[];
}

export interface ObjectTransportSettings {
  readonly namespace: ObjectNamespace;
  readonly locationHint: string | undefined;
  readonly clock: Clock;
  readonly deadlineMs: Millis;
  readonly waitUntil: ((work: Promise<unknown>) => void) | undefined;
  readonly onAvailability: (isAvailable: boolean, why: unknown) => void;
}

export class ObjectTransport {
  readonly #settings: ObjectTransportSettings;
  /** Operations of this tick, by the name of the object. */
  readonly #batches = new Map<string, Batch>();
  readonly #openBreakers = new Map<string, CircuitBreaker>();
  readonly #rejectionPacer = new RejectionPacer();
  /** How far the objects' clocks are ahead, from the last reply; NaN before the first. */
  #clockOffsetMs: Millis = Number.NaN;
  #isClosed = false;

  constructor(settings: ObjectTransportSettings) {
    this.#settings = settings;
  }

  get isAvailable(): boolean {
    for (const breaker of this.#openBreakers.values()) if (breaker.isOpen) return false;
    return true;
  }

  /** Converts an instant of the limiter's clock to the objects' clock; NaN before the first reply. */
  toObjectTime(at: Millis): Millis {
    return at + this.#clockOffsetMs;
  }

  /**
   * Sends an operation. Rejects with an UnavailableError without a reply in time, and with a RejectedError if the
   * object does not have this package's class. `onLate` gets a reply that came after the deadline.
   */
  send<Op extends Operation>(
    name: string,
    rule: RuleMessage,
    operation: Op,
    onLate?: (reply: ObjectReply<Op['op']>) => void,
  ): Promise<ObjectReply<Op['op']>> {
    if (this.#isUnavailable(name))
      return this.#rejectionPacer.reject(new UnavailableError(COMPONENT));
    return new Promise((resolve, reject) => {
      let isLate = false;
      const pending: PendingOperation = {
        operation,
        resolve: (reply) => (isLate ? onLate?.(reply) : resolve(reply)),
        reject: (error) => {
          isLate = true;
          reject(error);
        },
      };
      this.#batchFor(name, rule).pending.push(pending);
    });
  }

  stop(): void {
    this.#isClosed = true;
    for (const breaker of this.#openBreakers.values()) breaker.stop();
  }

  #batchFor(name: string, rule: RuleMessage): Batch {
    const open = this.#batches.get(name);
    if (open && open.rule === rule && open.pending.length < MAX_OPERATIONS) return open;
    const batch: Batch = { rule, pending: [] };
    this.#batches.set(name, batch);
    onNextTick(() => {
      if (this.#batches.get(name) === batch) this.#batches.delete(name);
      this.#sendBatch(name, batch);
    });
    return batch;
  }

  async #sendBatch(name: string, { rule, pending }: Batch): Promise<void> {
    const operations = pending.map(({ operation }) => operation);
    const call = this.#call(name, rule, operations);
    const resolveAll = ({ at, replies }: ReplyMessage): void => {
      for (const [n, { resolve }] of pending.entries()) resolve({ reply: replies[n] as never, at });
    };
    try {
      resolveAll(await this.#withDeadline(call));
    } catch (error) {
      const isMistake = error instanceof RejectedError;
      if (!isMistake) this.#openBreaker(name, rule, error);
      for (const { reject } of pending)
        reject(isMistake ? error : new UnavailableError(COMPONENT, error));
      call.then(resolveAll, () => {});
    }
  }

  async #call(
    name: string,
    rule: RuleMessage,
    operations: readonly Operation[],
  ): Promise<ReplyMessage> {
    const { namespace, locationHint, clock } = this.#settings;
    const options = locationHint === undefined ? {} : { locationHint };
    // A new stub for each call: after an error a stub stays broken, and Workers may not share a stub between requests.
    const stub = namespace.get(namespace.idFromName(name), options);
    const sentAt = clock.now();
    const body = encode({ protocol: PROTOCOL, ...rule, operations });
    const response = await stub.fetch(OBJECT_URL, { method: 'POST', body });
    const reply = readReply(response.status, await response.text());
    this.#clockOffsetMs = reply.at - (sentAt + clock.now()) / 2;
    return reply;
  }

  #withDeadline<T>(call: Promise<T>): Promise<T> {
    const { clock, deadlineMs } = this.#settings;
    return withDeadline(clock, deadlineMs, call);
  }

  #isUnavailable(name: string): boolean {
    const own = this.#openBreakers.get(name);
    if (own || this.#openBreakers.size < MAX_UNAVAILABLE_OBJECTS) return own?.isOpen ?? false;
    const [oldest] = this.#openBreakers.values();
    return oldest.isOpen; // starts a due probe where no timer does
  }

  /** Stops sending operations to this object until a probe succeeds. */
  #openBreaker(name: string, rule: RuleMessage, why: unknown): void {
    if (this.#isClosed || this.#openBreakers.has(name)) return;
    if (this.#openBreakers.size >= MAX_UNAVAILABLE_OBJECTS) return;
    const { clock, onAvailability, waitUntil } = this.#settings;
    const onChange = (isAvailable: boolean): void => {
      if (isAvailable && this.#openBreakers.delete(name) && this.#openBreakers.size === 0)
        onAvailability(true, undefined);
    };
    const probe = (): Promise<unknown> => {
      const probing = this.#withDeadline(this.#call(name, rule, []));
      waitUntil?.(probing.catch(() => {})); // the request of a denied call ends earlier
      return probing;
    };
    const breaker = new CircuitBreaker(clock, probe, onChange);
    const isFirst = this.#openBreakers.size === 0;
    this.#openBreakers.set(name, breaker);
    breaker.trip(why);
    if (isFirst) onAvailability(false, why);
  }
}

function readReply(status: number, text: string): ReplyMessage {
  const hint = 'bind the class SluiceObject of sluice/durable-objects';
  if (status === 400) throw mistake(text);
  let reply: Partial<ReplyMessage> | null = null;
  try {
    reply = decode(text) as ReplyMessage;
  } catch {} // the reply does not come from this package
  if (status === 200 && reply?.protocol === PROTOCOL) return reply as ReplyMessage;
  if (status >= 500) throw new Error(`status ${status}`);
  throw mistake(`expected a reply of SluiceObject, got status ${status}; ${hint}`);
}

const mistake = (message: string): RejectedError =>
  new RejectedError(COMPONENT, message, { isMistake: true });
