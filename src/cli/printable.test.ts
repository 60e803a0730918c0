import { describe, expect, test } from 'vitest';
import { createLog } from '../core/log.ts';
import { toPrintable, toPrintableLine } from '../core/printable.ts';
import { controlLines } from './control.ts';
import { reportLines } from './top-report.ts';
import { whyLines } from './why-report.ts';

const range = (from: number, to: number): string =>
  Array.from({ length: to - from + 1 }, (_, n) => String.fromCharCode(from + n)).join('');

/** C0, DEL and C1 codes, line and paragraph separators, marks and overrides of the direction, invisible characters. */
const OBEYED = [
  ...[range(0x00, 0x1f), range(0x7f, 0x9f), '\u2028\u2029', '\u061c\u200e\u200f'],
  ...[range(0x202a, 0x202e), range(0x2066, 0x2069), '\u00ad\u200b\u200c\u200d\u2060\ufeff'],
].join('');

test('printable: every control character is escaped, in a line newlines and tabs too', () => {
  const escaped = toPrintableLine(OBEYED);
  expect(escaped).toMatch(/^(\\u[0-9a-f]{4})+$/);
  expect(JSON.parse(`"${escaped}"`)).toBe(OBEYED);
  expect(toPrintable(`a\n\tb${OBEYED.replace(/[\n\t]/g, '')}`)).toMatch(
    /^a\n\tb(\\u[0-9a-f]{4})+$/,
  );
  expect(toPrintableLine('user:zoë 日本 🙂')).toBe('user:zoë 日本 🙂');
});

describe('keys of clients are one line without control characters', () => {
  const key = `user:x${OBEYED}ip:10.9.9.9 ip 99,999`;
  const denied = [{ limit: 'u', denied: 1, keys: [{ key, denied: 1 }] }];
  const report = { at: 0, seconds: 1, span: 'now', spanSeconds: 10, limits: [] } as const;
  const called = [{ limit: 'u', calls: 1, keys: [{ key, calls: 1 }] }];
  const logged = (format: 'text' | 'json'): string[] => {
    const lines: string[] = [];
    const log = createLog(
      (line) => lines.push(line),
      () => ({ format, level: 'info' }),
      { now: () => 0, setTimer: () => () => {} } as never,
    );
    log('info', 'ban set', { key });
    return lines;
  };
  const pages = {
    explained: {
      summary: `counted as ${key}`,
      limits: [{ name: 'u', isApplied: true, rule: {}, reason: `matches ${key}` }],
    },
    inspected: { limits: [] },
    denied: { lastHours: [], denials: [] },
  };
  test.each([
    [
      'top, denied',
      () => textsOf(reportLines('', { ...report, denied, called }, 'denied', 9999, 99)),
    ],
    [
      'top, called',
      () => textsOf(reportLines('', { ...report, denied, called }, 'calls', 9999, 99)),
    ],
    ['why', () => whyLines(key, '1h', pages)],
    ['controls', () => controlLines([{ kind: 'ban', key, until: '', note: key }], 9999)],
    ['log as text', () => logged('text')],
    ['log as JSON', () => logged('json')],
  ])('%s', (_, linesOf) => {
    const lines = linesOf();
    expect(lines.join('')).toContain('ip:10.9.9.9');
    for (const line of lines) expect(line).not.toMatch(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u);
  });
});

const textsOf = (lines: readonly { readonly text: string }[]): string[] =>
  lines.map(({ text }) => text);

test('controls: a key of 900 characters does not widen the table', () => {
  const key = 'k'.repeat(900);
  const lines = controlLines([{ kind: 'ban', key, until: '', note: key }]);
  expect(Math.max(...lines.map(({ length }) => length))).toBeLessThan(160);
  expect(lines[1]).toContain(`${'k'.repeat(59)}…`);
});
