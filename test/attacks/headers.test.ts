/**
 * A client behind a proxy sends so many headers that `X-Forwarded-For` is dropped. A proxy that sorts headers
 * (Caddy, Traefik) places it last. The client must never count as the proxy, which may be exempt.
 */

import { connect } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { readHttpSection } from '../../src/daemon/config/http.ts';
import { createKeyExtractor } from '../../src/daemon/protocols/http/key.ts';
import { createHttpServer, serveHttp } from '../support/http-protocol.ts';
import { HTTP_SERVERS } from '../support/http-servers.ts';

const stops: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  await Promise.all(stops.splice(0).map((stop) => stop()));
});

/** The status of one request that has `count` headers in front of X-Forwarded-For. */
function statusBehind(port: number, path: string, count: number): Promise<number> {
  const junk = Array.from({ length: count }, (_, n) => `A${n % 10}:\r\n`).join('');
  const client = 'X-Forwarded-For: 203.0.113.9';
  return new Promise((resolve, reject) => {
    let text = '';
    const socket = connect(port, '127.0.0.1', () =>
      socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n${junk}${client}\r\n\r\n`),
    );
    socket.on('error', reject);
    socket.on('close', () => reject(new Error(`closed without a response to ${count} headers`)));
    socket.on('data', (chunk) => {
      text += chunk;
      const [, status] = /^HTTP\/1.1 (\d+)/.exec(text) ?? [];
      if (status === undefined) return;
      resolve(Number(status));
      socket.destroy();
    });
  });
}

async function statusesOf(port: number, path: string, counts: readonly number[]) {
  const statuses: number[] = [];
  for (const count of counts) statuses.push(await statusBehind(port, path, count));
  return statuses;
}

const COUNTS = [120, 98, 99, 100, 101, 500, 998];

describe('header flood', () => {
  test.each([true, false])(
    'daemon with fastPath %s: the client stays limited',
    async (fastPath) => {
      const http = readHttpSection({ prefix: 'ip:', trustProxy: ['127.0.0.1'] }, 'http');
      const server = await serveHttp(
        createHttpServer({
          allow: ['ip:127.0.0.1'],
          extractKey: createKeyExtractor(http),
          fastPath,
        }),
      );
      stops.push(server.stop);
      expect(await statusesOf(server.port, '/check', [0, 0, 0])).toEqual([200, 200, 200]);
      expect(await statusesOf(server.port, '/check', COUNTS)).toEqual(COUNTS.map(() => 429));
      expect(await statusesOf(server.port, '/check', [999, 2500, 8000])).toEqual([431, 431, 431]);
    },
  );

  test.each(Object.keys(HTTP_SERVERS))(
    '%s: cut headers are refused, others count',
    async (name) => {
      const options = {
        limit: { bucket: { rate: '1/h', burst: 3 } } as const,
        trustProxy: ['127.0.0.1'],
        skip: (request: unknown) => !JSON.stringify(headersOf(request)).includes('203.0.113.9'),
      };
      const server = await HTTP_SERVERS[name]([options], () => 200);
      stops.push(server.close);
      const port = Number(new URL(server.url).port);
      expect(await statusesOf(port, '/', [0, 120, 900])).toEqual([200, 200, 200]);
      expect(await statusesOf(port, '/', [0, 120, 900])).toEqual([429, 429, 429]);
      expect(await statusesOf(port, '/', [1100, 2500])).toEqual([431, 431]);
    },
  );
});

/** Of a Node or Fastify request, of Hono's context, or of a fetch request. */
function headersOf(request: unknown): unknown {
  const { headers, req } = request as {
    headers?: object;
    req?: { raw?: { headers: Iterable<unknown> } };
  };
  if (headers instanceof Headers) return [...headers];
  return headers ?? [...(req?.raw?.headers ?? [])];
}
