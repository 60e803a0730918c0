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
import type { Heard } from './key.ts';
import { problem, type Reply } from './reply.ts';

export interface AccessSetting {
  readonly token?: string | undefined;
}

const digest = (text: string): Buffer => createHash('sha256').update(text, 'latin1').digest();

/** Why this one may not look behind the counter; undefined if it may. */
export type Guarded = (request: Heard, isLoopback: boolean) => Reply | undefined;

export function guarded({ token }: AccessSetting): Guarded {
  const expected =
    token === undefined ? undefined : digest(Buffer.from(token, 'utf8').toString('latin1'));
  return ({ headers }, isLoopback) => {
    if (expected) return isBearer(one(headers.authorization), expected) ? undefined : UNKNOWN;
    if (!isLoopback) return CLOSED;
    return isLocalName(one(headers.host)) ? undefined : STRANGE;
  };
}

const one = (value: string | string[] | undefined): string | undefined =>
  typeof value === 'object' ? value[0] : value;

const UNKNOWN = problem(
  401,
  'Send the token of the configuration: Authorization: Bearer <token>.',
  'WWW-Authenticate',
  'Bearer realm="sluice"',
);

const CLOSED = problem(
  403,
  'From other hosts this needs a token: set admin.token in the configuration.',
);

const STRANGE = problem(
  403,
  'Asked for by a name that anybody can make point here. Use localhost or an address, or set admin.token.',
);

/** Compares digests: how long that takes tells nothing about the token. */
function isBearer(authorization: string | undefined, expected: Buffer): boolean {
  const [, given] = /^bearer +(\S+) *$/i.exec(authorization ?? '') ?? [];
  return given !== undefined && timingSafeEqual(digest(given), expected);
}

/** `localhost` or an address: names that no stranger can make point here. */
const LOCAL_NAME = /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]{2,45}\])(?::\d{1,5})?$/i;

const isLocalName = (host: string | undefined): boolean =>
  host === undefined || host === '' || LOCAL_NAME.test(host);

/** Whether a page of another site sent it. Browsers say where a POST comes from; others say nothing. */
export function isCrossSite({ headers }: Heard): boolean {
  const origin = one(headers.origin);
  if (origin === undefined) return false;
  const host = one(headers.host);
  const [, from] = /^https?:\/\/([^/]+)$/i.exec(origin) ?? [];
  return host === undefined || from === undefined || from.toLowerCase() !== host.toLowerCase();
}

export const CROSS_SITE = problem(403, 'A page of another site may not ask for this.');
