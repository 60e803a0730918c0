import { limiter } from 'sluice';

// One call a second for each client, and twenty at once after a quiet spell.
const api = limiter({ limit: { bucket: { rate: '1/s', burst: 20 } } });

function handle(client, work) {
  const decision = api.check(client);
  if (decision.verdict === 'deny')
    return `too many calls, try again in ${decision.retryAfterMs} ms`;
  return work();
}

for (let call = 1; call <= 22; call++) {
  const answer = handle('alice', () => 'served');
  if (call > 18) console.log(`call ${call}: ${answer}`);
}
