import type { Millis } from '../../core/clock.ts';

/** How a call was decided; `failed`: no node has decided it. */
export const DECISIONS = ['allowed', 'denied', 'failed'] as const;
export const ALLOWED = 0;
export const DENIED = 1;
export const FAILED = 2;

/** How an allowed call ended; `open`: it was in flight at the end of the run. */
export const REPLIES = ['ok', 'busy', 'timeout', 'failed', 'open'] as const;
export type ReplyKind = (typeof REPLIES)[number];

const FIRST_ROWS = 1024;

/** Rows of numbers that grow by doubling. */
abstract class Rows {
  length = 0;
  protected capacity = FIRST_ROWS;

  protected abstract grow(): void;

  protected next(): number {
    if (this.length === this.capacity) {
      this.capacity *= 2;
      this.grow();
    }
    return this.length++;
  }
}

function grown<T extends Float64Array | Float32Array | Uint32Array | Uint16Array | Uint8Array>(
  column: T,
  capacity: number,
): T {
  const larger = new (column.constructor as new (length: number) => T)(capacity);
  larger.set(column);
  return larger;
}

export class DecisionLog extends Rows {
  /** Time of the decision since the first instant of the scenario. */
  at = new Float64Array(FIRST_ROWS);
  waitedMs = new Float32Array(FIRST_ROWS);
  caller = new Uint16Array(FIRST_ROWS);
  key = new Uint32Array(FIRST_ROWS);
  decision = new Uint8Array(FIRST_ROWS);

  add(at: Millis, waitedMs: Millis, caller: number, key: number, decision: number): void {
    const row = this.next();
    this.at[row] = at;
    this.waitedMs[row] = waitedMs;
    this.caller[row] = caller;
    this.key[row] = key;
    this.decision[row] = decision;
  }

  protected override grow(): void {
    this.at = grown(this.at, this.capacity);
    this.waitedMs = grown(this.waitedMs, this.capacity);
    this.caller = grown(this.caller, this.capacity);
    this.key = grown(this.key, this.capacity);
    this.decision = grown(this.decision, this.capacity);
  }
}

export class ReplyLog extends Rows {
  startedAt = new Float64Array(FIRST_ROWS);
  endedAt = new Float64Array(FIRST_ROWS);
  caller = new Uint16Array(FIRST_ROWS);
  reply = new Uint8Array(FIRST_ROWS);

  add(startedAt: Millis, endedAt: Millis, caller: number, reply: ReplyKind): void {
    const row = this.next();
    this.startedAt[row] = startedAt;
    this.endedAt[row] = endedAt;
    this.caller[row] = caller;
    this.reply[row] = REPLIES.indexOf(reply);
  }

  protected override grow(): void {
    this.startedAt = grown(this.startedAt, this.capacity);
    this.endedAt = grown(this.endedAt, this.capacity);
    this.caller = grown(this.caller, this.capacity);
    this.reply = grown(this.reply, this.capacity);
  }
}

/** Work of the server: when it began, and how long it took. */
export class WorkLog extends Rows {
  at = new Float64Array(FIRST_ROWS);
  ms = new Float64Array(FIRST_ROWS);

  add(at: Millis, ms: Millis): void {
    const row = this.next();
    this.at[row] = at;
    this.ms[row] = ms;
  }

  protected override grow(): void {
    this.at = grown(this.at, this.capacity);
    this.ms = grown(this.ms, this.capacity);
  }
}
