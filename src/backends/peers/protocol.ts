/**
 * The peer protocol: each node decides from its own count, reports its hits (gossip) and subtracts the hits
 * that peers report.
 *
 *     recordHits(key) ──▶ pending ──▶ report, numbered ──▶ broadcast ──▶ applyRemoteHits(key, hits)
 *                                         │
 *                                         └─ retransmit buffer: sent again on NACK
 *
 * The protocol is sans-I/O: messages and the time go in, datagrams come out, and `wakeAt` returns the next time to call
 * `tick`. So the simulator runs this code on a virtual network.
 *
 * A new node has to prove its presence (`membership.ts`). After that each of its reports counts once, in any order, and
 * missing reports are requested by NACK (`peer-table.ts`). A joining node gets the bucket levels by state transfer
 * (`state-transfer.ts`). Anti-entropy corrects remaining differences (`anti-entropy.ts`).
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { createAntiEntropy } from './anti-entropy.ts';
import { CatchUp } from './catch-up.ts';
import { entriesThatFit } from './codec.ts';
import type { PeerContext, PeerOptions } from './context.ts';
import { type PeerLimit, PeerLimits } from './limits.ts';
import { createMembership } from './membership.ts';
import { MergedPages } from './merged-pages.ts';
import {
  BROADCAST,
  ENTRY_WIDTH,
  type Entries,
  type Message,
  type MessageOf,
  type NodeId,
  type OtherVersion,
  random48,
} from './messages.ts';
import { type Peer, PeerTable, type PeerView } from './peer-table.ts';
import { PendingHits } from './pending-hits.ts';
import { PeerPrediction } from './prediction.ts';
import { ReorderBuffer } from './reorder-buffer.ts';
import { ReportBudget } from './report-budget.ts';
import { ReportLog } from './report-log.ts';
import { allowReply, chargeRetransmits } from './response-limiter.ts';
import { RetransmitBuffer } from './retransmit-buffer.ts';
import { DatagramSender, MessageCounts, type SendDatagram } from './sender.ts';
import { createStateTransfer, type StateTransfer } from './state-transfer.ts';

const MAX_RETRANSMITS = 64;

/** Interval at which gone peers and old reports are evicted. */
const SWEEP_INTERVAL_MS: Millis = 1000;

/** Intervals of announcements while no peer is known, and of heartbeats without hits to report. */
const ANNOUNCE_INTERVAL_MS: Millis = 200;
const HEARTBEAT_INTERVAL_MS: Millis = 1000;

/** A node whose timer fires this late was suspended: stopped, asleep, or blocked. */
const SUSPENDED_AFTER_MS: Millis = 1000;

export class PeerProtocol {
  readonly #options: PeerOptions;
  readonly #sender: DatagramSender;
  readonly #limits = new PeerLimits();
  readonly #pendingHits = new PendingHits();
  readonly #prediction = new PeerPrediction(this.#limits);
  readonly #retransmitBuffer: RetransmitBuffer;
  readonly #peerTable: PeerTable;
  readonly #reorderBuffer = new ReorderBuffer();
  readonly #reportLog = new ReportLog();
  readonly #mergedPages = new MergedPages();
  readonly #catchUp = new CatchUp();
  readonly #stateTransfer: StateTransfer;
  readonly #membership: ReturnType<typeof createMembership>;
  readonly #antiEntropy: ReturnType<typeof createAntiEntropy>;
  readonly #reportBudget: ReportBudget;
  /** Pending hits of a key that trigger an early report. */
  readonly #flushThreshold: number;
  /** After a suspension of this length, peers have dropped this node. */
  readonly #outdatedAfterMs: Millis;
  #reportAt: Millis;
  #isFlushDue = false;
  /** Time of the last call. */
  #now: Millis;
  #heartbeatAt: Millis;
  #sweepAt: Millis;
  readonly counts = new MessageCounts();

  constructor(options: PeerOptions, random: Random, send: SendDatagram, now: Millis) {
    this.#options = options;
    this.#sender = new DatagramSender(random48(random), this.counts, options.versions, send);
    const { retransmitBufferMs, retransmitBufferBytes } = options;
    this.#retransmitBuffer = new RetransmitBuffer(retransmitBufferMs, retransmitBufferBytes);
    this.#peerTable = new PeerTable(options.peerTimeoutMs);
    const context: PeerContext = {
      options,
      random,
      sender: this.#sender,
      limits: this.#limits,
      pendingHits: this.#pendingHits,
      prediction: this.#prediction,
      peers: this.#peerTable,
      reorderBuffer: this.#reorderBuffer,
      retransmitBuffer: this.#retransmitBuffer,
      reportLog: this.#reportLog,
      mergedPages: this.#mergedPages,
      catchUp: this.#catchUp,
      flush: (at) => this.flush(at),
    };
    this.#stateTransfer = createStateTransfer(context);
    this.#membership = createMembership(context, this.#stateTransfer, now);
    this.#antiEntropy = createAntiEntropy(context, now);
    this.#reportBudget = new ReportBudget(options.maxReports);
    this.#flushThreshold = options.exchange === 'eager' ? options.flushThreshold : Infinity;
    this.#outdatedAfterMs = Math.max(SUSPENDED_AFTER_MS, options.peerTimeoutMs);
    this.#now = now;
    this.#reportAt = now + options.intervalMs;
    this.#heartbeatAt = now;
    this.#sweepAt = now + SWEEP_INTERVAL_MS;
  }

  get id(): NodeId {
    return this.#sender.id;
  }

  /** Called with the text of a `controls` message. */
  onControls: ((text: string, from: NodeId) => void) | undefined;

  /** Called after a suspension for longer than the peer timeout. Calls are denied until the promise settles. */
  onResume: ((suspendedMs: Millis) => Promise<unknown> | undefined) | undefined;

  /**
   * True if the levels here are outdated: the node was suspended for longer than the peer timeout, noticed or not, and
   * has not caught up.
   */
  isCatchingUp(now: Millis): boolean {
    return this.#catchUp.isActive || this.#lateBy(now) >= this.#outdatedAfterMs;
  }

  /** Sends a text to one peer or to all; it is not retransmitted. */
  sendControls(text: string, to = BROADCAST): void {
    this.#sender.send(to, { kind: 'controls', text });
  }

  // Limits

  addLimit(limit: PeerLimit): void {
    // A limit that replaces another one with its id starts with that limit's state.
    if (limit.buckets > 0 && !this.#limits.byId(limit.id)) this.#stateTransfer.addLimit(limit.id);
    this.#limits.add(limit);
  }

  /** Stops updates for a limit. Hits recorded before are still reported. */
  removeLimit(limit: PeerLimit): void {
    this.#limits.remove(limit);
  }

  /** Records hits allowed here. Returns true if they should be reported before the interval ends. */
  recordHits(limit: PeerLimit, low: number, high: number, hits: number): boolean {
    if (hits <= 0) return false;
    this.#limits.applyToSiblings(limit, low, high, hits);
    const pending = this.#pendingHits.add(limit.id, low, high, hits);
    if (this.#pendingHits.isFull) this.flush(this.#now); // the next key would not fit
    if (this.#isFlushDue || pending < this.#flushThreshold) return false;
    this.#isFlushDue = true;
    return true;
  }

  /** False for `periodic`, which sends no early reports and uses neither prediction nor anti-entropy. */
  get #isEager(): boolean {
    return this.#options.exchange === 'eager';
  }

  /** Removes hits that did not happen, unless they were already reported. */
  retractHits({ id }: PeerLimit, low: number, high: number, hits: number): void {
    this.#pendingHits.retract(id, low, high, hits);
  }

  /** Time until a tick has released `units` predicted hits of a key; Infinity if fewer are held. */
  msUntilReleased(limit: PeerLimit, low: number, high: number, units: number, now: Millis): Millis {
    const ms = this.#prediction.msUntilReleased(limit.id, low, high, units, now);
    return Math.max(ms, Math.ceil(this.#reportAt - now));
  }

  // Clock

  /** The next time to call `tick`. */
  wakeAt(now: Millis): Millis {
    return Math.min(
      this.#reportAt,
      this.#isFlushDue ? this.#reportBudget.dueAt(now) : Infinity,
      this.#heartbeatAt,
      this.#peerTable.nackAt,
      this.#stateTransfer.wakeAt(),
      this.#reorderBuffer.flushAt,
      this.#antiEntropyAt,
    );
  }

  tick(now: Millis): void {
    this.#advanceTo(now);
    const isDue = now >= this.#reportAt;
    if (isDue || (this.#isFlushDue && this.#reportBudget.dueAt(now) <= now)) this.flush(now);
    if (isDue) this.#scheduleNextReport(now);
    if (now >= this.#heartbeatAt) this.#heartbeat(now);
    this.#peerTable.requestRetransmits(now, (id, ranges) =>
      this.#sender.send(id, { kind: 'nack', ranges }),
    );
    this.#applyLateReports(now);
    this.#stateTransfer.tick(now);
    this.#catchUp.tick(now, this.#stateTransfer.isRunning());
    this.#prediction.tick(now);
    if (now >= this.#antiEntropyAt) this.#antiEntropy.sendRequest(now);
    this.#sweep(now);
  }

  /** Must be called when the transport opens: the time since the constructor is not a suspension. */
  start(now: Millis): void {
    if (this.#lateBy(now) >= SUSPENDED_AFTER_MS) this.#rejoin(now);
  }

  #advanceTo(now: Millis): void {
    this.#now = now;
    const lateMs = this.#lateBy(now);
    if (lateMs < SUSPENDED_AFTER_MS) return;
    this.#rejoin(now);
    if (lateMs >= this.#outdatedAfterMs) this.#catchUp.begin(now, this.onResume?.(lateMs));
  }

  /**
   * Reports that arrive after a suspension are old, but would count as of now, although their tokens have long been
   * refilled elsewhere. So the node rejoins: it keeps its id, its buckets and its pending hits, repeats the handshakes,
   * counts reports from then on, and gets the levels by state transfer. After a long suspension, it denies calls until
   * then (`catch-up.ts`).
   */
  #rejoin(now: Millis): void {
    this.#reorderBuffer.clear(); // the state transfer includes these reports
    this.#peerTable.clear();
    this.#membership.rejoin(now);
    this.#stateTransfer.stop();
    this.#heartbeatAt = now;
    this.#scheduleNextReport(now);
  }

  /** Time since the last report was due. */
  #lateBy(now: Millis): Millis {
    return now - this.#reportAt;
  }

  #scheduleNextReport(now: Millis): void {
    const { intervalMs } = this.#options;
    const intervals = Math.ceil((now - this.#reportAt) / intervalMs + 1e-9);
    this.#reportAt += intervalMs * Math.max(1, intervals);
  }

  /** Infinity for a node without the fleet's state, which has nothing to compare. */
  get #antiEntropyAt(): Millis {
    return this.#isEager && this.#canRunAntiEntropy ? this.#antiEntropy.requestAt() : Infinity;
  }

  get #canRunAntiEntropy(): boolean {
    return this.#stateTransfer.isSynced() && this.#reorderBuffer.isEmpty && !this.#catchUp.isActive;
  }

  /** Reports all pending hits, in as many datagrams as necessary. */
  flush(now: Millis): void {
    this.#isFlushDue = false;
    if (this.#pendingHits.size === 0) return;
    const entries = this.#pendingHits.drain();
    const before = this.counts.reports;
    for (let at = 0; at < entries.length; ) {
      const count = entriesThatFit(entries, at) * ENTRY_WIDTH;
      this.#sendReport(entries.slice(at, at + count), now);
      at += count;
    }
    this.#reportBudget.spend(this.counts.reports - before, now);
    this.#heartbeatAt = now + this.#options.intervalMs;
  }

  #sendReport(entries: Entries, now: Millis): void {
    this.counts.reports++;
    if (this.#isEager) this.#prediction.onLocalHits(entries, now);
    const seq = this.#retransmitBuffer.lastSeq + 1;
    const sent = this.#sender.send(BROADCAST, { kind: 'report', agoMs: 0, seq, entries });
    this.#retransmitBuffer.add(sent, now);
    this.#reportLog.add(this.id, seq, entries);
    this.#antiEntropy.recordReported(seq, entries);
  }

  /** Sends a heartbeat, so that peers detect a lost last report; without peers, an announcement. */
  #heartbeat(now: Millis): void {
    const { intervalMs, peerTimeoutMs } = this.#options;
    const isAlone = this.#peerTable.size === 0;
    const { lastSeq: seq } = this.#retransmitBuffer;
    if (isAlone) this.#membership.announce(now);
    else this.#sender.send(BROADCAST, { kind: 'heartbeat', seq });
    const heartbeatMs = Math.min(HEARTBEAT_INTERVAL_MS, peerTimeoutMs / 4);
    const everyMs = isAlone ? ANNOUNCE_INTERVAL_MS : heartbeatMs;
    this.#heartbeatAt = now + Math.max(intervalMs, everyMs);
  }

  /** Evicts old reports, and peers that are gone for longer than any of their datagrams can be valid. */
  #sweep(now: Millis): void {
    const { peerTimeoutMs, retransmitBufferMs } = this.#options;
    if (now < this.#sweepAt && !this.#retransmitBuffer.isOverCapacity) return;
    this.#sweepAt = now + SWEEP_INTERVAL_MS;
    this.#peerTable.evictSilent(now, Math.max(peerTimeoutMs, retransmitBufferMs) + peerTimeoutMs);
    this.#sender.useVersionFor(this.#peerTable.commonVersion);
    this.#retransmitBuffer.evict(now);
  }

  // Network

  /**
   * Handles a message; undefined if it could not be decoded. Returns true if it is the sender's latest datagram, which
   * proves that the sender is present at the source address.
   */
  receive(message: Message | undefined, now: Millis): boolean {
    this.#advanceTo(now);
    if (message === undefined) {
      this.counts.protocolErrors++;
      return false;
    }
    const { from, to, datagramSeq } = message;
    if (from === this.id || (to !== BROADCAST && to !== this.id)) return false;
    this.counts.received++;
    this.#catchUp.onDatagram(now);
    const peer = this.#peerTable.get(from);
    if (!peer) return this.#handleUnverified(message, now);
    const isLatest = peer.replayWindow.isLatest(datagramSeq);
    if (!peer.replayWindow.accept(datagramSeq)) {
      this.counts.duplicates++;
      return false;
    }
    this.#reorderBuffer.detectReturn(peer, now);
    if (isLatest) peer.lastSeenAt = now;
    const { lost } = peer.received;
    this.#handleMessage(peer, message, now);
    if (peer.received.lost > lost) this.#stateTransfer.addSource(peer, now); // its state includes the lost reports
    this.#peerTable.updateGaps(peer, now);
    this.#applyLateReports(now);
    return isLatest;
  }

  /** Returns true if the message makes its sender a peer: then every datagram gets a version that it can read. */
  #handleUnverified(message: Message, now: Millis): boolean {
    const isAdmitted = this.#membership.handleUnverified(message, now);
    if (isAdmitted) this.#sender.useVersionFor(this.#peerTable.commonVersion);
    return isAdmitted;
  }

  /** Handles a datagram of another version. Returns true if there is no common version with its sender. */
  receiveOtherVersion(other: OtherVersion, now: Millis): boolean {
    this.#advanceTo(now);
    const { from, to } = other;
    if (from === this.id || (to !== BROADCAST && to !== this.id)) return false;
    this.counts.otherVersion++;
    // A peer speaks a common version, and uses it from its side of the handshake on.
    if (this.#peerTable.get(from)) return false;
    return this.#membership.handleOtherVersion(other, now);
  }

  /** The wire version that this node sends to its peers. */
  get version(): number {
    return this.#sender.version;
  }

  #handleMessage(peer: Peer, message: Message, now: Millis): void {
    if (!allowReply(peer, message.kind, now)) return;
    switch (message.kind) {
      case 'report':
        this.#handleReport(peer, message, now);
        break;
      case 'heartbeat':
        peer.received.noteHighest(message.seq);
        break;
      case 'evicted':
        peer.received.skipTo(message.seq);
        break;
      case 'state':
        this.#stateTransfer.applyPage(message, now);
        break;
      case 'controls':
        this.onControls?.(message.text, peer.id);
        break;
      case 'levels':
        this.#antiEntropy.applyReply(peer, message, now);
        break;
      case 'hello-ack':
        break; // already admitted
      case 'hello':
        this.#membership.sendHelloAck(message, now);
        break;
      case 'nack':
        this.#retransmit(peer, message.ranges, now);
        break;
      case 'state-request':
        this.#stateTransfer.sendPages(peer, message, now);
        break;
      case 'levels-request':
        if (this.#canRunAntiEntropy) this.#antiEntropy.reply(peer, message, now);
    }
  }

  #handleReport(peer: Peer, { seq, agoMs, entries }: MessageOf<'report'>, now: Millis): void {
    if (!peer.received.accept(seq)) {
      this.counts.duplicates++; // the report was only late, and this is its retransmission
      return;
    }
    peer.reportsReceived++;
    if (seq < peer.received.highest && this.#peerTable.hasGaps(peer)) this.counts.repaired++;
    if (this.#reorderBuffer.has(peer))
      this.#reorderBuffer.buffer({ from: peer, seq, servedAt: now - agoMs, entries });
    else this.#applyHits(peer, seq, entries, agoMs);
  }

  #applyHits(peer: Peer, seq: number, reported: Entries, agoMs: Millis): void {
    this.#reportLog.add(peer.id, seq, reported);
    const entries = this.#mergedPages.withoutMerged(peer.id, seq, reported, this.#now);
    this.#antiEntropy.recordReceived(peer.id, entries);
    if (this.#isEager) this.#prediction.onRemoteHits(entries, this.#now);
    this.counts.unknownLimits += this.#limits.applyRemoteHits(entries, agoMs);
  }

  #applyLateReports(now: Millis): void {
    for (const { from, seq, entries, servedAt } of this.#reorderBuffer.takeDue(now)) {
      this.#applyHits(from, seq, entries, now - servedAt);
    }
  }

  #retransmit(to: Peer, ranges: readonly number[], now: Millis): void {
    const { firstSeq } = this.#retransmitBuffer;
    if (ranges.length > 0 && ranges[0] < firstSeq) {
      this.#sender.send(to.id, { kind: 'evicted', seq: firstSeq - 1 });
    }
    const reports = this.#retransmitBuffer.reportsIn(ranges, MAX_RETRANSMITS);
    for (const { bytes, sentAt } of reports)
      this.#sender.retransmit(to.id, bytes, Math.max(0, now - sentAt));
    chargeRetransmits(to, reports.length);
  }

  /** True if the state transfer is done, or there is no peer to transfer from. */
  get isSynced(): boolean {
    return this.#stateTransfer.isSynced();
  }

  /** Marks this node as synced, because there is no peer to transfer state from. */
  startWithoutPeers(): void {
    this.#stateTransfer.startWithoutPeers();
  }

  /** Ids of peers seen within the peer timeout, longest-running first. */
  peerIds(now: Millis): NodeId[] {
    return this.#peerTable.idsByAge(now);
  }

  /** Peers seen within the peer timeout. */
  peers(now: Millis): PeerView[] {
    return this.#peerTable.views(now);
  }

  /** Peers with a longer silence, until they are evicted. */
  gonePeers(now: Millis): PeerView[] {
    return this.#peerTable.goneViews(now);
  }
}
