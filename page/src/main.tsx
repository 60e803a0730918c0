/** The page: state of the whole, header, navigation and the order of the sections. */

import { type ComponentChildren, render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { get, type RequestError, savedToken, saveToken } from './api.ts';
import { Chart } from './chart.tsx';
import { Controls, useActions } from './controls.tsx';
import { type Snapshot, type Span, useLive } from './data.ts';
import { Fleet } from './fleet.tsx';
import { short } from './format.ts';
import { KeysSection } from './keys.tsx';
import { callLines, Limits, Shadow } from './limits.tsx';
import { Badge, Choice, Section } from './parts.tsx';
import { Playground } from './playground/playground.tsx';
import './style.css';

interface EffectiveConfig {
  readonly version: string;
  readonly config: unknown;
}

const SPANS = { '5': '5 min', '15': '15 min', '60': '1 h' } as const;
type Minutes = keyof typeof SPANS;

/** What a reload of the page, or a link to it, brings back. */
function useFragment(): [URLSearchParams, (name: string, value: string) => void] {
  const [text, setText] = useState(location.hash.slice(1));
  useEffect(() => {
    const onChange = (): void => setText(location.hash.slice(1));
    addEventListener('hashchange', onChange);
    return () => removeEventListener('hashchange', onChange);
  }, []);
  const fragment = new URLSearchParams(text);
  const set = (name: string, value: string): void => {
    const next = new URLSearchParams(location.hash.slice(1));
    next.set(name, value);
    history.replaceState(undefined, '', `#${next}`);
    setText(next.toString());
  };
  return [fragment, set];
}

/** Read once there is access. */
function useConfig(hasAccess: boolean): EffectiveConfig | undefined {
  const [config, setConfig] = useState<EffectiveConfig>();
  useEffect(() => {
    if (hasAccess) get<EffectiveConfig>('config').then(setConfig, () => setConfig(undefined));
  }, [hasAccess]);
  return config;
}

/** The playground needs nothing of the daemon: neither a token nor data. */
const PLAYGROUND = 'view=playground&';

function App() {
  const [fragment, setFragment] = useFragment();
  return fragment.get('view') === 'playground' ? (
    <>
      <Header isPlayground>{null}</Header>
      <main id="main" tabIndex={-1}>
        <Playground prefix={PLAYGROUND} file="./playground.html" />
      </main>
    </>
  ) : (
    <Daemon fragment={fragment} setFragment={setFragment} />
  );
}

function Daemon(props: {
  readonly fragment: URLSearchParams;
  readonly setFragment: (name: string, value: string) => void;
}) {
  const { fragment, setFragment } = props;
  const [token, setToken] = useState(savedToken());
  const [isPaused, setPaused] = useState(false);
  const [keySpan, setKeySpan] = useState<Span>('now');
  const live = useLive(keySpan, isPaused);
  const { snapshot, problem } = live;
  const config = useConfig(snapshot !== undefined);
  const actions = useActions(live.refresh);
  const span = fragment.get('span') ?? '';
  const minutes = span in SPANS ? (span as Minutes) : '15';
  const mayAct = token !== '' && snapshot?.state.needsToken === true;
  const useToken = (next: string): void => {
    saveToken(next);
    setToken(next);
    live.refresh();
  };
  return (
    <>
      <Header version={config?.version} hasSections={snapshot !== undefined}>
        <DaemonState
          snapshot={snapshot}
          problem={problem}
          isPaused={isPaused}
          onPause={() => setPaused(!isPaused)}
          onSignOut={mayAct ? () => useToken('') : undefined}
        />
      </Header>
      <main id="main" tabIndex={-1}>
        {problem && problem.status !== 401 && (
          <p class="problem" role="alert">
            {problem.message} {snapshot && 'The page shows what it read last.'}
          </p>
        )}
        {problem?.status === 401 ? (
          <TokenForm isWrong={token !== ''} onToken={useToken} />
        ) : !snapshot ? (
          !problem && <p>Reading the daemon…</p>
        ) : (
          <>
            <p class={actions.isProblem ? 'problem' : 'message'} role="status">
              {actions.message}
            </p>
            <Overview
              snapshot={snapshot}
              minutes={minutes}
              onMinutes={(value) => setFragment('span', value)}
            />
            <Limits
              history={snapshot.history}
              spanMs={Number(minutes) * 60_000}
              selected={fragment.get('limit') ?? ''}
              onSelect={(name) => setFragment('limit', name)}
            />
            <KeysSection
              top={snapshot.top}
              keys={snapshot.keys}
              span={keySpan}
              onSpan={setKeySpan}
              selected={fragment.get('key') ?? ''}
              at={snapshot.history.at}
              onOpen={(key) => {
                setFragment('key', key);
                document.getElementById('keys')?.scrollIntoView();
              }}
              actions={mayAct ? actions.run : undefined}
            />
            <Shadow history={snapshot.history} spanMs={Number(minutes) * 60_000} />
            <Controls
              controls={snapshot.controls}
              limits={snapshot.history.limits.map(({ name }) => name)}
              now={snapshot.history.at}
              isReadOnly={!snapshot.state.needsToken}
              actions={mayAct ? actions.run : undefined}
            />
            <Fleet
              peers={snapshot.peers}
              pool={snapshot.pool}
              groups={snapshot.groups}
              at={snapshot.history.at}
            />
            <Section
              id="config"
              title="Configuration in effect"
              note="With all defaults. Secrets are hidden."
            >
              <details>
                <summary>Show</summary>
                <pre tabIndex={0}>{JSON.stringify(config?.config, null, 2)}</pre>
              </details>
            </Section>
          </>
        )}
      </main>
    </>
  );
}

const SECTIONS = {
  overview: 'Overview',
  limits: 'Limits',
  keys: 'Keys',
  controls: 'Bans',
  fleet: 'Fleet',
  config: 'Configuration',
};

function Header(props: {
  readonly version?: string | undefined;
  readonly isPlayground?: boolean;
  readonly hasSections?: boolean;
  readonly children: ComponentChildren;
}) {
  const { version, isPlayground = false, hasSections = false, children } = props;
  const goTo = (id: string) => (event: Event) => {
    event.preventDefault(); // the fragment holds the state of the page
    const target = document.getElementById(id);
    target?.scrollIntoView();
    target?.focus({ preventScroll: true });
  };
  const current = (isCurrent: boolean) => (isCurrent ? 'page' : undefined);
  return (
    <header>
      <button type="button" class="skip" onClick={() => document.getElementById('main')?.focus()}>
        Skip to the content
      </button>
      <div class="bar">
        <h1>
          <img src="./icon.svg" alt="" width="24" height="24" /> Sluice{' '}
          <span class="muted">{version}</span>
        </h1>
        <nav aria-label="Views" class="views">
          <a href="#view=daemon" aria-current={current(!isPlayground)}>
            Daemon
          </a>
          <a href="#view=playground" aria-current={current(isPlayground)}>
            Playground
          </a>
        </nav>
        <div class="state">{children}</div>
      </div>
      {hasSections && (
        <nav aria-label="Sections">
          {Object.entries(SECTIONS).map(([id, title]) => (
            <a key={id} href={`#${id}`} onClick={goTo(id)}>
              {title}
            </a>
          ))}
        </nav>
      )}
    </header>
  );
}

function DaemonState(props: {
  readonly snapshot: Snapshot | undefined;
  readonly problem: RequestError | undefined;
  readonly isPaused: boolean;
  readonly onPause: () => void;
  readonly onSignOut: (() => void) | undefined;
}) {
  const { snapshot, problem, isPaused, onPause, onSignOut } = props;
  const state = snapshot?.state;
  return (
    <>
      {problem ? (
        <Badge kind="bad">{problem.status === 0 ? 'not reachable' : 'no access'}</Badge>
      ) : state && !state.ready ? (
        <Badge kind="bad">not ready: {state.reasons.join(', ')}</Badge>
      ) : (
        <Badge kind="good">ready</Badge>
      )}
      {state && state.unavailable.length > 0 && (
        <Badge kind="bad">unavailable: {state.unavailable.join(', ')}</Badge>
      )}
      <button type="button" aria-pressed={isPaused} onClick={onPause}>
        {isPaused ? 'Resume' : 'Pause'}
      </button>
      {onSignOut && (
        <button type="button" onClick={onSignOut}>
          Forget token
        </button>
      )}
    </>
  );
}

function TokenForm({ isWrong, onToken }: { isWrong: boolean; onToken: (token: string) => void }) {
  const [typed, setTyped] = useState('');
  return (
    <form
      class="token"
      onSubmit={(event) => {
        event.preventDefault();
        onToken(typed.trim());
      }}
    >
      <h2>Admin token</h2>
      <p>
        This daemon shows its state to operators only. Enter <code>admin.token</code> of its
        configuration; it is kept until this tab is closed.
      </p>
      {isWrong && (
        <p class="problem" role="alert">
          The daemon refused this token.
        </p>
      )}
      <label for="token">Token</label>
      <input
        id="token"
        type="password"
        value={typed}
        autocomplete="off"
        required
        onInput={({ currentTarget }) => setTyped(currentTarget.value)}
      />
      <button type="submit">Open</button>
    </form>
  );
}

function Overview(props: {
  readonly snapshot: Snapshot;
  readonly minutes: Minutes;
  readonly onMinutes: (minutes: Minutes) => void;
}) {
  const { snapshot, minutes, onMinutes } = props;
  const { history, top } = snapshot;
  const { shed = 0 } = top;
  const { total, times, limits } = history;
  const now = (name: string): number | null | undefined => total[name]?.at(-1);
  const sum = (name: 'keys' | 'waiting' | 'held'): number =>
    limits.reduce((all, limit) => all + (limit[name] ?? 0), 0);
  const tiles: readonly (readonly [string, string, string?])[] = [
    ['allowed', `${short(now('allowed'))}/s`, 'allowed'],
    ['waited', `${short(now('waited'))}/s`, 'waited'],
    ['denied', `${short(now('denied'))}/s`, 'denied'],
    ['calls waiting', short(sum('waiting'))],
    ['permits held', short(sum('held'))],
    ['keys', short(sum('keys'))],
    ...Object.entries(top.reasons)
      .filter(([, count]) => count > 0)
      .map(([reason, count]) => [`${reason}, in all`, short(count)] as const),
    ...(shed > 0 ? [['shed, in all', short(shed)] as const] : []),
  ];
  return (
    <Section id="overview" title="Overview">
      <dl class="tiles">
        {tiles.map(([name, value, kind = '']) => (
          <div key={name} class={kind}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Choice
        label="Span of the charts"
        options={Object.entries(SPANS) as [Minutes, string][]}
        value={minutes}
        onChange={onMinutes}
      />
      <Chart
        title="All limits"
        unit="/s"
        times={times}
        spanMs={Number(minutes) * 60_000}
        height={240}
        lines={callLines(total)}
      />
    </Section>
  );
}

const root = document.getElementById('app');
if (root) render(<App />, root);
