/** Headers: what each rule looks like to a client. */

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

/** The two headers of a limit after so many calls, at an instant. */
function said(limit: Limit, calls = 0, name = 'api'): string[] {
  const api = limiter({ limit, name, clock: new VirtualClock() });
  for (let n = 0; n < calls; n++) api.tryAcquire('k');
  const headers = new HeaderWriter('draft').write(api.inspect('k').rules);
  return [headers['RateLimit-Policy'], headers.RateLimit];
}

describe('a limit says', () => {
  test('a bucket: how much it holds, and when it is full again', () => {
    const limit = { bucket: { rate: '10/s', burst: 100 } };
    expect(said(limit)).toEqual(['"api";q=100;w=10', '"api";r=100;t=0']);
    expect(said(limit, 25)).toEqual(['"api";q=100;w=10', '"api";r=75;t=3']);
    expect(said(limit, 100)).toEqual(['"api";q=100;w=10', '"api";r=0;t=1']);
  });

  test('spacing: one, and when the next', () => {
    expect(said({ spacing: { every: '6s' } }, 1)).toEqual(['"api";q=1;w=6', '"api";r=0;t=6']);
    expect(said({ spacing: { every: '100ms' } })[0]).toBe('"api";q=10;w=1');
    expect(said({ spacing: { every: '1500ms' } })[0]).toBe('"api";q=1;w=2');
  });

  test('calls in flight: how many at once, and no time', () => {
    expect(said({ concurrency: 3 }, 1)).toEqual([
      '"api";q=3;qu="concurrent-requests"',
      '"api";r=2',
    ]);
  });

  test('several: each by its name, in the order they were written', () => {
    const limit = {
      all: [{ bucket: { rate: '1/s', burst: 5 } }, { bucket: { rate: '100/h' } }],
    };
    expect(said(limit, 1)).toEqual([
      '"api.bucket";q=5;w=5, "api.bucket-2";q=100;w=3600',
      '"api.bucket";r=4;t=1, "api.bucket-2";r=99;t=36',
    ]);
  });

  test('something that never fits: no time', () => {
    const never = { ...rule(), remaining: 0, opensInMs: Infinity };
    expect(new HeaderWriter('draft').write([never]).RateLimit).toBe('"api";r=0');
  });

  test('a window of less than a second by the second', () => {
    const terms = (windowMs: number) =>
      new HeaderWriter('draft').write([{ ...rule(), quota: 1, windowMs }])['RateLimit-Policy'];
    expect([0.01, 999, 1000, 1001].map(terms)).toEqual([
      ...['"api";q=100000;w=1', '"api";q=1;w=1', '"api";q=1;w=1', '"api";q=1;w=2'],
    ]);
  });

  test('nothing of a rule that has no quota yet, until it has heard that there is one', () => {
    const api = limiter({ limit: { busy: {} }, name: 'api', clock: new VirtualClock() });
    const headers = () => new HeaderWriter('both').write(api.inspect('k').rules);
    expect(headers()).toEqual({});
    api.check('k');
    api.settle('k', { outcome: 'busy' });
    expect(headers()).toMatchObject({ 'X-RateLimit-Remaining': '0', RateLimit: '"api";r=0;t=1' });
    const limit = { all: [{ busy: {} }, { bucket: { rate: '1/s', burst: 5 } }] };
    expect(said(limit, 1)).toEqual(['"api.bucket";q=5;w=5', '"api.bucket";r=4;t=1']);
  });

  test('nothing, if there is nothing to say', () => {
    expect(new HeaderWriter('both').write([])).toEqual({});
  });
});

test('a quota or a name that changes is told anew', () => {
  const writer = new HeaderWriter('draft');
  const policy = (quota: number) => writer.write([{ ...rule(), quota }])['RateLimit-Policy'];
  expect([policy(5), policy(5), policy(4)]).toEqual([
    '"api";q=5;w=1',
    '"api";q=5;w=1',
    '"api";q=4;w=1',
  ]);
  expect(writer.write([{ ...rule(), name: 'db' }]).RateLimit).toBe('"db";r=5;t=0');
});

test('in the old words, the tightest rule speaks for all', () => {
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

test('a name is quoted, whatever it is', () => {
  expect(quoteString('say "hi" \\o/')).toBe('"say \\"hi\\" \\\\o/"');
  expect(quoteString('line\r\nSet-Cookie: x')).toBe('"line??Set-Cookie: x"');
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (name) => {
      expect(quoteString(name)).toMatch(/^"(?:[ !#-[\]-~]|\\["\\])*"$/);
    }),
  );
});

test('whatever the figures, only whole numbers of at most fifteen digits are written', () => {
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

describe('where something is said already', () => {
  const OF: HeaderAccessor<HeaderValues> = {
    get: (headers, name) => headers[name],
    set: (headers, name, value) => {
      headers[name] = value;
    },
    remove: (headers, name) => {
      delete headers[name];
    },
  };
  const merged = (before: HeaderValues, own: HeaderValues, place?: ListPosition): HeaderValues => {
    const response = { ...before };
    mergeHeaders(OF, response, own, place);
    return response;
  };
  const legacy = (limit: number, remaining: number, reset?: number): HeaderValues => ({
    'X-RateLimit-Limit': String(limit),
    'X-RateLimit-Remaining': String(remaining),
    ...(reset !== undefined && { 'X-RateLimit-Reset': String(reset) }),
  });

  test('lists tell of both, in the order they are asked in', () => {
    const both = (place?: ListPosition) =>
      merged({ RateLimit: '"a";r=1' }, { RateLimit: '"b";r=2' }, place);
    expect(both()).toEqual({ RateLimit: '"a";r=1, "b";r=2' });
    expect(both('first')).toEqual({ RateLimit: '"b";r=2, "a";r=1' });
  });

  test('what is in a list is not said again; what only looks alike is', () => {
    const list = (before: string, own: string) => merged({ RateLimit: before }, { RateLimit: own });
    expect(list('"a";r=1, "b";r=2', '"b";r=2')).toEqual({ RateLimit: '"a";r=1, "b";r=2' });
    expect(list('"api";r=10', '"api";r=1')).toEqual({ RateLimit: '"api";r=10, "api";r=1' });
    expect(list('"x, \\"b\\";r=2";r=1', '"b";r=2')).toEqual({
      RateLimit: '"x, \\"b\\";r=2";r=1, "b";r=2',
    });
  });

  test('the old words are those of the tighter, all of them', () => {
    expect(merged(legacy(9, 3, 1), legacy(5, 4, 9))).toEqual(legacy(9, 3, 1));
    expect(merged(legacy(9, 5, 1), legacy(5, 4, 9))).toEqual(legacy(5, 4, 9));
    expect(merged(legacy(9, 4, 1), legacy(5, 4, 9))).toEqual(legacy(5, 4, 9)); // for longer
    expect(merged(legacy(9, 4, 9), legacy(5, 4, 1))).toEqual(legacy(9, 4, 9));
    expect(merged(legacy(9, 4, 9), legacy(5, 0))).toEqual(legacy(5, 0));
    expect(merged({ 'X-RateLimit-Remaining': 'many' }, legacy(5, 4, 1))).toEqual(legacy(5, 4, 1));
  });

  test('everything else is said anew', () => {
    expect(merged({ 'Retry-After': '9' }, { 'Retry-After': '1' })).toEqual({ 'Retry-After': '1' });
  });
});

function rule(): NamedRuleStatus {
  const times = { windowMs: 1000, opensInMs: 0, freshInMs: 0 };
  return { kind: 'bucket', name: 'api', quota: 5, remaining: 5, ...times };
}
