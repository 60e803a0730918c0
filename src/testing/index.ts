/** `sluice/testing`: helpers for tests that do not sleep. */

export { VirtualClock } from './virtual-clock.ts';
