/** A Cloudflare Worker whose limits Durable Objects decide, for all its isolates. */

import { env, waitUntil } from 'cloudflare:workers';
import { limiter } from 'sluice';
import { durableObjects } from 'sluice/durable-objects';

export { SluiceObject } from 'sluice/durable-objects';

const backend = durableObjects(env.LIMITS, { waitUntil, deadline: '20s', leaseTimeout: '1s' });
const bucket = limiter({ name: 'bucket', limit: { bucket: { rate: '1/h', burst: 20 } }, backend });
const spaced = limiter({ name: 'spaced', limit: { spacing: { every: '20ms' } }, backend });
const inFlight = limiter({ name: 'in flight', limit: { concurrency: 1 }, backend });
const both = limiter({
  name: 'both',
  limit: { all: [{ concurrency: 2 }, { window: { limit: 1000, per: '1h' } }] },
  backend,
});

/** Without a settlement its permits outlast the test. */
const quick = limiter({
  name: 'quick',
  limit: { concurrency: 1 },
  backend: durableObjects(env.LIMITS, { waitUntil, deadline: '20s' }),
});

/** Objects that are unreachable while `isDown`. */
let isDown = false;
const unsteady = {
  idFromName: (name) => env.LIMITS.idFromName(name),
  get(id) {
    if (isDown) throw new Error('down');
    return env.LIMITS.get(id);
  },
};
const recovering = limiter({
  name: 'recovering',
  limit: { spacing: { every: '1ms' } },
  backend: durableObjects(unsteady, { waitUntil, deadline: '20s' }),
});

/** Each waits for at most 30 s: a test that would hang fails. */
const wait = { wait: '30s' };

const ROUTES = {
  '/': async () => 'ready',
  '/bucket': async () => (await bucket.check('k')).verdict,
  '/tick': async () =>
    (await Promise.all([1, 2, 3].map(() => bucket.check('tick')))).map(
      ({ remaining }) => remaining,
    ),
  '/spaced': async () => (await spaced.acquire('k', 1, wait)).verdict,
  '/both': async () => {
    const permit = await both.acquire('k', 1, wait);
    await scheduler.wait(20);
    const { inFlight: count } = await both.inspect('k');
    permit.settle?.();
    return count;
  },
  /** Holds the permit for a while. */
  '/hold': async (search) => {
    const permit = await inFlight.acquire('k', 1, wait);
    await scheduler.wait(Number(search.get('ms')));
    const isHeld = !permit.signal.aborted;
    permit.settle();
    return isHeld ? 'held' : 'lost';
  },
  /** Ends at once after it has settled. */
  '/quick': async () => {
    const permit = await quick.tryAcquire('k');
    permit.settle?.();
    return permit.verdict;
  },
  '/quick-state': async () => (await quick.inspect('k')).inFlight,
  '/down': async () => {
    isDown = true;
    return (await recovering.tryAcquire('k')).reason;
  },
  '/up': async () => {
    isDown = false;
    return (await recovering.tryAcquire('k')).verdict;
  },
  /** What is said about a missing `waitUntil`. */
  '/mistake': async () => {
    try {
      durableObjects(env.LIMITS);
    } catch (error) {
      return error.message;
    }
  },
  /** Ends without settling. */
  '/leak': async () => (await inFlight.acquire('k', 1, wait)).verdict,
  '/state': async () => (await inFlight.inspect('k')).inFlight,
};

export default {
  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    return Response.json(await ROUTES[pathname](searchParams));
  },
};
