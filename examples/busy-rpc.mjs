/**
 * Back-off on the client side: a service replies busy for a while.
 *
 * Two callers make 200 calls per second together. For 0.7 seconds the service replies 503 to each. The limit halves on
 * every busy reply, so only a few probes are sent. Then it grows tenfold per second (default: fourfold). Refused calls
 * do not reach the service: the client can use a fallback, a cached result or its own error.
 */

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { throttleFetch } from 'sluice/fetch';

const SECONDS = 3.5;
const CALLERS = 2;
const CALLS_PER_SECOND = 200;
const startedAt = performance.now();
const now = () => performance.now() - startedAt;

// ── The service: busy from 0.5 s to 1.2 s.
const isBusy = () => now() >= 500 && now() < 1200;
const service = createServer((_request, response) =>
  response.writeHead(isBusy() ? 503 : 200).end(),
);
await new Promise((ready) => service.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${service.address().port}`;

// ── The client: the limit, and a response for refused calls. The clock starts with this program.
const refused = new Response(null, { status: 299 });
const call = throttleFetch({
  limit: { busy: { recoverRate: 9 } },
  wait: false,
  onDeny: () => refused,
  clock: { now },
});

const halves = Array.from({ length: SECONDS * 2 }, () => ({ offered: 0, sent: 0, busy: 0 }));
async function caller() {
  const everyMs = (1000 * CALLERS) / CALLS_PER_SECOND;
  for (let turn = 1; now() < SECONDS * 1000; turn++) {
    const half = halves[Math.floor(now() / 500)];
    half.offered++;
    const response = await call(url);
    if (response !== refused) half.sent++;
    if (response.status === 503) half.busy++;
    await sleep(Math.max(0, turn * everyMs - now()));
  }
}
await Promise.all(Array.from({ length: CALLERS }, caller));

console.log(' from  offered  sent  busy');
for (const [n, { offered, sent, busy }] of halves.entries()) {
  const columns = [String(offered).padStart(7), String(sent).padStart(4), String(busy).padStart(4)];
  console.log(
    `${(n / 2).toFixed(1)} s  ${columns.join('  ')}  ${'▪'.repeat(Math.ceil(sent / 4))}`.trimEnd(),
  );
}
service.close();
service.closeAllConnections();
