/**
 * The address of a client where a runtime passes it beside the request of a fetch handler.
 *
 *     Bun                  fetch(request, server)        server.requestIP(request).address
 *     Deno                 handler(request, info)        info.remoteAddr.hostname
 *     Node (Hono's server) fetch(request, { incoming })  incoming.socket.remoteAddress
 *     Cloudflare Workers   fetch(request, env, context)  CF-Connecting-IP, which Cloudflare overwrites
 *     srvx (h3, Nitro)     request.ip
 *
 * A header counts only where the platform itself sets it: Cloudflare marks its requests by `cf`, which no client can send.
 */

import { emitProcessWarning } from '../../core/process-warning.ts';

/** The members of a `Request` that are used, with those that platforms add. */
export interface RuntimeRequest {
  readonly headers: { get(name: string): string | null };
  readonly cf?: unknown;
  readonly ip?: unknown;
}

/** The members of the value that a runtime passes beside a request. */
interface RuntimeConnection {
  requestIP?(request: unknown): { readonly address: string } | null;
  readonly remoteAddr?: { readonly hostname?: string };
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string | undefined } };
}

/** The client's address; undefined, with one process warning for each limit, if the runtime does not tell it. */
export function runtimeAddressOf(
  request: RuntimeRequest,
  connection: unknown,
  limitName: string,
): string | undefined {
  const address = findAddress(request, (connection ?? {}) as RuntimeConnection);
  if (address === undefined) {
    const message =
      'this runtime gives no client address, so all clients share one key; ' +
      'set `address`, a function of the request, or a `key`';
    emitProcessWarning('NO_ADDRESS', `limit "${limitName}": ${message}`, limitName);
  }
  return address;
}

function findAddress(request: RuntimeRequest, connection: RuntimeConnection): string | undefined {
  const { requestIP, remoteAddr, incoming } = connection;
  if (incoming !== undefined) return incoming.socket?.remoteAddress;
  if (typeof requestIP === 'function') return requestIP.call(connection, request)?.address;
  if (remoteAddr?.hostname !== undefined) return remoteAddr.hostname;
  if (request.cf !== undefined) return request.headers.get('cf-connecting-ip') ?? undefined;
  return typeof request.ip === 'string' ? request.ip : undefined;
}
