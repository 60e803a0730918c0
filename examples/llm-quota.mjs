/**
 * Workers that share one API key, with a limit on requests and on tokens per minute.
 *
 * An LLM provider counts both and replies 429 above either. The tokens of a call are known only afterwards. Each worker
 * takes the maximum and settles with the tokens really used; the difference is available to other workers at once.
 *
 * The provider is a small server in this process that counts as strictly as a real one.
 */

import { createServer } from 'node:http';
import { all, limiter, throttle } from 'sluice';

const REQUESTS_PER_MINUTE = 3_000;
const TOKENS_PER_MINUTE = 240_000;
const WORKERS = 24;
const SECONDS = 4;

// ── The provider: counts requests and tokens, replies 429 above the quota, and returns the tokens used.
const inMinute = (perMinute) => ({ bucket: { rate: `${perMinute}/m`, burst: perMinute / 15 } });
const counted = all([
  { limiter: limiter({ name: 'requests', limit: inMinute(REQUESTS_PER_MINUTE) }), cost: 1 },
  { limiter: limiter({ name: 'tokens', limit: inMinute(TOKENS_PER_MINUTE) }) },
]);
const seen = { served: 0, tokens: 0, refusedEarly: 0, refusedLater: 0 };
let startedAt = performance.now();
const seconds = () => (performance.now() - startedAt) / 1000;

const server = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const { prompt, max_tokens: maxTokens } = JSON.parse(body);
  const permit = counted.tryAcquire('', prompt.length + maxTokens);
  if (permit.verdict === 'deny') {
    seen[seconds() < 1 ? 'refusedEarly' : 'refusedLater']++;
    response.writeHead(429, { 'Retry-After': Math.ceil(permit.retryAfterMs / 1000) }).end();
    return;
  }
  const used = prompt.length + Math.ceil(maxTokens * (0.2 + 0.6 * Math.random()));
  setTimeout(
    () => {
      permit.settle({ used });
      seen.served++;
      if (seconds() >= 1 && seconds() < SECONDS) seen.tokens += used; // after the first burst
      response.end(JSON.stringify({ usage: { total_tokens: used } }));
    },
    50 + 100 * Math.random(),
  );
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${server.address().port}`;

// ── The client: the same two rates with a smaller burst. Requests may be delayed in the network and arrive together,
// so the client must not use the provider's whole burst.
const budget = (perMinute) => ({ bucket: { rate: `${perMinute}/m`, burst: perMinute / 40 } });
const quota = all([
  { limiter: limiter({ name: 'requests', limit: budget(REQUESTS_PER_MINUTE) }), cost: 1 },
  { limiter: limiter({ name: 'tokens', limit: budget(TOKENS_PER_MINUTE) }) },
]);

const complete = throttle(
  async (prompt, maxTokens) => {
    const body = JSON.stringify({ prompt, max_tokens: maxTokens });
    const response = await fetch(url, { method: 'POST', body });
    return { status: response.status, ...(response.ok ? await response.json() : {}) };
  },
  {
    limiter: quota,
    wait: true,
    retry: true,
    cost: (prompt, maxTokens) => prompt.length + maxTokens, // the maximum
    used: (reply) => reply.usage?.total_tokens ?? 0, // the real use
    outcome: (error, reply) => (error ? 'failed' : reply.status === 429 ? 'busy' : 'ok'),
  },
);

startedAt = performance.now();
async function work() {
  while (seconds() < SECONDS) {
    await complete('x'.repeat(20 + Math.floor(60 * Math.random())), 200);
  }
}
await Promise.all(Array.from({ length: WORKERS }, work));

const part = seen.tokens / ((TOKENS_PER_MINUTE / 60) * (SECONDS - 1));
console.log(`${WORKERS} workers, ${seen.served} calls served in ${seconds().toFixed(1)} s`);
console.log(`after the first second: ${(100 * part).toFixed(1)} % of the token quota used`);
console.log(`429s: ${seen.refusedEarly} in the first second, ${seen.refusedLater} after it`);
server.close();
server.closeAllConnections();
if (seen.refusedLater > 0) process.exitCode = 1;
