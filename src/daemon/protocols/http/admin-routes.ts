/**
 * Behind the counter: what those can see and do who look after the daemon. Who that is, `access.ts` says.
 *
 *     GET  /inspect /explain        how a key stands; which limits it meets, and why
 *     GET  /limits /peers /pool /groups /metrics /feed
 *     POST /reload
 */

import { textOf } from '../../keys/binary-key.ts';
import { explainRoute } from '../../router/explain.ts';
import type { Gate } from '../../router/router.ts';
import type { Route, RoutesConfig } from '../../router/routes.ts';
import { lookIn } from './check-request.ts';
import { admin, CHANGE, type Endpoint, READ } from './endpoint.ts';
import type { Feed } from './events-stream.ts';
import type { Heard } from './key.ts';
import { Complaint } from './parameters.ts';
import { isReply, json, problem, type Reply, text, unknownLimit } from './reply.ts';

/** What a reload came to. */
export type Reloaded =
  | { readonly ok: true }
  | { readonly ok: false; readonly problems: readonly string[] };

export interface CounterSetting {
  readonly gate: Gate;
  readonly version: string;
  readonly bounds: { readonly keyMax: number };
  readonly feed: Pick<Feed, 'isFull' | 'snapshot'>;
  /** Everything for Prometheus. */
  metrics(): string;
  /** Takes in the configuration again. */
  reload(): Promise<Reloaded>;
  /** What the gate goes by at the moment. */
  rules(): RoutesConfig;
  /** The limits there are, as JSON will have them. */
  limits(): unknown;
  /** The fleet, as JSON will have it; undefined: there is none. */
  peers(): unknown;
  /** The pool, likewise. */
  pool(): Promise<unknown>;
  /** The groups, likewise. */
  groups(): unknown;
}

export const counter = (own: CounterSetting): readonly (readonly [string, Endpoint])[] => [
  ['/', admin(READ, () => text(200, pageOf(own.version)))],
  ['/inspect', admin(READ, (request, at) => inspect(own, request, at))],
  ['/explain', admin(READ, (request, at) => explain(own, request, at))],
  ['/limits', admin(READ, () => json(200, own.limits()))],
  ['/peers', admin(READ, () => json(200, own.peers() ?? NO_PEERS))],
  ['/pool', admin(READ, async () => json(200, (await own.pool()) ?? NO_POOL))],
  ['/groups', admin(READ, () => json(200, own.groups() ?? NO_GROUPS))],
  ['/metrics', admin(READ, () => ({ ...text(200, own.metrics()), headers: PROMETHEUS }))],
  ['/feed', admin(['GET'], () => listen(own))],
  ['/reload', admin(CHANGE, () => reload(own))],
];

/** A daemon alone is a fleet too. */
const NO_PEERS = { peers: [] };
const NO_POOL = { members: [] };
const NO_GROUPS = { others: [] };

const PROMETHEUS = ['Content-Type', 'text/plain; version=0.0.4; charset=utf-8'];

const EVENTS = [
  ...['Content-Type', 'text/event-stream'],
  ...['Cache-Control', 'no-store'],
  ...['X-Accel-Buffering', 'no'], // or nginx would keep events until there are many
];

/** A key that is asked about, and the limits it meets. */
interface Looked {
  readonly tag: string;
  readonly limit: string | undefined;
  readonly route: Route;
}

/** What a URL asks about, or what to say to it. */
function lookedAt({ gate, bounds }: CounterSetting, url: string, queryAt: number): Looked | Reply {
  const asked = lookIn(url, queryAt, bounds.keyMax);
  if (asked instanceof Complaint) return problem(400, asked.detail);
  const [tag = '', limit] = asked;
  const route = gate.route(tag, limit);
  return route ? { tag, limit, route } : unknownLimit(limit ?? '');
}

async function inspect(own: CounterSetting, { url = '' }: Heard, queryAt: number): Promise<Reply> {
  const looked = lookedAt(own, url, queryAt);
  if (isReply(looked)) return looked;
  const { tag, limit, route } = looked;
  const limits = await own.gate.inspect(tag, limit);
  return json(200, { key: textOf(tag), ...settledOf(route), limits });
}

function explain(own: CounterSetting, { url = '' }: Heard, queryAt: number): Reply {
  const looked = lookedAt(own, url, queryAt);
  if (isReply(looked)) return looked;
  const { tag, route } = looked;
  return json(200, { key: textOf(tag), ...explainRoute(route, own.rules(), tag) });
}

function settledOf({ settled }: Route): object {
  if (!settled) return {};
  const { isAllowed, reason, limit, by } = settled;
  return { verdict: isAllowed ? 'allow' : 'deny', reason, limit, by: by?.text };
}

function listen({ feed }: CounterSetting): Reply {
  if (feed.isFull) return problem(503, `Too many listen already.`, 'Retry-After', '10');
  const body = `: one event a second\nretry: 2000\n\n${feed.snapshot()}`;
  return { status: 200, headers: EVENTS, body, isFeed: true };
}

async function reload(own: CounterSetting): Promise<Reply> {
  const reloaded = await own.reload();
  return reloaded.ok ? json(200, reloaded) : problem(422, reloaded.problems.join('\n'));
}

const pageOf = (version: string): string => `sluice ${version}

  GET  /check?key=alice[&limit=api][&cost=1][&hold=1][&status=403]   200, or 429, 503, 403
  POST /check    the same as a form or JSON; a list of questions is a batch
  POST /batch    [{"key": "alice"}, …]: answers in the same order
  POST /settle   {"permit": "1", "outcome": "ok", "used": 1, "rttMs": 20, "retryAfterMs": 500}
  GET  /inspect?key=alice[&limit=api]     how a key stands
  GET  /explain?key=alice                 which limits apply, and why
  GET  /limits                            all there are
  GET  /peers                             the other daemons of the fleet
  GET  /pool                              the daemons that divide limits among them
  GET  /groups                            the groups that limits are shared with
  GET  /metrics                           for Prometheus
  GET  /feed                              server-sent events, one a second
  POST /reload                            takes in the configuration again
  GET  /healthz   /readyz
`;
