import { once } from 'node:events';
import express from 'express';
import { rateLimit } from 'sluice/express';

// A small API: each client gets a burst of three requests, and one per second after that.
const app = express();
app.use(rateLimit({ limit: { bucket: { rate: '1/s', burst: 3 } }, name: 'api' }));
app.get('/time', (_request, response) => response.json({ answer: 42 }));

const server = app.listen(0, '127.0.0.1');
await once(server, 'listening');
const url = `http://127.0.0.1:${server.address().port}/time`;

for (let call = 1; call <= 4; call++) {
  const response = await fetch(url);
  console.log(`call ${call}: ${response.status}  RateLimit: ${response.headers.get('ratelimit')}`);
  if (response.ok) continue;
  console.log(`Retry-After: ${response.headers.get('retry-after')}`);
  console.log(await response.json());
}

server.closeAllConnections();
server.close();
