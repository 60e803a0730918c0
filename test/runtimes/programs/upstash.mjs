/** A Cloudflare Worker whose limits a Redis decides, by HTTP. */

import { waitUntil } from 'cloudflare:workers';
import { Redis } from '@upstash/redis/cloudflare';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';

// All requests of this Worker go to one server (upstash.capnp).
const client = new Redis({
  url: 'http://redis',
  token: 'test',
  enableTelemetry: false,
  retry: false,
});
const backend = redis(client, { deadline: '3s', onUnavailable: 'deny', waitUntil });
const bucket = limiter({ name: 'bucket', limit: { bucket: { rate: '1/h', burst: 3 } }, backend });

function messageOf(act) {
  try {
    act();
    return 'no error';
  } catch ({ message }) {
    return message;
  }
}

const ROUTES = {
  '/': async () => 'ready',
  '/check': async (key) => (await bucket.check(key)).verdict,
  '/acquire': async (key) => {
    const permit = await bucket.tryAcquire(key);
    return permit.reason ?? permit.verdict;
  },
  /** Ends at once after it has settled. */
  '/settle': async (key) => {
    const permit = await bucket.tryAcquire(key);
    permit.settle?.({ outcome: 'ignored' });
    return permit.verdict;
  },
  '/remaining': async (key) => (await bucket.inspect(key)).remaining,
  '/without-wait-until': async () => messageOf(() => redis(client)),
  '/concurrency': async () => messageOf(() => limiter({ limit: { concurrency: 1 }, backend })),
};

export default {
  async fetch(request) {
    const { pathname, searchParams } = new URL(request.url);
    return Response.json(await ROUTES[pathname](searchParams.get('key')));
  },
};
