import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type Limit, limiter } from '../../index.ts';
import type { NamedRuleStatus } from '../../limiter/inspection.ts';
import { VirtualClock } from '../../testing/index.ts';
import {
  type HeaderAccessor,
  type HeaderValues,
  HeaderWriter,
  type ListPosition,
  mergeHeaders,
  quoteString,
} from './headers.ts';

/** The two draft headers of a limit after a number of calls. */
function draftHeaders(limit: Limit, calls = 0, name = 'api'): string[] {
  const api = limiter({ limit, name, clock: new VirtualClock() });
  for (let n = 0; n < calls; n++) api.tryAcquire('k');
  const headers = new HeaderWriter('draft').write(api.inspect('k').rules);
  return [headers['RateLimit-Policy'], headers.RateLimit];
}

describe('HeaderWriter: draft headers', () => {
  test('bucket: burst, remaining, and time to full', () => {
    const limit = { bucket: { rate: '10/s', burst: 100 } } as const;
    expect(draftHeaders(limit)).toEqual(['"api";q=100;w=10', '"api";r=100;t=0']);
    expect(draftHeaders(limit, 25)).toEqual(['"api";q=100;w=10', '"api";r=75;t=3']);
    expect(draftHeaders(limit, 100)).toEqual(['"api";q=100;w=10', '"api";r=0;t=1']);
  });

  test('spacing: one call, and the time to the next', () => {
    expect(draftHeaders({ spacing: { every: '6s' } }, 1)).toEqual([
      '"api";q=1;w=6',
      '"api";r=0;t=6',
    ]);
    expect(draftHeaders({ spacing: { every: '100ms' } })[0]).toBe('"api";q=10;w=1');
    expect(draftHeaders({ spacing: { every: '1500ms' } })[0]).toBe('"api";q=1;w=2');
  });

  test('quota: the limit, the length of the period and the time to its end', () => {
    const clock = new VirtualClock(Date.parse('2026-03-31T12:00Z'));
    const limit = { quota: { limit: 50, per: 'month', timeZone: 'Europe/Berlin' } } as const;
    const api = limiter({ limit, name: 'api', clock });
    const write = () => new HeaderWriter('both').write(api.inspect('k').rules);
    const window = 31 * 86_400 - 3600; // clocks went forward in March
    const policy = { 'RateLimit-Policy': `"api";q=50;w=${window}`, 'X-RateLimit-Limit': '50' };
    expect(write()).toMatchObject({ ...policy, RateLimit: '"api";r=50;t=36000' });
    api.check('k', 50);
    expect(write()).toMatchObject({ ...policy, RateLimit: '"api";r=0;t=36000' });
    expect(write()).toMatchObject({ 'X-RateLimit-Remaining': '0', 'X-RateLimit-Reset': '36000' });
  });

  test('concurrency limit: quota without a window and a reset', () => {
    expect(draftHeaders({ concurrency: 3 }, 1)).toEqual([
      '"api";q=3;qu="concurrent-requests"',
      '"api";r=2',
    ]);
  });

  test('rule without a window: concurrent requests only if it is a concurrency limit', () => {
    const { windowMs: _, ...quota } = rule();
    const policyOf = (status: NamedRuleStatus) =>
      new HeaderWriter('draft').write([status])['RateLimit-Policy'];
    expect(policyOf({ ...quota, isCapacity: true })).toBe('"api";q=5;qu="concurrent-requests"');
    expect(policyOf(quota)).toBe('"api";q=5');
  });

  test('several rules: one item each, in order', () => {
    const limit = {
      all: [{ bucket: { rate: '1/s', burst: 5 } }, { bucket: { rate: '100/h' } }],
    } as const;
    expect(draftHeaders(limit, 1)).toEqual([
      '"api.bucket";q=5;w=5, "api.bucket-2";q=100;w=3600',
      '"api.bucket";r=4;t=1, "api.bucket-2";r=99;t=36',
    ]);
  });

  test('no reset for a cost that never fits', () => {
    const never = { ...rule(), remaining: 0, opensInMs: Infinity };
    expect(new HeaderWriter('draft').write([never]).RateLimit).toBe('"api";r=0');
  });

  test('scales a window below one second to one second', () => {
    const terms = (windowMs: number) =>
      new HeaderWriter('draft').write([{ ...rule(), quota: 1, windowMs }])['RateLimit-Policy'];
    expect([0.01, 999, 1000, 1001].map(terms)).toEqual([
      ...['"api";q=100000;w=1', '"api";q=1;w=1', '"api";q=1;w=1', '"api";q=1;w=2'],
    ]);
  });

  test('leaves out a busy limit that has not learnt a quota yet', () => {
    const api = limiter({ limit: { busy: {} }, name: 'api', clock: new VirtualClock() });
    const headers = () => new HeaderWriter('both').write(api.inspect('k').rules);
    expect(headers()).toEqual({});
    api.check('k', 1, { willSettle: true });
    api.settle('k', { outcome: 'busy' });
    expect(headers()).toMatchObject({ 'X-RateLimit-Remaining': '0', RateLimit: '"api";r=0;t=1' });
    const limit = { all: [{ busy: {} }, { bucket: { rate: '1/s', burst: 5 } }] } as const;
    expect(draftHeaders(limit, 1)).toEqual(['"api.bucket";q=5;w=5', '"api.bucket";r=4;t=1']);
  });

  test('writes nothing without rules', () => {
    expect(new HeaderWriter('both').write([])).toEqual({});
  });
});

test('HeaderWriter: rewrites a cached policy when its quota or name changes', () => {
  const writer = new HeaderWriter('draft');
  const policy = (quota: number) => writer.write([{ ...rule(), quota }])['RateLimit-Policy'];
  expect([policy(5), policy(5), policy(4)]).toEqual([
    '"api";q=5;w=1',
    '"api";q=5;w=1',
    '"api";q=4;w=1',
  ]);
  expect(writer.write([{ ...rule(), name: 'db' }]).RateLimit).toBe('"db";r=5;t=0');
});

test('HeaderWriter: legacy headers show the tightest rule', () => {
  const rules = [
    { ...rule(), name: 'wide', quota: 100, remaining: 60, freshInMs: 9000 },
    { ...rule(), name: 'tight', quota: 5, remaining: 4, freshInMs: 1200 },
    { ...rule(), name: 'longer', quota: 8, remaining: 4, freshInMs: 7000 },
  ];
  expect(new HeaderWriter('legacy').write(rules)).toEqual({
    'X-RateLimit-Limit': '8',
    'X-RateLimit-Remaining': '4',
    'X-RateLimit-Reset': '7',
  });
});

test('quoteString: quotes and escapes any name', () => {
  expect(quoteString('say "hi" \\o/')).toBe('"say \\"hi\\" \\\\o/"');
  expect(quoteString('line\r\nSet-Cookie: x')).toBe('"line??Set-Cookie: x"');
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (name) => {
      expect(quoteString(name)).toMatch(/^"(?:[ !#-[\]-~]|\\["\\])*"$/);
    }),
  );
});

test('HeaderWriter: writes integers of at most fifteen digits, whatever the values', () => {
  const amount = fc.oneof(fc.double({ min: -5, max: 1e18, noNaN: true }), fc.constant(Infinity));
  fc.assert(
    fc.property(
      fc.record({
        kind: fc.constant('bucket'),
        name: fc.constant('api'),
        quota: amount,
        windowMs: fc.double({ min: 0.01, max: 1e15, noNaN: true }),
        remaining: amount,
        opensInMs: amount,
        freshInMs: amount,
      }),
      (standing) => {
        const headers = new HeaderWriter('draft').write([standing]);
        expect(headers['RateLimit-Policy']).toMatch(/^"api";q=\d{1,15};w=[1-9]\d{0,14}$/);
        expect(headers.RateLimit).toMatch(/^"api";r=\d{1,15}(;t=\d{1,15})?$/);
      },
    ),
  );
});

describe('mergeHeaders', () => {
  const ACCESSOR: HeaderAccessor<HeaderValues> = {
    get: (headers, name) => headers[name],
    set: (headers, name, value) => {
      headers[name] = value;
    },
    remove: (headers, name) => {
      delete headers[name];
    },
  };
  const merged = (
    before: HeaderValues,
    added: HeaderValues,
    position?: ListPosition,
  ): HeaderValues => {
    const response = { ...before };
    mergeHeaders(ACCESSOR, response, added, position);
    return response;
  };
  const legacy = (limit: number, remaining: number, reset?: number): HeaderValues => ({
    'X-RateLimit-Limit': String(limit),
    'X-RateLimit-Remaining': String(remaining),
    ...(reset !== undefined && { 'X-RateLimit-Reset': String(reset) }),
  });

  test('lists contain the items of both, in order', () => {
    const both = (place?: ListPosition) =>
      merged({ RateLimit: '"a";r=1' }, { RateLimit: '"b";r=2' }, place);
    expect(both()).toEqual({ RateLimit: '"a";r=1, "b";r=2' });
    expect(both('first')).toEqual({ RateLimit: '"b";r=2, "a";r=1' });
  });

  test('adds no duplicate item, but a similar one', () => {
    const list = (before: string, added: string) =>
      merged({ RateLimit: before }, { RateLimit: added });
    expect(list('"a";r=1, "b";r=2', '"b";r=2')).toEqual({ RateLimit: '"a";r=1, "b";r=2' });
    expect(list('"api";r=10', '"api";r=1')).toEqual({ RateLimit: '"api";r=10, "api";r=1' });
    expect(list('"x, \\"b\\";r=2";r=1', '"b";r=2')).toEqual({
      RateLimit: '"x, \\"b\\";r=2";r=1, "b";r=2',
    });
  });

  test('legacy headers are all those of the tighter limit', () => {
    expect(merged(legacy(9, 3, 1), legacy(5, 4, 9))).toEqual(legacy(9, 3, 1));
    expect(merged(legacy(9, 5, 1), legacy(5, 4, 9))).toEqual(legacy(5, 4, 9));
    expect(merged(legacy(9, 4, 1), legacy(5, 4, 9))).toEqual(legacy(5, 4, 9)); // for longer
    expect(merged(legacy(9, 4, 9), legacy(5, 4, 1))).toEqual(legacy(9, 4, 9));
    expect(merged(legacy(9, 4, 9), legacy(5, 0))).toEqual(legacy(5, 0));
    expect(merged({ 'X-RateLimit-Remaining': 'many' }, legacy(5, 4, 1))).toEqual(legacy(5, 4, 1));
  });

  test('replaces all other headers', () => {
    expect(merged({ 'Retry-After': '9' }, { 'Retry-After': '1' })).toEqual({ 'Retry-After': '1' });
  });
});

function rule(): NamedRuleStatus {
  const times = { windowMs: 1000, opensInMs: 0, freshInMs: 0 };
  return { kind: 'bucket', name: 'api', quota: 5, remaining: 5, ...times };
}
