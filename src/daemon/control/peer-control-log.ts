import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import { type ControlRecord, idOf } from './control-record.ts';

const INTERVAL_MS: Millis = 60_000;

/** Lines about accepted controls, and about rejected ones. */
const MAX_LINES = 20;

/** Rejected controls that are remembered: peers send them again and again. */
const MAX_REMEMBERED = 1000;

const LEVELS = { accepted: 'info', rejected: 'warn' } as const;

export class PeerControlLog {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #counts = { accepted: 0, rejected: 0 };
  readonly #rejected = new Set<string>();
  #isScheduled = false;

  constructor(log: Log, clock: Clock) {
    this.#log = log;
    this.#clock = clock;
  }

  /** With a reason: it was rejected. */
  add(record: ControlRecord, peer: string, reason?: string): void {
    const { kind, key, limit, until, setAt, isRemoved } = record;
    const id = `${peer} ${setAt} ${idOf(record)} ${reason}`;
    if (this.#rejected.has(id)) return;
    if (this.#rejected.size >= MAX_REMEMBERED) this.#rejected.clear();
    if (reason !== undefined) this.#rejected.add(id);
    const outcome = reason === undefined ? 'accepted' : 'rejected';
    if (!this.#isScheduled)
      schedule(this.#clock, this.#clock.now() + INTERVAL_MS, () => this.#summarize(), false);
    this.#isScheduled = true;
    if (++this.#counts[outcome] > MAX_LINES) return;
    this.#log(LEVELS[outcome], `control of a peer ${outcome}`, {
      peer,
      kind,
      key,
      ...(limit !== undefined && { limit }),
      ...(isRemoved ? { removed: true } : { until: new Date(until).toISOString() }),
      ...(reason !== undefined && { reason }),
    });
  }

  #summarize(): void {
    this.#isScheduled = false;
    for (const outcome of ['accepted', 'rejected'] as const) {
      const controls = this.#counts[outcome] - MAX_LINES;
      this.#counts[outcome] = 0;
      if (controls > 0)
        this.#log(LEVELS[outcome], `more controls of peers ${outcome}`, { controls });
    }
  }
}
