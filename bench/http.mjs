/**
 * The cost of HTTP middleware per request, compared with other libraries.
 *
 *     npm run bench:http               seven rounds, written to bench/RESULTS.md
 *     npm run bench:http -- --smoke    a short run, writes nothing
 *
 * The server runs in its own process. This process pipelines requests over a few open connections, so that the server
 * is the bottleneck. The measure is user CPU time of the server per request, which other load distorts least. Each
 * round is compared with the bare server of the same round, so that slow rounds cancel out.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { servers } from './http-servers.mjs';
import { machineLine, median, row, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 60 : 1000;
const CONNECTIONS = 8;
const PIPELINE_DEPTH = 16; // requests in flight per connection
const SCRIPT = fileURLToPath(new URL('./http-servers.mjs', import.meta.url));

const REQUEST = 'GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n';
const STATUS = 'HTTP/1.1 ';

/** Keeps one connection busy until `end`, and counts the replies. */
function load(port, end) {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(REQUEST.repeat(PIPELINE_DEPTH)));
    let count = 0;
    let rest = '';
    socket.setEncoding('latin1').setNoDelay(true);
    socket.on('error', reject);
    socket.on('data', (text) => {
      const all = rest + text;
      let seen = 0;
      let at = all.indexOf(STATUS);
      let last = 0;
      for (; at >= 0 && at + 12 <= all.length; at = all.indexOf(STATUS, last)) {
        if (!all.startsWith('200', at + 9)) reject(new Error(all.slice(at, at + 80)));
        last = at + 12;
        seen++;
      }
      rest = all.slice(Math.max(last, all.length - 12));
      count += seen;
      if (performance.now() < end) return void socket.write(REQUEST.repeat(seen));
      socket.destroy();
      resolve(count);
    });
  });
}

const burst = async (port, ms) => {
  const end = performance.now() + ms;
  const counts = await Promise.all(Array.from({ length: CONNECTIONS }, () => load(port, end)));
  return counts.reduce((sum, count) => sum + count, 0);
};

async function measure(framework, name) {
  const server = fork(SCRIPT, [framework, name]);
  const [{ port }] = await once(server, 'message');
  const cpuUs = async () => {
    server.send('cpu');
    return (await once(server, 'message'))[0].cpuUs;
  };
  await burst(port, SPAN_MS / 2); // warm up
  const before = await cpuUs();
  const count = await burst(port, SPAN_MS);
  const usedUs = ((await cpuUs()) - before) / count;
  server.disconnect();
  await once(server, 'exit');
  return usedUs;
}

const all = Object.entries(servers).flatMap(([framework, own]) =>
  Object.keys(own).map((name) => ({ framework, name, rounds: [] })),
);
for (let round = 1; round <= ROUNDS; round++) {
  for (const { framework, name, rounds } of all) {
    process.stderr.write(
      `round ${round} of ${ROUNDS}: ${framework} ${name}`.padEnd(70).concat('\r'),
    );
    rounds.push(await measure(framework, name));
  }
}
process.stderr.write(`${' '.repeat(70)}\r`);

const bareOf = (framework) =>
  all.find((one) => one.framework === framework && one.name === 'bare').rounds;

/** Median and half the interquartile range. */
function summary(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const quartile = Math.floor(sorted.length / 4);
  const spread = (sorted[sorted.length - 1 - quartile] - sorted[quartile]) / 2;
  return { middle: median(values), spread };
}

/** A difference below the spread, or below 0, is given as an upper bound. */
function added({ middle, spread }) {
  if (middle > spread) return `${middle.toFixed(1)} ± ${spread.toFixed(1)} µs`;
  return `< ${Math.max(0.1, spread, Math.abs(middle)).toFixed(1)} µs`;
}

const table = [
  row(['', '', 'per request', 'added to bare']),
  row(['---', '---', '---:', '---:']),
  ...all.map(({ framework, name, rounds }) => {
    const bare = bareOf(framework);
    const more = summary(rounds.map((usedUs, round) => usedUs - bare[round]));
    const cost = name === 'bare' ? '' : added(more);
    return row([framework, name, `${median(rounds).toFixed(1)} µs`, cost]);
  }),
].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'HTTP middleware',
    `User CPU time per request of a server that replies \`ok\`: ${CONNECTIONS} connections with ${PIPELINE_DEPTH} pipelined requests
each, a limit that is never reached. Medians of ${ROUNDS} rounds in one run of \`npm run bench:http\`, and the difference to the
bare server of the same round, ± half the interquartile range; \`<\` where the difference is below that.
${machineLine()}, a shared machine: differences below the spread mean nothing.

The draft-8 headers of express-rate-limit contain a partition key, a SHA-256 of the client's key per response; sluice
writes none. @fastify/rate-limit has legacy headers only: compare it with sluice with legacy headers.

${table}`,
  );
}
