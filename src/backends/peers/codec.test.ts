import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { MAX_AMOUNT } from '../../core/options.ts';
import { MAX_DATAGRAM_BYTES } from './bytes.ts';
import {
  decode,
  encode,
  entriesThatFit,
  keysPerPage,
  retransmitCopyOf,
  setsThatFit,
} from './codec.ts';
import { MAX_MISSING_RANGES, MAX_ORIGINS } from './included-reports.ts';
import { ENTRY_WIDTH, type Message, type MessageBody } from './messages.ts';
import { WIRE_VERSIONS } from './wire-versions.ts';

const id = fc.integer({ min: 1, max: 2 ** 48 - 1 });
const seq = fc.nat({ max: Number.MAX_SAFE_INTEGER });
const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const amount = fc.oneof(
  fc.integer({ min: 1, max: MAX_AMOUNT }),
  fc.double({ min: 1e-9, max: 1e9, noNaN: true }),
);
/** Never all zeros. */
const hash = fc.tuple(int32, int32).filter(([low, high]) => low !== 0 || high !== 0);
const entry = fc
  .tuple(fc.integer({ min: 0, max: 2 ** 32 - 1 }), hash, amount)
  .map(([limit, halves, hits]) => [limit, ...halves, hits]);
const entries = fc.array(entry, { maxLength: 40 }).map((rows) => rows.flat());
const refillTimesOf = (buckets: number) =>
  fc
    .array(fc.tuple(hash, fc.array(amount, { minLength: buckets, maxLength: buckets })), {
      maxLength: 20,
    })
    .map((rows) => rows.flat(2));
const ranges = (max: number) =>
  fc.array(fc.tuple(seq, seq), { maxLength: max }).map((pairs) => pairs.flat());
const included = fc.record({
  isComplete: fc.boolean(),
  sets: fc.array(fc.record({ origin: id, highest: seq, missing: ranges(MAX_MISSING_RANGES) }), {
    maxLength: 3,
  }),
});
const agoMs = fc.nat({ max: 2 ** 16 - 1 });
const report = fc.record({ kind: fc.constant('report'), agoMs, seq, entries });
const body = fc.oneof(
  fc.record({ kind: fc.constant('hello'), nonce: id, ageMs: seq }),
  fc.record({
    kind: fc.constant('hello-ack'),
    nonce: id,
    seq,
    first: seq,
    ageMs: seq,
    name: fc.string({ maxLength: 16 }),
  }),
  report,
  fc.record({ kind: fc.constant('heartbeat'), seq }),
  fc.record({ kind: fc.constant('evicted'), seq }),
  fc.record({
    kind: fc.constant('nack'),
    ranges: ranges(10),
  }),
  fc.record({ kind: fc.constant('state-request'), nonce: id, limit: fc.nat(), cursor: seq }),
  fc.integer({ min: 1, max: 3 }).chain((buckets) =>
    fc.record({
      kind: fc.constant('state'),
      nonce: id,
      limit: fc.nat(),
      cursor: seq,
      next: seq,
      buckets: fc.constant(buckets),
      included,
      refillTimes: refillTimesOf(buckets),
    }),
  ),
  fc.record({ kind: fc.constant('levels-request'), nonce: id, entries }),
  fc.record({ kind: fc.constant('levels'), nonce: id, seq, receivedSeq: seq, entries }),
);
const { newest: VERSION } = WIRE_VERSIONS;
const datagramNumber = fc.integer({ min: 1, max: 2 ** 40 - 1 });
const withEnvelope = (bodies: fc.Arbitrary<object>): fc.Arbitrary<Message> =>
  fc
    .tuple(id, fc.oneof(fc.constant(0), id), datagramNumber, bodies)
    .map(([from, to, datagramSeq, fields]) => {
      const envelope = { from, to, datagramSeq, version: VERSION, newest: VERSION };
      return { ...envelope, ...fields } as Message;
    });
const message = withEnvelope(body);

describe('peer codec', () => {
  test('decodes what it encoded', () => {
    fc.assert(
      fc.property(message, (original) => {
        expect(decode(encode(original))).toEqual(original);
      }),
    );
  });

  test('rejects truncated messages and unknown versions', () => {
    fc.assert(
      fc.property(message, fc.nat(), (original, at) => {
        const bytes = encode(original);
        const cut = decode(bytes.subarray(0, at % bytes.length));
        // A list of entries may end early.
        if (cut) expect(['report', 'state', 'levels-request', 'levels']).toContain(cut.kind);
        expect(decode(Uint8Array.of(VERSION + 1, ...bytes.subarray(1)))).toBeUndefined();
      }),
    );
  });

  test('decodes random bytes to undefined or to a valid message, and never throws', () => {
    const start = fc.tuple(fc.constant(VERSION), fc.nat(11)).map((head) => Uint8Array.from(head));
    fc.assert(
      fc.property(start, fc.uint8Array({ maxLength: 100 }), (head, rest) => {
        const decoded = decode(Uint8Array.of(...head, ...rest));
        if (!decoded) return;
        const { version, newest } = decoded;
        expect(decode(encode(decoded, version, newest))).toEqual(decoded);
      }),
      { numRuns: 5000 },
    );
  });

  test('a retransmitted report differs in recipient, datagram number and age only', () => {
    fc.assert(
      fc.property(
        withEnvelope(report),
        id,
        datagramNumber,
        agoMs,
        (original, to, datagramSeq, ago) => {
          const copy = decode(retransmitCopyOf(encode(original), to, datagramSeq, ago + 0.5));
          expect(copy).toEqual({ ...original, to, datagramSeq, agoMs: ago });
        },
      ),
    );
  });

  test('a key with a few hits takes nine bytes in a report', () => {
    const report = (keys: number): number =>
      encode({
        kind: 'report',
        from: 1,
        to: 0,
        datagramSeq: 1,
        agoMs: 0,
        seq: 1,
        entries: Array.from({ length: keys }, (_, n) => [7, n + 1, -n, 3]).flat(),
      }).length;
    expect(report(101) - report(1)).toBe(900);
  });

  test('clamps hits to MAX_AMOUNT when encoding, and rejects more when decoding', () => {
    const header = { kind: 'report', from: 1, to: 0, datagramSeq: 1, agoMs: 0, seq: 1 } as const;
    const bytes = encode({ ...header, entries: [7, 1, 1, 1e300] });
    expect(decode(bytes)).toMatchObject({ entries: [7, 1, 1, MAX_AMOUNT] });
    const huge = encode({ ...header, entries: [7, 1, 1, 0.5] });
    new DataView(huge.buffer).setFloat64(huge.length - 8, 1.7e308);
    expect(decode(huge)).toBeUndefined();
  });

  test.each<MessageBody>([
    { kind: 'report', agoMs: 0, seq: 1, entries: [7, 0, 0, 1] },
    { kind: 'levels-request', nonce: 1, entries: [7, 0, 0, 1] },
    { kind: 'levels', nonce: 1, seq: 1, receivedSeq: 1, entries: [7, 1, 1, 1, 7, 0, 0, 1] },
    {
      ...{ kind: 'state', nonce: 1, limit: 7, cursor: 0, next: 0, buckets: 1 },
      ...{ included: undefined, refillTimes: [0, 0, 1] },
    },
  ])('rejects a hash of all zeros: $kind', (fields) => {
    expect(decode(encode({ from: 1, to: 0, datagramSeq: 1, ...fields }))).toBeUndefined();
  });

  test('truncates a long node name to whole characters', () => {
    const name = 'é'.repeat(40).slice(0, 31) + '𝄞'.repeat(9);
    const ack = encode({
      ...{ kind: 'hello-ack', from: 1, to: 2, datagramSeq: 1, nonce: 1 },
      ...{ seq: 0, first: 1, ageMs: 0, name },
    });
    expect(decode(ack)).toMatchObject({ name: 'é'.repeat(31) });
  });

  const last = Number.MAX_SAFE_INTEGER;
  const setsOf = (count: number, rangeCount: number) =>
    Array.from({ length: count }, (_, n) => ({
      ...{ origin: n + 1, highest: last },
      missing: Array<number>(2 * rangeCount).fill(last),
    }));

  test.each([
    [1, 0, 0],
    [2, 8, 1],
    [1, 100, 0],
    [64, 100, MAX_MISSING_RANGES],
    [1, 3, MAX_MISSING_RANGES],
  ])(
    'a page of keys with %i buckets and the reports of %i nodes fits into a datagram',
    (buckets, origins, rangeCount) => {
      const included = setsThatFit(setsOf(origins, rangeCount), buckets);
      const keys = keysPerPage(buckets, included);
      expect(keys).toBeGreaterThan(0);
      const row = [-1, -1, ...Array<number>(buckets).fill(1e300)];
      const refillTimes = Array.from({ length: keys }, () => row).flat();
      const position = { nonce: 1, limit: 2 ** 32 - 1, cursor: last, next: last };
      const header = { kind: 'state', from: 1, to: 2, datagramSeq: 1 } as const;
      const page = { ...header, ...position, buckets, included, refillTimes };
      const bytes = encode(page);
      expect(bytes.length).toBeLessThanOrEqual(MAX_DATAGRAM_BYTES);
      expect(decode(bytes)).toMatchObject({ included, refillTimes });
    },
  );

  test('a page lists as many nodes as fit, and says whether these are all', () => {
    const sets = (count: number) =>
      Array.from({ length: count }, (_, n) => ({ origin: n + 1, highest: 200, missing: [] }));
    expect(setsThatFit(sets(8), 1)).toEqual({ isComplete: true, sets: sets(8) });
    const { isComplete, sets: listed } = setsThatFit(sets(1000), 1);
    expect(isComplete).toBe(false);
    expect(listed.length).toBeGreaterThan(50);
    expect(listed.length).toBeLessThanOrEqual(MAX_ORIGINS);
    expect(keysPerPage(1, { isComplete, sets: listed })).toBeGreaterThan(30);
  });

  test('a page in version 3 does not list reports', () => {
    const page = {
      kind: 'state' as const,
      ...{ from: 1, to: 2, datagramSeq: 1, nonce: 1, limit: 7, cursor: 0, next: 0 },
      ...{ buckets: 1, refillTimes: [1, 1, 500] },
    };
    const included = { isComplete: true, sets: [{ origin: 1, highest: 5, missing: [2, 1] }] };
    const [older, newer] = [3, 4].map((version) => encode({ ...page, included }, version));
    expect(decode(newer)).toEqual({ ...page, version: 4, newest: 4, included });
    expect(decode(older)).toEqual({ ...page, version: 3, newest: 3 });
    expect(older).toHaveLength(newer.length - 12); // flag, count, id, highest, one range
  });

  test.each([
    ['origins', MAX_ORIGINS + 1, 0],
    ['ranges', 1, MAX_MISSING_RANGES + 1],
  ])('rejects a page with too many %s', (_, origins, rangeCount) => {
    const sets = setsOf(origins, rangeCount).map((set) => ({
      ...{ ...set, highest: 1 },
      missing: set.missing.map(() => 1),
    }));
    const bytes = encode({
      kind: 'state',
      ...{ from: 1, to: 2, datagramSeq: 1, nonce: 1, limit: 7, cursor: 0, next: 0 },
      ...{ buckets: 1, included: { isComplete: true, sets }, refillTimes: [] },
    });
    expect(decode(bytes)).toBeUndefined();
  });

  test('a report split by entriesThatFit fits into datagrams', () => {
    fc.assert(
      fc.property(fc.array(entry, { minLength: 1, maxLength: 300 }), (rows) => {
        const all = rows.sort(([a], [b]) => a - b).flat();
        for (let at = 0; at < all.length; ) {
          const count = entriesThatFit(all, at) * ENTRY_WIDTH;
          const part = all.slice(at, at + count);
          const bytes = encode({
            kind: 'report',
            from: 1,
            to: 0,
            datagramSeq: 1,
            agoMs: 0,
            seq: 2 ** 50,
            entries: part,
          });
          expect(bytes.length).toBeLessThanOrEqual(MAX_DATAGRAM_BYTES);
          at += count;
        }
      }),
    );
  });
});
