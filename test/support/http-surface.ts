/** An HTTP surface with limits of its own, for tests: in the virtual time of one's own, or on a real socket. */

import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { RemoteShareMaker } from '../../src/backends/remote-backend.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import type { Decision, OnUnavailable } from '../../src/core/decision.ts';
import { hasher } from '../../src/core/hash.ts';
import { readLimits } from '../../src/daemon/config/limits.ts';
import { readPatterns } from '../../src/daemon/keys/pattern.ts';
import {
  type HttpNow,
  type HttpSetting,
  type HttpSurface,
  httpSurface,
} from '../../src/daemon/protocols/http/server/server.ts';
import { type ShareOf, Shelf } from '../../src/daemon/router/limiter-registry.ts';
import { Gate } from '../../src/daemon/router/router.ts';
import type { RoutesConfig } from '../../src/daemon/router/routes.ts';

export interface Given extends Partial<Omit<HttpSetting, 'gate' | 'limits' | 'rules'> & HttpNow> {
  /** As a configuration spells them. */
  readonly limits?: unknown;
  readonly deny?: unknown;
  readonly allow?: unknown;
  readonly unmatched?: 'allow' | 'deny';
  readonly share?: RemoteShareMaker;
}

const LIMITS = { api: { bucket: { rate: '1/s', burst: 3 } } };

const rulesOf = (given: Given): RoutesConfig => ({
  allow: readPatterns(given.allow, 'allow'),
  deny: readPatterns(given.deny, 'deny'),
  unmatched: given.unmatched ?? 'allow',
  limits: readLimits(given.limits ?? LIMITS, 'limits'),
});

/** A gate with these limits, three and then one a second if nothing else is said. */
export function gateWith(given: Given, clock: Clock, rules = rulesOf(given)): Gate {
  const own = hasher([1, 2]);
  const shareOf: ShareOf = ({ redis }) => redis && given.share;
  const shelf = new Shelf({ clock, hasher: own, shareOf });
  shelf.stock(rules.limits);
  return new Gate(rules, shelf, own, () => 0);
}

export function surfaceWith(given: Given = {}): HttpSurface {
  const { clock = systemClock, admin = {}, keyOf, bounds, onError } = given;
  const rules = rulesOf(given);
  const setting = {
    gate: gateWith(given, clock, rules),
    clock,
    version: '0.0.0',
    metrics: given.metrics ?? (() => 'up 1\n'),
    reload: given.reload ?? (async () => ({ ok: true as const })),
    isReady: given.isReady ?? (() => true),
    limits: () => given.limits ?? LIMITS,
    peers: () => undefined,
    pool: async () => undefined,
    groups: () => undefined,
    rules: () => rules,
    ...(onError && { onError }),
  };
  return httpSurface(setting, { admin, keyOf, bounds });
}

/** Somebody else who is out of reach, and this is what `onUnavailable` says instead; `asks` gets who asked. */
export const somebodyElse = (
  decision: Decision,
  asks: string[] = [],
  onUnavailable: OnUnavailable = 'deny',
): RemoteShareMaker => ({
  isRemote: true,
  make: () => ({
    async askNow(key) {
      asks.push(key);
      return { decision, at: 0, isMakeshift: true };
    },
    look: async () => undefined,
    settle: async () => {},
    close: async () => {},
    isReachable: false,
    onUnavailable,
    ...{ ask: unasked, askLine: unasked, take: unasked, hits: unasked },
  }),
});

const unasked = (): never => {
  throw new Error('not asked for here');
};

export interface Told {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** The body as JSON. */
  readonly json: Readonly<Record<string, unknown>>;
}

export interface Asked {
  readonly method?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Buffer;
}

export interface Served {
  readonly port: number;
  ask(path: string, asked?: Asked): Promise<Told>;
  stop(): Promise<void>;
}

/** Listens on a free port of this host. */
export async function serve(
  surface: HttpSurface,
  isLoopback = true,
  take: (socket: Socket) => Socket = (socket) => socket,
): Promise<Served> {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) =>
    surface.accept(take(socket), isLoopback),
  );
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address() as AddressInfo;
  return {
    port,
    ask: (path, asked) => ask(port, path, asked),
    async stop() {
      await surface.drain(0);
      await new Promise((closed) => server.close(closed));
    },
  };
}

export const ask = (port: number, path: string, asked: Asked = {}): Promise<Told> =>
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
        resolve({ status, headers: told, text, json: jsonOf(text) });
      });
    });
    request.on('error', reject).end(body);
  });

function jsonOf(text: string): Told['json'] {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
