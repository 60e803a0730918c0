/**
 * Behind the counter: what those can see and do who look after the daemon. Who that is, `access.ts` says.
 *
 *     GET  /inspect /explain        how a key stands; which limits it meets, and why
 *     GET  /limits /metrics /feed, and a page a backend, such as /peers
 *     POST /reload
 */

import { toKeyText } from '../../keys/binary-key.ts';
import { explainRoute } from '../../router/explain.ts';
import type { Router } from '../../router/router.ts';
import type { Route, RoutesConfig } from '../../router/routes.ts';
import { readKeyQuery } from './check-request.ts';
import { adminEndpoint, type Endpoint, READ_METHODS, WRITE_METHODS } from './endpoint.ts';
import type { EventStream } from './events-stream.ts';
import type { RequestHead } from './key.ts';
import { ValidationProblem } from './parameters.ts';
import {
  type HttpResponse,
  isHttpResponse,
  jsonResponse,
  problemResponse,
  textResponse,
  unknownLimitResponse,
} from './reply.ts';

/** What a reload came to. */
export type ReloadResult =
  | { readonly ok: true }
  | { readonly ok: false; readonly problems: readonly string[] };

export interface BackendAdminPage {
  readonly name: string;
  /** What it shows, in a few words. */
  readonly summary: string;
  /** Its JSON, or a promise of it. */
  view(): unknown;
}

export interface AdminContext {
  readonly router: Router;
  readonly version: string;
  readonly bounds: { readonly maxKey: number };
  readonly eventStream: Pick<EventStream, 'isFull' | 'snapshot'>;
  /** Everything for Prometheus. */
  metrics(): string;
  /** Takes in the configuration again. */
  reload(): Promise<ReloadResult>;
  /** What the gate goes by at the moment. */
  routesConfig(): RoutesConfig;
  /** The limits there are, as JSON will have them. */
  limits(): unknown;
  /** The pages of the backends: `GET /<name>`. */
  readonly backendPages: readonly BackendAdminPage[];
}

export const adminRoutes = (own: AdminContext): readonly (readonly [string, Endpoint])[] => [
  ['/', adminEndpoint(READ_METHODS, () => textResponse(200, helpText(own)))],
  ['/inspect', adminEndpoint(READ_METHODS, (request, at) => inspect(own, request, at))],
  ['/explain', adminEndpoint(READ_METHODS, (request, at) => explain(own, request, at))],
  ['/limits', adminEndpoint(READ_METHODS, () => jsonResponse(200, own.limits()))],
  ...own.backendPages.map(
    ({ name, view }) =>
      [
        `/${name}`,
        adminEndpoint(READ_METHODS, async () => jsonResponse(200, await view())),
      ] as const,
  ),
  [
    '/metrics',
    adminEndpoint(READ_METHODS, () => ({
      ...textResponse(200, own.metrics()),
      headers: PROMETHEUS_HEADERS,
    })),
  ],
  ['/feed', adminEndpoint(['GET'], () => openEventStream(own))],
  ['/reload', adminEndpoint(WRITE_METHODS, () => reload(own))],
];

const PROMETHEUS_HEADERS = ['Content-Type', 'text/plain; version=0.0.4; charset=utf-8'];

const EVENT_STREAM_HEADERS = [
  ...['Content-Type', 'text/event-stream'],
  ...['Cache-Control', 'no-store'],
  ...['X-Accel-Buffering', 'no'], // or nginx would keep events until there are many
];

/** A key that is asked about, and the limits it meets. */
interface RoutedKey {
  readonly key: string;
  readonly limit: string | undefined;
  readonly route: Route;
}

/** What a URL asks about, or what to say to it. */
function routeKeyQuery(
  { router, bounds }: AdminContext,
  url: string,
  queryAt: number,
): RoutedKey | HttpResponse {
  const asked = readKeyQuery(url, queryAt, bounds.maxKey);
  if (asked instanceof ValidationProblem) return problemResponse(400, asked.detail);
  const [tag = '', limit] = asked;
  const route = router.route(tag, limit);
  return route ? { key: tag, limit, route } : unknownLimitResponse(limit ?? '');
}

async function inspect(
  own: AdminContext,
  { url = '' }: RequestHead,
  queryAt: number,
): Promise<HttpResponse> {
  const looked = routeKeyQuery(own, url, queryAt);
  if (isHttpResponse(looked)) return looked;
  const { key, limit, route } = looked;
  const limits = await own.router.inspect(key, limit);
  return jsonResponse(200, { key: toKeyText(key), ...staticVerdictFields(route), limits });
}

function explain(own: AdminContext, { url = '' }: RequestHead, queryAt: number): HttpResponse {
  const looked = routeKeyQuery(own, url, queryAt);
  if (isHttpResponse(looked)) return looked;
  const { key, route } = looked;
  return jsonResponse(200, {
    key: toKeyText(key),
    ...explainRoute(route, own.routesConfig(), key),
  });
}

function staticVerdictFields({ staticVerdict }: Route): object {
  if (!staticVerdict) return {};
  const { isAllowed, reason, limit, pattern } = staticVerdict;
  return { verdict: isAllowed ? 'allow' : 'deny', reason, limit, by: pattern?.text };
}

function openEventStream({ eventStream }: AdminContext): HttpResponse {
  if (eventStream.isFull)
    return problemResponse(503, `Too many listen already.`, 'Retry-After', '10');
  const body = `: one event a second\nretry: 2000\n\n${eventStream.snapshot()}`;
  return { status: 200, headers: EVENT_STREAM_HEADERS, body, isEventStream: true };
}

async function reload(own: AdminContext): Promise<HttpResponse> {
  const reloaded = await own.reload();
  return reloaded.ok
    ? jsonResponse(200, reloaded)
    : problemResponse(422, reloaded.problems.join('\n'));
}

const helpText = ({ version, backendPages }: AdminContext): string => `sluice ${version}

  GET  /check?key=alice[&limit=api][&cost=1][&hold=1][&status=403]   200, or 429, 503, 403
  POST /check    the same as a form or JSON; a list of questions is a batch
  POST /batch    [{"key": "alice"}, …]: answers in the same order
  POST /settle   {"permit": "1", "outcome": "ok", "used": 1, "rttMs": 20, "retryAfterMs": 500}
  GET  /inspect?key=alice[&limit=api]     how a key stands
  GET  /explain?key=alice                 which limits apply, and why
  GET  /limits                            all there are
${backendPages.map(({ name, summary }) => `  GET  /${name.padEnd(34)} ${summary}\n`).join('')}  GET  /metrics                           for Prometheus
  GET  /feed                              server-sent events, one a second
  POST /reload                            takes in the configuration again
  GET  /healthz   /readyz
`;
