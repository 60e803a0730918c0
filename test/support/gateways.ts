/**
 * Real gateways with the configurations of docs/how-to/gateways.md, each in front of its own daemon and of one application.
 *
 *     client ──▶ gateway that fails open, or closed ──▶ application
 *                              └──▶ daemon
 */

import { readFileSync, writeFileSync } from 'node:fs';
import { createServer, request as httpRequest, type OutgoingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join, resolve } from 'node:path';
import { startServer } from '../../bench/server-process.mjs';
import {
  caddyServer,
  haproxyServer,
  nginxServer,
  type Service,
  startCaddy,
  startHaproxy,
  startNginx,
} from './services.ts';

/** A fenced block of the page, by the comment in its first line, with the test's addresses. */
export function recipe(name: string, replacements: Readonly<Record<string, string>>): string {
  const page = readFileSync('docs/how-to/gateways.md', 'utf8');
  const blocks = page.split(/^```.*\n/m).filter((_, n) => n % 2 === 1);
  const block = blocks.find((text) => text.startsWith(`# ${name}\n`));
  if (block === undefined) throw new Error(`docs/how-to/gateways.md has no recipe "${name}"`);
  return Object.entries(replacements).reduce((text, [from, to]) => {
    if (!text.includes(from)) throw new Error(`recipe "${name}" has no "${from}"`);
    return text.replaceAll(from, to);
  }, block);
}

export interface Gateway {
  readonly name: string;
  /** Undefined: not installed. */
  readonly command: () => string | undefined;
  /** Its answer without a daemon, if it fails closed: dead, frozen. */
  readonly closedStatus: readonly [number, number];
  /** The recipe with other addresses; `edit` changes it. */
  start(addresses: Addresses, edit: (text: string) => string): Promise<Service>;
  /** How it spells a Unix socket. */
  readonly unixPrefix: string;
  /** The key of the recipe, and a key from the header `X-Api-Key`. */
  readonly clientAddress: string;
  readonly apiKey: string;
  readonly failOpen: (text: string) => string;
  readonly failClosed: (text: string) => string;
}

interface Addresses {
  readonly daemon: string;
  readonly app: string;
}

const asItStands = (text: string): string => text;

/** Removes what the page says to leave out. */
const without =
  (part: RegExp) =>
  (text: string): string => {
    if (!part.test(text)) throw new Error(`the recipe has no ${part}`);
    return text.replace(part, '');
  };

const addressesOf = ({ daemon, app }: Addresses): Record<string, string> => ({
  '127.0.0.1:7612': daemon,
  '127.0.0.1:3000': app,
});

export const GATEWAYS: readonly Gateway[] = [
  {
    name: 'nginx',
    command: nginxServer,
    closedStatus: [500, 500],
    unixPrefix: 'unix:',
    clientAddress: 'ip:$remote_addr',
    apiKey: '$http_x_api_key',
    start: (addresses, edit) =>
      startNginx(1, ([port]) =>
        edit(
          recipe('sluice.conf', {
            ...addressesOf(addresses),
            'listen 80;': `listen 127.0.0.1:${port};`,
          }),
        ),
      ),
    failOpen: asItStands,
    failClosed: without(/.*without this line: fails closed\n/),
  },
  {
    name: 'HAProxy',
    command: haproxyServer,
    closedStatus: [503, 503],
    unixPrefix: 'unix@',
    clientAddress: 'ip:%[src]',
    apiKey: '%[req.fhdr(x-api-key)]',
    start: (addresses, edit) =>
      startHaproxy((port) =>
        edit(
          recipe('haproxy.cfg', {
            ...addressesOf(addresses),
            '/etc/haproxy/sluice.lua': resolve('deploy/haproxy/sluice.lua'),
            'bind :80': `bind 127.0.0.1:${port}`,
          }),
        ),
      ),
    failOpen: without(/.*without this line: fails open\n/),
    failClosed: asItStands,
  },
  {
    name: 'Caddy',
    command: caddyServer,
    closedStatus: [502, 504],
    unixPrefix: 'unix/',
    clientAddress: 'ip:{remote_host}',
    apiKey: '{header.X-Api-Key}',
    start: (addresses, edit) =>
      startCaddy((port) =>
        edit(
          recipe('Caddyfile', {
            ...addressesOf(addresses),
            'example.org {': `http://127.0.0.1:${port} {`,
          }),
        ),
      ),
    failOpen: asItStands,
    failClosed: without(/\thandle_errors {[^}]*}\n/),
  },
];

/** The recipe that fails closed, after a time that a busy machine does not reach. */
export const failsClosedLate =
  ({ failClosed }: Gateway) =>
  (text: string): string =>
    failClosed(text)
      .replaceAll('250ms', '5s')
      .replace(/(lua\.sluice \S+) 250$/m, '$1 5000');

/** A daemon on a port and on a Unix socket. */
export interface GatewayDaemon extends Service {
  readonly socket: string;
}

/** The built daemon with a configuration of the page, and these changes to it. */
export async function startGatewayDaemon(
  changes: Readonly<Record<string, string>>,
  name = 'sluice.yaml',
): Promise<GatewayDaemon> {
  let socket = '';
  const service = await startServer({
    command: process.execPath,
    argsIn(folder, [port]) {
      const file = join(folder, 'sluice.yaml');
      socket = join(folder, 'http.sock');
      const listen = { 'http: 127.0.0.1:7612': `http: ['127.0.0.1:${port}', '${socket}']` };
      writeFileSync(file, recipe(name, { ...changes, ...listen }));
      const only = ['--line', 'off', '--resp', 'off'];
      return ['dist/bin/sluice.js', 'serve', '--config', file, ...only];
    },
    announces: 'ready\n',
  });
  return Object.assign(service, { socket });
}

export interface Application {
  readonly address: string;
  /** Requests so far. */
  readonly count: () => number;
  stop(): Promise<unknown>;
}

/** The application behind a gateway: replies with method, URL and body. */
export async function startApplication(): Promise<Application> {
  let count = 0;
  const server = createServer(async (request, response) => {
    count++;
    const chunks = await request.toArray();
    response.statusCode = request.url === '/forbidden' ? 403 : 200;
    response.end(`app ${request.method} ${request.url} ${Buffer.concat(chunks)}`);
  });
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  const { port } = server.address() as AddressInfo;
  return {
    address: `127.0.0.1:${port}`,
    count: () => count,
    stop: () => new Promise((closed) => server.close(closed)),
  };
}

export interface Reply {
  readonly status: number;
  readonly headers: NodeJS.Dict<string | string[]>;
  readonly text: string;
  readonly ms: number;
}

export interface ClientRequest {
  readonly path?: string;
  readonly method?: string;
  readonly headers?: OutgoingHttpHeaders;
  readonly body?: string;
}

/** No gateway may take longer, whatever happens. */
const TIMEOUT_MS = 10_000;

/** A request of the client with this address of loopback. */
export const requestFrom = (
  client: string,
  port: number,
  { path = '/', method = 'GET', headers = {}, body }: ClientRequest = {},
): Promise<Reply> =>
  new Promise((received, reject) => {
    const since = performance.now();
    const target = { host: '127.0.0.1', port, path, method, headers, agent: false };
    const request = httpRequest({ ...target, localAddress: client }, async (response) => {
      const { statusCode: status = 0, headers: replied } = response;
      const chunks = await response.toArray().catch(() => []);
      const text = Buffer.concat(chunks).toString('latin1');
      received({ status, headers: replied, text, ms: performance.now() - since });
    });
    request.setTimeout(TIMEOUT_MS, () => request.destroy(new Error('the gateway does not reply')));
    request.on('error', reject).end(body);
  });
