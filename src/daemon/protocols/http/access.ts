/**
 * Who may look behind the counter. Asking is for everybody who can reach the daemon; seeing keys and
 * figures and reloading is not.
 *
 *     on loopback, no token set     whoever is on this host, unless a web page sent them
 *     a token set                   whoever has it
 *     elsewhere, no token set       nobody
 *
 * A page that somebody on this host has open in a browser can send requests here. It cannot choose the
 * `Host` they carry: a name of its own that it made point here, or the `Origin` it comes from, gives it away.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import type { RequestHead } from './key.ts';
import { type HttpResponse, problemResponse } from './reply.ts';

export interface AdminAccess {
  readonly token?: string | undefined;
}

const digest = (text: string): Buffer => createHash('sha256').update(text, 'latin1').digest();

/** Why this one may not look behind the counter; undefined if it may. */
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
  'Send the token of the configuration: Authorization: Bearer <token>.',
  'WWW-Authenticate',
  'Bearer realm="sluice"',
);

const TOKEN_REQUIRED = problemResponse(
  403,
  'From other hosts this needs a token: set admin.token in the configuration.',
);

const UNTRUSTED_HOST = problemResponse(
  403,
  'Asked for by a name that anybody can make point here. Use localhost or an address, or set admin.token.',
);

/** Compares digests: how long that takes tells nothing about the token. */
function hasBearerToken(authorization: string | undefined, expected: Buffer): boolean {
  const [, given] = /^bearer +(\S+) *$/i.exec(authorization ?? '') ?? [];
  return given !== undefined && timingSafeEqual(digest(given), expected);
}

/** `localhost` or an address: names that no stranger can make point here. */
const LOCAL_HOST = /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?$/i;

const isLocalHost = (host: string | undefined): boolean =>
  host === undefined || host === '' || LOCAL_HOST.test(host);

/** Whether a page of another site sent it. Browsers say where a POST comes from; others say nothing. */
export function isCrossSite({ headers }: RequestHead): boolean {
  const origin = firstValue(headers.origin);
  if (origin === undefined) return false;
  const host = firstValue(headers.host);
  const [, from] = /^https?:\/\/([^/]+)$/i.exec(origin) ?? [];
  return host === undefined || from === undefined || from.toLowerCase() !== host.toLowerCase();
}

export const CROSS_SITE = problemResponse(403, 'A page of another site may not ask for this.');
