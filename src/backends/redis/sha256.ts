/**
 * SHA-256 (FIPS 180-4) of a text, without a Node module and without a promise: for names that are equal in every
 * process and on every runtime, and for which no client can find a collision.
 *
 *     text ──▶ UTF-8, padded to blocks of 64 bytes ──▶ 64 rounds for each block ──▶ 32 bytes as base64url
 */

const ROUNDS = 64;
const BLOCK_BYTES = 64;

/** The first 64 primes give 32 bits of the fractions of their cube roots; the first eight, of their square roots. */
const { constants, start } = (() => {
  const primes: number[] = [];
  for (let n = 2; primes.length < ROUNDS; n++) {
    if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  }
  const fraction = (root: number): number => ((root - Math.floor(root)) * 2 ** 32) | 0;
  return {
    constants: Int32Array.from(primes, (prime) => fraction(Math.cbrt(prime))),
    start: Int32Array.from(primes.slice(0, 8), (prime) => fraction(Math.sqrt(prime))),
  };
})();

const rotate = (word: number, by: number): number => (word >>> by) | (word << (32 - by));

/** The digest as 43 characters. A lone surrogate counts as U+FFFD, as in Node's `update(text)`. */
export function sha256Base64Url(text: string): string {
  const blocks = paddedBlocks(new TextEncoder().encode(text));
  const hash = start.slice();
  const schedule = new Int32Array(ROUNDS);
  for (let at = 0; at < blocks.byteLength; at += BLOCK_BYTES) mixBlock(hash, schedule, blocks, at);
  return base64Url(hash);
}

/** The padded message: the bytes, a 1 bit, zeros, and the number of bits. */
function paddedBlocks(bytes: Uint8Array): DataView {
  const length = Math.ceil((bytes.length + 9) / BLOCK_BYTES) * BLOCK_BYTES;
  const padded = new Uint8Array(length);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(length - 4, bytes.length << 3);
  return view;
}

function mixBlock(hash: Int32Array, w: Int32Array, blocks: DataView, at: number): void {
  for (let n = 0; n < 16; n++) w[n] = blocks.getInt32(at + 4 * n);
  for (let n = 16; n < ROUNDS; n++) {
    const [before, last] = [w[n - 15], w[n - 2]];
    const s0 = rotate(before, 7) ^ rotate(before, 18) ^ (before >>> 3);
    const s1 = rotate(last, 17) ^ rotate(last, 19) ^ (last >>> 10);
    w[n] = w[n - 16] + s0 + w[n - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = hash;
  for (let n = 0; n < ROUNDS; n++) {
    const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const added = (h + s1 + ((e & f) ^ (~e & g)) + constants[n] + w[n]) | 0;
    const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const sum = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + added) | 0;
    d = c;
    c = b;
    b = a;
    a = (added + sum) | 0;
  }
  for (const [n, word] of [a, b, c, d, e, f, g, h].entries()) hash[n] += word;
}

function base64Url(words: Int32Array): string {
  let bytes = '';
  for (const word of words)
    for (let shift = 24; shift >= 0; shift -= 8)
      bytes += String.fromCharCode((word >>> shift) & 255);
  return btoa(bytes).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}
