/** Stalls of this machine: what a limiter does meanwhile says nothing about it. */

const TICK_MS = 5;

/** A process that does not run for this long stalls. */
const STALL_MS = 100;

/** After a stall, calls and replies that are overdue arrive at once. */
const RECOVERY_MS = 300;

/** One clock for all processes of the machine. */
const now = () => performance.timeOrigin + performance.now();

/** Calls back with the span of each stall of this process. */
export function onStall(report) {
  let last = now();
  setInterval(() => {
    const at = now();
    if (at - last > STALL_MS) report({ from: last, to: at });
    last = at;
  }, TICK_MS).unref();
}

/** Parts of the span from `from` to `to` in which no process stalled, nor recovered from a stall. */
export function calmParts(stalls, from, to) {
  const parts = [];
  let at = from;
  for (const stall of stalls.toSorted((a, b) => a.from - b.from)) {
    if (stall.from > at) parts.push({ from: at, to: Math.min(stall.from, to) });
    at = Math.max(at, stall.to + RECOVERY_MS);
    if (at >= to) return parts.filter((part) => part.from < part.to);
  }
  return [...parts, { from: at, to }].filter((part) => part.from < part.to);
}

export const lengthOf = (parts) => parts.reduce((sum, { from, to }) => sum + to - from, 0);
