/**
 *     this daemon joins ──▶ gets all of a peer before it listens (control-transfer.ts)
 *     set here ──▶ sent at once
 *     a peer is back after a silence ──▶ gets what was set meanwhile, and so does this daemon
 *     this daemon goes on after a suspension ──▶ the same, at once
 *     all records in turn, some each second ──▶ a lost datagram is made up for
 *
 * A record that arrives twice changes nothing: the newer of two with the same id wins. So what is sent to all needs no
 * acknowledgement. Messages are signed with the admin token (control-auth.ts): without one, nothing is sent or requested.
 */

import type { FleetChannel } from '../../backends/daemon-backend.ts';
import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { completesWithin } from '../../core/deadline.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import type { SharingRules } from './control-auth.ts';
import { messagesOf, recordsOf, sharingProblemOf, timedMessage } from './control-message.ts';
import type { ControlRecord } from './control-record.ts';
import { ControlTransfer } from './control-transfer.ts';
import type { Controls } from './controls.ts';

const INTERVAL_MS: Millis = 1000;

/** Messages in each interval: 10,000 controls take some minutes, a few take a second. */
const MESSAGES_PER_INTERVAL = 8;

/** How long a starting daemon waits for the controls of its peers. */
const JOIN_TIMEOUT_MS: Millis = 5000;

/** A signed message that is older was recorded, and is sent again by a program without the token. */
const MAX_AGE_MS: Millis = 86_400_000;

const NO_TOKEN = 'this daemon has no admin.token';
const NOT_SIGNED = 'it is not signed with the admin token of this daemon';
const TOO_OLD = 'its message is more than a day old, or the clock of its sender is behind by more';

export class ControlSharing {
  readonly #clock: Clock;
  readonly #controls: Pick<Controls, 'records' | 'merge'>;
  readonly #channels: readonly FleetChannel[];
  readonly #rules: SharingRules;
  readonly #transfers: readonly ControlTransfer[];
  #next = 0;
  #cancel = (): void => {};

  constructor(
    clock: Clock,
    controls: Pick<Controls, 'records' | 'merge'>,
    channels: readonly FleetChannel[],
    rules: SharingRules,
  ) {
    this.#clock = clock;
    this.#controls = controls;
    this.#rules = rules;
    this.#channels = channels.map((channel) => this.#signing(channel));
    this.#transfers = channels.map((channel, n) => {
      const transfer = new ControlTransfer(clock, controls, this.#channels[n], rules);
      channel.onText = (text, from) => this.#receive(text, from, channel, transfer);
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
    for (const { text } of messagesOf(records, this.#rules)) this.#broadcast(text);
  }

  /** Why the peers do not get a record, if there are any; undefined if they do. */
  problemOf(record: ControlRecord): string | undefined {
    return this.#channels.length === 0 ? undefined : sharingProblemOf(record, this.#rules);
  }

  close(): void {
    this.#cancel();
    for (const transfer of this.#transfers) transfer.close();
  }

  #broadcast(records: string): void {
    const text = timedMessage(records, this.#clock.now());
    for (const channel of this.#channels) channel.send(text);
  }

  /** The channel for signed messages; without a token it has no peers. */
  #signing({ send, peers }: FleetChannel): FleetChannel {
    const { operator } = this.#rules;
    return {
      onText: undefined,
      peers: () => (operator() ? peers() : []),
      send(text, to) {
        const key = operator();
        if (key) send(key.sign(text), to);
      },
    };
  }

  #receive(signed: string, from: number, channel: FleetChannel, transfer: ControlTransfer): void {
    const key = this.#rules.operator();
    const text = key?.verify(signed);
    const message = tryParseJson(text ?? signed.slice(signed.search(/[[{]/)));
    const now = this.#clock.now();
    const [first] = Array.isArray(message) ? message : [message];
    const isOld = isRecord(first) && now - Number(first.now) > MAX_AGE_MS;
    const problem = !key ? NO_TOKEN : text === undefined ? NOT_SIGNED : isOld ? TOO_OLD : undefined;
    const sender = { peer: channel.nameOf?.(from) ?? `node ${from}`, problem };
    if (Array.isArray(message)) {
      if (!problem) transfer.noteDaemon(from);
      this.#controls.merge(recordsOf(message, now), sender);
    } else if (isRecord(message)) transfer.receive(message, from, sender);
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
    const messages = messagesOf(records, this.#rules, {
      from: this.#next,
      most: MESSAGES_PER_INTERVAL,
    });
    if (messages.length === 0) this.#next = 0; // the rest is not for peers
    for (const { text, taken } of messages) {
      this.#next += taken;
      this.#broadcast(text);
    }
  }
}
