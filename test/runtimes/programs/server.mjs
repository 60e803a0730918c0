/** `sluice/web` in front of the runtime's own server: the client is known by its address. */

import { rateLimit } from 'sluice/web';

const limited = rateLimit({ limit: { bucket: { rate: '1/h', burst: 2 } }, name: 'api' });
const handler = limited(async () => new Response('served'));

function serve() {
  if (globalThis.Bun) {
    const server = Bun.serve({ port: 0, hostname: '127.0.0.1', fetch: handler });
    return { port: server.port, close: () => server.stop(true) };
  }
  const server = Deno.serve({ port: 0, hostname: '127.0.0.1', onListen() {} }, handler);
  return { port: server.addr.port, close: () => server.shutdown() };
}

const { port, close } = serve();
const statuses = [];
for (let request = 0; request < 3; request++) {
  const response = await fetch(`http://127.0.0.1:${port}/`);
  await response.text();
  statuses.push(response.status);
}
console.log(JSON.stringify({ statuses }));
await close();
