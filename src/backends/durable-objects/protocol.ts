/**
 * Messages between a limiter and a Durable Object: one JSON request for all operations of a tick, one reply for each.
 *
 *     { limit, since, …, operations: [{ op: 'check', key, cost }, …] }  ──▶  { at, replies: […] }
 *
 * The request carries the rule, so the object needs no configuration of its own. JSON has no NaN and no Infinity: they
 * are encoded as `{ "#": "NaN" }`.
 */

import type { Millis } from '../../core/clock.ts';
import type { AttemptOutcome, Decision } from '../../core/decision.ts';
import type { Settlement } from '../../policies/policy.ts';

/** Names this protocol in requests and replies: an object of another class does not reply with it. */
export const PROTOCOL = 'sluice-1';

/** The most operations of one request: Durable Object storage reads and writes up to 128 keys at once. */
export const MAX_OPERATIONS = 128;

/** An operation on one key. `lease` names a call in flight, where the rule counts them. */
export type Operation =
  /** Decides all or nothing; with `mayReserve` the decision may be `wait`. */
  | {
      readonly op: 'check';
      readonly key: string;
      readonly cost: number;
      readonly mayReserve: boolean;
      /** A refused call continues to wait, so no lock-out counts the refusal. */
      readonly isWaiting?: boolean;
      readonly lease?: string;
      /** Charged once for all calls of the key with this id, which is remembered for `forMs`. */
      readonly once?: { readonly id: string; readonly forMs: Millis };
    }
  /** Waiting calls, first come first served: after a refused call, none is granted. */
  | {
      readonly op: 'batch';
      readonly key: string;
      readonly costs: readonly number[];
      readonly leases?: readonly string[];
    }
  /** Takes up to `most` units and leaves at least `leave`. */
  | { readonly op: 'take'; readonly key: string; readonly most: number; readonly leave: number }
  | {
      readonly op: 'settle';
      readonly key: string;
      readonly settlement: Settlement;
      /** Units of the lease that stay in flight. Default: none. */
      readonly left?: number;
    }
  /** Extends a lease. */
  | { readonly op: 'renew'; readonly key: string; readonly lease: string }
  | {
      readonly op: 'report';
      readonly key: string;
      readonly report: AttemptOutcome | 'refusal';
      readonly count: number;
    }
  | { readonly op: 'hits'; readonly key: string; readonly count: number }
  /** Reads the numbers of a key. */
  | { readonly op: 'read'; readonly key: string }
  | { readonly op: 'forget'; readonly key: string };

export interface CheckReply {
  readonly decision: Decision;
  /** The fencing token of a granted lease. */
  readonly token?: number | undefined;
}

export interface BatchReply {
  /** The tokens of the granted calls; undefined without leases. */
  readonly tokens: readonly (number | undefined)[];
  readonly refusal: Decision | undefined;
}

/** The reply to each operation; `renew` says whether the lease was still held. */
export interface Replies {
  readonly check: CheckReply;
  readonly batch: BatchReply;
  readonly take: number;
  readonly settle: null;
  readonly renew: boolean;
  readonly report: null;
  readonly hits: null;
  readonly read: readonly number[];
  readonly forget: null;
}

export interface RuleMessage {
  /** The limit as JSON text, which also identifies the rule. */
  readonly limit: string;
  /** The time when the sender's limit got these numbers, on the object's clock; -Infinity: at deployment. */
  readonly since: Millis;
  /** Duration of a lease after its grant or renewal. */
  readonly leaseMs: Millis;
  /** How long the object may keep changes in memory only; 0: not at all. */
  readonly writeDelayMs: Millis;
}

export interface RequestMessage extends RuleMessage {
  readonly protocol: string;
  readonly operations: readonly Operation[];
}

export interface ReplyMessage {
  readonly protocol: string;
  /** The instant of the decisions, on the object's clock. */
  readonly at: Millis;
  readonly replies: readonly unknown[];
}

const isNotFinite = (value: unknown): boolean =>
  typeof value === 'number' && !Number.isFinite(value);

export const encode = (message: unknown): string =>
  JSON.stringify(message, (_, value: unknown) =>
    isNotFinite(value) ? { '#': String(value) } : value,
  );

/** Decodes a message. @throws {SyntaxError} if the text is not JSON. */
export const decode = (text: string): unknown =>
  JSON.parse(text, (_, value: unknown) => {
    const number = (value as { '#'?: unknown } | null)?.['#'];
    return typeof number === 'string' ? Number(number) : value;
  });
