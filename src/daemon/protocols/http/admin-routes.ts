/**
 * Endpoints for operators, guarded by `access.ts`.
 *
 *     GET  /inspect /explain        the status of a key; the limits that match it, and why
 *     GET  /top /denials            throttled keys, and why: `denial-routes.ts`
 *     GET  /history /keys /config   what the page shows: `page-routes.ts`
 *     GET  /limits /metrics /feed, and a page per backend, such as /peers
 *     POST /reload
 *     GET  /controls, POST /ban …   control of keys at run time: `control-routes.ts`
 */

import type { Controls } from '../../control/controls.ts';
import { toKeyText } from '../../keys/binary-key.ts';
import type { RoutedRequest } from '../../router/request.ts';
import { staticVerdictFields } from '../../router/route.ts';
import { readKeyQuery } from './check-request.ts';
import { CONTROL_HELP, controlRoutes } from './control-routes.ts';
import { denialRoutes } from './denial-routes.ts';
import {
  adminEndpoint,
  type Endpoint,
  type EndpointHandler,
  READ_METHODS,
  WRITE_METHODS,
} from './endpoint.ts';
import type { EventStream } from './event-stream.ts';
import { type PageContext, pageDataRoutes } from './page-routes.ts';
import { readParameters, ValidationProblem } from './parameters.ts';
import {
  type HttpResponse,
  jsonResponse,
  noSuchLimit,
  problemResponse,
  textResponse,
} from './response.ts';

/** A part of a limit's state that a reload could not keep. */
export interface ReloadWarning {
  readonly limit: string;
  readonly warning: string;
}

/** Limits by name that were not there before, and that are no more: a rename is one of each. */
export interface ReloadChanges {
  readonly added: readonly string[];
  readonly removed: readonly string[];
}

/** The result of a reload: the file that was read, the number of limits, and how many of them kept their state. */
export type ReloadResult =
  | ({
      readonly ok: true;
      readonly file?: string | undefined;
      readonly limits: number;
      readonly kept: number;
      readonly warnings: readonly ReloadWarning[];
    } & ReloadChanges)
  | { readonly ok: false; readonly problems: readonly string[] };

export interface BackendPageView {
  readonly name: string;
  /** A short description of its content. */
  readonly summary: string;
  /** Its JSON, or a promise of it. */
  view(): unknown;
}

export interface AdminContext extends PageContext {
  readonly bounds: { readonly maxKey: number };
  readonly eventStream: Pick<EventStream, 'isFull' | 'snapshot'>;
  /** In the Prometheus text format. */
  metrics(): Promise<string>;
  reload(): Promise<ReloadResult>;
  /** Left out where keys cannot be controlled. */
  readonly controls?: Controls | undefined;
  limits(): unknown;
  /** The pages of the backends: `GET /<name>`. */
  readonly backendPages: readonly BackendPageView[];
}

export function adminRoutes(context: AdminContext): readonly (readonly [string, Endpoint])[] {
  const { router, backendPages } = context;
  const readable: Readonly<Record<string, EndpointHandler>> = {
    '/': () => textResponse(200, helpText(context)),
    '/inspect': keyHandler(context, async (routed) => {
      const { staticVerdict } = routed.route;
      const verdict = staticVerdict && staticVerdictFields(staticVerdict);
      return { ...verdict, limits: await router.inspect(routed) };
    }),
    '/explain': keyHandler(context, (routed, key) => router.explain(routed, key)),
    ...denialRoutes(context),
    ...pageDataRoutes(context),
    '/limits': () => jsonResponse(200, context.limits()),
    '/metrics': async () => ({
      status: 200,
      headers: PROMETHEUS_HEADERS,
      body: await context.metrics(),
    }),
  };
  const pages = backendPages.map(({ name, view }): [string, EndpointHandler] => [
    `/${name}`,
    async () => jsonResponse(200, await view()),
  ]);
  return [
    ...[...Object.entries(readable), ...pages].map(
      ([path, handle]) => [path, adminEndpoint(READ_METHODS, handle)] as const,
    ),
    ['/feed', adminEndpoint(['GET'], () => openEventStream(context))],
    ['/reload', adminEndpoint(WRITE_METHODS, reloadHandler(context))],
    ...(context.controls ? controlRoutes(context.controls) : []),
  ];
}

const PROMETHEUS_HEADERS = ['Content-Type', 'text/plain; version=0.0.4; charset=utf-8'];

const EVENT_STREAM_HEADERS = [
  ...['Content-Type', 'text/event-stream'],
  ...['Cache-Control', 'no-store'],
  ...['X-Accel-Buffering', 'no'], // nginx would collect events before it sends them
];

/** Describes the key of a query; refuses an invalid query. */
const keyHandler =
  (
    { router, bounds }: AdminContext,
    describe: (routed: RoutedRequest, key: string) => object | Promise<object>,
  ): EndpointHandler =>
  async ({ url = '' }, queryAt) => {
    const values = readKeyQuery(url, queryAt, bounds.maxKey);
    if (values instanceof ValidationProblem) return problemResponse(400, values.detail);
    const [key = '', limit] = values;
    const routed = router.route({ key, limit, cost: 1 });
    if (!routed) return noSuchLimit(limit ?? '', router.limits);
    return jsonResponse(200, { key: toKeyText(key), ...(await describe(routed, key)) });
  };

function openEventStream({ eventStream }: AdminContext): HttpResponse {
  const full = 'The event stream has the maximum number of subscribers.';
  if (eventStream.isFull) return problemResponse(503, full, 'Retry-After', '10');
  const body = `: one event a second\nretry: 2000\n\n${eventStream.snapshot()}`;
  return { status: 200, headers: EVENT_STREAM_HEADERS, body, isEventStream: true };
}

const reloadHandler =
  (context: AdminContext): EndpointHandler =>
  async ({ url = '' }, queryAt) => {
    const values = readParameters(url, queryAt, []);
    if (values instanceof ValidationProblem) return problemResponse(400, values.detail);
    const result = await context.reload();
    return result.ok ? jsonResponse(200, result) : problemResponse(422, result.problems.join('\n'));
  };

const helpText = ({ version, backendPages }: AdminContext): string => `sluice ${version}

  GET  /check?key=alice[&limit=api][&cost=1][&hold=1][&plan=pro][&status=403]   200, or 429, 503, 403
  GET  /check;limit=api&status=429/PATH   the same for a proxy that appends the client's path
  POST /check    the same as a form or JSON
  GET  /check?check=LIMIT[@COST],KEY&check=…   several limits and keys as one check, also with &wait=2s; POST {"checks": […]}
  POST /batch    [{"key": "alice"}, …]: results in the same order
  POST /settle   {"permit": "1", "outcome": "ok", "used": 1, "rttMs": 20, "retryAfterMs": 500}
  POST /report?key=alice&attempt=failure[&limit=login]   how a login ended, for a lock-out: success or failure
  POST /take?key=alice&max=100[&limit=api][&hold=1]   as many as there are: {"taken": 42}
  POST /give?permit=1&unused=7            what was not used of a batch with hold
  GET  /inspect?key=alice[&limit=api]     the status of a key
  GET  /explain?key=alice                 the limits that match a key, and why
  GET  /top[?span=hour][&max=10]          limits with their counters and most denied keys
  GET  /denials[?key=alice][&limit=api][&since=1h][&max=100]   recent denials
  GET  /limits                            all limits
  GET  /page/                             a page for browsers: charts, keys, bans
  GET  /history[?since=1769860810000]     samples of the last hour, one every 5 s
  GET  /keys                              keys nearest to their limits, and throttled for longest
  GET  /config                            the configuration in effect, without secrets
${backendPages.map(({ name, summary }) => `  GET  /${name.padEnd(33)} ${summary}\n`).join('')}  GET  /metrics                           in the Prometheus text format
  GET  /feed                              server-sent events, one per second
  POST /reload                            reads the configuration again and applies it
${CONTROL_HELP}  GET  /healthz   /readyz
`;
