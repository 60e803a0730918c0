/**
 * A real Redis behind the HTTP interface of Upstash: a request is one command as JSON, or
 * several in a pipeline. Strings of the reply are base64.
 */

import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from '@upstash/redis';
import { createClient } from 'redis';
import type { RedisConnection } from './redis-clients.ts';

const encode = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(encode);
  return typeof value === 'string' ? Buffer.from(value).toString('base64') : value;
};

/** An HTTP server that stands for Upstash. */
export interface UpstashServer {
  readonly url: string;
  /** False: it accepts requests and answers none of them, until it is true again. */
  isAnswering: boolean;
  close(): void;
}

/** In front of the Redis on a port. */
export async function startUpstash(port: number): Promise<UpstashServer> {
  const backing = createClient({ socket: { port, host: '127.0.0.1' } });
  backing.on('error', () => {});
  await backing.connect();
  const send = (words: readonly unknown[]): Promise<object> =>
    backing.sendCommand(words.map(String)).then(
      (result) => ({ result: encode(result) }),
      (error: Error) => ({ error: error.message }),
    );
  const bridge = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request) body += chunk;
    if (!server.isAnswering) return;
    const isPipeline = request.url === '/pipeline';
    const commands = (isPipeline ? JSON.parse(body) : [JSON.parse(body)]) as unknown[][];
    const replies = await Promise.all(commands.map(send));
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(isPipeline ? replies : replies[0]));
  }).listen(0, '127.0.0.1');
  await once(bridge, 'listening');
  const server: UpstashServer = {
    url: `http://127.0.0.1:${(bridge.address() as AddressInfo).port}`,
    isAnswering: true,
    close() {
      backing.destroy();
      bridge.close();
      bridge.closeAllConnections();
    },
  };
  return server;
}

/** A client of @upstash/redis for the Redis on a port. */
export async function upstash(port: number): Promise<RedisConnection> {
  const { url, close } = await startUpstash(port);
  const client = new Redis({ url, token: 'test', enableTelemetry: false, retry: false });
  return { client, disconnect: close };
}
