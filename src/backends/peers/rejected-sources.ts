/**
 * Sources of rejected datagrams: with another key, or without a common wire version. Each is reported once an hour.
 *
 * The source address of a datagram that failed authentication may be forged, so the number of sources is bounded.
 */

import type { Millis } from '../../core/clock.ts';

/** The most sources per reason, and so the most reports per hour. */
const MAX_SOURCES = 64;

/** A source is reported again after this time, and forgotten after as long a silence. */
const REPORT_INTERVAL_MS: Millis = 3_600_000;

export type RejectReason = 'auth_failed' | 'other_version';

export const REJECT_MESSAGES: Readonly<Record<RejectReason, string>> = {
  auth_failed: 'datagrams failed authentication: do all peers have the same key, seed and version?',
  other_version: 'a peer has no common wire version, so the fleet is split: upgrade the older one',
};

/** A source from which this node rejects datagrams. */
export interface RejectedSource {
  readonly reason: RejectReason;
  /** Its address; the node's id for a transport without addresses, or empty if that is unknown. */
  readonly from: string;
  /** The newest wire version that it speaks; 0 if its datagrams cannot be decrypted. */
  readonly version: number;
  /** Number of rejected datagrams. */
  readonly datagrams: number;
  /** Time since the last one. */
  readonly ageMs: Millis;
}

interface Tracked {
  version: number;
  datagrams: number;
  lastAt: Millis;
  reportedAt: Millis;
}

export class RejectedSources {
  readonly #reason: RejectReason;
  readonly #report: (source: RejectedSource) => void;
  readonly #tracked = new Map<string, Tracked>();

  /** `report` is called for the first datagram of a source in an hour. */
  constructor(reason: RejectReason, report: (source: RejectedSource) => void) {
    this.#reason = reason;
    this.#report = report;
  }

  record(from: string, version: number, now: Millis): void {
    const tracked = this.#tracked.get(from) ?? this.#track(from, now);
    if (!tracked) return;
    tracked.version = version;
    tracked.datagrams++;
    tracked.lastAt = now;
    if (now - tracked.reportedAt < REPORT_INTERVAL_MS) return;
    tracked.reportedAt = now;
    this.#report(this.#viewOf(from, tracked, now));
  }

  #track(from: string, now: Millis): Tracked | undefined {
    if (this.#tracked.size >= MAX_SOURCES) this.#forgetSilent(now);
    if (this.#tracked.size >= MAX_SOURCES) return undefined;
    const tracked = { version: 0, datagrams: 0, lastAt: now, reportedAt: -Infinity };
    this.#tracked.set(from, tracked);
    return tracked;
  }

  #forgetSilent(now: Millis): void {
    for (const [from, { lastAt }] of this.#tracked)
      if (now - lastAt >= REPORT_INTERVAL_MS) this.#tracked.delete(from);
  }

  /** Sources of the last hour. */
  views(now: Millis): RejectedSource[] {
    this.#forgetSilent(now);
    return [...this.#tracked].map(([from, tracked]) => this.#viewOf(from, tracked, now));
  }

  #viewOf(from: string, { version, datagrams, lastAt }: Tracked, now: Millis): RejectedSource {
    return { reason: this.#reason, from, version, datagrams, ageMs: now - lastAt };
  }
}
