/**
 * Numbers and names as bytes, written and read: what every message of peers is made of.
 *
 * Whole numbers are as short as they are small, seven bits a byte. Whoever reads may read what anybody sent: what does not
 * make sense is remembered (`isFine`), and reads as nothing.
 */

import { AMOUNT_MAX } from '../../core/options.ts';

/** The most a datagram carries without being cut into pieces on its way, with room for what seals it. */
export const DATAGRAM_BYTES_MAX = 1200;

/** Names are for people, and short. */
const NAME_BYTES_MAX = 64;

const scratch = new Uint8Array(DATAGRAM_BYTES_MAX + 64);
const view = new DataView(scratch.buffer);

/** Writes into one piece of memory, from the start on. */
export class Writer {
  at = 0;

  byte(value: number): void {
    scratch[this.at++] = value;
  }

  u16(value: number): void {
    view.setUint16(this.at, value);
    this.at += 2;
  }

  u32(value: number): void {
    view.setUint32(this.at, value >>> 0);
    this.at += 4;
  }

  /** A whole number below 2^48. */
  id(value: number): void {
    writeId(view, this.at, value);
    this.at += 6;
  }

  /** A whole number from 0 on. */
  whole(value: number): void {
    let rest = value;
    while (rest >= 128) {
      scratch[this.at++] = (rest % 128) | 128;
      rest = Math.floor(rest / 128);
    }
    scratch[this.at++] = rest;
  }

  /** Hits, as many as a limit can have. */
  hits(value: number): void {
    this.amount(Math.min(value, AMOUNT_MAX));
  }

  /** Any number above 0: whole ones short, others after a 0, in full. */
  amount(value: number): void {
    if (Number.isSafeInteger(value)) {
      this.whole(value);
      return;
    }
    this.byte(0);
    view.setFloat64(this.at, value);
    this.at += 8;
  }

  text(value: string): void {
    const room = scratch.subarray(this.at + 1, this.at + 1 + NAME_BYTES_MAX);
    const { written } = new TextEncoder().encodeInto(value, room); // whole letters, as many as fit
    this.byte(written);
    this.at += written;
  }

  done(): Uint8Array {
    return scratch.slice(0, this.at);
  }
}

/** A whole number below 2^48. */
export function writeId(to: DataView, at: number, value: number): void {
  to.setUint16(at, Math.floor(value / 2 ** 32));
  to.setUint32(at + 2, value % 2 ** 32);
}

/** Reads what somebody sent, who may be anybody: it ends where the bytes end. */
export class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;
  isFine = true;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Where the next `count` bytes begin; -1 if there are fewer. */
  #take(count: number): number {
    const at = this.#at;
    this.#at += count;
    if (this.#at <= this.#bytes.length) return at;
    this.isFine = false;
    return -1;
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  byte(): number {
    const at = this.#take(1);
    return at < 0 ? 0 : this.#bytes[at];
  }

  u16(): number {
    const at = this.#take(2);
    return at < 0 ? 0 : this.#view.getUint16(at);
  }

  u32(): number {
    const at = this.#take(4);
    return at < 0 ? 0 : this.#view.getUint32(at);
  }

  id(): number {
    const at = this.#take(6);
    return at < 0 ? 0 : this.#view.getUint16(at) * 2 ** 32 + this.#view.getUint32(at + 2);
  }

  whole(): number {
    let value = 0;
    let factor = 1;
    for (let n = 0; n < 8; n++, factor *= 128) {
      const byte = this.byte();
      value += (byte & 127) * factor;
      if (byte < 128) return this.#checked(value);
    }
    this.isFine = false;
    return 0;
  }

  #checked(value: number): number {
    if (Number.isSafeInteger(value)) return value;
    this.isFine = false;
    return 0;
  }

  hits(): number {
    const value = this.amount();
    if (value > AMOUNT_MAX) this.isFine = false;
    return value;
  }

  amount(): number {
    const value = this.whole();
    if (value > 0) return value;
    const at = this.#take(8);
    const exact = at < 0 ? 0 : this.#view.getFloat64(at);
    if (!(exact > 0 && exact < Infinity)) this.isFine = false;
    return exact;
  }

  text(): string {
    const length = this.byte();
    const at = this.#take(length);
    if (at < 0 || length > NAME_BYTES_MAX) {
      this.isFine = false;
      return '';
    }
    return new TextDecoder().decode(this.#bytes.subarray(at, at + length));
  }
}
