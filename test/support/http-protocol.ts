/** An HTTP server with its own limits for tests, without a socket or on a real one. */

import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { RemoteBackendFactory } from '../../src/backends/remote-backend.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import type { Decision, OnUnavailable } from '../../src/core/decision.ts';
import { createHasher } from '../../src/core/hash.ts';
import { readLimits } from '../../src/daemon/config/limits.ts';
import { readPatterns } from '../../src/daemon/keys/pattern.ts';
import { PatternTable } from '../../src/daemon/keys/pattern-table.ts';
import {
  type HttpContext,
  HttpServer,
  type HttpSettings,
} from '../../src/daemon/protocols/http/server/server.ts';
import { type BackendSelector, LimiterRegistry } from '../../src/daemon/router/limiter-registry.ts';
import type { RoutesConfig } from '../../src/daemon/router/route-index.ts';
import { Router } from '../../src/daemon/router/router.ts';

export interface HttpServerOptions
  extends Partial<Omit<HttpContext, 'router' | 'limits'> & HttpSettings> {
  /** As in a configuration file. */
  readonly limits?: unknown;
  readonly deny?: unknown;
  readonly allow?: unknown;
  readonly unmatched?: 'allow' | 'deny';
  readonly backend?: RemoteBackendFactory;
}

const LIMITS = { api: { bucket: { rate: '1/s', burst: 3 } } };

const routesOf = (options: HttpServerOptions): RoutesConfig => ({
  allow: PatternTable.of(readPatterns(options.allow, 'allow')),
  deny: PatternTable.of(readPatterns(options.deny, 'deny')),
  unmatched: options.unmatched ?? 'allow',
  limits: readLimits(options.limits ?? LIMITS, 'limits'),
});

/** A router with these limits; default: a burst of 3, then 1/s. */
export function createRouter(options: HttpServerOptions, clock: Clock): Router {
  const routesConfig = routesOf(options);
  const hasher = createHasher([1, 2], 'latin1');
  const backendFor: BackendSelector = ({ backends }) =>
    backends.length > 0 ? options.backend : undefined;
  const registry = new LimiterRegistry({ clock, hasher, backendFor });
  registry.apply(routesConfig.limits);
  return new Router(routesConfig, registry, hasher, () => 0);
}

export function createHttpServer(options: HttpServerOptions = {}): HttpServer {
  const { clock = systemClock, admin = {}, extractKey, bounds, fastPath, onError } = options;
  const { allowCrossSite } = options;
  const context = {
    router: createRouter(options, clock),
    clock,
    version: '0.0.0',
    metrics: options.metrics ?? (async () => 'up 1\n'),
    reload:
      options.reload ??
      (async () => ({
        ok: true as const,
        limits: 1,
        kept: 1,
        warnings: [],
        added: [],
        removed: [],
      })),
    isReady: options.isReady ?? (() => true),
    limits: () => options.limits ?? LIMITS,
    backendPages: [],
    ...(onError && { onError }),
    turns: options.turns,
  };
  return new HttpServer(context, { admin, extractKey, allowCrossSite, bounds, fastPath });
}

/** A backend that is unavailable, with the decision of `onUnavailable`; `checks` collects the keys. */
export const unavailableBackend = (
  decision: Decision,
  checks: string[] = [],
  onUnavailable: OnUnavailable = 'deny',
): RemoteBackendFactory => ({
  isRemote: true,
  create: () => ({
    async checkNow(key) {
      checks.push(key);
      return { decision, decidedAt: 0, fromFallback: true };
    },
    readState: async () => undefined,
    settle: async () => {},
    close: async () => {},
    isAvailable: false,
    onUnavailable,
    ...{
      check: notImplemented,
      checkBatch: notImplemented,
      takeUpTo: notImplemented,
      addHits: notImplemented,
    },
  }),
});

const notImplemented = (): never => {
  throw new Error('not expected here');
};

export interface HttpResult {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** The body as JSON. */
  readonly json: Readonly<Record<string, unknown>>;
}

export interface HttpRequestOptions {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Buffer;
}

export interface RunningHttpServer {
  readonly port: number;
  sendRequest(path: string, options?: HttpRequestOptions): Promise<HttpResult>;
  stop(): Promise<void>;
}

/** Listens on a free port of this host. */
export async function serveHttp(
  httpServer: HttpServer,
  isLoopback = true,
  prepare: (socket: Socket) => Socket = (socket) => socket,
): Promise<RunningHttpServer> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) =>
    httpServer.accept(prepare(socket), isLoopback),
  );
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address() as AddressInfo;
  return {
    port,
    sendRequest: (path, options) => sendRequest(port, path, options),
    async stop() {
      await httpServer.drain(0);
      await new Promise((closed) => server.close(closed));
    },
  };
}

export const sendRequest = (
  port: number,
  path: string,
  options: HttpRequestOptions = {},
): Promise<HttpResult> =>
  new Promise((resolve, reject) => {
    const { method = 'GET', headers = {}, body } = options;
    const target = { port, host: '127.0.0.1', path, method, headers, agent: false };
    const request = httpRequest(target, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
      });
      response.on('end', () => {
        const { statusCode: status = 0, headers: received } = response;
        resolve({ status, headers: received, text, json: parseJsonOrEmpty(text) });
      });
    });
    request.on('error', reject).end(body);
  });

function parseJsonOrEmpty(text: string): HttpResult['json'] {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
