/**
 * Binary encoding of integers, amounts and names: the elements of every peer message.
 *
 * Integers are varints of seven bits per byte. Input is untrusted: malformed input clears `isValid` and reads as 0.
 */

import { MAX_AMOUNT } from '../../core/options.ts';

/** The largest datagram that fits into one network packet without fragmentation, with space for the MAC. */
export const MAX_DATAGRAM_BYTES = 1200;

/** The longest text of a message: a page of controls with 1,000 bytes of records, its cursors and its MAC. */
const MAX_TEXT_BYTES = 1140;

const MAX_NAME_BYTES = 64;

/** Capacity of a writer: no message is longer. */
export const MAX_MESSAGE_BYTES = MAX_DATAGRAM_BYTES + 64;

const scratch = new Uint8Array(MAX_MESSAGE_BYTES);
const scratchView = new DataView(scratch.buffer);

/** Writes into one shared buffer, from its start. */
export class Writer {
  offset = 0;

  byte(value: number): void {
    scratch[this.offset++] = value;
  }

  u16(value: number): void {
    scratchView.setUint16(this.offset, value);
    this.offset += 2;
  }

  u32(value: number): void {
    scratchView.setUint32(this.offset, value >>> 0);
    this.offset += 4;
  }

  /** An integer below 2^48. */
  u48(value: number): void {
    writeU48(scratchView, this.offset, value);
    this.offset += 6;
  }

  /** An integer from 0. */
  varint(value: number): void {
    let rest = value;
    while (rest >= 128) {
      scratch[this.offset++] = (rest % 128) | 128;
      rest = Math.floor(rest / 128);
    }
    scratch[this.offset++] = rest;
  }

  /** Hits, up to the largest amount of a limit. */
  hits(value: number): void {
    this.amount(Math.min(value, MAX_AMOUNT));
  }

  /** A number above 0: integers as varint, other numbers as a 0 and a 64-bit float. */
  amount(value: number): void {
    if (Number.isSafeInteger(value)) {
      this.varint(value);
      return;
    }
    this.byte(0);
    scratchView.setFloat64(this.offset, value);
    this.offset += 8;
  }

  text(value: string): void {
    const target = scratch.subarray(this.offset + 1, this.offset + 1 + MAX_NAME_BYTES);
    const { written } = new TextEncoder().encodeInto(value, target); // whole characters only
    this.byte(written);
    this.offset += written;
  }

  /** Writes at most the text that fits into a datagram; whole characters only. */
  longText(value: string): void {
    const target = scratch.subarray(this.offset + 2, this.offset + 2 + MAX_TEXT_BYTES);
    const { written } = new TextEncoder().encodeInto(value, target);
    this.u16(written);
    this.offset += written;
  }

  finish(): Uint8Array {
    return scratch.slice(0, this.offset);
  }
}

/** An integer below 2^48. */
export function writeU48(to: DataView, at: number, value: number): void {
  to.setUint16(at, Math.floor(value / 2 ** 32));
  to.setUint32(at + 2, value % 2 ** 32);
}

/** Reads untrusted input; never reads beyond its end. */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #offset = 0;
  isValid = true;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Offset of the next `count` bytes; -1 if there are fewer. */
  #advance(count: number): number {
    const at = this.#offset;
    this.#offset += count;
    if (this.#offset <= this.#bytes.length) return at;
    this.isValid = false;
    return -1;
  }

  get isAtEnd(): boolean {
    return this.#offset === this.#bytes.length;
  }

  byte(): number {
    const at = this.#advance(1);
    return at < 0 ? 0 : this.#bytes[at];
  }

  u16(): number {
    const at = this.#advance(2);
    return at < 0 ? 0 : this.#view.getUint16(at);
  }

  u32(): number {
    const at = this.#advance(4);
    return at < 0 ? 0 : this.#view.getUint32(at);
  }

  u48(): number {
    const at = this.#advance(6);
    return at < 0 ? 0 : this.#view.getUint16(at) * 2 ** 32 + this.#view.getUint32(at + 2);
  }

  varint(): number {
    let value = 0;
    let factor = 1;
    for (let n = 0; n < 8; n++, factor *= 128) {
      const byte = this.byte();
      value += (byte & 127) * factor;
      if (byte < 128) return this.#requireSafeInteger(value);
    }
    this.isValid = false;
    return 0;
  }

  #requireSafeInteger(value: number): number {
    if (Number.isSafeInteger(value)) return value;
    this.isValid = false;
    return 0;
  }

  hits(): number {
    const value = this.amount();
    if (value > MAX_AMOUNT) this.isValid = false;
    return value;
  }

  amount(): number {
    const value = this.varint();
    if (value > 0) return value;
    const at = this.#advance(8);
    const exact = at < 0 ? 0 : this.#view.getFloat64(at);
    if (!(exact > 0 && exact < Infinity)) this.isValid = false;
    return exact;
  }

  text(): string {
    const length = this.byte();
    const at = this.#advance(length);
    if (at < 0 || length > MAX_NAME_BYTES) {
      this.isValid = false;
      return '';
    }
    return new TextDecoder().decode(this.#bytes.subarray(at, at + length));
  }

  longText(): string {
    const length = this.u16();
    const at = this.#advance(length);
    if (at < 0 || length > MAX_TEXT_BYTES) {
      this.isValid = false;
      return '';
    }
    return new TextDecoder().decode(this.#bytes.subarray(at, at + length));
  }
}
