/**
 * Sends calls to the daemons in turn at a steady rate, in a worker thread.
 *
 * Calls to a daemon that is down count as sent and get no reply, as in the simulator.
 */

import { connect } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';
import { now } from './load.mjs';

const POST_MS = 100;
const RECONNECT_MS = 5;
const REPLY_BYTES = 3;
const O = 'O'.charCodeAt(0);

const { lines: paths, perSecond, key } = workerData;
const request = `${key}\n`;
let calls = [];
let replies = [];

/** A connection to one daemon that reconnects. */
function openConnection(path, node) {
  let isUp = false;
  let socket;
  let pending = [];
  const open = () => {
    pending = [];
    let received = 0;
    socket = connect(path, () => {
      isUp = true;
    });
    socket.on('data', (chunk) => {
      const at = now();
      for (const byte of chunk) {
        if (received++ % REPLY_BYTES !== 0) continue;
        replies.push({ at, node, ms: at - pending.shift(), isAllowed: byte === O });
      }
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      isUp = false;
      setTimeout(open, RECONNECT_MS);
    });
  };
  open();
  return (at) => {
    if (!isUp) return;
    pending.push(at);
    socket.write(request);
  };
}

const connections = paths.map(openConnection);
const gapMs = 1000 / perSecond;
let nextAt = now();
let turn = 0;
setInterval(() => {
  const at = now();
  for (; nextAt <= at; nextAt += gapMs) {
    calls.push(at);
    connections[turn++ % connections.length](at);
  }
}, 1);

function post() {
  parentPort.postMessage({ calls, replies });
  calls = [];
  replies = [];
}
setInterval(post, POST_MS);
parentPort.once('message', () => {
  post();
  process.exit();
});
