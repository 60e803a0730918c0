/** A Cloudflare Worker: limiters in module scope serve all requests of the isolate. */

import { limiter } from 'sluice';
import { rateLimit } from 'sluice/web';

const spaced = limiter({ limit: { spacing: { every: '50ms' } } });
const inFlight = limiter({ limit: { concurrency: 1 }, permitTimeout: '1s' });
const limited = rateLimit({ limit: { bucket: { rate: '1/h', burst: 2 } }, key: () => 'all' });
const served = limited(async (_request, env) => new Response(env.GREETING));

export default {
  async fetch(request, env, context) {
    const { pathname, searchParams } = new URL(request.url);
    if (pathname === '/') return served(request, env, context);
    const wait = { wait: '20s' };
    if (pathname === '/spaced') return new Response((await spaced.acquire('k', 1, wait)).verdict);
    const permit = await inFlight.acquire('k', 1, wait);
    if (pathname === '/hold') {
      await scheduler.wait(Number(searchParams.get('ms')));
      permit.settle();
    } // else the request ends without settling
    return new Response(permit.verdict);
  },
};
