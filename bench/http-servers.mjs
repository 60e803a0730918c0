/**
 * The HTTP servers that are compared: the same small server without a limit, with Sluice, and with other libraries.
 *
 *     node bench/http-servers.mjs FRAMEWORK NAME [FOLDER]    listens on a free port and reports it
 *
 * FOLDER is that of another build of Sluice. The limit is never reached. On a message from the parent, the process sends
 * its user CPU time. System time is left out, because it depends on how requests are batched. The process ends with its
 * parent.
 */

import { createServer } from 'node:http';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { middlewareOf } from './compare/builds.mjs';

const FOLDER = process.argv[4] ?? fileURLToPath(new URL('../', import.meta.url));
const PLENTY = 1e9;
const limit = { bucket: { rate: PLENTY, burst: PLENTY } };
const HOUR_MS = 3_600_000;

async function nodeWith(options) {
  const limited = options && (await ours('node', options));
  return createServer((request, response) => {
    const next = () => response.end('ok');
    if (limited) limited(request, response, next);
    else next();
  });
}

async function expressWith(middleware) {
  const { default: express } = await import('express');
  const app = express();
  if (middleware) app.use(await middleware());
  app.get('/', (_, response) => response.end('ok'));
  return createServer(app);
}

async function fastifyWith(register) {
  const { default: fastify } = await import('fastify');
  const app = fastify();
  if (register) await register(app);
  app.get('/', (_, reply) => reply.send('ok'));
  await app.ready();
  return app.server;
}

async function honoWith(middleware) {
  const { Hono } = await import('hono');
  const { createAdaptorServer } = await import('@hono/node-server');
  const app = new Hono();
  if (middleware) app.use(await middleware());
  app.get('/', (c) => c.text('ok'));
  return createAdaptorServer({ fetch: app.fetch });
}

const ours = async (adapter, options) =>
  (await middlewareOf(FOLDER, adapter))({ limit, name: 'api', ...options });

async function expressRateLimit(options) {
  const { rateLimit } = await import('express-rate-limit');
  return rateLimit({ windowMs: HOUR_MS, limit: PLENTY, ...options });
}

async function fastifyRateLimit(app) {
  const { default: rateLimit } = await import('@fastify/rate-limit');
  await app.register(rateLimit, { max: PLENTY, timeWindow: HOUR_MS });
}

const quiet = { headers: false };
const legacy = { headers: 'legacy' };
// The generator keeps the event loop busy. With less CPU, on a busy machine, it is later than the default: requests are shed.
const inFlight = { limit: { concurrency: 1000 }, maxEventLoopDelay: '1h' };

/** By framework. `bare` is the baseline. */
export const servers = {
  'node:http': {
    bare: () => nodeWith(),
    sluice: () => nodeWith({}),
    'sluice, no headers': () => nodeWith(quiet),
    'sluice, calls in flight': () => nodeWith(inFlight),
  },
  Express: {
    bare: () => expressWith(),
    'an empty middleware': () => expressWith(() => (_, __, next) => next()),
    sluice: () => expressWith(() => ours('express')),
    'sluice, legacy headers': () => expressWith(() => ours('express', legacy)),
    'sluice, no headers': () => expressWith(() => ours('express', quiet)),
    'express-rate-limit, draft 8': () =>
      expressWith(() => expressRateLimit({ standardHeaders: 'draft-8', legacyHeaders: false })),
    'express-rate-limit, legacy headers': () =>
      expressWith(() => expressRateLimit({ standardHeaders: false, legacyHeaders: true })),
    'express-rate-limit, no headers': () =>
      expressWith(() => expressRateLimit({ standardHeaders: false, legacyHeaders: false })),
  },
  Fastify: {
    bare: () => fastifyWith(),
    sluice: () => fastifyWith(async (app) => app.register(await ours('fastify'))),
    'sluice, no headers': () =>
      fastifyWith(async (app) => app.register(await ours('fastify', quiet))),
    'sluice, legacy headers': () =>
      fastifyWith(async (app) => app.register(await ours('fastify', legacy))),
    '@fastify/rate-limit, legacy headers': () => fastifyWith(fastifyRateLimit),
  },
  Hono: {
    bare: () => honoWith(),
    sluice: () => honoWith(() => ours('hono')),
    'sluice, no headers': () => honoWith(() => ours('hono', quiet)),
  },
};

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const server = await servers[process.argv[2]][process.argv[3]]();
  process.on('message', () => {
    process.send({ cpuUs: process.cpuUsage().user });
  });
  process.on('disconnect', () => process.exit(0));
  server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
}
