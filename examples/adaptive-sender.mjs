/**
 * Adaptive concurrency: a sender to a service of unknown capacity.
 *
 * The service is a small server with ten workers and a queue of twenty; it replies 503 to further requests. The sender
 * knows none of this. It first sends everything at once (`Promise.all`), then the same through an adaptive limit, which
 * finds the number of requests in flight and retries refused ones.
 */

import { createServer } from 'node:http';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';

const EVENTS = 250;

// ── The service: ten workers, 40 ms per request, at most thirty requests in all.
let inFlight = 0;
let freeAt = new Array(10).fill(0);
const service = createServer((_request, response) => {
  if (inFlight >= 30) return response.writeHead(503).end();
  inFlight++;
  const now = performance.now();
  const [first, ...others] = freeAt.sort((a, b) => a - b);
  const doneAt = Math.max(now, first) + 40;
  freeAt = [doneAt, ...others];
  setTimeout(() => {
    inFlight--;
    response.end();
  }, doneAt - now);
});
await new Promise((ready) => service.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${service.address().port}`;

// ── The sender: sends all events with a fetch function.
async function sendAll(name, send) {
  const startedAt = performance.now();
  const statuses = await Promise.all(
    Array.from({ length: EVENTS }, async () => (await send(url)).status),
  );
  const seconds = (performance.now() - startedAt) / 1000;
  const delivered = statuses.filter((status) => status === 200).length;
  const lost = EVENTS - delivered;
  const rate = Math.round(delivered / seconds);
  console.log(
    `${name}: ${delivered} delivered at ${rate}/s, ${lost} lost, ${seconds.toFixed(1)} s`,
  );
  return delivered;
}

await sendAll('all at once', fetch);

const api = limiter({ limit: { adaptive: {} } }); // no configuration
const limits = [];
const sampling = setInterval(() => limits.push(api.inspect(url).limit), 100);
const delivered = await sendAll(
  'adaptive   ',
  throttleFetch({ limiter: api, wait: true, retry: true }),
);
clearInterval(sampling);

console.log(`limit every 0.1 s: ${limits.join(' ')}`);
service.close();
service.closeAllConnections();
if (delivered < EVENTS) process.exitCode = 1;
