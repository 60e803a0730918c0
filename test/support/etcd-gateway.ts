/** The JSON gateway of an etcd, as tests call it, and a proxy that drops its responses. */

import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import type { Service } from './services.ts';

export const addressOf = ({ port }: Service): string => `http://127.0.0.1:${port}`;

/** Calls the JSON gateway of an etcd. */
export async function etcdCall(server: Service, path: string, body: object = {}): Promise<Reply> {
  const init = { method: 'POST', body: JSON.stringify(body) };
  return (await fetch(`${addressOf(server)}/v3/${path}`, init)).json() as Promise<Reply>;
}

interface Reply {
  readonly kvs?: readonly {
    readonly key: string;
    readonly value?: string;
    readonly lease?: string;
  }[];
  readonly leases?: readonly { readonly ID: string }[];
  readonly leader?: string;
  readonly header?: { readonly member_id: string };
  readonly TTL?: string;
}

export const ALL_KEYS = { key: 'AA==', range_end: 'AA==' };

/** A proxy to an etcd that can drop responses after the request was executed. */
export async function startDroppingProxy(target: string) {
  const proxy = { address: '', dropsResponses: false, stop: async () => {} };
  const server = createServer(async (request, response) => {
    const body = await text(request);
    const reply = await fetch(target + request.url, { method: 'POST', body });
    const replyText = await reply.text();
    if (proxy.dropsResponses) request.socket.destroy();
    else response.writeHead(reply.status).end(replyText);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  proxy.address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  proxy.stop = async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  };
  return proxy;
}
