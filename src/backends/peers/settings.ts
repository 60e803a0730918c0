/** What can be chosen of how a node takes part in a fleet. */

import type { Millis } from '../../core/clock.ts';

export interface PeerOptions {
  /** How often it reports. */
  readonly intervalMs: Millis;
  /** `prompt` also reports as soon as a key has so many hits that nobody was told of. */
  readonly exchange: 'interval' | 'prompt';
  readonly slack: number;
  /** Datagrams a second that report before the interval is over: more is told in fewer, fuller ones. */
  readonly reportsMax: number;
  /** A peer that was silent for so long is gone. */
  readonly goneMs: Millis;
  /** How long, and how many bytes of, its own reports it keeps for those who missed them. */
  readonly historyMs: Millis;
  readonly historyBytes: number;
  /** For people. */
  readonly name: string;
}

export const PEER_DEFAULTS: PeerOptions = {
  intervalMs: 100,
  exchange: 'prompt',
  slack: 1,
  reportsMax: 100,
  goneMs: 5000,
  historyMs: 60_000,
  historyBytes: 4 * 1024 * 1024,
  name: '',
};
