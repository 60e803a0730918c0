/**
 * A client of a service that says busy for a while: leave it alone at once, and be back soon after.
 *
 * Two callers make 200 calls a second between them. For 0.7 seconds the service answers each with a 503.
 * The limit halves on every busy reply, so the service is left in peace but for a probe or two; then it
 * grows tenfold a second (fourfold, unless told otherwise: this is a short story). What is refused is
 * refused here, without a request: time for a fallback, a cached answer, an error of your own.
 */

import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { throttleFetch } from 'sluice/fetch';

const SECONDS = 3.5;
const CALLERS = 2;
const CALLS_A_SECOND = 200;
const startedAt = performance.now();
const now = () => performance.now() - startedAt;

// ── The service: busy from 0.5 s to 1.2 s.
const isBusy = () => now() >= 500 && now() < 1200;
const service = createServer((_request, response) =>
  response.writeHead(isBusy() ? 503 : 200).end(),
);
await new Promise((ready) => service.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${service.address().port}`;

// ── The client: the limit, and an answer for calls that are refused. Its seconds begin with this program.
const refused = new Response(null, { status: 299 });
const call = throttleFetch({
  limit: { busy: { recoverRate: 9 } },
  wait: false,
  onDeny: () => refused,
  clock: { now },
});

const halves = Array.from({ length: SECONDS * 2 }, () => ({ offered: 0, sent: 0, busy: 0 }));
async function caller() {
  const everyMs = (1000 * CALLERS) / CALLS_A_SECOND;
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
