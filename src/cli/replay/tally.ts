import type { Millis } from '../../core/clock.ts';
import { type Decision, NEVER } from '../../core/decision.ts';
import { KeyCounts, KeyEvents } from './key-table.ts';
import { Quantiles } from './quantiles.ts';
import { Timeline } from './timeline.ts';

/** The calls themselves, whatever was decided. */
export class CallTally {
  total = 0;
  from: Millis = Infinity;
  to: Millis = Number.NEGATIVE_INFINITY;
  zoneMinutes = 0;
  /** True while no call has a fraction of a second. */
  isWholeSeconds = true;
  timeline = new Timeline(0);
  readonly byKey = new KeyCounts();

  /** The zone of the first call is that of the report. */
  useZone(zoneMinutes: number): void {
    this.zoneMinutes = zoneMinutes;
    this.timeline = new Timeline(zoneMinutes);
  }

  add(id: number, at: Millis, isDenied: boolean): void {
    this.total++;
    if (this.from === Infinity) this.from = at;
    this.to = at;
    if (this.isWholeSeconds && at % 1000 !== 0) this.isWholeSeconds = false;
    this.byKey.add(id);
    this.timeline.add(at, isDenied);
  }
}

/** The decisions of one limit or configuration. */
export class Tally {
  readonly calls = new CallTally();
  readonly denied = new KeyEvents();
  waited = 0;
  /** How long until a denied call would be allowed. */
  readonly retryAfterMs = new Quantiles();
  /** How long calls wait. */
  readonly waitMs = new Quantiles();

  add(id: number, at: Millis, decision: Decision): void {
    const isDenied = decision.verdict === 'deny';
    this.calls.add(id, at, isDenied);
    if (isDenied) {
      this.denied.add(id, at);
      if (decision.retryAfterMs !== NEVER) this.retryAfterMs.add(decision.retryAfterMs);
    } else if (decision.verdict === 'wait') {
      this.waited++;
      this.waitMs.add(decision.waitMs);
    }
  }
}
