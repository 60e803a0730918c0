/**
 * The page for operators: its files, and what it reads beside the other endpoints.
 *
 *     GET /page, /page/FILE          the built page; open to all, as it holds no data
 *     GET /page/state                whether it needs a token, and what /readyz says, with status 200; open to all
 *     GET /history?since=MS          an hour of samples of every limit, or those after an instant
 *     GET /keys                      the keys that are nearest to their limits, and those throttled for longest
 *     GET /config                    the configuration in effect, without secrets
 */

import { runInSlices } from '../../../core/steps.ts';
import { readPageFile } from '../../files/built-files.ts';
import type { History } from '../../history/history.ts';
import type { Router } from '../../router/router.ts';
import { type Endpoint, type EndpointHandler, publicEndpoint, READ_METHODS } from './endpoint.ts';
import { readParameters, ValidationProblem } from './parameters.ts';
import { type HttpResponse, jsonResponse, problemResponse, textResponse } from './response.ts';

export interface PageContext {
  readonly router: Router;
  readonly version: string;
  /** Left out where nothing is sampled. */
  readonly history?: Pick<History, 'json' | 'nearest' | 'lastUseOf'> | undefined;
  /** The configuration in effect, without secrets. */
  config?(): unknown;
}

/** Keys that are throttled for longest. */
const MAX_LONGEST = 50;

/** Endpoints with data, to be guarded. */
export const pageDataRoutes = ({
  router,
  version,
  history,
  config,
}: PageContext): Readonly<Record<string, EndpointHandler>> => ({
  ...(history && {
    '/history': ({ url = '' }, queryAt) => historyOf(history, url, queryAt),
    '/keys': () =>
      jsonResponse(200, {
        at: Math.round(router.denials.now),
        nearest: history.nearest,
        longest: router.denials.longest(MAX_LONGEST),
      }),
  }),
  ...(config && { '/config': () => jsonResponse(200, { version, config: config() }) }),
});

async function historyOf(
  history: Pick<History, 'json'>,
  url: string,
  queryAt: number,
): Promise<HttpResponse> {
  const values = readParameters(url, queryAt, ['since']);
  if (values instanceof ValidationProblem) return problemResponse(400, values.detail);
  const [since = '0'] = values;
  if (!/^\d{1,16}$/.test(since)) {
    const problem = new ValidationProblem('since', 'milliseconds since 1970', since);
    return problemResponse(400, problem.detail);
  }
  const body = await runInSlices(history.json(Number(since)));
  return { status: 200, headers: ['Content-Type', 'application/json'], body };
}

/** The playground in one file: a download, as its script is inline, which the policy of the page forbids. */
const PLAYGROUND_FILE = 'playground.html';

/** The files of the page and their types. */
const FILES: Readonly<Record<string, string>> = {
  [PLAYGROUND_FILE]: 'text/html; charset=utf-8',
  'index.html': 'text/html; charset=utf-8',
  'page.js': 'text/javascript; charset=utf-8',
  'page.css': 'text/css; charset=utf-8',
  'icon.svg': 'image/svg+xml',
};

/** Only scripts and styles of the page itself, and requests to the daemon itself. */
const HEADERS = [
  ...['Cache-Control', 'no-cache'],
  'Content-Security-Policy',
  [
    ...["default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"],
    ...["connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"],
  ].join('; '),
  ...['X-Content-Type-Options', 'nosniff'],
  ...['Referrer-Policy', 'no-referrer'],
  ...['Cross-Origin-Opener-Policy', 'same-origin'],
  ...['Cross-Origin-Resource-Policy', 'same-origin'],
];

const NOT_BUILT = problemResponse(404, 'The page is not built: run `npm run build`.');

const REDIRECT = textResponse(308, 'The page is at page/\n');
const TO_PAGE: HttpResponse = { ...REDIRECT, headers: [...REDIRECT.headers, 'Location', 'page/'] };

/** The files of the page: without data, so that a browser can load them before it has a token. */
export const pageFileRoutes = (
  readiness: () => PageReadiness,
): readonly (readonly [string, Endpoint])[] => [
  ['/page/state', publicEndpoint(READ_METHODS, () => jsonResponse(200, readiness()))],
  ['/page', publicEndpoint(READ_METHODS, () => TO_PAGE)],
  ['/page/', publicEndpoint(READ_METHODS, () => pageFile('index.html'))],
  ...Object.keys(FILES).map(
    (name) => [`/page/${name}`, publicEndpoint(READ_METHODS, () => pageFile(name))] as const,
  ),
];

/** The part of the readiness that a browser may see before it has a token. */
interface PageReadiness {
  readonly needsToken: boolean;
  readonly ready: boolean;
  readonly reasons: readonly string[];
  readonly unavailable: readonly string[];
}

/** Files that were read: one entry per file. */
const read = new Map<string, HttpResponse>();

async function pageFile(name: string): Promise<HttpResponse> {
  const known = read.get(name);
  if (known) return known;
  const body = await readPageFile(name);
  if (body === undefined) return NOT_BUILT;
  const headers = ['Content-Type', FILES[name], ...HEADERS];
  if (name === PLAYGROUND_FILE)
    headers.push('Content-Disposition', 'attachment; filename="sluice-playground.html"');
  const response = { status: 200, headers, body };
  read.set(name, response);
  return response;
}
