/**
 * The keys of a table whose rule has changed, until the last key is converted to the current rule.
 *
 *     equal width       in place: a mark per slot says that its key is converted
 *     other width       when the key moves to another block: all keys of the old block have the previous rule
 *
 * Keys are converted as of the instant of the change, whenever that happens.
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
  /** Set for conversion in place: 1 for each slot whose key has the current rule. */
  readonly #isDone: Uint8Array | undefined;
  /** All slots before this one are converted. */
  #next = 0;

  /** `slots` has the keys of the previous rule; `width` is the number of numbers of the current rule. */
  constructor(slots: Slots, width: number, convert: KeyConverter, changedAt: Millis) {
    this.#convert = convert;
    this.#changedAt = changedAt;
    this.#slots = slots;
    this.#scratch = new Float64Array(width);
    this.#isDone = slots.stride === 1 + width ? new Uint8Array(slots.mask + 1) : undefined;
  }

  /** True if keys are converted in place; false if they move to another block. */
  get isInPlace(): boolean {
    return this.#isDone !== undefined;
  }

  /** True for an occupied slot whose key still has the previous rule. */
  isPending(slots: Slots, slot: number): boolean {
    return slots === this.#slots && !this.#isDone?.[slot];
  }

  /** Reads a pending key by the current rule, into an array that the next call reuses. */
  read(slot: number): State {
    const { storage, stride } = this.#slots;
    this.#convert(this.#scratch, 0, storage, slot * stride + 1, this.#changedAt);
    return this.#scratch;
  }

  /** Converts the key of an occupied slot in place, if it still has the previous rule. */
  convert(slots: Slots, slot: number): void {
    if (!this.#isDone || !this.isPending(slots, slot)) return;
    slots.storage.set(this.read(slot), slot * slots.stride + 1);
    this.#isDone[slot] = 1;
  }

  /** Converts the keys of the next slots in place; false when all are converted. */
  convertNext(slotCount: number): boolean {
    const slots = this.#slots;
    const end = Math.min(slots.mask + 1, this.#next + slotCount);
    for (; this.#next < end; this.#next++)
      if (!slots.isEmpty(this.#next)) this.convert(slots, this.#next);
    return this.#next <= slots.mask;
  }

  /** Marks a slot that got a new key. */
  added(slots: Slots, slot: number): void {
    if (this.#isDone && slots === this.#slots) this.#isDone[slot] = 1;
  }

  /** Called before a slot is emptied: converts the keys that may move into the gap, so that no mark has to move. */
  removing(slots: Slots, slot: number): void {
    if (!this.#isDone || slots !== this.#slots) return;
    const { mask } = slots;
    this.#isDone[slot] = 1;
    for (let next = (slot + 1) & mask; !slots.isEmpty(next); next = (next + 1) & mask)
      this.convert(slots, next);
  }
}
