/** Reads the daemon every few seconds and keeps the history that the charts show. */

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import {
  type Control,
  type Groups,
  get,
  type History,
  type Keys,
  type LimitHistory,
  type Peers,
  type Pool,
  RequestError,
  type SeriesByName,
  type State,
  savedToken,
  type Top,
} from './api.ts';

const POLL_MS = 2500;

export interface Snapshot {
  readonly history: History;
  readonly keys: Keys;
  readonly top: Top;
  readonly controls: readonly Control[];
  readonly peers: Peers;
  readonly pool: Pool;
  readonly groups: Groups;
  readonly state: State;
}

export type Span = 'now' | 'hour';

export interface Live {
  readonly snapshot?: Snapshot;
  readonly problem?: RequestError;
  refresh(): void;
}

/** Polls while the page is visible and not paused. */
export function useLive(span: Span, isPaused: boolean): Live {
  const [snapshot, setSnapshot] = useState<Snapshot>();
  const [problem, setProblem] = useState<RequestError>();
  const [refreshes, setRefreshes] = useState(0);
  const history = useRef<History | undefined>(undefined);
  const refresh = useCallback(() => setRefreshes((n) => n + 1), []);
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const poll = async (): Promise<void> => {
      try {
        const next = await readAll(span, history.current);
        if (isOver) return;
        history.current = next.history;
        setSnapshot(next);
        setProblem(undefined);
      } catch (error) {
        if (isOver) return;
        setProblem(error instanceof RequestError ? error : new RequestError(0, String(error)));
      }
      if (!isPaused) timer = window.setTimeout(whenVisible, POLL_MS);
    };
    const whenVisible = (): void => {
      if (!document.hidden) void poll();
    };
    const onVisible = (): void => {
      window.clearTimeout(timer);
      if (!isPaused) whenVisible();
    };
    document.addEventListener('visibilitychange', onVisible);
    void poll();
    return () => {
      isOver = true;
      window.clearTimeout(timer);
      document.removeEventListener('visibilitychange', onVisible);
    };
  }, [span, isPaused, refreshes]);
  return { ...(snapshot && { snapshot }), ...(problem && { problem }), refresh };
}

async function readAll(span: Span, before: History | undefined): Promise<Snapshot> {
  const state = await get<State>('page/state');
  if (state.needsToken && savedToken() === '') throw new RequestError(401, 'A token is needed.');
  const since = before?.times.at(-1) ?? 0;
  const [fresh, keys, top, { controls }, peers, pool, groups] = await Promise.all([
    get<History>(`history?since=${since}`),
    get<Keys>('keys'),
    get<Top>(`top?span=${span}&max=20`),
    get<{ controls: readonly Control[] }>('controls'),
    get<Peers>('peers'),
    get<Pool>('pool'),
    get<Groups>('groups'),
  ]);
  return { history: joinHistory(before, fresh), keys, top, controls, peers, pool, groups, state };
}

/** The samples before and the new ones, at most as many as the daemon keeps. */
export function joinHistory(before: History | undefined, fresh: History): History {
  if (!before) return fresh;
  const max = fresh.maxSamples;
  const count = { before: before.times.length, fresh: fresh.times.length };
  const old = new Map(before.limits.map((limit) => [limit.name, limit.series]));
  const join = (a: SeriesByName, b: SeriesByName): SeriesByName => joinSeries(a, b, count, max);
  return {
    ...fresh,
    times: [...before.times, ...fresh.times].slice(-max),
    total: join(before.total, fresh.total),
    limits: fresh.limits.map(
      (limit): LimitHistory => ({
        ...limit,
        series: join(old.get(limit.name) ?? {}, limit.series),
      }),
    ),
  };
}

/** A measure that one side does not have is unknown there. */
function joinSeries(
  a: SeriesByName,
  b: SeriesByName,
  count: { readonly before: number; readonly fresh: number },
  max: number,
): SeriesByName {
  const unknown = (length: number): null[] => new Array(length).fill(null);
  const names = Object.keys({ ...a, ...b });
  return Object.fromEntries(
    names.map((name) => {
      const values = [...(a[name] ?? unknown(count.before)), ...(b[name] ?? unknown(count.fresh))];
      return [name, values.slice(-max)];
    }),
  );
}
