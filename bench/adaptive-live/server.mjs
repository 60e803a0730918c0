/**
 * A real HTTP server of limited capacity, in its own process.
 *
 *     workers   a queue in front of 8 slots; a call takes 25 ms, exponentially distributed
 *     knee      no queue; with n > 8 calls at once, each takes (n / 8)² times as long
 *     threads   a queue in front of one worker thread; a call takes about 5 ms of CPU time
 *     503       as workers, but a queue of 8; more calls are refused with 503
 *
 * The first argument is the kind. The parent gets `{ port }`, and may send `{ slots }`.
 */

import { createServer } from 'node:http';
import { Worker } from 'node:worker_threads';

const [kind] = process.argv.slice(2);
const SLOTS = 8;
const SERVICE_MS = 25;

const exponential = (mean) => -mean * Math.log(1 - Math.random());

/** Calls `done` after the time; returns the function that cancels it. */
const wait = (ms) => (done) => {
  const timer = setTimeout(done, ms());
  return () => clearTimeout(timer);
};

/** CPU work in another thread, of fixed size: about 5 ms on an idle core. It cannot be cancelled. */
function compute() {
  const thread = new Worker(
    `const { pbkdf2Sync } = require('node:crypto');
     const { parentPort } = require('node:worker_threads');
     const work = (rounds) => pbkdf2Sync('password', 'salt', rounds, 32, 'sha256');
     const timed = () => {
       const from = performance.now();
       work(1000);
       return performance.now() - from;
     };
     const rounds = Math.round(5000 / Math.min(...Array.from({ length: 50 }, timed)));
     parentPort.on('message', () => parentPort.postMessage(work(rounds).length));`,
    { eval: true },
  );
  return (done) => {
    thread.once('message', done);
    thread.postMessage('');
  };
}

const KINDS = {
  workers: { slots: SLOTS, work: wait(() => exponential(SERVICE_MS)) },
  knee: {
    slots: Infinity,
    work: wait(() => exponential(SERVICE_MS) * Math.max(1, busy / SLOTS) ** 2),
  },
  threads: () => ({ slots: 1, work: compute() }),
  503: { slots: SLOTS, maxQueue: SLOTS, work: wait(() => exponential(SERVICE_MS)) },
};

const chosen = typeof KINDS[kind] === 'function' ? KINDS[kind]() : KINDS[kind];
const { work, maxQueue = Infinity } = chosen;
let { slots } = chosen;
let busy = 0;
const queue = [];

function startNext() {
  while (busy < slots && queue.length > 0) start(queue.shift());
}

function start(response) {
  if (response.destroyed) return; // the client has given up
  busy++;
  let isOver = false;
  const finish = () => {
    if (isOver) return;
    isOver = true;
    busy--;
    response.end();
    startNext();
  };
  const cancel = work(finish);
  if (cancel === undefined) return;
  response.once('close', () => {
    cancel();
    finish();
  });
}

const server = createServer((_request, response) => {
  if (busy >= slots && queue.length >= maxQueue) return response.writeHead(503).end();
  queue.push(response);
  startNext();
});
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
process.on('message', (message) => {
  slots = message.slots;
  startNext();
});
process.on('disconnect', () => process.exit(0));
