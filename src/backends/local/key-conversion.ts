/**
 * The keys of a table whose rule has changed, until the last one is converted to the present rule.
 *
 *     as many numbers      in place: a mark for each slot says that its key is converted
 *     more or fewer        when the key is moved to another block: all keys of the block are those of the rule before
 *
 * Keys count as of the instant of the change, whenever they are converted.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyConverter, State } from '../../policies/policy.ts';
import type { Slots } from './slots.ts';

export class KeyConversion {
  readonly #convert: KeyConverter;
  readonly #changedAt: Millis;
  readonly #slots: Slots;
  /** Reused for one converted key. */
  readonly #scratch: State;
  /** Keys that are converted in place: by slot, 1 where the key is one of the present rule. */
  readonly #isDone: Uint8Array | undefined;
  /** All slots before it are done. */
  #next = 0;

  /** `slots` has the keys of the rule before; `width` is the number of numbers of the present rule. */
  constructor(slots: Slots, width: number, convert: KeyConverter, changedAt: Millis) {
    this.#convert = convert;
    this.#changedAt = changedAt;
    this.#slots = slots;
    this.#scratch = new Float64Array(width);
    this.#isDone = slots.stride === 1 + width ? new Uint8Array(slots.mask + 1) : undefined;
  }

  /** Converts in place what `isPending`; false: keys are to be moved to another block. */
  get isInPlace(): boolean {
    return this.#isDone !== undefined;
  }

  /** True for an occupied slot whose key is one of the rule before. */
  isPending(slots: Slots, slot: number): boolean {
    return slots === this.#slots && !this.#isDone?.[slot];
  }

  /** Such a key by the present rule, in an array that the next call reuses. */
  read(slot: number): State {
    const { storage, stride } = this.#slots;
    this.#convert(this.#scratch, 0, storage, slot * stride + 1, this.#changedAt);
    return this.#scratch;
  }

  /** Converts the key of an occupied slot in place, if it is one of the rule before. */
  convert(slots: Slots, slot: number): void {
    if (!this.#isDone || !this.isPending(slots, slot)) return;
    slots.storage.set(this.read(slot), slot * slots.stride + 1);
    this.#isDone[slot] = 1;
  }

  /** Converts the keys of the next slots in place; false when none is left. */
  convertNext(slotCount: number): boolean {
    const slots = this.#slots;
    const end = Math.min(slots.mask + 1, this.#next + slotCount);
    for (; this.#next < end; this.#next++)
      if (!slots.isEmpty(this.#next)) this.convert(slots, this.#next);
    return this.#next <= slots.mask;
  }

  /** A new key is in the slot. */
  added(slots: Slots, slot: number): void {
    if (this.#isDone && slots === this.#slots) this.#isDone[slot] = 1;
  }

  /** Before a slot is emptied: keys that may move into the gap are converted, so that no mark has to move with them. */
  removing(slots: Slots, slot: number): void {
    if (!this.#isDone || slots !== this.#slots) return;
    const { mask } = slots;
    this.#isDone[slot] = 1;
    for (let next = (slot + 1) & mask; !slots.isEmpty(next); next = (next + 1) & mask)
      this.convert(slots, next);
  }
}
