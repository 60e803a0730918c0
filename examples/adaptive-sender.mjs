/**
 * A sender to a sink of unknown capacity: how many requests at once?
 *
 * The sink here is a small server that works on ten requests at a time. A few more may wait; whoever comes
 * when its hall is full is turned away with a 503. Nobody tells the sender any of this. First it sends all
 * it has at once, as `Promise.all` does, then the same through a limit that finds out by itself; whatever is
 * turned away on the way there is tried again.
 */

import { createServer } from 'node:http';
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';

const EVENTS = 250;

// ── The sink: ten workers, 40 ms for each request, room for thirty in all.
let inside = 0;
let freeAt = new Array(10).fill(0);
const sink = createServer((_request, response) => {
  if (inside >= 30) return response.writeHead(503).end();
  inside++;
  const now = performance.now();
  const [first, ...others] = freeAt.sort((a, b) => a - b);
  const doneAt = Math.max(now, first) + 40;
  freeAt = [doneAt, ...others];
  setTimeout(() => {
    inside--;
    response.end();
  }, doneAt - now);
});
await new Promise((ready) => sink.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${sink.address().port}`;

// ── The sender: all its events, with whichever fetch it is given.
async function sendAll(how, send) {
  const startedAt = performance.now();
  const statuses = await Promise.all(
    Array.from({ length: EVENTS }, async () => (await send(url)).status),
  );
  const seconds = (performance.now() - startedAt) / 1000;
  const delivered = statuses.filter((status) => status === 200).length;
  const lost = EVENTS - delivered;
  const rate = Math.round(delivered / seconds);
  console.log(`${how}: ${delivered} delivered at ${rate}/s, ${lost} lost, ${seconds.toFixed(1)} s`);
  return delivered;
}

await sendAll('all at once', fetch);

const unknown = limiter({ limit: { adaptive: {} } }); // nothing to configure
const moves = [];
const watching = setInterval(() => moves.push(unknown.inspect(url).limit), 100);
const delivered = await sendAll(
  'adaptive   ',
  throttleFetch({ limiter: unknown, wait: true, retry: true }),
);
clearInterval(watching);

console.log(`its limit, every 0.1 s: ${moves.join(' ')}`);
sink.close();
sink.closeAllConnections();
if (delivered < EVENTS) process.exitCode = 1;
