/**
 * Guards the endpoints. Checks are open to every client that can connect; inspecting keys, metrics
 * and reload are not. No endpoint that takes anything is open to web pages of other sites.
 *
 *     token configured            clients that send it as a bearer token
 *     no token, loopback          clients on this host, except web pages
 *     no token, other addresses   no client
 *
 * A web page open in a browser on this host can send requests to the daemon (DNS rebinding, cross-site
 * POST). It cannot choose the `Host` and `Origin` headers, so these are checked.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import type { RequestHead } from './key.ts';
import { type HttpResponse, problemResponse } from './response.ts';

export interface AdminAccess {
  readonly token?: string | undefined;
}

const digest = (text: string): Buffer => createHash('sha256').update(text, 'latin1').digest();

/** The response to a request without access; undefined if it has access. */
export type AdminGuard = (request: RequestHead, isLoopback: boolean) => HttpResponse | undefined;

export function createAdminGuard({ token }: AdminAccess): AdminGuard {
  const expected =
    token === undefined ? undefined : digest(Buffer.from(token, 'utf8').toString('latin1'));
  return ({ headers }, isLoopback) => {
    if (expected)
      return hasBearerToken(firstValue(headers.authorization), expected) ? undefined : UNAUTHORIZED;
    if (!isLoopback) return TOKEN_REQUIRED;
    return isLocalHost(firstValue(headers.host)) ? undefined : UNTRUSTED_HOST;
  };
}

const firstValue = (value: string | string[] | undefined): string | undefined =>
  typeof value === 'object' ? value[0] : value;

const UNAUTHORIZED = problemResponse(
  401,
  'Expected the token of the configuration: Authorization: Bearer <token>.',
  'WWW-Authenticate',
  'Bearer realm="sluice"',
);

const TOKEN_REQUIRED = problemResponse(
  403,
  'Access from other hosts needs a token: set admin.token in the configuration.',
);

const UNTRUSTED_HOST = problemResponse(
  403,
  'The Host header is neither localhost nor an address. Use one of these, or set admin.token.',
);

/** Compares digests in constant time, so timing reveals nothing about the token. */
function hasBearerToken(authorization: string | undefined, expected: Buffer): boolean {
  const [, token] = /^bearer +(\S+) *$/i.exec(authorization ?? '') ?? [];
  return token !== undefined && timingSafeEqual(digest(token), expected);
}

/** `localhost` or an address: hosts that DNS rebinding cannot forge. */
const LOCAL_HOST = /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?$/i;

/** The last one seen: clients of a daemon use one name for it. */
let lastLocalHost = '';

function isLocalHost(host = ''): boolean {
  if (host === '' || host === lastLocalHost) return true;
  const isLocal = LOCAL_HOST.test(host);
  if (isLocal) lastLocalHost = host;
  return isLocal;
}

/**
 * True for a request from a page of another site. Browsers say so in `Sec-Fetch-Site`, or send `Origin`; a page can
 * change neither. Other clients send none of them.
 */
export function isCrossSite({ headers }: RequestHead): boolean {
  const site = firstValue(headers['sec-fetch-site']);
  if (site !== undefined && site !== 'same-origin' && site !== 'none') return true;
  const origin = firstValue(headers.origin);
  if (origin === undefined) return false;
  const host = firstValue(headers.host);
  const [, from] = /^https?:\/\/([^/]+)$/i.exec(origin) ?? [];
  return host === undefined || from === undefined || from.toLowerCase() !== host.toLowerCase();
}

/**
 * True for a request to an admin page from a page of another site, except for a link, which an operator may follow. A
 * script, an image or an event stream of a page cannot read the response, but would use connections and subscriptions.
 */
export const isCrossSiteRead = (request: RequestHead): boolean =>
  isCrossSite(request) && firstValue(request.headers['sec-fetch-mode']) !== 'navigate';

/** Headers of a proxy. A page of another site cannot send them: its browser would ask first, by a preflight request. */
const PROXY_HEADERS = [
  ...['x-forwarded-for', 'x-forwarded-uri', 'x-forwarded-method', 'x-forwarded-host'],
  ...['x-original-uri', 'x-original-method', 'x-original-url', 'x-real-ip', 'forwarded', 'via'],
  'sluice-key',
];

/**
 * True for a check from a page of another site, unless it has headers of a proxy: these forward the headers of the
 * browser whose request they authorise, and its `Host`. A page that names loopback by a public name, such as in an
 * image, sends neither `Sec-Fetch-Site` nor `Origin`.
 */
export function isCrossSiteCheck(request: RequestHead, isLoopback: boolean): boolean {
  const { headers } = request;
  // Most programs send none of these headers; this is on the path of every check.
  const hasHost = typeof headers.host === 'string' && headers.host.includes('.');
  if (headers.origin === undefined && headers['sec-fetch-site'] === undefined && !hasHost)
    return false;
  return (
    (isCrossSite(request) || (isLoopback && isRebound(request))) &&
    PROXY_HEADERS.every((name) => headers[name] === undefined)
  );
}

/** True if a page may have reached loopback by a name of its own, which resolves to it (DNS rebinding). */
export const isRebound = ({ headers, socket }: RequestHead): boolean => {
  const host = firstValue(headers.host);
  return socket.remoteAddress !== undefined && host?.includes('.') === true && !isLocalHost(host);
};

export const CROSS_SITE = problemResponse(403, 'Cross-site requests are refused.');

export const CROSS_SITE_CHECK = problemResponse(
  403,
  'Cross-site requests and names in Host are refused: set http.allowCrossSite, or send X-Forwarded-For if this is a proxy.',
);
