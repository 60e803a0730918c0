/**
 * What `inspect` and the event `limit-changed` show of an adaptive limit: a limiter of the library calls simulated servers, on
 * virtual time.
 */

import { seededRandom } from '../dist/core/random.js';
import { limiter, WHEN_SETTLED } from '../dist/index.js';
import { queueServer, quota } from '../dist/simulator/laboratory/servers.js';
import { exponential } from '../dist/simulator/laboratory/service-times.js';
import { Timeline } from '../dist/simulator/timeline.js';

const AFTER_MS = 25_000;
const SEED = 101;
/** Time must move on before the next attempt. */
const MIN_RETRY_MS = 0.001;

const workers = (count) => (simulation) =>
  queueServer(simulation, { workers: count, service: exponential(100) });

const withQuota = (perSecond) => (simulation) =>
  quota(simulation, { perSecond, countsRefused: false }, workers(Infinity)(simulation));

const SERVERS = {
  '20 workers, 100 ms a call': workers(20),
  '80 calls in any second, then 429': withQuota(80),
};

/** As code: for each server the state of its key, and the last event. */
export const inspections = () =>
  Object.entries(SERVERS)
    .map(([name, server]) => {
      const { state, event } = run(server);
      const title = `// ${name}, after ${AFTER_MS / 1000} s: inspect, and the last event`;
      return [title, format(state), format(event)].join('\n');
    })
    .join('\n\n');

/** As many calls as the limit allows. */
function run(createServer) {
  const timeline = new Timeline();
  const server = createServer({ timeline, random: seededRandom(SEED) });
  const api = limiter({ limit: { adaptive: {} }, name: 'db', clock: { now: () => timeline.now } });
  let event;
  api.on((one) => {
    if (one.type === 'limit-changed') event = one;
  });
  let retryAt = 0;
  const send = () => {
    let entry = api.tryAcquire('orders');
    for (; entry.verdict === 'allow'; entry = api.tryAcquire('orders')) {
      const permit = entry;
      server((outcome) => {
        permit.settle({ outcome });
        send();
      });
    }
    if (entry.retryAfterMs === WHEN_SETTLED || retryAt > timeline.now) return;
    const waitMs = Math.max(MIN_RETRY_MS, entry.retryAfterMs);
    retryAt = timeline.now + waitMs;
    timeline.scheduleAfter(waitMs, send);
  };
  send();
  while (timeline.now < AFTER_MS && timeline.runNextInstant());
  const { rules: _, name, ...state } = api.inspect('orders');
  return { state: { name, ...state }, event };
}

/** On lines of some fields each, numbers rounded to two decimals. */
function format(state) {
  const fields = Object.entries(state).map(([name, value]) => {
    const text = typeof value === 'number' ? Math.round(100 * value) / 100 : `'${value}'`;
    return `${name}: ${text}`;
  });
  const lines = [];
  for (let n = 0; n < fields.length; n += 6) lines.push(fields.slice(n, n + 6).join(', '));
  return `{ ${lines.join(',\n  ')} }`;
}
