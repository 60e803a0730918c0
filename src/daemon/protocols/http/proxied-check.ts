/**
 * Checks that a proxy builds from the request of a client.
 *
 * A proxy may append the client's path to the path of the check, query included (Envoy ext_authz). A path begins with a
 * slash, so the client cannot add a parameter: those of the proxy stand before it, the rest is ignored.
 *
 *     /check;limit=login&status=429/the/path?of=the&client   ──▶   /check?limit=login&status=429
 *
 * A proxy may also handle only some statuses (nginx auth_request): `status` is that of every refusal, errors included.
 */

import type { RequestHead } from './key.ts';
import type { HttpResponse } from './response.ts';

const BEFORE_CLIENT_PATH = /^\/check(?:;([^/?#]*))?\//;

/** The URL of a check without the client's path; undefined if it has none. */
export function proxiedCheckUrl(url: string): string | undefined {
  const found = BEFORE_CLIENT_PATH.exec(url);
  return found ? `/check?${found[1] ?? ''}` : undefined;
}

/** The request of a check without the client's path; undefined if its URL has none. */
export function proxiedCheck(request: RequestHead): RequestHead | undefined {
  const url = proxiedCheckUrl(request.url ?? '');
  if (url === undefined) return undefined;
  const { method, headers, rawHeaders, socket } = request;
  return { method, url, headers, rawHeaders, socket };
}

const REQUESTED_STATUS = /^\/check\?(?:.*?&)?status=([45]\d\d)(?:&|$)/;

/** The response to a check that cannot be made, with the status that its URL requests. */
export function asRequested({ url = '' }: RequestHead, response: HttpResponse): HttpResponse {
  const [, status] = REQUESTED_STATUS.exec(proxiedCheckUrl(url) ?? url) ?? [];
  return status === undefined ? response : withStatus(response, Number(status));
}

/** Replaces the status of a response and the one in its body. */
export function withStatus(response: HttpResponse, status = response.status): HttpResponse {
  const body = `${JSON.stringify({ ...JSON.parse(response.body), status })}\n`;
  return { ...response, status, body };
}
