/**
 * A real HTTP server of limited capacity, in its own process. A call takes 25 ms, exponentially distributed.
 *
 *     queue   a queue in front of 8 slots
 *     knee    no queue; with n > 8 calls at once, each takes (n / 8)² times as long
 *
 * The first argument is the kind. The parent gets `{ port }`, and may send `{ slots }`, `{ isHung }` and `report`. A server
 * that hangs starts no call and holds all replies. The report is the open calls every 20 ms: `[time in ms, calls]`.
 */

import { createServer } from 'node:http';
import { now } from './clock.mjs';

const [kind] = process.argv.slice(2);
const SERVICE_MS = 25;
const SAMPLE_MS = 20;

let slots = 8;
let isHung = false;
let busy = 0;
let open = 0;
const queue = [];
const held = [];
const samples = [];

const hasSlot = () => !isHung && (kind === 'knee' || busy < slots);
const slowness = () => (kind === 'knee' ? Math.max(1, busy / slots) ** 2 : 1);

function startNext() {
  while (hasSlot() && queue.length > 0) start(queue.shift());
}

function start(response) {
  if (response.destroyed) return; // the client has given up
  busy++;
  const ms = -SERVICE_MS * Math.log(1 - Math.random()) * slowness();
  const timer = setTimeout(reply, ms, response);
  response.once('close', () => {
    clearTimeout(timer);
    busy--;
    startNext();
  });
}

function reply(response) {
  if (isHung) held.push(response);
  else response.end();
}

const server = createServer((_request, response) => {
  open++;
  response.once('close', () => open--);
  queue.push(response);
  startNext();
});
server.keepAliveTimeout = 60_000; // an idle connection outlasts the run
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
setInterval(() => samples.push([now(), open]), SAMPLE_MS);

process.on('message', (message) => {
  if (message === 'report') return process.send(samples);
  ({ slots = slots, isHung = isHung } = message);
  if (!isHung) for (const response of held.splice(0)) response.end();
  startNext();
});
process.on('disconnect', () => process.exit(0));
