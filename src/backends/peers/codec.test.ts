import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { MAX_AMOUNT } from '../../core/options.ts';
import { MAX_DATAGRAM_BYTES } from './bytes.ts';
import { decode, encode, entriesThatFit, keysPerPage, retransmitCopyOf } from './codec.ts';
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
    ranges: fc.array(seq, { maxLength: 20 }).filter(({ length }) => length % 2 === 0),
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
    { kind: 'state', nonce: 1, limit: 7, cursor: 0, next: 0, buckets: 1, refillTimes: [0, 0, 1] },
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

  test.each([1, 2, 64])('a page of keys with %i buckets fits into a datagram', (buckets) => {
    const keys = keysPerPage(buckets);
    expect(keys).toBeGreaterThan(0);
    const row = [-1, -1, ...Array<number>(buckets).fill(1e300)];
    const refillTimes = Array.from({ length: keys }, () => row).flat();
    const last = Number.MAX_SAFE_INTEGER;
    const position = { nonce: 1, limit: 2 ** 32 - 1, cursor: last, next: last };
    const page = encode({
      kind: 'state',
      from: 1,
      to: 2,
      datagramSeq: 1,
      ...position,
      buckets,
      refillTimes,
    });
    expect(page.length).toBeLessThanOrEqual(MAX_DATAGRAM_BYTES);
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
