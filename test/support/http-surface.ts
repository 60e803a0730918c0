/** An HTTP surface with limits of its own, for tests: in the virtual time of one's own, or on a real socket. */

import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { RemoteBackendFactory } from '../../src/backends/remote-backend.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import type { Decision, OnUnavailable } from '../../src/core/decision.ts';
import { createHasher } from '../../src/core/hash.ts';
import { readLimits } from '../../src/daemon/config/limits.ts';
import { readPatterns } from '../../src/daemon/keys/pattern.ts';
import {
  createHttpServer,
  type HttpContext,
  type HttpServer,
  type HttpSettings,
} from '../../src/daemon/protocols/http/server/server.ts';
import { type BackendSelector, LimiterRegistry } from '../../src/daemon/router/limiter-registry.ts';
import { Router } from '../../src/daemon/router/router.ts';
import type { RoutesConfig } from '../../src/daemon/router/routes.ts';

export interface SurfaceOptions
  extends Partial<Omit<HttpContext, 'router' | 'limits' | 'routesConfig'> & HttpSettings> {
  /** As a configuration spells them. */
  readonly limits?: unknown;
  readonly deny?: unknown;
  readonly allow?: unknown;
  readonly unmatched?: 'allow' | 'deny';
  readonly backend?: RemoteBackendFactory;
}

const LIMITS = { api: { bucket: { rate: '1/s', burst: 3 } } };

const routesOf = (given: SurfaceOptions): RoutesConfig => ({
  allow: readPatterns(given.allow, 'allow'),
  deny: readPatterns(given.deny, 'deny'),
  unmatched: given.unmatched ?? 'allow',
  limits: readLimits(given.limits ?? LIMITS, 'limits'),
});

/** A gate with these limits, three and then one a second if nothing else is said. */
export function createRouter(
  given: SurfaceOptions,
  clock: Clock,
  routesConfig = routesOf(given),
): Router {
  const own = createHasher([1, 2]);
  const backendFor: BackendSelector = ({ backends }) =>
    backends.length > 0 ? given.backend : undefined;
  const registry = new LimiterRegistry({ clock, hasher: own, backendFor });
  registry.apply(routesConfig.limits);
  return new Router(routesConfig, registry, own, () => 0);
}

export function createSurface(given: SurfaceOptions = {}): HttpServer {
  const { clock = systemClock, admin = {}, extractKey, bounds, onError } = given;
  const routesConfig = routesOf(given);
  const context = {
    router: createRouter(given, clock, routesConfig),
    clock,
    version: '0.0.0',
    metrics: given.metrics ?? (() => 'up 1\n'),
    reload: given.reload ?? (async () => ({ ok: true as const })),
    isReady: given.isReady ?? (() => true),
    limits: () => given.limits ?? LIMITS,
    backendPages: [],
    routesConfig: () => routesConfig,
    ...(onError && { onError }),
  };
  return createHttpServer(context, { admin, extractKey, bounds });
}

/** Somebody else who is out of reach, and this is what `onUnavailable` says instead; `asks` gets who asked. */
export const unavailableBackend = (
  decision: Decision,
  asks: string[] = [],
  onUnavailable: OnUnavailable = 'deny',
): RemoteBackendFactory => ({
  isRemote: true,
  create: () => ({
    async checkNow(key) {
      asks.push(key);
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
  throw new Error('not asked for here');
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

export interface RunningSurface {
  readonly port: number;
  sendRequest(path: string, asked?: HttpRequestOptions): Promise<HttpResult>;
  stop(): Promise<void>;
}

/** Listens on a free port of this host. */
export async function serveSurface(
  surface: HttpServer,
  isLoopback = true,
  take: (socket: Socket) => Socket = (socket) => socket,
): Promise<RunningSurface> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) =>
    surface.accept(take(socket), isLoopback),
  );
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address() as AddressInfo;
  return {
    port,
    sendRequest: (path, asked) => sendRequest(port, path, asked),
    async stop() {
      await surface.drain(0);
      await new Promise((closed) => server.close(closed));
    },
  };
}

export const sendRequest = (
  port: number,
  path: string,
  asked: HttpRequestOptions = {},
): Promise<HttpResult> =>
  new Promise((resolve, reject) => {
    const { method = 'GET', headers = {}, body } = asked;
    const own = { port, host: '127.0.0.1', path, method, headers, agent: false };
    const request = httpRequest(own, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
      });
      response.on('end', () => {
        const { statusCode: status = 0, headers: told } = response;
        resolve({ status, headers: told, text, json: parseJsonOrEmpty(text) });
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
