/**
 * How peers keep one limit: each serves by its own count, tells what it served, and takes off what the
 * others say they did.
 *
 *     served(key) ──▶ noted ──▶ report, numbered ──▶ everybody ──▶ hear(key, hits)
 *                                    │
 *                                    └─ kept for a while: whoever missed it can have it again
 *
 * An engine meets no socket and no clock: what came goes in with the time, what is to be sent comes out,
 * and it says when it wants to be woken. So it lives in a simulated network as it lives in a real one.
 *
 * A node that is heard for the first time has to prove that it is there now (`membership.ts`). From then on
 * each of its reports counts once, in whatever order they come, and what does not come is asked for
 * (`peer-table.ts`). A newcomer learns how keys stand (`state-transfer.ts`), and once in a while everybody compares
 * (`anti-entropy.ts`).
 */

import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import { AntiEntropy } from './anti-entropy.ts';
import { decode, entriesThatFit } from './codec.ts';
import { ReorderBuffer } from './late-reports.ts';
import { type PeerLimit, PeerLimits } from './limits.ts';
import { Membership } from './membership.ts';
import {
  BROADCAST,
  ENTRY_WIDTH,
  type Entries,
  type Message,
  type MessageOf,
  type NodeId,
  random48,
} from './messages.ts';
import { type Peer, PeerTable, type PeerView } from './peer-table.ts';
import { PendingHits } from './pending-hits.ts';
import { PeerPrediction } from './prediction.ts';
import { ReportBudget } from './report-budget.ts';
import { allowReply, chargeRetransmits } from './response-limiter.ts';
import { RetransmitBuffer } from './retransmit-buffer.ts';
import { DatagramSender, MessageCounts, type SendDatagram } from './sender.ts';
import type { PeerOptions } from './settings.ts';
import { StateTransfer } from './state-transfer.ts';

/** Reports sent again for one question. */
const MAX_RETRANSMITS = 64;

/** How often it looks who is gone and what is too old to keep. */
const SWEEP_INTERVAL_MS: Millis = 1000;

/** How often it says that it is there: to nobody yet, and to those who know it, if it has nothing to tell. */
const ANNOUNCE_INTERVAL_MS: Millis = 200;
const HEARTBEAT_INTERVAL_MS: Millis = 1000;

/** One that is woken so much later than it wanted to be was asleep: stopped, suspended, or busy with itself. */
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
  readonly #stateTransfer: StateTransfer;
  readonly #membership: Membership;
  readonly #antiEntropy: AntiEntropy;
  readonly #reportBudget: ReportBudget;
  /** Hits of a key that nobody was told of, from which on they are told at once. */
  readonly #flushThreshold: number;
  #reportAt: Millis;
  #isFlushDue = false;
  /** As it was told last. */
  #now: Millis;
  #heartbeatAt: Millis;
  #sweepAt: Millis;
  readonly counts = new MessageCounts();

  constructor(options: PeerOptions, random: Random, send: SendDatagram, now: Millis) {
    this.#options = options;
    this.#sender = new DatagramSender(random48(random), this.counts, send);
    this.#retransmitBuffer = new RetransmitBuffer(
      options.retransmitBufferMs,
      options.retransmitBufferBytes,
    );
    this.#peerTable = new PeerTable(options.peerTimeoutMs);
    const context = {
      sender: this.#sender,
      limits: this.#limits,
      pendingHits: this.#pendingHits,
      prediction: this.#prediction,
      peers: this.#peerTable,
      retransmitBuffer: this.#retransmitBuffer,
      random,
      isFullyReceived: (peer: Peer): boolean =>
        peer.received.isComplete && !this.#reorderBuffer.has(peer),
    };
    this.#stateTransfer = new StateTransfer(context);
    const known = {
      ...context,
      stateTransfer: this.#stateTransfer,
      reorderBuffer: this.#reorderBuffer,
    };
    this.#membership = new Membership(known, options, now);
    this.#antiEntropy = new AntiEntropy(context, now);
    this.#reportBudget = new ReportBudget(options.maxReports, now);
    this.#flushThreshold = options.exchange === 'eager' ? options.flushThreshold : Infinity;
    this.#now = now;
    this.#reportAt = now + options.intervalMs;
    this.#heartbeatAt = now;
    this.#sweepAt = now + SWEEP_INTERVAL_MS;
  }

  /** Who it is, for as long as it runs. */
  get id(): NodeId {
    return this.#sender.id;
  }

  // From the side of the limits.

  /** Takes on a limit. */
  addLimit(limit: PeerLimit): void {
    // One that takes the place of another knows what that one knew.
    if (!this.#limits.byId(limit.id)) this.#stateTransfer.addLimit(limit.id);
    this.#limits.add(limit);
  }

  /** Hears no more for a limit. What it served so far is told. */
  removeLimit(limit: PeerLimit): void {
    this.#limits.remove(limit);
  }

  /** A call was let through here. True if somebody should be told before the interval is over. */
  recordHits(limit: PeerLimit, low: number, high: number, hits: number): boolean {
    if (hits <= 0) return false;
    this.#limits.applyToSiblings(limit, low, high, hits);
    const pending = this.#pendingHits.add(limit.id, low, high, hits);
    if (this.#pendingHits.isFull) this.flush(this.#now); // there is no room to wait for anything
    if (this.#isFlushDue || pending < this.#flushThreshold) return false;
    this.#isFlushDue = true;
    return true;
  }

  /** Plain intervals stay the plain rule: nothing is told early, expected or compared. */
  get #isEager(): boolean {
    return this.#options.exchange === 'eager';
  }

  /** A call that was let through did not happen. What others were told already stays told. */
  retractHits({ id }: PeerLimit, low: number, high: number, hits: number): void {
    this.#pendingHits.retract(id, low, high, hits);
  }

  // From the side of the clock.

  /** When `tick` has something to do. */
  wakeAt(now: Millis): Millis {
    return Math.min(
      this.#reportAt,
      this.#isFlushDue ? this.#reportBudget.dueAt(now) : Infinity,
      this.#heartbeatAt,
      this.#peerTable.nackAt,
      this.#stateTransfer.wakeAt,
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
    this.#prediction.tick(now);
    if (now >= this.#antiEntropyAt) this.#antiEntropy.sendRequest(now);
    this.#sweep(now);
  }

  /**
   * What comes in after a sleep was said during it, and would count as of now, though it has long flowed back
   * in elsewhere. So a node that wakes up is a newcomer once more, who has kept its name, its buckets and what
   * it has yet to tell: it meets the others again, hears them from then on, and learns how keys stand.
   */
  #advanceTo(now: Millis): void {
    this.#now = now;
    if (now - this.#reportAt < SUSPENDED_AFTER_MS) return;
    this.#reorderBuffer.clear(); // it is in what will be learned
    this.#peerTable.clear();
    this.#membership.rejoin(now);
    this.#stateTransfer.stop();
    this.#heartbeatAt = now;
    this.#scheduleNextReport(now);
  }

  #scheduleNextReport(now: Millis): void {
    const { intervalMs } = this.#options;
    this.#reportAt +=
      intervalMs * Math.max(1, Math.ceil((now - this.#reportAt) / intervalMs + 1e-9));
  }

  /** A newcomer has nothing to compare. */
  get #antiEntropyAt(): Millis {
    return this.#isEager && this.#canRunAntiEntropy ? this.#antiEntropy.requestAt : Infinity;
  }

  get #canRunAntiEntropy(): boolean {
    return this.#stateTransfer.isSynced && this.#reorderBuffer.isEmpty;
  }

  /** Tells everybody what was served and not told yet, in as many datagrams as it takes. */
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
    this.#retransmitBuffer.add(
      this.#sender.send(BROADCAST, { kind: 'report', agoMs: 0, seq, entries }),
      now,
    );
    this.#antiEntropy.recordReported(seq, entries);
  }

  /** Says that it is there, so that a lost last report is missed, and newcomers are found. */
  #heartbeat(now: Millis): void {
    const { intervalMs, peerTimeoutMs } = this.#options;
    const isAlone = this.#peerTable.size === 0;
    if (isAlone) {
      this.#membership.announce(now);
    } else {
      this.#sender.send(BROADCAST, { kind: 'heartbeat', seq: this.#retransmitBuffer.lastSeq });
    }
    const everyMs = isAlone
      ? ANNOUNCE_INTERVAL_MS
      : Math.min(HEARTBEAT_INTERVAL_MS, peerTimeoutMs / 4);
    this.#heartbeatAt = now + Math.max(intervalMs, everyMs);
  }

  /** Forgets who is gone for longer than anything of it could come again, and what is too old to repeat. */
  #sweep(now: Millis): void {
    const { peerTimeoutMs, retransmitBufferMs } = this.#options;
    if (now < this.#sweepAt && !this.#retransmitBuffer.isOverCapacity) return;
    this.#sweepAt = now + SWEEP_INTERVAL_MS;
    this.#peerTable.evictSilent(now, Math.max(peerTimeoutMs, retransmitBufferMs) + peerTimeoutMs);
    this.#retransmitBuffer.evict(now);
  }

  // From the side of the network.

  /** Takes in a datagram. Whatever cannot be understood, or is not for this node, changes nothing. */
  receive(bytes: Uint8Array, now: Millis): boolean {
    return this.receiveMessage(decode(bytes), now);
  }

  /**
   * The same for one that was decoded already. True if it is certain that its sender has said it just now, as
   * nothing that came before was said later: so wherever it came from, its sender is there.
   */
  receiveMessage(message: Message | undefined, now: Millis): boolean {
    this.#advanceTo(now);
    if (message === undefined) {
      this.counts.protocolErrors++;
      return false;
    }
    const { from, to, datagramSeq } = message;
    if (from === this.id || (to !== BROADCAST && to !== this.id)) return false;
    this.counts.received++;
    const peer = this.#peerTable.get(from);
    if (!peer) return this.#membership.handleUnverified(message, now);
    const isLatest = peer.replayWindow.isLatest(datagramSeq);
    if (!peer.replayWindow.accept(datagramSeq)) {
      this.counts.duplicates++;
      return false;
    }
    this.#reorderBuffer.detectReturn(peer, now);
    if (isLatest) peer.lastSeenAt = now;
    const { lost } = peer.received;
    this.#handleMessage(peer, message, now);
    if (peer.received.lost > lost) this.#stateTransfer.addSource(peer, now); // what was in it, it can still tell
    this.#peerTable.updateGaps(peer, now);
    this.#applyLateReports(now);
    return isLatest;
  }

  #handleMessage(peer: Peer, message: Message, now: Millis): void {
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
      case 'levels':
        this.#antiEntropy.applyReply(peer, message, now);
        break;
      case 'hello-ack':
        break; // it has proved that before
      default:
        if (allowReply(peer, message.kind, now)) this.#handleRequest(peer, message, now);
    }
  }

  #handleRequest(
    peer: Peer,
    request: MessageOf<'hello' | 'nack' | 'state-request' | 'levels-request'>,
    now: Millis,
  ): void {
    switch (request.kind) {
      case 'hello':
        this.#membership.sendHelloAck(request, now);
        break;
      case 'nack':
        this.#retransmit(peer, request.ranges, now);
        break;
      case 'state-request':
        this.#stateTransfer.sendPages(request);
        break;
      case 'levels-request':
        if (this.#canRunAntiEntropy) this.#antiEntropy.reply(peer, request, now);
    }
  }

  #handleReport(peer: Peer, { seq, agoMs, entries }: MessageOf<'report'>, now: Millis): void {
    if (!peer.received.accept(seq)) {
      this.counts.duplicates++; // it was asked for, and came twice
      return;
    }
    peer.reportsReceived++;
    if (seq < peer.received.highest && this.#peerTable.hasGaps(peer)) this.counts.repaired++;
    if (this.#reorderBuffer.has(peer)) this.#reorderBuffer.buffer(peer, now - agoMs, entries);
    else this.#applyHits(peer, entries, agoMs);
  }

  #applyHits(peer: Peer, entries: Entries, agoMs: Millis): void {
    this.#antiEntropy.recordReceived(peer.id, entries);
    if (this.#isEager) this.#prediction.onRemoteHits(entries, this.#now);
    this.counts.unknownLimits += this.#limits.applyRemoteHits(entries, agoMs);
  }

  #applyLateReports(now: Millis): void {
    for (const { from, entries, servedAt } of this.#reorderBuffer.takeDue(now)) {
      this.#applyHits(from, entries, now - servedAt);
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

  /** True once it knows how keys stand elsewhere, or that there is nobody to know it from. */
  get isSynced(): boolean {
    return this.#stateTransfer.isSynced;
  }

  /** Nobody is there to learn from: what is known here is all there is. */
  startWithoutPeers(): void {
    this.#stateTransfer.startWithoutPeers();
  }

  /** Everybody who was heard lately. */
  peers(now: Millis): PeerView[] {
    return this.#peerTable.views(now);
  }
}
