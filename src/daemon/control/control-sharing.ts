/**
 * Shares controls with the other daemons of a fleet.
 *
 *     this daemon joins ──▶ gets all of a peer before it listens (control-transfer.ts)
 *     set here ──▶ sent at once
 *     a peer is back after a silence ──▶ gets what was set meanwhile, and so does this daemon
 *     this daemon goes on after a suspension ──▶ the same, at once
 *     all records in turn, some each second ──▶ a lost datagram is made up for
 *
 * A record that arrives twice changes nothing: the newer of two with the same id wins. So what is sent to all needs no
 * acknowledgement.
 */

import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import { messagesOf, recordsOf, sharingProblemOf, timedMessage } from './control-message.ts';
import type { ControlRecord } from './control-record.ts';
import { ControlTransfer } from './control-transfer.ts';
import type { Controls } from './controls.ts';

const INTERVAL_MS: Millis = 1000;

/** Messages in each interval: 10,000 controls take some minutes, a few take a second. */
const MESSAGES_PER_INTERVAL = 8;

/** How long a starting daemon waits for the controls of its peers. */
const JOIN_TIMEOUT_MS: Millis = 5000;

export class ControlSharing {
  readonly #clock: Clock;
  readonly #controls: Pick<Controls, 'records' | 'merge'>;
  readonly #channels: readonly FleetChannel[];
  readonly #transfers: readonly ControlTransfer[];
  #next = 0;
  #cancel = (): void => {};

  constructor(
    clock: Clock,
    controls: Pick<Controls, 'records' | 'merge'>,
    channels: readonly FleetChannel[],
  ) {
    this.#clock = clock;
    this.#controls = controls;
    this.#channels = channels;
    this.#transfers = channels.map((channel) => {
      const transfer = new ControlTransfer(clock, controls, channel);
      channel.onText = (text, from) => this.#receive(text, from, transfer);
      channel.onResume = () => transfer.resume();
      return transfer;
    });
    if (channels.length > 0) this.#schedule();
  }

  /** Gets the controls of the peers. Resolves to false if that is not done in time; it goes on then. */
  async join(): Promise<boolean> {
    const runs = Promise.all(this.#transfers.map((transfer) => transfer.run()));
    if (!(await completesWithin(this.#clock, JOIN_TIMEOUT_MS, runs))) return false;
    return (await runs).every((isComplete) => isComplete);
  }

  /** Sends records that were set here. */
  send(records: readonly ControlRecord[]): void {
    for (const { text } of messagesOf(records)) this.#broadcast(text);
  }

  /** Why the peers do not get a record, if there are any; undefined if they do. */
  problemOf(record: ControlRecord): string | undefined {
    return this.#channels.length === 0 ? undefined : sharingProblemOf(record);
  }

  close(): void {
    this.#cancel();
    for (const transfer of this.#transfers) transfer.close();
  }

  #broadcast(records: string): void {
    const text = timedMessage(records, this.#clock.now());
    for (const channel of this.#channels) channel.send(text);
  }

  #receive(text: string, from: number, transfer: ControlTransfer): void {
    const message = tryParseJson(text);
    if (Array.isArray(message)) {
      transfer.noteDaemon(from);
      this.#controls.merge(recordsOf(message, this.#clock.now()));
    } else if (isRecord(message)) transfer.receive(message, from);
  }

  #schedule(): void {
    const proceed = (): void => {
      this.#sendSome();
      for (const transfer of this.#transfers) transfer.update();
      this.#schedule();
    };
    this.#cancel = schedule(this.#clock, this.#clock.now() + INTERVAL_MS, proceed, false);
  }

  #sendSome(): void {
    const { records } = this.#controls;
    if (this.#next >= records.length) this.#next = 0;
    const messages = messagesOf(records, { from: this.#next, most: MESSAGES_PER_INTERVAL });
    if (messages.length === 0) this.#next = 0; // the rest is too long
    for (const { text, taken } of messages) {
      this.#next += taken;
      this.#broadcast(text);
    }
  }
}
