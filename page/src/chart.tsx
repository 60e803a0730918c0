/** A chart over time: uPlot with colours of the style sheet, a legend as text, and a summary for screen readers. */

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import type { Values } from './api.ts';
import { short } from './format.ts';

export interface Line {
  readonly label: string;
  readonly values: Values | undefined;
  /** A custom property of the style sheet, such as `--allowed`. */
  readonly color: string;
  readonly dash?: number[];
  readonly isFilled?: boolean;
  /** On the right axis, with its own scale. */
  readonly isRight?: boolean;
}

interface ChartProps {
  readonly title: string;
  readonly unit: string;
  readonly rightUnit?: string;
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  /** How much of the history is shown. */
  readonly spanMs: number;
  readonly height?: number;
  /** The scale ends here at least. */
  readonly min?: number;
  /** Times count from the start of a run, not from 1970. */
  readonly isRun?: boolean;
  /** For screen readers; default: the latest values. */
  readonly summary?: string;
}

/** A daemon that has just started has a short history: it fills the chart. */
const MIN_SPAN_S = 60;

const colorOf = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Counts changes between dark and light: colours have to be read again. */
function useScheme(): number {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const media = matchMedia('(prefers-color-scheme: dark)');
    const onChange = (): void => setChanges((n) => n + 1);
    media.addEventListener('change', onChange);
    return () => media.removeEventListener('change', onChange);
  }, []);
  return changes;
}

/** `1:20`, of a run. */
const runLabel = (seconds: number): string =>
  `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, '0')}`;

const timeLabel = (seconds: number, withSeconds: boolean): string => {
  const text = new Date(seconds * 1000).toTimeString();
  return text.slice(0, withSeconds ? 8 : 5);
};

export function Chart({
  title,
  unit,
  rightUnit = '',
  times,
  lines,
  spanMs,
  height = 200,
  min = 1,
  isRun = false,
  summary,
}: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [hovered, setHovered] = useState<number>();
  const scheme = useScheme();
  const shown = lines.filter(({ values }) => values !== undefined);
  const shape = shown.map(({ label }) => label).join();
  const end = (times.at(-1) ?? 0) / 1000;
  const data = useMemo((): uPlot.AlignedData => {
    return [times.map((at) => at / 1000), ...shown.map(({ values }) => [...(values ?? [])])];
  }, [times, shape]);
  const begin = isRun ? 0 : Math.min((times[0] ?? 0) / 1000, end - MIN_SPAN_S);
  const range = (): uPlot.Range.MinMax => [Math.max(begin, end - spanMs / 1000), end];
  const rangeNow = useRef(range);
  rangeNow.current = range;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const [text, grid] = [colorOf('--muted'), colorOf('--line')];
    const axis = { stroke: text, font: '12px system-ui, sans-serif' };
    const lineAxis = {
      ...axis,
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
    };
    const values = (_: uPlot, ticks: number[]): string[] => ticks.map(short);
    const fromZero = (_: uPlot, _low: number | null, high: number | null): uPlot.Range.MinMax => [
      0,
      Math.max(min, high ?? 0) * 1.08,
    ];
    const options: uPlot.Options = {
      width: element.clientWidth,
      height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: {
        x: { time: !isRun, range: () => rangeNow.current() },
        y: { range: fromZero },
        right: { range: fromZero },
      },
      axes: [
        {
          ...lineAxis,
          space: 70,
          size: 32,
          values: (_, ticks) => {
            const withSeconds = (ticks[1] ?? 60) - (ticks[0] ?? 0) < 60;
            return ticks.map((tick) => (isRun ? runLabel(tick) : timeLabel(tick, withSeconds)));
          },
        },
        { ...lineAxis, size: 52, values },
        ...(shown.some(({ isRight }) => isRight)
          ? [{ ...axis, scale: 'right', side: 1 as const, size: 52, grid: { show: false }, values }]
          : []),
      ],
      series: [
        {},
        ...shown.map(({ label, color, dash, isFilled, isRight }) => ({
          label,
          scale: isRight ? 'right' : 'y',
          stroke: colorOf(color),
          width: 2,
          points: { show: false },
          ...(dash && { dash }),
          ...(isFilled && { fill: `${colorOf(color)}22` }),
        })),
      ],
      hooks: { setCursor: [({ cursor }) => setHovered(cursor.idx ?? undefined)] },
    };
    const created = new uPlot(options, data, element);
    plot.current = created;
    const observer = new ResizeObserver(() =>
      created.setSize({ width: element.clientWidth, height }),
    );
    observer.observe(element);
    return () => {
      observer.disconnect();
      created.destroy();
      plot.current = undefined;
    };
  }, [shape, scheme, height, min]);

  useEffect(() => plot.current?.setData(data), [data, spanMs]);

  const index = hovered ?? times.length - 1;
  const valueText = ({ values, isRight }: Line): string =>
    `${short(values?.[index])} ${isRight ? rightUnit : unit}`.trim();
  const latest = shown.map((line) => `${line.label} ${valueText(line)}`).join(', ');
  const labelOf = (ms: number): string =>
    isRun ? runLabel(ms / 1000) : timeLabel(ms / 1000, true);
  return (
    <figure class="chart">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend">
          {shown.map((line) => (
            <li key={line.label}>
              <span class={`swatch ${line.color.slice(2)}${line.dash ? ' dashed' : ''}`} />
              {line.label} {(hovered !== undefined || !isRun) && <b>{valueText(line)}</b>}
            </li>
          ))}
          {hovered !== undefined && <li class="muted">at {labelOf(times[hovered] ?? 0)}</li>}
        </ul>
      </figcaption>
      <div
        ref={place}
        class="plot"
        role="img"
        aria-label={`${title}: ${summary ?? (latest || 'no samples yet')}`}
      />
    </figure>
  );
}
