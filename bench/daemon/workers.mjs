/**
 * One daemon without workers and with 1 and 2 (`sluice serve --workers N`): replies per second, p99, and CPU time per
 * reply of the process that decides and of the workers.
 *
 *     npm run bench:workers                  medians of five rounds
 *     npm run bench:workers -- --smoke       a short run
 *     npm run bench:workers -- --write       writes the table into docs/reference/daemon.md
 *
 * The deciding process is the part that more cores do not speed up: 1 s divided by its CPU time per reply is the most
 * that any number of workers can reach. On a machine with few cores the load generator competes with the daemon.
 */

import { readFileSync } from 'node:fs';
import { isToWrite, loadLine, madeBy, median, table, whole, writeFigures } from '../report.mjs';
import { measureLoad } from './measure.mjs';
import { cpuOf, startDaemon } from './process.mjs';

const smoke = process.argv.includes('--smoke');
const writes = isToWrite(!smoke);
const ROUNDS = smoke ? 1 : 5;
const SPAN_MS = smoke ? 300 : 1000;
const WORKERS = [0, 1, 2];
const LOADS = [
  { kind: 'http', protocol: 'http', name: 'HTTP', connections: 64, depth: 1 },
  { kind: 'cell', protocol: 'resp', name: 'RESP, CL.THROTTLE', connections: 64, depth: 1 },
  { kind: 'line', protocol: 'line', name: 'line protocol', connections: 64, depth: 1 },
  { kind: 'line', protocol: 'line', name: 'line protocol', connections: 8, depth: 64 },
];

const childrenOf = (pid) =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean);

const daemons = [];
for (const workers of WORKERS) {
  const any = '127.0.0.1:0';
  const limit = ['--rate', '1000/s', '--burst', '1000000000'];
  const listen = ['--line', any, '--resp', any, '--http', any];
  const daemon = await startDaemon([...limit, ...listen, '--workers', String(workers)]);
  daemons.push({ ...daemon, workers, children: childrenOf(daemon.pid) });
}

const results = [];
for (const load of LOADS) {
  const rounds = daemons.map(() => []);
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [n, daemon] of daemons.entries()) {
      const target = { pid: daemon.pid, port: daemon.port(load.protocol), kind: load.kind };
      const workerCpu = () => daemon.children.reduce((sum, pid) => sum + cpuOf(pid), 0);
      const figures = await measureLoad(target, { ...load, ms: SPAN_MS, alsoCpu: workerCpu });
      if (round > 0 || smoke) rounds[n].push(figures); // the first one warms up
    }
  }
  for (const [n, { workers }] of daemons.entries()) {
    const of = (read) => median(rounds[n].map(read));
    const result = {
      load,
      workers,
      perSecond: of(({ perSecond }) => perSecond),
      p99Ms: of(({ p99Ms }) => p99Ms),
      decidingUs: of(({ busy, perSecond }) => (busy / perSecond) * 1e6),
      workersUs: of(({ alsoBusy, perSecond }) => (alsoBusy / perSecond) * 1e6),
      generatorUs: of(({ generatorCpu, perSecond }) => (generatorCpu / perSecond) * 1e6),
      busy: of(({ busy }) => busy),
    };
    results.push(result);
    console.error(JSON.stringify(result));
  }
}
for (const daemon of daemons) await daemon.stop();

const micros = (value) => `${value.toFixed(2)} µs`;
const columns = {
  'protocol, connections × pipeline depth': ({ load: { name, connections, depth } }) =>
    `${name}, ${connections} × ${depth}`,
  workers: ({ workers }) => workers,
  'replies/s': ({ perSecond }) => `${whole(perSecond / 1000)} k`,
  p99: ({ p99Ms }) => `${p99Ms.toFixed(2)} ms`,
  'CPU per reply: daemon': ({ decidingUs }) => micros(decidingUs),
  'all workers': ({ workersUs }) => micros(workersUs),
  generator: ({ generatorUs }) => micros(generatorUs),
  'ceiling of the daemon': ({ decidingUs }) => `${whole(1000 / decidingUs)} k/s`,
};
const text = `${table(columns, results, ['---', ...Array(7).fill('---:')])}

${madeBy('npm run bench:workers -- --write', `medians of ${ROUNDS} rounds`, loadLine())}`;
console.log(text);
if (writes) writeFigures('docs/reference/daemon.md', 'workers', text);
