import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { CatchUp } from './catch-up.ts';
import type { PeerLimits } from './limits.ts';
import type { MergedPages } from './merged-pages.ts';
import type { PeerTable } from './peer-table.ts';
import type { PendingHits } from './pending-hits.ts';
import type { PeerPrediction } from './prediction.ts';
import type { ReorderBuffer } from './reorder-buffer.ts';
import type { ReportLog } from './report-log.ts';
import type { RetransmitBuffer } from './retransmit-buffer.ts';
import type { DatagramSender } from './sender.ts';
import { WIRE_VERSIONS, type WireVersions } from './wire-versions.ts';

/** The validated public options, durations in milliseconds. The protocol and the simulator need no option reader. */
export interface PeerOptions {
  /** Time between two reports. */
  readonly intervalMs: Millis;
  /** `eager` also reports as soon as a key has `flushThreshold` pending hits. */
  readonly exchange: 'eager' | 'periodic';
  readonly flushThreshold: number;
  /** Datagrams per second for early reports; above this rate, reports are batched. */
  readonly maxReports: number;
  /** A peer is gone after this time of silence. */
  readonly peerTimeoutMs: Millis;
  /** How long, and up to how many bytes, sent reports are kept for retransmission. */
  readonly retransmitBufferMs: Millis;
  readonly retransmitBufferBytes: number;
  readonly name: string;
  /** The wire versions that this node speaks. */
  readonly versions: WireVersions;
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
  versions: WIRE_VERSIONS,
};

export interface PeerContext {
  readonly options: PeerOptions;
  readonly random: Random;
  readonly sender: DatagramSender;
  readonly limits: PeerLimits;
  readonly pendingHits: PendingHits;
  readonly prediction: PeerPrediction;
  readonly peers: PeerTable;
  readonly reorderBuffer: ReorderBuffer;
  readonly retransmitBuffer: RetransmitBuffer;
  readonly reportLog: ReportLog;
  readonly mergedPages: MergedPages;
  readonly catchUp: CatchUp;
  /** Reports all pending hits now. */
  readonly flush: (now: Millis) => void;
}
