/**
 * Open-loop load on a server of `server.mjs`: requests at random instants (Poisson), whatever becomes of those before.
 *
 * The client is a load balancer with keep-alive connections that are open before the load begins. A request that gets no
 * reply in time ends its connection, and a new one is opened.
 */

import { fork } from 'node:child_process';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { seededRandom } from '../../dist/core/random.js';

/** Requests per second that the handlers of `server.mjs` can take. */
export const CAPACITY = { cpu: 200, io: 200 };

const CONNECTIONS = 400;
/** A reply after this is of no use. */
export const USEFUL_MS = 500;

const SERVER = new URL('server.mjs', import.meta.url);
const REQUEST = 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n';

/**
 * Runs a server with a guard under load. The first `warmupS` seconds are not counted. A client that has waited for
 * `patienceMs` gives up.
 */
export async function measure({ handler, guard, rate, seconds, warmupS, patienceMs }) {
  const server = fork(SERVER, [handler, guard], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  try {
    const client = new LoadBalancer(await portOf(server), patienceMs);
    await client.open();
    await client.send(rate, warmupS + seconds);
    client.close();
    const counted = client.replies.filter(({ at }) => at >= warmupS * 1000);
    return summaryOf(counted, seconds);
  } finally {
    server.kill();
  }
}

const portOf = (server) =>
  new Promise((resolve, reject) => {
    server.once('message', ({ port }) => resolve(port));
    server.once('exit', (code) => reject(new Error(`the server exited with ${code}`)));
  });

class LoadBalancer {
  replies = [];
  #port;
  #patienceMs;
  #idle = [];
  #waiting = [];
  #sockets = new Set();
  #isClosed = false;

  constructor(port, patienceMs) {
    this.#port = port;
    this.#patienceMs = patienceMs;
  }

  async open() {
    for (let n = 0; n < CONNECTIONS; n++) await new Promise((ready) => this.#connect(ready));
  }

  async send(rate, seconds) {
    const startedAt = performance.now();
    const random = seededRandom(1);
    let sent = 0;
    for (let at = 0; at < seconds * 1000; at += (-Math.log(1 - random()) * 1000) / rate) {
      sent++;
      const early = startedAt + at - performance.now();
      if (early > 1) await sleep(early);
      const request = { at, sentAt: startedAt + at };
      request.timer = setTimeout(() => this.#giveUp(request), this.#patienceMs);
      const socket = this.#idle.pop();
      if (socket) this.#write(socket, request);
      else this.#waiting.push(request);
    }
    while (this.replies.length < sent) await sleep(10); // at most the timeout of the last request
  }

  close() {
    this.#isClosed = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  #connect(ready = () => {}) {
    const socket = connect(this.#port, '127.0.0.1', () => {
      this.#onIdle(socket);
      ready();
    });
    this.#sockets.add(socket);
    let text = '';
    socket.setNoDelay().on('data', (bytes) => {
      text += bytes.toString('latin1');
      const status = statusOf(text);
      if (status === undefined) return;
      text = '';
      this.#finish(socket.request, status);
      socket.request = undefined;
      this.#onIdle(socket);
    });
    socket.on('error', () => {});
    socket.once('close', () => {
      this.#sockets.delete(socket);
      if (socket.request) this.#finish(socket.request, 0);
      if (!this.#isClosed) this.#connect();
    });
  }

  #onIdle(socket) {
    let next = this.#waiting.shift();
    while (next?.isDone) next = this.#waiting.shift();
    if (next) this.#write(socket, next);
    else this.#idle.push(socket);
  }

  #write(socket, request) {
    socket.request = request;
    request.socket = socket;
    socket.write(REQUEST);
  }

  /** Status 0: no reply. */
  #finish(request, status) {
    if (request.isDone) return;
    request.isDone = true;
    clearTimeout(request.timer);
    this.replies.push({ at: request.at, status, ms: performance.now() - request.sentAt });
  }

  #giveUp(request) {
    this.#finish(request, 0);
    request.socket?.destroy();
  }
}

/** The status of a complete response; undefined until then. */
function statusOf(text) {
  const end = text.indexOf('\r\n\r\n');
  if (end < 0) return undefined;
  const [, length = '0'] = /content-length: (\d+)/i.exec(text) ?? [];
  return text.length >= end + 4 + Number(length) ? Number(text.slice(9, 12)) : undefined;
}

function summaryOf(replies, seconds) {
  const served = replies.filter(({ status }) => status === 200);
  const times = served.map(({ ms }) => ms).toSorted((a, b) => a - b);
  const quantile = (q) => times[Math.min(times.length - 1, Math.floor(q * times.length))];
  const share = (status) =>
    replies.filter((reply) => reply.status === status).length / replies.length;
  return {
    goodput: served.filter(({ ms }) => ms <= USEFUL_MS).length / seconds,
    medianMs: quantile(0.5),
    p99Ms: quantile(0.99),
    refused: share(503),
    timedOut: share(0),
  };
}
