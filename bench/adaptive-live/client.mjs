/**
 * A client whose backlog is always full: callers, each of which sends its next call when the last one is over.
 *
 *     callers ──▶ no limit, p-limit or a limiter of Sluice ──▶ HTTP with keep-alive ──▶ server
 *
 * The first argument is `{ port, rule, callers }` as JSON. A rule is `{}`, `{ fixed }` for p-limit, or `{ limit }`. The
 * parent gets `ready`, and sends `start` and `report`. The report is every answered call: `[end in ms, round trip in ms]`.
 */

import { Agent, get } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import pLimit from 'p-limit';
import { limiter } from 'sluice';
import { now } from './clock.mjs';

const { port, rule, callers } = JSON.parse(process.argv[2]);

const TIMEOUT_MS = 30_000;
/** A caller whose call failed waits before the next one. */
const RETRY_MS = 100;

const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
const answered = [];

/** Sends one call; resolves with whether a reply came within the timeout. */
function send() {
  const from = now();
  return new Promise((resolve) => {
    const finish = (isAnswered) => {
      clearTimeout(timer);
      if (isAnswered) answered.push([now(), now() - from]);
      resolve(isAnswered);
    };
    const request = get({ host: '127.0.0.1', port, agent }, (response) => {
      response.resume().once('end', () => finish(true));
    });
    const timer = setTimeout(() => request.destroy(), TIMEOUT_MS);
    request.once('error', () => finish(false)); // also after a timeout
  });
}

/** The function that sends one call within the rule. */
function limited() {
  if (rule.fixed) {
    const limit = pLimit(rule.fixed);
    return () => limit(send);
  }
  if (!rule.limit) return send;
  const api = limiter({ limit: rule.limit });
  return async () => {
    const permit = await api.acquire('server');
    if (permit.verdict === 'deny') return false;
    const isAnswered = await send();
    permit.settle({ outcome: isAnswered ? 'ok' : 'timeout' });
    return isAnswered;
  };
}

const call = limited();
async function caller() {
  for (;;) if (!(await call())) await sleep(RETRY_MS);
}

process.on('message', (message) => {
  if (message === 'report') process.send(answered);
  else for (let n = 0; n < callers; n++) void caller();
});
process.on('disconnect', () => process.exit(0));
process.send('ready');
