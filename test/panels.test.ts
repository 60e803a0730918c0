import { describe, expect, test } from 'vitest';

const { drawPanels } = await import(`${process.cwd()}/bench/real-servers/panels.mjs`);

const panel = {
  title: 'A & B',
  caption: 'falls to <one>',
  x: { label: 's', from: 0, to: 10 },
  rows: [
    {
      y: { label: 'calls', from: 0, to: 20 },
      series: [
        { name: 'in flight', style: 'bars', points: [[0, 10]] },
        { name: 'limit', style: 'line', points: [[0, 20]] },
      ],
    },
    {
      y: { label: 'ms', from: 0, to: 50 },
      series: [{ name: 'round trip', style: 'line', points: [[0, 25]] }],
    },
  ],
  markers: [
    { at: 2, name: 'slower' },
    { at: 9.5, name: 'recovered' },
  ],
};

const draw = (count: number): string =>
  drawPanels({ title: 'many', panels: new Array(count).fill(panel), notes: ['the same in all'] });

const heightOf = (svg: string): number => Number(/ height="(\d+)" role/.exec(svg)?.[1]);

/** The anchors of a text, from the left and from the top. */
const placesOf = (svg: string, words: string): [number, number][] =>
  [...svg.matchAll(/<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</g)]
    .filter(([, , , text]) => text === words)
    .map(([, x, y]) => [Number(x), Number(y)]);

describe('SVG panels of the benchmark with real servers', () => {
  test('are arranged in two columns', () => {
    expect(placesOf(draw(3), 'A &amp; B')).toEqual([
      [20, 70],
      [460, 70],
      [20, 370],
    ]);
  });

  test('an odd number of panels: one legend in the free cell', () => {
    const svg = draw(3);
    expect(placesOf(svg, 'limit, calls')).toEqual([[538, 450]]);
    expect(placesOf(svg, 'the same in all')).toHaveLength(1);
    expect(heightOf(svg)).toBe(heightOf(draw(4)) - (heightOf(draw(2)) - heightOf(draw(1))));
  });

  test('an even number of panels: the legend is below all panels', () => {
    const [[, top]] = placesOf(draw(2), 'limit, calls');
    expect(top).toBeGreaterThan(heightOf(draw(1)));
    expect(top).toBeLessThan(heightOf(draw(2)));
  });

  test('every series has its own colour over all rows', () => {
    const strokes = [...draw(1).matchAll(/fill="none" stroke="([^"]+)"/g)].map(
      ([, colour]) => colour,
    );
    expect(new Set(strokes).size).toBe(2);
  });

  test('a marker is labelled on its right, or on its left if that does not fit', () => {
    const svg = draw(1);
    // 0 to 10 seconds are 64 to 430 from the left.
    expect(placesOf(svg, 'slower')).toEqual([[142.2, 112]]);
    expect(placesOf(svg, 'recovered')).toEqual([[406.7, 112]]);
    expect(svg).toMatch(/text-anchor="end">recovered/);
  });

  test('text is escaped, and no number is NaN', () => {
    expect(draw(1)).toContain('falls to &lt;one&gt;');
    expect(draw(1)).not.toMatch(/href|NaN|Infinity|undefined/);
    expect(drawPanels({ title: '', panels: [], notes: [] })).not.toMatch(/NaN|undefined/);
  });
});
