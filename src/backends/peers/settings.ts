/** What can be chosen of how a node takes part in a fleet. */

import type { Millis } from '../../core/clock.ts';

export interface PeerOptions {
  /** How often it reports. */
  readonly intervalMs: Millis;
  /** `eager` also reports as soon as a key has so many hits that nobody was told of. */
  readonly exchange: 'eager' | 'periodic';
  readonly flushThreshold: number;
  /** Datagrams a second that report before the interval is over: more is told in fewer, fuller ones. */
  readonly maxReports: number;
  /** A peer that was silent for so long is gone. */
  readonly peerTimeoutMs: Millis;
  /** How long, and how many bytes of, its own reports it keeps for those who missed them. */
  readonly retransmitBufferMs: Millis;
  readonly retransmitBufferBytes: number;
  /** For people. */
  readonly name: string;
}

export const PEER_DEFAULTS: PeerOptions = {
  intervalMs: 100,
  exchange: 'eager',
  flushThreshold: 1,
  maxReports: 100,
  peerTimeoutMs: 5000,
  retransmitBufferMs: 60_000,
  retransmitBufferBytes: 4 * 1024 * 1024,
  name: '',
};
