/** Requests to the daemon that serves the page, and the types of its responses. */

import type { TopCalled } from '../../src/daemon/calls/call-recorder.ts';

const TOKEN_ITEM = 'sluice-admin-token';

/** Kept until the tab is closed, so that a reload of the page does not ask again. */
export const savedToken = (): string => sessionStorage.getItem(TOKEN_ITEM) ?? '';

export function saveToken(token: string): void {
  if (token) sessionStorage.setItem(TOKEN_ITEM, token);
  else sessionStorage.removeItem(TOKEN_ITEM);
}

/** A response that is not a success. */
export class RequestError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** A daemon that does not respond for so long counts as unreachable. */
const TIMEOUT_MS = 8000;

async function request<T>(path: string, init: RequestInit = {}): Promise<T> {
  const token = savedToken();
  const response = await fetch(`../${path}`, {
    ...init,
    headers: { ...init.headers, ...(token && { authorization: `Bearer ${token}` }) },
    signal: AbortSignal.timeout(TIMEOUT_MS),
    credentials: 'omit',
  }).catch(() => {
    throw new RequestError(0, 'The daemon does not respond.');
  });
  const body = await response.json().catch(() => undefined);
  if (response.ok && body !== undefined) return body as T;
  throw new RequestError(response.status, body?.detail ?? `HTTP status ${response.status}`);
}

export const get = <T>(path: string): Promise<T> => request<T>(path);

export const post = <T>(path: string, fields: object): Promise<T> =>
  request<T>(path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(fields),
  });

export const query = (fields: Readonly<Record<string, string>>): string =>
  new URLSearchParams(fields).toString();

export type Values = readonly (number | null)[];

export type SeriesByName = Readonly<Record<string, Values | undefined>>;

export interface LimitHistory {
  readonly name: string;
  readonly rule: unknown;
  readonly per: 'key' | 'limit';
  readonly shadow?: true;
  readonly backends: readonly string[];
  readonly keys?: number;
  readonly held: number;
  readonly waiting: number;
  readonly isAvailable?: boolean;
  readonly fallback?: number;
  readonly learntKey?: string;
  readonly totals?: { readonly allowed: number; readonly waited: number; readonly denied: number };
  readonly series: SeriesByName;
}

/** `GET /history`. */
export interface History {
  readonly at: number;
  readonly intervalMs: number;
  readonly maxSamples: number;
  readonly times: readonly number[];
  readonly total: SeriesByName;
  readonly omittedLimits: number;
  readonly limits: readonly LimitHistory[];
}

export interface Cause {
  readonly limit?: string;
  readonly reason?: string;
  readonly command?: string;
  readonly shadow?: true;
}

export interface DeniedKeys extends Cause {
  readonly denied: number;
  readonly keys: readonly {
    readonly key: string;
    readonly denied: number;
    readonly error?: number;
  }[];
}

/** `GET /top`. */
export interface Top {
  /** The time that the counts of keys cover. */
  readonly spanSeconds: number;
  readonly reasons: Readonly<Record<string, number>>;
  /** Checks that an overload shed, allowed or denied. */
  readonly shed?: number;
  readonly denied: readonly DeniedKeys[];
  readonly called: readonly TopCalled[];
}

export interface KeyUse {
  readonly key: string;
  readonly limit: string;
  readonly rule: string;
  readonly shadow?: true;
  readonly quota: number;
  readonly remaining: number;
  readonly use: number;
}

/** `GET /keys`. */
export interface Keys {
  readonly at: number;
  readonly nearest: readonly KeyUse[];
  readonly longest: readonly (Cause & {
    readonly key: string;
    readonly since: number;
    readonly denied: number;
  })[];
}

export interface Control {
  readonly kind: 'ban' | 'override' | 'reset';
  readonly key: string;
  readonly bytes?: string;
  readonly limit?: string;
  readonly rule?: unknown;
  readonly until: string;
  readonly since: string;
  readonly note?: string;
}

export interface RuleStatus {
  readonly name: string;
  readonly kind: string;
  readonly quota: number;
  readonly remaining: number;
  readonly opensInMs?: number | null;
}

/** A limit in the response of `GET /inspect`. */
export interface KeyStatus {
  readonly name: string;
  readonly isAvailable?: false;
  readonly remaining?: number;
  readonly by?: string;
  readonly opensInMs?: number | null;
  readonly limit?: number;
  readonly inFlight?: number;
  readonly rules?: readonly RuleStatus[];
}

export interface Explanation {
  readonly summary: string;
  readonly limits: readonly {
    readonly name: string;
    readonly isApplied: boolean;
    readonly shadow?: boolean;
    readonly rule: unknown;
    readonly reason: string;
  }[];
}

export interface Denial extends Cause {
  readonly rule?: string;
  readonly denied: number;
  readonly firstAt: number;
  readonly lastAt: number;
  readonly cost: number;
  readonly remaining?: number;
  readonly retryAfterMs: number | null;
}

export interface Peer {
  readonly name: string;
  readonly version: number;
  readonly ageMs: number;
  readonly reportsReceived: number;
  readonly missing: number;
  readonly lost: number;
}

/** `GET /peers`, of a daemon with peers or without. */
export interface Peers {
  readonly name?: string;
  readonly transport?: string;
  readonly isOpen?: boolean;
  readonly peers: readonly Peer[];
  /** Silent for longer than the peer timeout, and not forgotten yet. */
  readonly gone?: readonly Peer[];
  readonly rejected?: readonly {
    readonly from: string;
    readonly reason: string;
    readonly datagrams: number;
    readonly ageMs: number;
  }[];
}

/** `GET /pool`. */
export interface Pool {
  readonly name?: string;
  readonly store?: string;
  readonly id?: string;
  readonly size?: number;
  readonly active?: number;
  readonly isAgreed?: boolean;
  readonly isAvailable?: boolean;
  readonly ageMs?: number | null;
  readonly reason?: string;
  readonly saturation?: Readonly<Record<string, number>>;
  readonly members?: readonly {
    readonly id: string;
    readonly size: number;
    readonly rank: number;
    readonly ageMs: number | null;
  }[];
}

/** `GET /groups`. */
export interface Groups {
  readonly id?: string;
  readonly fraction?: number;
  readonly lent?: number;
  readonly others: readonly {
    readonly group: string;
    readonly borrowed: number;
    readonly requests: number;
    readonly failures: number;
    readonly reason?: string;
  }[];
}

/** `GET /page/state`: what a browser may know before it has a token. */
export interface State {
  readonly needsToken: boolean;
  readonly ready: boolean;
  readonly reasons: readonly string[];
  readonly unavailable: readonly string[];
}
