/**
 * A process that awaits calls of an etcd limit at the top level, and has nothing else that keeps it alive.
 *
 *     node awaiting-worker.mjs '{ file, endpoints, limit, forMs }'
 *
 * It writes its calls as worker.mjs does. Node ends it with exit code 13 if it has nothing to do while it awaits.
 */

import { openSync, writeSync } from 'node:fs';
import { limiter } from 'sluice';
import { etcd } from 'sluice/etcd';

const { file, endpoints, limit, forMs } = JSON.parse(process.argv[2]);
/** Refusals are immediate during an outage. */
const RETRY_MS = 5;

const records = openSync(file, 'a');
const record = (n, type, more = {}) => {
  const at = Number(process.hrtime.bigint()) / 1e6;
  writeSync(records, `${JSON.stringify({ n, type, at, wall: Date.now(), ...more })}\n`);
};

const api = limiter({ name: 'faults', limit, backend: etcd({ endpoints }) });
const until = performance.now() + forMs;
for (let n = 0; performance.now() < until; n++) {
  record(n, 'call');
  const { verdict, dueAt } = await (n % 2
    ? api.acquire('key', 1, { wait: 500 })
    : api.check('key'));
  record(n, verdict === 'allow' ? 'grant' : 'refuse', { cost: 1, dueAt });
  if (verdict !== 'allow') await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
}
await api.close();
