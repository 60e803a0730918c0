/**
 * Patterns by a piece of their literal text, to find the few that can match a key without trying each.
 *
 *     *scan*bot*  ──▶  its rarest piece, "can"  ──▶  bucket "can": the patterns that need it
 *     key         ──▶  all pieces of the key    ──▶  the buckets of these pieces, each tried once
 *
 * A pattern matches only keys that contain all of its literals, so one piece of up to `MAX_PIECE` bytes is enough. The piece
 * that the fewest patterns have is chosen. Patterns without literals, such as regular expressions, are always tried.
 */

import type { Pattern } from './pattern.ts';

const MAX_PIECE = 3;

interface Bucket<T> {
  readonly items: T[];
  /** The number of the lookup that has tried it: a key may contain a piece many times. */
  triedIn: number;
}

export class LiteralIndex<T extends { readonly pattern: Pattern }> {
  readonly #withoutLiterals: T[] = [];
  readonly #buckets = new Map<number, Bucket<T>>();
  readonly #lengths: readonly number[];
  #lookups = 0;

  /** Buckets keep the order of the items. */
  constructor(items: readonly T[]) {
    const pieces = items.map(({ pattern }) => piecesOf(pattern.literals ?? []));
    const counts = new Map<number, number>();
    for (const each of pieces)
      for (const piece of each) counts.set(piece, (counts.get(piece) ?? 0) + 1);
    const lengths = new Set<number>();
    for (const [n, item] of items.entries()) {
      if (pieces[n].length === 0) {
        this.#withoutLiterals.push(item);
        continue;
      }
      const rarest = rarestOf(pieces[n], counts);
      lengths.add(lengthOf(rarest));
      const bucket = this.#buckets.get(rarest) ?? { items: [], triedIn: 0 };
      this.#buckets.set(rarest, bucket);
      bucket.items.push(item);
    }
    this.#lengths = [...lengths];
  }

  /** Calls back with every group of items that may match the binary key, each once. */
  forEachCandidates(key: string, use: (items: readonly T[]) => void): void {
    const lookup = ++this.#lookups;
    if (this.#withoutLiterals.length > 0) use(this.#withoutLiterals);
    for (const length of this.#lengths)
      for (let at = 0; at + length <= key.length; at++) {
        const bucket = this.#buckets.get(pieceAt(key, at, length));
        if (bucket === undefined || bucket.triedIn === lookup) continue;
        bucket.triedIn = lookup;
        use(bucket.items);
      }
  }
}

/** The bytes of a binary key from `at` on, and their number, as one integer. */
function pieceAt(key: string, at: number, length: number): number {
  let piece = length;
  for (let n = 0; n < length; n++) piece = (piece << 8) | key.charCodeAt(at + n);
  return piece;
}

function rarestOf(pieces: readonly number[], counts: ReadonlyMap<number, number>): number {
  let [rarest] = pieces;
  let least = Infinity;
  for (const piece of pieces) {
    const count = counts.get(piece) ?? 0;
    if (count >= least) continue;
    least = count;
    rarest = piece;
  }
  return rarest;
}

const lengthOf = (piece: number): number => {
  let length = 0;
  for (let rest = piece; rest > MAX_PIECE; rest >>= 8) length++;
  return length;
};

/** All pieces of the longest length that a literal has. */
function piecesOf(literals: readonly string[]): number[] {
  let longest = 0;
  for (const literal of literals) longest = Math.max(longest, literal.length);
  const length = Math.min(MAX_PIECE, longest);
  const pieces: number[] = [];
  if (length === 0) return pieces;
  for (const literal of literals)
    for (let at = 0; at + length <= literal.length; at++) pieces.push(pieceAt(literal, at, length));
  return pieces;
}
