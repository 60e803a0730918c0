/** Keys: which are called and denied most, nearest to their limits and throttled for longest; and why one is throttled. */

import { useEffect, useState } from 'preact/hooks';
import { type MostCalledKey, mostCalledKeys } from '../../src/daemon/calls/most-called-keys.ts';
import type { SourceName } from '../../src/daemon/key-counts/sources.ts';
import {
  type Denial,
  type Explanation,
  get,
  type KeyStatus,
  type Keys,
  query,
  RequestError,
  type Top,
} from './api.ts';
import { type ActionRunner, KeyActions } from './controls.tsx';
import type { Span } from './data.ts';
import { causeText, clockTime, duration, ruleText, short } from './format.ts';
import { Badge, Choice, KeyLink, Section, Table, Use } from './parts.tsx';

const MAX_ROWS = 8;

const By = (cause: Partial<SourceName>) => (
  <>
    {causeText(cause)}
    {cause.shadow && (
      <>
        {' '}
        <Badge kind="plain">shadow</Badge>
      </>
    )}
  </>
);

const withError = (value: number, error: number | undefined): string =>
  `${short(value)}${error ? ` ± ${short(error)}` : ''}`;

/** The limits that the calls of a key meet. */
const Sources = ({ sources }: Pick<MostCalledKey, 'sources'>) => (
  <>
    {sources.map((source, n) => (
      <span key={n}>
        {n > 0 && ', '}
        <By {...source} />
      </span>
    ))}
  </>
);

export function KeyLists(props: {
  readonly top: Top;
  readonly keys: Keys;
  readonly span: Span;
  readonly onSpan: (span: Span) => void;
  readonly onOpen: (key: string) => void;
}) {
  const { top, keys, span, onSpan, onOpen } = props;
  const link = (key: string) => <KeyLink name={key} onOpen={onOpen} />;
  const mostDenied = top.denied
    .flatMap((source) => source.keys.map((key) => ({ ...source, ...key })))
    .sort((a, b) => b.denied - a.denied)
    .slice(0, MAX_ROWS);
  return (
    <>
      <Choice
        label="Span of the keys that are called and denied most"
        options={[
          ['now', 'last 20 s'],
          ['hour', 'last hours'],
        ]}
        value={span}
        onChange={onSpan}
      />
      <div class="columns">
        <div>
          <h3>Hottest</h3>
          <Table
            caption="Keys with most calls"
            head={['key', 'limit', 'calls/s']}
            rows={mostCalledKeys(top.called)
              .slice(0, MAX_ROWS)
              .map(({ key, sources, calls, error }) => [
                link(key),
                <Sources sources={sources} />,
                withError(calls / top.spanSeconds, error && error / top.spanSeconds),
              ])}
            empty="No call was checked."
            numbersFrom={2}
          />
        </div>
        <div>
          <h3>Denied most</h3>
          <Table
            caption="Keys with most denied calls"
            head={['key', 'by', 'denied']}
            rows={mostDenied.map((each) => [
              link(each.key),
              <By {...each} />,
              withError(each.denied, each.error),
            ])}
            empty="No call was denied."
            numbersFrom={2}
          />
        </div>
        <div>
          <h3>Nearest to the limit</h3>
          <Table
            caption="Keys nearest to their limits"
            head={['key', 'limit', 'use', 'left']}
            rows={keys.nearest
              .slice(0, MAX_ROWS)
              .map((each) => [
                each.key === '(all keys)' ? each.key : link(each.key),
                <By {...each} />,
                <Use value={each.use} label={`use of ${each.limit} by ${each.key}`} />,
                short(Math.floor(each.remaining)),
              ])}
            empty="No known key uses a limit."
            numbersFrom={3}
          />
        </div>
        <div>
          <h3>Throttled for longest</h3>
          <Table
            caption="Keys that are throttled for longest"
            head={['key', 'by', 'for', 'denied']}
            rows={keys.longest
              .slice(0, MAX_ROWS)
              .map((each) => [
                link(each.key),
                <By {...each} />,
                duration(keys.at - each.since),
                short(each.denied),
              ])}
            empty="No key is throttled."
            numbersFrom={2}
          />
        </div>
      </div>
    </>
  );
}

interface Found {
  readonly explanation: Explanation;
  readonly statuses: readonly KeyStatus[];
  readonly denials: readonly Denial[];
}

/** Asks again with every poll of the page, so that it shows when the key opens. */
function useFound(key: string, at: number): { found?: Found; problem?: string } {
  const [state, setState] = useState<{ key: string; found?: Found; problem?: string }>({ key: '' });
  useEffect(() => {
    if (key === '') return;
    let isOver = false;
    const read = async (): Promise<void> => {
      const parameters = query({ key });
      try {
        const [explanation, { limits: statuses }, { denials }] = await Promise.all([
          get<Explanation>(`explain?${parameters}`),
          get<{ limits: readonly KeyStatus[] }>(`inspect?${parameters}`),
          get<{ denials: readonly Denial[] }>(`denials?${parameters}&max=20`),
        ]);
        if (!isOver) setState({ key, found: { explanation, statuses, denials } });
      } catch (error) {
        const problem = error instanceof RequestError ? error.message : String(error);
        if (!isOver) setState({ key, problem });
      }
    };
    void read();
    return () => {
      isOver = true;
    };
  }, [key, at]);
  return state.key === key ? state : {};
}

export function KeySearch(props: {
  readonly selected: string;
  readonly at: number;
  readonly onOpen: (key: string) => void;
  readonly actions: ActionRunner | undefined;
}) {
  const { selected, at, onOpen, actions } = props;
  const [typed, setTyped] = useState(selected);
  useEffect(() => setTyped(selected), [selected]);
  const { found, problem } = useFound(selected, at);
  return (
    <>
      <search>
        <form
          class="search"
          onSubmit={(event) => {
            event.preventDefault();
            onOpen(typed);
          }}
        >
          <label for="key">Key</label>
          <input
            id="key"
            type="search"
            value={typed}
            placeholder="such as ip:192.0.2.7"
            autocomplete="off"
            spellcheck={false}
            onInput={({ currentTarget }) => setTyped(currentTarget.value)}
          />
          <button type="submit">Explain</button>
        </form>
      </search>
      <div aria-live="polite">{selected !== '' && problem && <p class="problem">{problem}</p>}</div>
      {selected !== '' && found && <KeyReport name={selected} found={found} actions={actions} />}
    </>
  );
}

/** Whether a call would be allowed now, in one line. */
function verdictOf({ explanation, statuses }: Found): readonly ['good' | 'bad', string] {
  if (/^(?:always denied|denied until)/.test(explanation.summary)) return ['bad', 'denied now'];
  const isShadow = (name: string): boolean =>
    explanation.limits.some((limit) => limit.name === name && limit.shadow);
  const closed = statuses.find(({ name, by }) => by !== undefined && !isShadow(name));
  if (!closed) return ['good', 'a call is allowed now'];
  const opens = duration(closed.opensInMs);
  return [
    'bad',
    `denied now by ${closed.by}; a call fits ${opens.startsWith('when') ? opens : `in ${opens}`}`,
  ];
}

function KeyReport(props: {
  readonly name: string;
  readonly found: Found;
  readonly actions: ActionRunner | undefined;
}) {
  const { name, found, actions } = props;
  const { explanation, statuses, denials } = found;
  const [kind, verdict] = verdictOf(found);
  const statusOf = new Map(statuses.map((status) => [status.name, status]));
  const applied = explanation.limits.filter(({ isApplied }) => isApplied);
  const others = explanation.limits.filter(({ isApplied }) => !isApplied);
  return (
    <article class="report" aria-label={`Key ${name}`}>
      <h3>
        <code>{name}</code> <Badge kind={kind}>{verdict}</Badge>
      </h3>
      <p>{explanation.summary}.</p>
      <Table
        caption={`Limits of ${name}`}
        head={['limit', 'rule', 'why it applies', 'use', 'left', 'a call fits']}
        rows={applied.map(({ name: limit, shadow, rule, reason }) => {
          const status = statusOf.get(limit);
          const uses = (status?.rules ?? [])
            .filter(({ quota }) => quota > 0)
            .map(({ quota, remaining }) => 1 - remaining / quota);
          const use = uses.length > 0 ? Math.max(...uses) : undefined;
          const opens = status?.isAvailable === false ? 'unknown' : duration(status?.opensInMs);
          return [
            limit,
            ruleText(rule),
            <>
              {reason} {shadow && <Badge kind="plain">shadow</Badge>}
            </>,
            <Use
              value={use === undefined ? undefined : Math.min(1, Math.max(0, use))}
              label={`use of ${limit}`}
            />,
            short(status?.remaining),
            opens === '0 ms' ? 'now' : opens,
          ];
        })}
        empty="No limit counts this key."
        numbersFrom={4}
      />
      {others.length > 0 && (
        <details>
          <summary>{others.length} limits do not apply</summary>
          <ul>
            {others.map(({ name: limit, reason }) => (
              <li key={limit}>
                <b>{limit}</b>: {reason}
              </li>
            ))}
          </ul>
        </details>
      )}
      <h4>Recent denials</h4>
      <Table
        caption={`Recent denials of ${name}`}
        head={['from', 'to', 'by', 'rule', 'denied', 'cost', 'left', 'fits in']}
        rows={denials.map((denial) => [
          clockTime(denial.firstAt),
          clockTime(denial.lastAt),
          <By {...denial} />,
          denial.rule ?? '',
          short(denial.denied),
          short(denial.cost),
          short(denial.remaining),
          duration(denial.retryAfterMs),
        ])}
        empty="None in the last hour."
        numbersFrom={4}
      />
      {actions && (
        <KeyActions
          key={name}
          name={name}
          run={actions}
          limits={applied.map(({ name: limit }) => limit)}
        />
      )}
    </article>
  );
}

const KEYS_NOTE =
  'Tables of limits hold hashes, not names. The lists know keys that are called most or were denied; other keys are found by search.';

export function KeysSection(
  props: Parameters<typeof KeyLists>[0] & Parameters<typeof KeySearch>[0],
) {
  return (
    <Section id="keys" title="Keys" note={KEYS_NOTE}>
      <KeySearch {...props} />
      <KeyLists {...props} />
    </Section>
  );
}
