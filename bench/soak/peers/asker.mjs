/**
 * Asks daemons in turn at a steady pace, in a thread of its own.
 *
 * It goes on whatever happens to them: what a daemon that is not there would have been asked counts as asked and
 * is not answered, as with the simulator.
 */

import { connect } from 'node:net';
import { parentPort, workerData } from 'node:worker_threads';
import { now } from './load.mjs';

const TELL_MS = 100;
const AGAIN_MS = 5;
const ANSWER_BYTES = 3;
const O = 'O'.charCodeAt(0);

const { lines: paths, perSecond, key } = workerData;
const question = `${key}\n`;
let asked = [];
let answers = [];

/** A connection that is made again and again. */
function openLine(path, node) {
  let isUp = false;
  let socket;
  let open = [];
  const begin = () => {
    open = [];
    let heard = 0;
    socket = connect(path, () => {
      isUp = true;
    });
    socket.on('data', (chunk) => {
      const at = now();
      for (const byte of chunk) {
        if (heard++ % ANSWER_BYTES !== 0) continue;
        answers.push({ at, node, ms: at - open.shift(), isServed: byte === O });
      }
    });
    socket.on('error', () => {});
    socket.on('close', () => {
      isUp = false;
      setTimeout(begin, AGAIN_MS);
    });
  };
  begin();
  return (at) => {
    if (!isUp) return;
    open.push(at);
    socket.write(question);
  };
}

const lines = paths.map(openLine);
const gapMs = 1000 / perSecond;
let nextAt = now();
let turn = 0;
setInterval(() => {
  const at = now();
  for (; nextAt <= at; nextAt += gapMs) {
    asked.push(at);
    lines[turn++ % lines.length](at);
  }
}, 1);

function tell() {
  parentPort.postMessage({ asked, answers });
  asked = [];
  answers = [];
}
setInterval(tell, TELL_MS);
parentPort.once('message', () => {
  tell();
  process.exit();
});
