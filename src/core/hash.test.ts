import fc from 'fast-check';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { createHasher, type Hasher, type HashSeed, randomHashSeed } from './hash.ts';
import { cryptoRandom, seededRandom, systemRandom } from './random.ts';

const bitsOf = ({ low, high }: Hasher): bigint => (BigInt(high >>> 0) << 32n) | BigInt(low >>> 0);

const hashesOf = (keys: readonly string[], seed = 1): bigint[] => {
  const h = createHasher(randomHashSeed(seededRandom(seed)));
  return keys.map((key) => {
    h.hash(key);
    return bitsOf(h);
  });
};

const hashOfBytes = (h: Hasher, bytes: Uint8Array): bigint => {
  h.hashBytes(bytes, 0, bytes.length);
  return bitsOf(h);
};

const numbered = (count: number): string[] =>
  Array.from({ length: count }, (_, n) => `user:${n}@example.org`);

/** HalfSipHash-c-d as its paper states it, with 64 bits of output. */
function halfSipHash(c: number, d: number, [k0, k1, k2, k3]: HashSeed, bytes: Uint8Array): bigint {
  const v = Uint32Array.of(k0, k1 ^ 0xee, 0x6c796765 ^ k2, 0x74656462 ^ k3);
  const rotate = (at: number, by: number): void => {
    v[at] = (v[at] << by) | (v[at] >>> (32 - by));
  };
  const addRotateXor = (a: number, b: number, by: number): void => {
    v[a] += v[b];
    rotate(b, by);
    v[b] ^= v[a];
  };
  const rounds = (count: number): void => {
    for (let n = 0; n < count; n++) {
      addRotateXor(0, 1, 5);
      rotate(0, 16);
      addRotateXor(2, 3, 8);
      addRotateXor(0, 3, 7);
      addRotateXor(2, 1, 13);
      rotate(2, 16);
    }
  };
  const padded = new DataView(new ArrayBuffer((bytes.length & ~3) + 4));
  bytes.forEach((byte, at) => {
    padded.setUint8(at, byte);
  });
  padded.setUint8(padded.byteLength - 1, bytes.length);
  for (let at = 0; at < padded.byteLength; at += 4) {
    const word = padded.getUint32(at, true);
    v[3] ^= word;
    rounds(c);
    v[0] ^= word;
  }
  v[2] ^= 0xee;
  rounds(d);
  const low = (v[1] ^ v[3]) >>> 0;
  v[1] ^= 0xdd;
  rounds(d);
  return (BigInt((v[1] ^ v[3]) >>> 0) << 32n) | BigInt(low);
}

const counting = (length: number): Uint8Array => Uint8Array.from({ length }, (_, n) => n);

describe('the hash of a key', () => {
  test('hash of bytes: says of every key with two colons that it has them, and not of one without', () => {
    const h = createHasher([1, 2, 3, 4]);
    const key = fc.array(fc.constantFrom(...'a1;:'), { maxLength: 70 });
    fc.assert(
      fc.property(key, fc.nat(4), (letters, times) => {
        const bytes = Buffer.from(letters.join('').repeat(4 ** times));
        h.hashBytes(bytes, 0, bytes.length);
        if (bytes.indexOf(58) !== bytes.lastIndexOf(58)) expect(h.hasColons).toBe(true);
        else if (bytes.length < 58 && bytes.indexOf(59) < 0) expect(h.hasColons).toBe(false);
      }),
      { numRuns: 2000 },
    );
    h.hashBytes(Buffer.from(':aaa'.repeat(256)), 0, 1024); // more than a byte can count
    expect(h.hasColons).toBe(true);
  });

  test('is the same every time, remembered or not', () => {
    const keys = numbered(5_000);
    const once = hashesOf(keys);
    const twice = hashesOf([...keys, ...keys]);
    expect(twice.slice(0, 5_000)).toEqual(once);
    expect(twice.slice(5_000)).toEqual(once);
  });

  test('differs from process to process', () => {
    expect(hashesOf(['alice'], 1)).not.toEqual(hashesOf(['alice'], 2));
  });

  test('tells half a million similar keys apart', () => {
    const hashes = hashesOf(numbered(500_000));
    expect(new Set(hashes).size).toBe(500_000);
  });

  test('tells keys apart that differ in one character, anywhere', () => {
    const base = 'x'.repeat(33);
    const keys = [base];
    for (let at = 0; at < base.length; at++) {
      for (const other of ['y', 'z', '\0', 'é', '🔑']) {
        keys.push(base.slice(0, at) + other + base.slice(at + 1));
      }
    }
    keys.push(base.slice(1), `${base}x`, `${base}\0`, '', '\0');
    expect(new Set(hashesOf(keys)).size).toBe(keys.length);
  });

  test('spreads keys evenly over the low bits, where a table looks', () => {
    const buckets = new Array<number>(1024).fill(0);
    for (const hash of hashesOf(numbered(102_400))) buckets[Number(hash & 1023n)]++;
    // A hundred to a bucket, give or take six deviations of ten.
    expect(Math.min(...buckets)).toBeGreaterThan(40);
    expect(Math.max(...buckets)).toBeLessThan(160);
  });

  test('is spread as evenly over the high bits', () => {
    const buckets = new Array<number>(1024).fill(0);
    for (const hash of hashesOf(numbered(102_400))) buckets[Number(hash >> 54n)]++;
    expect(Math.min(...buckets)).toBeGreaterThan(40);
    expect(Math.max(...buckets)).toBeLessThan(160);
  });
});

describe('hash: HalfSipHash', () => {
  test('the reference of these tests yields the published vectors of HalfSipHash-2-4', () => {
    const key = [0x03020100, 0x07060504, 0x03020100, 0x07060504];
    // From the reference implementation; the bytes of a vector are little endian.
    const published = { 0: 0xc83cb8b9591f8d21n, 1: 0x157338f8122455ben, 8: 0x8c85e4bc20e8feedn };
    for (const [length, vector] of Object.entries(published)) {
      expect(halfSipHash(2, 4, key, counting(Number(length)))).toBe(vector);
    }
  });

  test('a hasher yields HalfSipHash-1-3 for every seed and length', () => {
    const word = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
    fc.assert(
      fc.property(
        fc.tuple(word, word, word, word),
        fc.uint8Array({ maxLength: 600 }),
        (seed, bytes) => {
          expect(hashOfBytes(createHasher(seed), bytes)).toBe(halfSipHash(1, 3, seed, bytes));
        },
      ),
      { numRuns: 300 },
    );
  });
});

describe('hash: bytes and strings', () => {
  const anyText = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 300 }),
    fc.string({ unit: 'grapheme', maxLength: 60 }),
    // Code units, so with surrogates that have no partner.
    fc
      .array(fc.oneof(fc.integer({ min: 0xd700, max: 0xe0ff }), fc.nat(0xffff)), { maxLength: 20 })
      .map((units) => String.fromCharCode(...units)),
  );

  test('a string hashes like its UTF-8 bytes, also with lone surrogates', () => {
    const h = createHasher([1, 2, 3, 4]);
    fc.assert(
      fc.property(anyText, (text) => {
        h.hash(text);
        expect(bitsOf(h)).toBe(hashOfBytes(h, new TextEncoder().encode(text)));
      }),
      { numRuns: 2000 },
    );
  });

  test('a library hashes a text like a daemon its bytes and its binary key', () => {
    const library = createHasher([1, 2, 3, 4]);
    const daemon = createHasher([1, 2, 3, 4], 'latin1');
    fc.assert(
      fc.property(anyText, (text) => {
        library.hash(text);
        const bytes = Buffer.from(text, 'utf8');
        expect(hashOfBytes(daemon, bytes)).toBe(bitsOf(library));
        daemon.hash(bytes.toString('latin1'));
        expect(bitsOf(daemon)).toBe(bitsOf(library));
      }),
      { numRuns: 2000 },
    );
  });

  test('bytes that are not UTF-8 hash like their binary key, wherever they stand in a buffer', () => {
    const h = createHasher([1, 2, 3, 4], 'latin1');
    const bytes = fc.uint8Array({ maxLength: 40 });
    fc.assert(
      fc.property(bytes, fc.nat(5), fc.nat(5), (key, before, after) => {
        const around = new Uint8Array(before + key.length + after).fill(7);
        around.set(key, before);
        h.hash(String.fromCharCode(...key));
        const named = bitsOf(h);
        h.hashBytes(around, before, before + key.length);
        expect(bitsOf(h)).toBe(named);
      }),
    );
  });
});

describe('hash: chosen keys', () => {
  /** 12 bytes: three words. */
  const KEY_BITS = 96;
  const keyOf = (random: () => number): Uint8Array =>
    Uint8Array.from({ length: KEY_BITS / 8 }, () => Math.floor(random() * 256));
  const flip = (key: Uint8Array, bit: number): void => {
    key[bit >> 3] ^= 1 << (bit & 7);
  };

  test('no pair of flipped bits leaves half of a hash unchanged', () => {
    const random = seededRandom(5);
    let equalHalves = 0;
    for (let n = 0; n < 24; n++) {
      const h = createHasher(randomHashSeed(random));
      const key = keyOf(random);
      h.hashBytes(key, 0, key.length);
      const { low, high } = h;
      for (let a = 0; a < KEY_BITS; a++) {
        for (let b = a; b < KEY_BITS; b++) {
          flip(key, a);
          if (b !== a) flip(key, b);
          h.hashBytes(key, 0, key.length);
          if (h.low === low || h.high === high) equalHalves++;
          flip(key, a);
          if (b !== a) flip(key, b);
        }
      }
    }
    expect(equalHalves).toBe(0); // of 111,744 pairs; by chance, one in 20,000 such tests has one
  });

  test('no pair of masks on two characters of a string leaves half of a hash unchanged', () => {
    const random = seededRandom(8);
    let equalHalves = 0;
    for (let n = 0; n < 20; n++) {
      const h = createHasher(randomHashSeed(random));
      const units = Array.from({ length: 8 }, () => 33 + Math.floor(random() * 90));
      h.hash(String.fromCharCode(...units));
      const { low, high } = h;
      for (let at = 0; at + 1 < units.length; at++) {
        for (let bit = 0; bit < 16; bit++) {
          for (let mask = 1; mask < 16; mask += 2) {
            for (let shift = 0; shift < 16; shift++) {
              const changed = units.with(at, units[at] ^ (1 << bit));
              changed[at + 1] ^= (mask << shift) & 0xffff;
              h.hash(String.fromCharCode(...changed));
              if (h.low === low || h.high === high) equalHalves++;
            }
          }
        }
      }
    }
    expect(equalHalves).toBe(0); // of 286,720 pairs
  });

  test('no difference of two adjacent words leaves half of a hash unchanged', () => {
    const random = seededRandom(6);
    const key = new Uint8Array(12);
    const words = new DataView(key.buffer);
    let equalHalves = 0;
    let h = createHasher(randomHashSeed(random));
    for (let n = 0; n < 200_000; n++) {
      if (n % 100 === 0) h = createHasher(randomHashSeed(random));
      const draw = (): number => Math.floor(random() * 2 ** 32);
      for (let at = 0; at < 12; at += 4) words.setUint32(at, draw());
      h.hashBytes(key, 0, 12);
      const { low, high } = h;
      const at = n % 2 === 0 ? 0 : 4;
      const sparse = (): number => (draw() & draw() & draw() & draw()) | (1 << (n & 31));
      words.setUint32(at, words.getUint32(at) ^ sparse());
      words.setUint32(at + 4, words.getUint32(at + 4) ^ sparse());
      h.hashBytes(key, 0, 12);
      if (h.low === low || h.high === high) equalHalves++;
    }
    expect(equalHalves).toBe(0);
  });

  test('each bit of a key changes each bit of the hash half of the time', () => {
    const random = seededRandom(7);
    const samples = 1024;
    const changes = new Int32Array(KEY_BITS * 64);
    for (let n = 0; n < samples; n++) {
      const h = createHasher(randomHashSeed(random));
      const key = keyOf(random);
      h.hashBytes(key, 0, key.length);
      const { low, high } = h;
      for (let bit = 0; bit < KEY_BITS; bit++) {
        flip(key, bit);
        h.hashBytes(key, 0, key.length);
        flip(key, bit);
        for (let out = 0; out < 32; out++) {
          changes[bit * 64 + out] += ((h.low ^ low) >>> out) & 1;
          changes[bit * 64 + 32 + out] += ((h.high ^ high) >>> out) & 1;
        }
      }
    }
    // 6,144 counts around 512 with a deviation of 16: six deviations.
    expect(Math.min(...changes)).toBeGreaterThan(416);
    expect(Math.max(...changes)).toBeLessThan(608);
  });

  test('keys chosen to fill one slot under a known seed spread evenly under another', () => {
    const known = createHasher([1, 2, 3, 4]);
    const secret = createHasher([5, 6, 7, 8]);
    const slots = new Array<number>(64).fill(0);
    for (let n = 0, found = 0; found < 6_400; n++) {
      const key = Uint8Array.of(n, n >> 8, n >> 16, 65);
      known.hashBytes(key, 0, 4);
      if ((known.low & 63) !== 0) continue;
      found++;
      secret.hashBytes(key, 0, 4);
      slots[secret.low & 63]++;
    }
    expect(Math.min(...slots)).toBeGreaterThan(40);
    expect(Math.max(...slots)).toBeLessThan(160);
  });
});

describe('hash: seeds', () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });

  test('a client that predicts Math.random does not learn the seed', () => {
    const predictable = vi.spyOn(Math, 'random').mockReturnValue(0.5);
    const seeds = [systemRandom, systemRandom, Math.random, Math.random].map(randomHashSeed);
    expect(predictable).not.toHaveBeenCalled();
    expect(new Set(seeds.map(String)).size).toBe(4);
    for (const seed of seeds) expect(seed).toHaveLength(4);
  });

  test('a generator of the caller gives the same seed again', () => {
    expect(randomHashSeed(seededRandom(3))).toEqual(randomHashSeed(seededRandom(3)));
  });

  test('the secret generator is uniform over [0, 1), and does not repeat', () => {
    const drawn = Array.from({ length: 10_000 }, cryptoRandom);
    expect(new Set(drawn).size).toBe(10_000);
    expect(Math.min(...drawn)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...drawn)).toBeLessThan(1);
    const mean = drawn.reduce((sum, value) => sum + value, 0) / drawn.length;
    expect(mean).toBeGreaterThan(0.48);
    expect(mean).toBeLessThan(0.52);
  });
});

test('a seed given as a function is drawn once, with the first hash', () => {
  let draws = 0;
  const lazy = createHasher(() => {
    draws++;
    return [1, 2, 3, 4];
  });
  expect(draws).toBe(0);
  const eager = createHasher([1, 2, 3, 4]);
  for (const key of ['alice', 'bob', 'ключ']) {
    lazy.hash(key);
    eager.hash(key);
    expect([lazy.low, lazy.high]).toEqual([eager.low, eager.high]);
  }
  expect(draws).toBe(1);
});
