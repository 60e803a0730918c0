/**
 * A client whose backlog is always full: 200 callers, each sends its next call when the last one is over.
 *
 *     callers ──▶ no limit, p-limit or a limiter of Sluice ──▶ HTTP with keep-alive ──▶ server
 *
 * The first argument is `{ port, rule, seconds }` as JSON. A rule is `{}`, `{ fixed }` for p-limit, or `{ limit }`. The
 * parent gets `started`, and at the end every call as `[end in seconds, round trip in ms, status]`. A call without a reply
 * has status 0.
 */

import { Agent, get } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import pLimit from 'p-limit';
import { limiter } from 'sluice';

const { port, rule, seconds } = JSON.parse(process.argv[2]);

const CALLERS = 200;
const TIMEOUT_MS = 2000;
/** A caller whose call failed waits before the next one. */
const RETRY_MS = 100;
const SAMPLE_MS = 50;

const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
const startedAt = performance.now();
const now = () => (performance.now() - startedAt) / 1000;
const calls = [];
let inFlight = 0;

/** Sends one call; resolves with its status, 0 after a time-out. */
function send() {
  const from = performance.now();
  inFlight++;
  return new Promise((resolve) => {
    const finish = (status) => {
      clearTimeout(timer);
      resolve(status);
    };
    const request = get({ host: '127.0.0.1', port, agent }, (response) => {
      response.resume().once('end', () => finish(response.statusCode));
    });
    const timer = setTimeout(() => request.destroy(), TIMEOUT_MS);
    request.once('error', () => finish(0)); // also after a time-out
  }).then((status) => {
    inFlight--;
    calls.push([now(), performance.now() - from, status]);
    return status;
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
    if (permit.verdict === 'deny') return 0;
    const status = await send();
    permit.settle({ outcome: { 200: 'ok', 503: 'busy' }[status] ?? 'timeout' });
    return status;
  };
}

const call = limited();
const caller = async () => {
  while (now() < seconds) if ((await call()) !== 200) await sleep(RETRY_MS);
};
process.on('disconnect', () => process.exit(1));
const samples = [];
setInterval(() => samples.push([now(), inFlight]), SAMPLE_MS);
for (let n = 0; n < CALLERS; n++) void caller();
process.send('started');
await sleep(seconds * 1000);
// The exit of a process may be noticed before its last message, so the parent ends it.
process.once('disconnect', () => process.exit(0));
process.send({ calls, samples });
