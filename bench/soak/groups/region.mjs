/**
 * A region: one process with random calls at a given rate, which reports the times of admitted calls, and when it stalled,
 * to its parent.
 *
 *     { self, groups, port, limit, deadline, load }     as JSON in the first argument
 */

import { limiter } from 'sluice';
import { groups } from 'sluice/groups';
import { onStall } from '../stalls.mjs';

const { self, groups: regions, port, limit, deadline, load } = JSON.parse(process.argv[2]);

const TICK_MS = 5;

const group = groups({
  self,
  groups: regions,
  key: 'a secret for this run only',
  listen: { port },
  deadline,
});
await group.listening;
const api = limiter({ name: 'api', limit, backend: group });
process.on('disconnect', () => process.exit(1));
process.on('message', (command) => {
  if (command === 'view') process.send({ type: 'view', view: group.view() });
});

/** One clock for all processes of the machine. */
const now = () => performance.timeOrigin + performance.now();

let due = now();
const tick = () => {
  const times = [];
  for (; due <= now(); due += (-Math.log(1 - Math.random()) * 1000) / load) {
    if (api.check('all').verdict === 'allow') times.push(now());
  }
  if (times.length > 0) process.send({ type: 'admitted', times });
};
process.send({ type: 'ready' });
setInterval(tick, TICK_MS);
onStall((stall) => process.send({ type: 'stall', stall }));
