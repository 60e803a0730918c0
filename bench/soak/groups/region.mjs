/**
 * A region: one process that is asked for so many calls a second, by chance, and tells its parent when each began.
 *
 *     { self, groups, port, limit, deadline, load }     as JSON in the first argument
 */

import { limiter } from 'sluice';
import { groups } from 'sluice/groups';

const { self, groups: known, port, limit, deadline, load } = JSON.parse(process.argv[2]);

const TICK_MS = 5;

const place = groups({
  self,
  groups: known,
  key: 'a secret for this run only',
  listen: { port },
  deadline,
});
await place.listening;
const api = limiter({ name: 'api', limit, backend: place });
process.on('disconnect', () => process.exit(1));
process.on('message', (word) => {
  if (word === 'view') process.send({ type: 'view', view: place.view() });
  if (word === 'stop') process.exit(0);
});

/** All processes of this machine have the same clock. */
const now = () => performance.timeOrigin + performance.now();

let due = now();
const tick = () => {
  const began = [];
  let asked = 0;
  for (; due <= now(); due += (-Math.log(1 - Math.random()) * 1000) / load) {
    asked++;
    if (api.check('all').verdict === 'allow') began.push(now());
  }
  if (asked > 0) process.send({ type: 'asked', asked, began });
};
process.send({ type: 'ready' });
setInterval(tick, TICK_MS);
