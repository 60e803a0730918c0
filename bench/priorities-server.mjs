/**
 * The server of bench/priorities.mjs: `rateLimit` of `sluice/node` in front of 20 workers with a queue.
 *
 *     node bench/priorities-server.mjs 50 '{"adaptive":{"priorities":["user","prefetch"]}}'
 *
 * A call takes a worker 50 ms on average. Prints its port; when its standard input ends, how long its event loop was
 * blocked at most, in milliseconds.
 */

import { createServer } from 'node:http';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { rateLimit } from 'sluice/node';

const WORKERS = 20;

const meanMs = Number(process.argv[2]);
const limit = JSON.parse(process.argv[3]);
const [{ priorities }] = Object.values(limit);
const limited = rateLimit({
  limit,
  key: () => 'all requests',
  headers: false,
  ...(priorities && { level: (request) => request.headers['x-level'] }),
});

let busy = 0;
/** Bounded by the limit. */
const queue = [];
const work = (response) => {
  busy++;
  setTimeout(
    () => {
      response.end('done');
      busy--;
      if (queue.length > 0) work(queue.shift());
    },
    meanMs * (0.8 + 0.4 * Math.random()),
  );
};

const server = createServer((request, response) =>
  limited(request, response, () => {
    if (busy < WORKERS) work(response);
    else queue.push(response);
  }),
);
server.listen(0, '127.0.0.1', () => console.log(server.address().port));

const delay = monitorEventLoopDelay();
delay.enable();
const end = () => {
  console.log(Math.round(delay.max / 1e6));
  server.closeAllConnections();
  server.close();
};
process.stdin.on('end', end).resume();
