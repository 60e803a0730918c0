import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Chart, Point, SeriesStyle } from './chart.ts';
import { drawChart, drawStack, horizontalBar } from './terminal.ts';

const demand = { name: 'demand', style: 'shade', points: [[1, 100]] } as const;
const sent = {
  name: 'sent',
  style: 'bars',
  points: [
    [1, 10],
    [2, 50],
    [3, 100],
  ],
} as const;

const chart: Chart = {
  title: 'a recovery',
  x: { label: 's', from: 1, to: 4 },
  y: { label: 'calls/s', from: 0, to: 100 },
  series: [demand, sent],
  phases: [
    { name: 'busy', from: 1, to: 3 },
    { name: 'ok', from: 3, to: 4 },
  ],
};

const only = (style: SeriesStyle, points: readonly Point[], to = 4): Chart => ({
  title: '',
  x: { label: 's', from: 1, to },
  y: { label: '', from: 0, to: 8 },
  series: [{ name: '', style, points }],
});

/** The plot of a chart one row high: a character for every second. */
const line = (drawn: Chart): string =>
  drawChart(drawn, { columns: drawn.x.to + 2, rows: 1 })[2].slice(3);

describe('terminal chart', () => {
  test('has a title, a legend, axes and phases', () => {
    expect(drawChart(chart, { columns: 26, rows: 4 })).toEqual([
      'a recovery',
      'calls/s  █ sent  ░ demand',
      '100 ┤░░░░░░░░░░░░░░███████',
      '    │░░░░░░░░░░░░░░███████',
      ' 50 ┤░░░░░░░██████████████',
      '    │▃▃▃▃▃▃▃██████████████',
      '  0 ┼┬──────┬──────┬──────',
      '  s  1      2      3',
      '     ├─── busy ───┤├ ok ─┤',
    ]);
  });

  test('every second has the same width at any number of columns', () => {
    for (const columns of [20, 21, 22]) {
      const [, , top] = drawChart(chart, { columns, rows: 4 });
      expect(top).toBe('100 ┤░░░░░░░░░░█████');
    }
  });

  test('a bar is filled by eighths, and a value above 0 is visible', () => {
    const rising = [1, 2, 3, 4, 5, 6, 7, 8].map((n): Point => [n, n]);
    expect(line(only('bars', [[0, 0], ...rising], 9))).toBe('▁▂▃▄▅▆▇█');
    expect(line(only('bars', [[1, 0.001]], 11))).toBe('▁▁▁▁▁▁▁▁▁▁');
    expect(line(only('bars', [[1, 0]], 11))).toBe('');
  });

  test('a value holds until the next one, with a gap where there is no value', () => {
    const points: Point[] = [
      [2, 8],
      [5, undefined],
      [8, 8],
    ];
    expect(line(only('bars', points, 11))).toBe(' ███   ███');
  });

  test('a column with many values shows the highest', () => {
    const points = Array.from({ length: 1000 }, (_, n): Point => [1 + n / 100, n === 555 ? 8 : 1]);
    expect(line(only('bars', points, 11))).toBe('▁▁▁▁▁█▁▁▁▁');
  });

  // From second 1 on, twenty tenths of a second end at 3.0000000000000004.
  test('a second starts in its own column despite floating-point noise', () => {
    const points: Point[] = [
      [1, 1],
      [3, 8],
    ];
    const [, , row] = drawChart(only('bars', points), { columns: 33, rows: 1 });
    expect(row.slice(3)).toBe('▁'.repeat(20) + '█'.repeat(10));
  });

  test('a title that is too long is truncated with an ellipsis', () => {
    const [title] = drawChart({ ...chart, title: 'a very long title' }, { columns: 12, rows: 1 });
    expect(title).toBe('a very long…');
  });

  test('a line is drawn over bars, and bars over shade, in any order of series', () => {
    const series = [
      { name: '', style: 'line', points: [[3, 8]] },
      { name: '', style: 'bars', points: [[2, 8]] },
      { name: '', style: 'shade', points: [[1, 8]] },
    ] as const;
    expect(line({ ...only('bars', [], 11), series })).toBe('░█━━━━━━━━');
  });

  test('log axis: 1, 10 and 100 have different heights', () => {
    const y = { label: '', from: 0, to: 100, scale: 'log' } as const;
    const heights = [1, 10, 100].map((value) => {
      const drawn = drawChart({ ...only('bars', [[1, value]]), y }, { columns: 40, rows: 8 });
      return drawn.slice(2).filter((text) => text.includes('█')).length;
    });
    expect(heights).toEqual([1, 4, 8]);

    const labels = drawChart({ ...only('bars', []), y }, { columns: 40, rows: 8 });
    expect(labels.join('\n').match(/\d+ [┤┼]/g)).toEqual(['100 ┤', '10 ┤', '1 ┤', '0 ┼']);
  });

  test('stacked charts have one legend and one x axis label', () => {
    const text = drawStack([chart, chart], { columns: 26, rows: 4 }).join('\n');
    expect(text.match(/a recovery/g)).toHaveLength(2);
    expect(text.match(/█ sent/g)).toHaveLength(1);
    expect(text.match(/ {2}s {2}1/g)).toHaveLength(1);
  });

  test('never exceeds its size for any data', () => {
    const points = fc.array(
      fc.tuple(
        fc.double({ min: 0, max: 100, noNaN: true }),
        fc.option(fc.double({ min: -1e6, max: 1e6, noNaN: true }), { nil: undefined }),
      ),
    );
    fc.assert(
      fc.property(
        points,
        fc.constantFrom<SeriesStyle>('shade', 'bars', 'line'),
        fc.integer({ min: 20, max: 200 }),
        fc.integer({ min: 1, max: 20 }),
        (unsorted, style, columns, rows) => {
          const sorted = unsorted.toSorted(([a], [b]) => a - b);
          const lines = drawChart(only(style, sorted, 60), { columns, rows });
          expect(Math.max(...lines.map((text) => text.length))).toBeLessThanOrEqual(columns);
          expect(lines).toHaveLength(rows + 4);
        },
      ),
    );
  });
});

describe('horizontal bar', () => {
  test('is dark for the used part and light for the rest', () => {
    expect(horizontalBar(5, 10, 20, 8)).toBe('██░░');
    expect(horizontalBar(20, 20, 20, 8)).toBe('████████');
    expect(horizontalBar(1, 20, 20, 8)).toBe('▍░░░░░░░');
    expect(horizontalBar(0, 0, 0, 8)).toBe('');
    expect(horizontalBar(5, 5, 0, 8)).toBe('');
  });
});
