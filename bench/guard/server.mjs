/**
 * An HTTP server in a process of its own, with one of several guards in front of its handler.
 *
 *     fork(server.mjs, [handler, guard])  ──▶ sends { port } over IPC
 *
 * Handlers: `cpu` computes for 5 ms; `io` needs one of 20 slots for 100 ms and queues for it without a bound, as a pool of
 * database connections does.
 */

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { rateLimit } from 'sluice/node';

const [, , handler, guard] = process.argv;

const COMPUTE_MS = 5;
const IO_MS = 100;
const IO_SLOTS = 20;

function compute() {
  const end = performance.now() + COMPUTE_MS;
  while (performance.now() < end);
}

const waiting = [];
let busySlots = 0;

async function withSlot(run) {
  if (busySlots >= IO_SLOTS) await new Promise((ready) => waiting.push(ready));
  else busySlots++;
  try {
    await run();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else busySlots--;
  }
}

const HANDLERS = {
  cpu: async () => compute(),
  io: () => withSlot(() => sleep(IO_MS)),
};

const GUARDS = {
  none: async () => (_request, _response, next) => next(),
  sluice: async () => rateLimit({ limit: { adaptive: { initial: 20 } } }),
  async toobusy() {
    const { default: isTooBusy } = await import('toobusy-js');
    return (_request, response, next) => {
      if (!isTooBusy()) return next();
      response.statusCode = 503;
      response.end();
    };
  },
};

const handle = HANDLERS[handler];

async function listen() {
  if (guard === 'under-pressure') return listenOnFastify();
  const limited = await GUARDS[guard]();
  const server = createServer((request, response) =>
    limited(request, response, async () => {
      await handle();
      response.end('done');
    }),
  );
  await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
  return server.address().port;
}

async function listenOnFastify() {
  const [{ default: fastify }, { default: underPressure }] = await Promise.all([
    import('fastify'),
    import('@fastify/under-pressure'),
  ]);
  const app = fastify();
  await app.register(underPressure, { maxEventLoopDelay: 100 });
  app.get('/', async () => {
    await handle();
    return 'done';
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  return app.server.address().port;
}

process.send({ port: await listen() });
process.once('disconnect', () => process.exit());
