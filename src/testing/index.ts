/** What users of this package need to test without sleeping. */

export { VirtualClock } from './virtual-clock.ts';
