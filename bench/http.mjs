/**
 * What a limit in front of a server costs a request, beside what people use today.
 *
 *     npm run bench:http               five rounds, a part of bench/RESULTS.md
 *     npm run bench:http -- --smoke    a moment, writes nothing
 *
 * The server has a process of its own; this one sends it requests over a few connections that stay
 * open, several at a time on each, so that the server is what is short. What is compared is the
 * processor time the server needs for a request: it does not care how busy the machine is otherwise.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { servers } from './http-servers.mjs';
import { machineLine, row, times, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 5;
const SPAN_MS = smoke ? 60 : 1200;
const CONNECTIONS = 8;
const AT_ONCE = 16; // requests on their way on each connection
const SCRIPT = fileURLToPath(new URL('./http-servers.mjs', import.meta.url));

const REQUEST = 'GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n';
const STATUS = 'HTTP/1.1 ';

/** Keeps one connection busy until `end`, and counts what was answered. */
function load(port, end) {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(REQUEST.repeat(AT_ONCE)));
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

const results = all.map(({ framework, name, rounds }) => ({
  framework,
  name,
  usedUs: Math.min(...rounds), // others on the machine can only add to it
}));
const bareOf = (framework) =>
  results.find((one) => one.framework === framework && one.name === 'bare').usedUs;

const table = [
  row(['', '', 'a request', 'added', 'of bare']),
  row(['---', '---', '---:', '---:', '---:']),
  ...results.map(({ framework, name, usedUs }) => {
    const bareUs = bareOf(framework);
    const added = name === 'bare' ? '' : `${(usedUs - bareUs).toFixed(1)} µs`;
    return row([framework, name, `${usedUs.toFixed(1)} µs`, added, times(usedUs / bareUs)]);
  }),
].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'In front of a server',
    `Processor time of a server that answers \`ok\`: ${CONNECTIONS} connections, ${AT_ONCE} requests at a time on each, a limit that
is never reached. The least of ${ROUNDS} rounds in one run of \`npm run bench:http\`; ${machineLine()}.
From run to run rows move by two or three microseconds, those of Express by up to ten: compare nothing closer than that.

${table}`,
  );
}
