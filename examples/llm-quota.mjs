/**
 * Many workers, one API key: stay under so many requests and so many tokens a minute.
 *
 * A language model's provider counts both, and answers 429 to whoever exceeds either. What a call will
 * use is known only afterwards, so each worker asks for what it expects at most and settles with what
 * it really used; the difference is there for the others at once.
 *
 * The provider here is a small server in this process that counts as strictly as the real ones.
 */

import { createServer } from 'node:http';
import { all, limiter, throttle } from 'sluice';

const REQUESTS_A_MINUTE = 3_000;
const TOKENS_A_MINUTE = 240_000;
const WORKERS = 24;
const SECONDS = 4;

// ── The provider: its own count of both, a 429 for whoever is over, and what a call really used.
const inMinute = (perMinute) => ({ bucket: { rate: `${perMinute}/m`, burst: perMinute / 15 } });
const counted = all([
  { limiter: limiter({ name: 'requests', limit: inMinute(REQUESTS_A_MINUTE) }), cost: 1 },
  { limiter: limiter({ name: 'tokens', limit: inMinute(TOKENS_A_MINUTE) }) },
]);
const seen = { served: 0, tokens: 0, refusedEarly: 0, refusedLater: 0 };
let startedAt = performance.now();
const seconds = () => (performance.now() - startedAt) / 1000;

const server = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  const { prompt, max_tokens: most } = JSON.parse(body);
  const entry = counted.tryAcquire('', prompt.length + most);
  if (entry.verdict === 'deny') {
    seen[seconds() < 1 ? 'refusedEarly' : 'refusedLater']++;
    response.writeHead(429, { 'Retry-After': Math.ceil(entry.retryAfterMs / 1000) }).end();
    return;
  }
  const used = prompt.length + Math.ceil(most * (0.2 + 0.6 * Math.random()));
  setTimeout(
    () => {
      entry.settle({ used });
      seen.served++;
      if (seconds() >= 1 && seconds() < SECONDS) seen.tokens += used; // after the first burst
      response.end(JSON.stringify({ usage: { total_tokens: used } }));
    },
    50 + 100 * Math.random(),
  );
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const url = `http://127.0.0.1:${server.address().port}`;

// ── The client: the same two rates, and a small burst. Requests may be held up on their way and arrive
// together, so what the provider allows at once is not all ours to use.
const budget = (perMinute) => ({ bucket: { rate: `${perMinute}/m`, burst: perMinute / 40 } });
const quota = all([
  { limiter: limiter({ name: 'requests', limit: budget(REQUESTS_A_MINUTE) }), cost: 1 },
  { limiter: limiter({ name: 'tokens', limit: budget(TOKENS_A_MINUTE) }) },
]);

const complete = throttle(
  async (prompt, most) => {
    const body = JSON.stringify({ prompt, max_tokens: most });
    const response = await fetch(url, { method: 'POST', body });
    return { status: response.status, ...(response.ok ? await response.json() : {}) };
  },
  {
    limiter: quota,
    wait: true,
    retry: true,
    cost: (prompt, most) => prompt.length + most, // what it may use at most
    used: (answer) => answer.usage?.total_tokens ?? 0, // what it did use
    outcome: (error, answer) => (error ? 'failed' : answer.status === 429 ? 'busy' : 'ok'),
  },
);

startedAt = performance.now();
async function work() {
  while (seconds() < SECONDS) {
    await complete('x'.repeat(20 + Math.floor(60 * Math.random())), 200);
  }
}
await Promise.all(Array.from({ length: WORKERS }, work));

const part = seen.tokens / ((TOKENS_A_MINUTE / 60) * (SECONDS - 1));
console.log(`${WORKERS} workers, ${seen.served} calls served in ${seconds().toFixed(1)} s`);
console.log(`after the first second: ${(100 * part).toFixed(1)} % of the tokens a minute used`);
console.log(`429s: ${seen.refusedEarly} in the first second, ${seen.refusedLater} after it`);
server.close();
server.closeAllConnections();
if (seen.refusedLater > 0 || part < 0.95) process.exitCode = 1;
