/**
 * Shares controls with the other daemons of a fleet.
 *
 *     set here ──▶ sent at once
 *     all records in turn, some each second ──▶ a lost datagram is made up for, and a daemon that joins gets all
 *
 * A record that arrives twice changes nothing: the newer of two with the same id wins. So no acknowledgement is needed.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { tryParseJson } from '../../core/json.ts';
import type { ControlRecord } from './control-record.ts';
import type { Controls } from './controls.ts';

/** Carries texts to the other daemons, at best effort. */
export interface ControlChannel {
  send(text: string): void;
  onText: ((text: string) => void) | undefined;
}

const INTERVAL_MS: Millis = 1000;

/** Messages in each interval: 10,000 controls take some minutes, a few take a second. */
const MESSAGES_PER_INTERVAL = 8;

/** A message fits into one datagram. A longer record, with a long rule or key, is not shared. */
const MAX_MESSAGE_BYTES = 1000;

export class ControlSharing {
  readonly #clock: Clock;
  readonly #controls: Pick<Controls, 'records' | 'merge'>;
  readonly #channels: readonly ControlChannel[];
  #next = 0;
  #cancel = (): void => {};

  constructor(
    clock: Clock,
    controls: Pick<Controls, 'records' | 'merge'>,
    channels: readonly ControlChannel[],
  ) {
    this.#clock = clock;
    this.#controls = controls;
    this.#channels = channels;
    for (const channel of channels) channel.onText = (text) => this.#receive(text);
    if (channels.length > 0) this.#schedule();
  }

  /** Sends records that were set here. */
  send(records: readonly ControlRecord[]): void {
    for (const text of messagesOf(records))
      for (const channel of this.#channels) channel.send(text);
  }

  close(): void {
    this.#cancel();
  }

  #receive(text: string): void {
    const records = tryParseJson(text);
    if (Array.isArray(records)) this.#controls.merge(records);
  }

  #schedule(): void {
    const proceed = (): void => {
      this.#sendSome();
      this.#schedule();
    };
    this.#cancel = schedule(this.#clock, this.#clock.now() + INTERVAL_MS, proceed, false);
  }

  #sendSome(): void {
    const { records } = this.#controls;
    if (this.#next >= records.length) this.#next = 0;
    const rest = records.slice(this.#next);
    const messages = messagesOf(rest, MESSAGES_PER_INTERVAL, (count) => {
      this.#next += count;
    });
    for (const text of messages) for (const channel of this.#channels) channel.send(text);
  }
}

/** Records as messages that fit into a datagram each, at most so many; `onTaken` gets how many records they are. */
function messagesOf(
  records: readonly ControlRecord[],
  most = Infinity,
  onTaken?: (count: number) => void,
): string[] {
  const messages: string[] = [];
  let batch = '';
  let batchBytes = 0;
  let taken = 0;
  for (const record of records) {
    const text = JSON.stringify(record);
    const size = Buffer.byteLength(text);
    const isLong = size > MAX_MESSAGE_BYTES;
    if (!isLong && batchBytes + size > MAX_MESSAGE_BYTES) {
      messages.push(`[${batch}]`);
      batch = '';
      batchBytes = 0;
      if (messages.length === most) break;
    }
    taken++;
    if (isLong) continue;
    batch += batch === '' ? text : `,${text}`;
    batchBytes += size + 1;
  }
  if (batch !== '') messages.push(`[${batch}]`);
  onTaken?.(taken);
  return messages;
}
