/**
 * How long tests wait for an effect. It bounds a hang and is no assertion: longer than a stall of a loaded machine
 * (the default of vitest, 1 s, is not), and shorter than a lease of 10 s, so that an expiry does not pass for a release.
 */
export const WAIT_TIMEOUT_MS = 5000;

/** A deadline that calls miss in an outage only: longer than the stalls of a loaded machine. */
export const OUTAGE_DEADLINE_MS = 2000;
