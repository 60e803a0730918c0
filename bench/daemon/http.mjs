/**
 * The cost of a check over HTTP, compared with a bare Node server that replies `ok`: `npm run bench:daemon -- http`.
 *
 * Each server runs in its own process. This process keeps connections open and sends the next prepared request after
 * each reply. The servers alternate within a round, a quarter of a second each, so that slow rounds cancel out. The
 * CPU use of this process is reported: well below one core, it is not the bottleneck.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { machineLine, median, row, writeSection } from '../report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 7;
const SPAN_MS = smoke ? 60 : 250;
const TURNS = smoke ? 1 : 4; // of each server in a round
const SCRIPT = fileURLToPath(new URL('./http-server.mjs', import.meta.url));
const KEYS = 1024;

const requests = (path) =>
  Array.from({ length: KEYS }, (_, n) =>
    Buffer.from(`GET ${path(n)} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n`),
  );

/** The bare server gets the same requests. */
const COMPETITORS = {
  bare: { server: 'bare', path: (n) => `/check?limit=api&key=user-${n}` },
  'check, limit by name': { server: 'check', path: (n) => `/check?limit=api&key=user-${n}` },
  'check, limit by key': { server: 'check', path: (n) => `/check?key=user-${n}` },
};

const OK = Buffer.from('HTTP/1.1 200');

/** Keeps one connection busy until `end`. One request at a time, so a reply is one chunk. */
function load(port, all, end, first) {
  return new Promise((resolve, reject) => {
    let n = first;
    let count = 0;
    const next = () => socket.write(all[n++ % KEYS]);
    const socket = connect(port, '127.0.0.1', next);
    socket.setNoDelay(true);
    socket.on('error', reject);
    socket.on('data', (chunk) => {
      if (OK.compare(chunk, 0, OK.length) !== 0) reject(new Error(chunk.toString('latin1')));
      count++;
      if (performance.now() < end) return void next();
      socket.destroy();
      resolve(count);
    });
  });
}

async function burst({ port, all }, connections, ms) {
  const start = performance.now();
  const each = Array.from({ length: connections }, (_, n) =>
    load(port, all, start + ms, Math.floor((n * KEYS) / connections)),
  );
  const counts = await Promise.all(each);
  return { count: counts.reduce((sum, own) => sum + own, 0), ms: performance.now() - start };
}

const totalUs = ({ user, system }) => user + system;

async function start({ server, path }) {
  const process = fork(SCRIPT, [server]);
  const [{ port }] = await once(process, 'message');
  const cpuUs = async () => {
    process.send('cpu');
    return totalUs((await once(process, 'message'))[0].cpu);
  };
  return { process, port, cpuUs, all: requests(path) };
}

/** One round: all competitors, several times. */
async function round(competitors, connections) {
  const sums = competitors.map(() => ({ count: 0, ms: 0, usedUs: 0, ownUs: 0 }));
  for (let turn = 0; turn < TURNS; turn++) {
    for (const [n, competitor] of competitors.entries()) {
      const [before, own] = [await competitor.cpuUs(), process.cpuUsage()];
      const { count, ms } = await burst(competitor, connections, SPAN_MS);
      sums[n].count += count;
      sums[n].ms += ms;
      sums[n].ownUs += totalUs(process.cpuUsage(own));
      sums[n].usedUs += (await competitor.cpuUs()) - before;
    }
  }
  return sums.map(({ count, ms, usedUs, ownUs }) => ({
    rate: count / ms,
    usedUs: usedUs / count,
    busy: usedUs / 1000 / ms,
    generator: ownUs / 1000 / ms,
  }));
}

const names = Object.keys(COMPETITORS);
const competitors = [];
for (const name of names) competitors.push(await start(COMPETITORS[name]));
for (const competitor of competitors) await burst(competitor, 8, SPAN_MS * 4); // warm up

const percent = (share) => `${Math.round(share * 100)} %`;
const lines = [];
for (const connections of [8, 64]) {
  const rounds = [];
  for (let n = 0; n < ROUNDS; n++) rounds.push(await round(competitors, connections));
  for (const [n, name] of names.entries()) {
    const of = (figure) => median(rounds.map((own) => own[n][figure]));
    const ratios = rounds.map((own) => own[n].rate / own[0].rate).toSorted((a, b) => a - b);
    const spread = `${ratios[0].toFixed(2)} to ${ratios.at(-1).toFixed(2)}`;
    const ratio = n === 0 ? '' : `${median(ratios).toFixed(2)} (${spread})`;
    const cells = [connections, name, `${of('rate').toFixed(1)} k/s`, ratio];
    lines.push([
      ...cells,
      `${of('usedUs').toFixed(1)} µs`,
      percent(of('busy')),
      percent(of('generator')),
    ]);
  }
}
for (const { process } of competitors) process.disconnect();

const table = [
  row([
    'connections',
    '',
    'replies',
    'relative to bare',
    'CPU time per reply',
    'CPU of server',
    'CPU of generator',
  ]),
  row(['---:', '---', '---:', '---:', '---:', '---:', '---:']),
  ...lines.map(row),
].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'Daemon: check over HTTP',
    `\`GET /check\` with its RateLimit headers and JSON, compared with a bare \`node:http\` server that replies \`ok\` to the same requests:
one request at a time on each connection, ${KEYS} keys in rotation. Medians of ${ROUNDS} rounds in one run of \`npm run bench:daemon -- http\`, and
the ratio within each round: median, lowest and highest. The load generator runs in its own process. It used
less CPU than the servers (last columns; the rest went to other load on the machine), so it was not the bottleneck.
${machineLine()}, a shared machine.

${table}`,
  );
}
