/**
 * One block of memory with open addressing: the slots of a `KeyTable`.
 *
 *     storage:  │ hash │ spent │ at │ hash │ spent │ at │  ·   ·   ·  │ hash │ spent │ at │ …
 *               └───── one entry ───┘                    empty: hash 0
 *
 * Linear probing: an entry is in its home slot, the low bits of its hash, or in one of the occupied slots behind it.
 */

export class Slots {
  readonly storage: Float64Array;
  readonly mask: number;
  /** Integer view of `storage`: two integers of an entry are its hash. */
  readonly hashes: Int32Array;
  /** Number of floats per entry. */
  readonly stride: number;

  /** `capacity` is a power of two. */
  constructor(capacity: number, stride: number, storage = new Float64Array(capacity * stride)) {
    this.storage = storage;
    this.hashes = new Int32Array(this.storage.buffer);
    this.mask = capacity - 1;
    this.stride = stride;
  }

  clone(): Slots {
    return new Slots(this.mask + 1, this.stride, this.storage.slice());
  }

  /** The slot that holds the hash. If there is none, `~slot` of the empty slot where it belongs, a number below 0. */
  slotOf(low: number, high: number): number {
    const hashes = this.hashes;
    const { mask } = this;
    const stride = this.stride * 2;
    for (let slot = low & mask; ; slot = (slot + 1) & mask) {
      const at = slot * stride;
      const l = hashes[at];
      const h = hashes[at + 1];
      if (l === low && h === high) return slot;
      if (l === 0 && h === 0) return ~slot;
    }
  }

  isEmpty(slot: number): boolean {
    const at = slot * this.stride * 2;
    return this.hashes[at] === 0 && this.hashes[at + 1] === 0;
  }

  low(slot: number): number {
    return this.hashes[slot * this.stride * 2];
  }

  high(slot: number): number {
    return this.hashes[slot * this.stride * 2 + 1];
  }

  setHash(slot: number, low: number, high: number): void {
    this.hashes[slot * this.stride * 2] = low;
    this.hashes[slot * this.stride * 2 + 1] = high;
  }

  /** Copies an entry to `storage[at, …)`; its hash as integers, because copying a NaN float may change its bits. */
  copyEntry(
    slot: number,
    { storage, hashes }: Pick<Slots, 'storage' | 'hashes'>,
    at: number,
  ): void {
    const { stride } = this;
    const from = slot * stride;
    hashes[at * 2] = this.hashes[from * 2];
    hashes[at * 2 + 1] = this.hashes[from * 2 + 1];
    for (let n = 1; n < stride; n++) storage[at + n] = this.storage[from + n];
  }

  /** Empties a slot and closes the gap, so that no probe sequence ends too early. */
  remove(slot: number): void {
    const { storage, mask } = this;
    const { stride } = this;
    let gap = slot;
    for (let next = (gap + 1) & mask; !this.isEmpty(next); next = (next + 1) & mask) {
      const home = this.low(next) & mask;
      // An entry may move back into the gap unless its home slot lies behind the gap.
      if (((next - home) & mask) < ((next - gap) & mask)) continue;
      storage.copyWithin(gap * stride, next * stride, (next + 1) * stride);
      gap = next;
    }
    storage.fill(0, gap * stride, (gap + 1) * stride);
  }

  /**
   * Visits every entry whose hash's low bits, by `bits`, are in [`from`, `to`). Each entry belongs to exactly one such
   * range, independent of moves and capacity, so ranges visited at different times miss none.
   */
  visitRange(bits: number, from: number, to: number, visit: (slot: number) => void): void {
    const { mask } = this;
    // In a block larger than `bits`, the range has several parts.
    for (let part = 0; part <= mask; part += bits + 1) {
      const begin = (from & mask) + part;
      const end = begin + to - from;
      // Entries of the last home slots may be in occupied slots behind them.
      for (let n = begin; n <= begin + mask && (n < end || !this.isEmpty(n & mask)); n++) {
        const slot = n & mask;
        const low = this.low(slot);
        const isOwn = ((low - begin) & mask) < to - from && isWithin(low & bits, from, to);
        if (isOwn && !this.isEmpty(slot)) visit(slot);
      }
    }
  }
}

const isWithin = (value: number, from: number, to: number): boolean => value >= from && value < to;
