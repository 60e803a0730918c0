/** What both limits did: charts of the same scale, and a table. */

import type { Settings } from '../../../src/simulator/playground/fields.ts';
import type { RunResult, Totals } from '../../../src/simulator/playground/recorder.ts';
import type { PlaygroundResult } from '../../../src/simulator/playground/run.ts';
import { capacityOf } from '../../../src/simulator/playground/server.ts';
import { Chart, type Line } from '../chart.tsx';
import { percent, short } from '../format.ts';
import { Table } from '../parts.tsx';

const DASH = [6, 4];
const DOTS = [2, 4];

type Name = keyof RunResult['series'];

function linesOf({ a, b }: PlaygroundResult, name: Name, label: string): Line[] {
  return [
    { label: `A ${label}`.trim(), values: a.series[name], color: '--side-a' },
    { label: `B ${label}`.trim(), values: b.series[name], color: '--side-b' },
  ];
}

/** A value that does not change, such as the knee. */
const level = ({ times }: PlaygroundResult, label: string, value: number): Line => ({
  label,
  values: times.map(() => value),
  color: '--muted',
  dash: DOTS,
});

const dashed = (lines: readonly Line[]): Line[] => lines.map((line) => ({ ...line, dash: DASH }));

/** A time in milliseconds, short. */
const time = (ms: number | null): string =>
  ms === null ? '–' : ms >= 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${short(ms)} ms`;

export function Results(props: { readonly result: PlaygroundResult; readonly settings: Settings }) {
  const { result, settings } = props;
  const { a, b, times } = result;
  const seconds = settings.seconds as number;
  const common = { times, spanMs: seconds * 1000, height: 180, isRun: true };
  const rate = (count: number): string => `${short(count / seconds)}/s`;
  const both = (read: (totals: Totals) => string): string =>
    `A ${read(a.totals)}, B ${read(b.totals)}`;
  return (
    <>
      <div class="charts run">
        <Chart
          {...common}
          title="Allowed"
          unit="/s"
          summary={`on average ${both(({ allowed }) => rate(allowed))}, of ${rate(a.totals.offered)} offered`}
          lines={[
            {
              label: 'offered',
              values: a.series.offered,
              color: '--muted',
              isFilled: true,
              dash: DOTS,
            },
            ...linesOf(result, 'allowed', ''),
          ]}
        />
        <Chart
          {...common}
          title="Refused by the limit"
          unit="/s"
          summary={`on average ${both(({ refused }) => rate(refused))}`}
          lines={linesOf(result, 'refused', '')}
        />
        <Chart
          {...common}
          title="Completed by the server"
          unit="/s"
          summary={`on average ${both(({ completed }) => rate(completed))}; the server can serve ${short(capacityOf(settings))} a second`}
          lines={[
            ...linesOf(result, 'completed', ''),
            level(result, 'capacity', capacityOf(settings)),
          ]}
        />
        <Chart
          {...common}
          title="Waiting time in the limiter"
          unit="ms"
          summary={`p95 ${both(({ waitP95 }) => time(waitP95))}`}
          lines={[
            ...dashed(linesOf(result, 'waitP50', 'p50')),
            ...linesOf(result, 'waitP95', 'p95'),
          ]}
        />
        <Chart
          {...common}
          title="Round-trip time of the server"
          unit="ms"
          summary={`p95 ${both(({ rttP95 }) => time(rttP95))}`}
          lines={[...dashed(linesOf(result, 'rttP50', 'p50')), ...linesOf(result, 'rttP95', 'p95')]}
        />
        <Chart
          {...common}
          title="Calls in flight"
          unit=""
          summary={`on average ${both(({ inFlightMean }) => short(inFlightMean))}; knee ${settings.knee}`}
          lines={[
            ...linesOf(result, 'inFlight', ''),
            level(result, 'knee', settings.knee as number),
          ]}
        />
        {(a.series.learnt ?? b.series.learnt) && (
          <Chart
            {...common}
            title="What the limit has learnt"
            unit=""
            summary={`at the end A ${short(a.series.learnt?.at(-1))}, B ${short(b.series.learnt?.at(-1))}`}
            lines={linesOf(result, 'learnt', '')}
          />
        )}
      </div>
      <Summary {...{ result, settings }} />
    </>
  );
}

/** Allowed calls as a part of the offered ones, of some clients. */
function partOf({ offeredBy, allowedBy }: Totals, from: number, to?: number): string {
  const total = (counts: readonly number[]): number =>
    counts.slice(from, to).reduce((sum, count) => sum + count, 0);
  return total(offeredBy) === 0 ? '–' : percent(total(allowedBy) / total(offeredBy));
}

function Summary({ result, settings }: { result: PlaygroundResult; settings: Settings }) {
  const seconds = settings.seconds as number;
  const count = (n: number, of: number): string =>
    of === 0 ? '0' : `${short(n)} (${percent(n / of)})`;
  const rows: readonly (readonly [string, (totals: Totals) => string])[] = [
    ['calls offered', ({ offered }) => short(offered)],
    ['allowed', ({ allowed, offered }) => count(allowed, offered)],
    ['refused by the limit', ({ refused, offered }) => count(refused, offered)],
    ['refused by the server', ({ refusedByServer, offered }) => count(refusedByServer, offered)],
    ['timed out', ({ timedOut, offered }) => count(timedOut, offered)],
    ['completed in time', ({ completed }) => `${short(completed / seconds)}/s`],
    ['waiting time, p50', ({ waitP50 }) => time(waitP50)],
    ['waiting time, p95', ({ waitP95 }) => time(waitP95)],
    ['round-trip time, p50', ({ rttP50 }) => time(rttP50)],
    ['round-trip time, p95', ({ rttP95 }) => time(rttP95)],
    ['in flight, mean', ({ inFlightMean }) => short(inFlightMean)],
    ['in flight, most', ({ inFlightMax }) => short(inFlightMax)],
    ...(settings.traffic === 'hog'
      ? ([
          ['allowed calls of the hog', (totals: Totals) => partOf(totals, 0, 1)],
          ['allowed calls of the others', (totals: Totals) => partOf(totals, 1)],
        ] as const)
      : []),
    ['fairness of clients (Jain)', ({ fairness }) => fairness.toFixed(2)],
  ];
  return (
    <>
      <h3>The whole run</h3>
      <Table
        caption="Figures of the whole run"
        head={['', 'Limit A', 'Limit B']}
        rows={rows.map(([name, read]) => [name, read(result.a.totals), read(result.b.totals)])}
        empty=""
      />
    </>
  );
}
