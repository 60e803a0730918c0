/** What each limit does: calls, use of the limit, and what adaptive limits and ramps have learnt. */

import type { History, LimitHistory } from './api.ts';
import { Chart } from './chart.tsx';
import { percent, ruleText, short } from './format.ts';
import { Badge, Section, Table, Use } from './parts.tsx';

const last = (limit: LimitHistory, name: string): number | null | undefined =>
  limit.series[name]?.at(-1);

export const callLines = (series: LimitHistory['series']) => [
  { label: 'allowed', values: series.allowed, color: '--allowed', isFilled: true },
  { label: 'waited', values: series.waited, color: '--waited', dash: [6, 4] },
  { label: 'denied', values: series.denied, color: '--denied' },
];

/** The state of the backend that decides. */
function Reachability({ backends, isAvailable, fallback = 0 }: LimitHistory) {
  const names = backends.length > 0 ? backends.join(' + ') : 'local';
  if (isAvailable === undefined) return <span>{names}</span>;
  if (!isAvailable) return <Badge kind="bad">{names} unavailable</Badge>;
  return (
    <Badge kind="good">
      {names} reachable{fallback > 0 && `, ${short(fallback)} by fallback`}
    </Badge>
  );
}

export function Limits(props: {
  readonly history: History;
  readonly spanMs: number;
  readonly selected: string;
  readonly onSelect: (name: string) => void;
}) {
  const { history, spanMs, selected, onSelect } = props;
  const { limits, times, omittedLimits } = history;
  const limit = limits.find(({ name }) => name === selected) ?? limits[0];
  const rows = limits.map((each) => [
    <button
      type="button"
      class="link"
      aria-pressed={each === limit}
      onClick={() => onSelect(each.name)}
    >
      {each.name}
    </button>,
    <span class="rule">
      {each.shadow && <Badge kind="plain">shadow</Badge>} {ruleText(each.rule)}
      {each.per === 'limit' && ', one count for all keys'}
    </span>,
    <Reachability {...each} />,
    <Use value={last(each, 'use')} label={`use of ${each.name}`} />,
    short(last(each, 'allowed')),
    short(last(each, 'waited')),
    short(last(each, 'denied')),
    short(each.waiting),
    short(each.keys),
  ]);
  const note =
    'Use: of the key that is nearest to the limit, among the keys whose names the daemon knows. Select a limit to see its charts.';
  return (
    <Section id="limits" title="Limits" note={note}>
      <Table
        caption="Limits"
        head={[
          ...['limit', 'rule', 'backend', 'use', 'allowed/s', 'waited/s', 'denied/s', 'waiting'],
          'keys',
        ]}
        rows={rows}
        empty="The daemon has taken no sample yet: the first comes after 5 s."
        numbersFrom={4}
      />
      {omittedLimits > 0 && (
        <p class="muted">{omittedLimits} further limits have no history of their own.</p>
      )}
      {limit && <LimitCharts limit={limit} times={times} spanMs={spanMs} />}
    </Section>
  );
}

function LimitCharts(props: {
  readonly limit: LimitHistory;
  readonly times: readonly number[];
  readonly spanMs: number;
}) {
  const { limit, times, spanMs } = props;
  const { series, name, learntKey } = limit;
  const common = { times, spanMs, height: 170 };
  const ofKey = learntKey === undefined ? '' : `, key ${learntKey}`;
  return (
    <div class="charts" key={name}>
      <Chart {...common} title={`${name}: calls`} unit="/s" lines={callLines(series)} />
      {series.use && (
        <Chart
          {...common}
          title={`${name}: use of the limit`}
          unit="%"
          min={100}
          lines={[
            {
              label: 'use',
              values: series.use.map((value) => (value === null ? null : value * 100)),
              color: '--accent',
              isFilled: true,
            },
          ]}
        />
      )}
      {series.limit && (
        <Chart
          {...common}
          title={`${name}: learnt limit and round-trip time${ofKey}`}
          unit=""
          rightUnit="ms"
          lines={[
            { label: 'limit', values: series.limit, color: '--accent' },
            { label: 'in flight', values: series.inFlight, color: '--allowed', isFilled: true },
            {
              label: 'round-trip time',
              values: series.rttMs,
              color: '--waited',
              dash: [6, 4],
              isRight: true,
            },
          ]}
        />
      )}
      {series.tokens && (
        <Chart
          {...common}
          title={`${name}: ramp tokens${ofKey}`}
          unit="/s"
          lines={[{ label: 'tokens', values: series.tokens, color: '--accent', isFilled: true }]}
        />
      )}
    </div>
  );
}

/** What limits in shadow mode would change: calls that were allowed, and would have been denied. */
export function Shadow({ history, spanMs }: { readonly history: History; spanMs: number }) {
  const shadows = history.limits.filter(({ shadow }) => shadow);
  if (shadows.length === 0) return null;
  const rows = shadows.map((limit) => {
    const { allowed = 0, denied = 0 } = limit.totals ?? {};
    const all = allowed + denied;
    return [
      limit.name,
      ruleText(limit.rule),
      short(all),
      short(denied),
      all === 0 ? '–' : percent(denied / all),
      short(last(limit, 'denied')),
    ];
  });
  const note =
    'A limit in shadow mode refuses nothing. “Would flip” counts calls that were allowed and that it would have denied.';
  return (
    <Section id="shadow" title="Shadow beside live" note={note}>
      <Table
        caption="Limits in shadow mode"
        head={['limit', 'rule', 'calls seen', 'would flip', 'share', 'would flip/s']}
        rows={rows}
        empty=""
        numbersFrom={2}
      />
      <div class="charts">
        {shadows.map(({ name, series }) => (
          <Chart
            key={name}
            title={`${name}: live against shadow`}
            unit="/s"
            times={history.times}
            spanMs={spanMs}
            height={150}
            lines={[
              { label: 'allowed live', values: sumOf(series), color: '--allowed', isFilled: true },
              { label: 'would be denied', values: series.denied, color: '--denied', dash: [6, 4] },
            ]}
          />
        ))}
      </div>
    </Section>
  );
}

/** Every call that a limit in shadow mode counts was allowed. */
const sumOf = ({ allowed = [], denied = [] }: LimitHistory['series']) =>
  allowed.map((value, n) => (value === null ? null : value + (denied[n] ?? 0)));
