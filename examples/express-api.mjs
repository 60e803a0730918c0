import { once } from 'node:events';
import expressApp from 'express';
import { express } from 'sluice/http';

// A small API with a token bucket per client: burst 3, then one request per second.
const app = expressApp();
app.use(express({ limit: { bucket: { rate: '1/s', burst: 3 } }, name: 'api' }));
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
