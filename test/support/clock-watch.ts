/**
 * Watches how long this process stood still: a timer of 10 ms notes every gap. A test can compare a time that it
 * measured with the stall in it, and a failed test is reported with both the stall and the load of the machine.
 */

const PERIOD_MS = 10;
/** Shorter gaps are ordinary work. */
const MIN_STALL_MS = 30;
const MAX_STALLS = 10_000;

interface Stall {
  readonly endedAt: number;
  readonly ms: number;
}

/** The time that this process has computed: load and stalls do not add to it. */
export const cpuMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
};

/** The real time, also where a test has replaced the clock. */
export const realNow: () => number = performance.now.bind(performance);

const stalls: Stall[] = [];
let lastAt = realNow();

const watch = (): void => {
  const now = realNow();
  const ms = now - lastAt - PERIOD_MS;
  if (ms >= MIN_STALL_MS && stalls.length < MAX_STALLS) stalls.push({ endedAt: now, ms });
  lastAt = now;
};

setInterval(watch, PERIOD_MS).unref();

const stallsSince = (since: number): number[] => {
  watch(); // the timer may not have run since the stall
  return stalls.filter(({ endedAt }) => endedAt >= since).map(({ ms }) => ms);
};

/** The longest stall since `realNow()` was `since`, in milliseconds. */
export const longestStallMs = (since: number): number => Math.max(0, ...stallsSince(since));

/** The time that this process stood still since then. */
export const stalledMs = (since: number): number =>
  stallsSince(since).reduce((sum, ms) => sum + ms, 0);
