/** An exact log of calls: the oracle for sliding windows. */

/** Units that were granted at one time. */
export interface LoggedCall {
  readonly at: number;
  units: number;
}

/** The most units in any period of `perMs`, both ends included. */
export function mostInAnyWindow(calls: readonly LoggedCall[], perMs: number): number {
  const sorted = calls.toSorted((a, b) => a.at - b.at);
  let from = 0;
  let units = 0;
  let most = 0;
  for (const call of sorted) {
    units += call.units;
    for (; sorted[from].at < call.at - perMs; from++) units -= sorted[from].units;
    most = Math.max(most, units);
  }
  return most;
}

/** A limiter that remembers the time of every call, and so wastes nothing. */
export class ExactLog {
  readonly #limit: number;
  readonly #perMs: number;
  readonly #times: number[] = [];
  served = 0;

  constructor(limit: number, perMs: number) {
    this.#limit = limit;
    this.#perMs = perMs;
  }

  check(now: number): void {
    while (this.#times[0] <= now - this.#perMs) this.#times.shift();
    if (this.#times.length >= this.#limit) return;
    this.#times.push(now);
    this.served++;
  }
}
