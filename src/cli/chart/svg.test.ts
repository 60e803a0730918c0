import { describe, expect, test } from 'vitest';
import type { Chart } from './chart.ts';
import { drawSvg } from './svg.ts';

const chart: Chart = {
  title: 'limit <of> "A & B"',
  x: { label: 'time (s)', from: 0, to: 10 },
  y: { label: 'calls/s', from: 0, to: 100 },
  series: [
    { name: 'demand', style: 'shade', points: [[0, 100]] },
    {
      name: 'sent',
      style: 'line',
      points: [
        [0, 50],
        [4, undefined],
        [6, 100],
      ],
    },
  ],
  phases: [{ name: 'busy', from: 0, to: 4 }],
};

const svg = drawSvg({ title: "it's <b>", charts: [chart] });

/** Tags that are not closed, in order: XML parsers reject them. */
function unclosedTags(text: string): string[] {
  const open: string[] = [];
  for (const [, close, name, alone] of text.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
    if (close) expect(open.pop()).toBe(name);
    else if (!alone) open.push(name);
  }
  return open;
}

describe('SVG chart', () => {
  test('has axis labels, series names, phases and ticks', () => {
    for (const words of ['calls/s', 'time (s)', 'demand', 'sent', 'busy', '>100<']) {
      expect(svg).toContain(words);
    }
  });

  test('escapes text', () => {
    expect(svg).toContain('limit &lt;of&gt; &quot;A &amp; B&quot;');
    expect(svg).toContain('<title>it&apos;s &lt;b&gt;</title>');
    expect(svg).not.toContain('<b>');
    expect(unclosedTags(svg)).toEqual([]);
  });

  test('a line is drawn in steps, with a gap where there is no value', () => {
    const [, d] = /<path d="([^"]+)" fill="none" stroke="#d55e00"/.exec(svg) ?? [];
    // 0 to 10 are 64 to 836 from the left; 50 is half way up, and 100 at the top.
    expect(d).toBe('M64 266H372.8M527.2 106H836');
  });

  test('a curve is drawn as joined dots, with a gap where there is no value', () => {
    const points = [
      [0, 0],
      [5, 50],
      [6, undefined],
      [10, 100],
    ] as const;
    const curve = { name: 'measured', style: 'curve', points } as const;
    const drawn = drawSvg({ title: '', charts: [{ ...chart, series: [curve] }] });
    expect(drawn).toContain('d="M64 426L450 266M836 106" fill="none" stroke="#d55e00"');
    expect(drawn.match(/<circle /g)).toHaveLength(3);
    expect(drawn).toContain('<circle cx="450" cy="266"');
    expect(unclosedTags(drawn)).toEqual([]);
  });

  test('a shade is closed at the x axis', () => {
    expect(svg).toContain('d="M64 106H836V426H64Z"');
  });

  test('several charts are stacked', () => {
    const two = drawSvg({ title: 'two', charts: [chart, chart] });
    const heights = [...two.matchAll(/y="(\d+)"[^>]*>time \(s\)/g)].map(([, y]) => Number(y));
    expect(heights).toEqual([293, 555]);
    expect(unclosedTags(two)).toEqual([]);
  });

  test('has no external reference and no NaN', () => {
    expect(svg).not.toMatch(/href|url\(|@import|NaN|Infinity|undefined/);
    const empty = drawSvg({ title: '', charts: [{ ...chart, series: [] }] });
    expect(empty).not.toMatch(/NaN|undefined/);
  });

  test('dark mode: pale areas become dark, and text becomes light', () => {
    const [, dark = ''] = /@media \(prefers-color-scheme: dark\) {(.*)}<\/style>/.exec(svg) ?? [];
    const brightness = (colour: string): number =>
      Math.max(...(colour.match(/[0-9a-f]{2}/g) ?? []).map((part) => Number.parseInt(part, 16)));
    const darkOf = new Map(
      [...dark.matchAll(/\[(fill|stroke)="(#\w+)"] { \1: (#\w+) }/g)].map(
        ([, name, light, now]) => [`${name}="${light}"`, now],
      ),
    );
    const body = svg.slice(svg.indexOf('</style>'));
    const areas = [...body.matchAll(/fill="#\w+"(?=\/>)/g)].map(([fill]) => fill);
    const pale = areas.filter((fill) => brightness(fill.slice(6)) > 220);
    expect(pale.length).toBeGreaterThan(2); // page, band and shade
    for (const fill of pale)
      expect([fill, brightness(darkOf.get(fill) ?? '#ffffff')]).toEqual([
        fill,
        expect.toSatisfy((value: number) => value < 80),
      ]);
    const [, text = ''] = /svg { fill: (#\w+) }/.exec(dark) ?? [];
    expect(brightness(text)).toBeGreaterThan(200);
  });
});
