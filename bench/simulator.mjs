/**
 * Speed of the simulator: decisions a second of `sluice simulate FILE`, by scenario.
 *
 *     npm run bench:simulator              best of five rounds
 *     npm run bench:simulator -- --write   the same, written to bench/RESULTS.md
 *     npm run bench:simulator -- --smoke   a short run, writes nothing
 *
 * Each case runs in its own process. The best round counts: other load on the machine can only slow it down.
 */

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import {
  isToWrite,
  loadLine,
  machineLine,
  millions,
  table,
  whole,
  writeSection,
} from './report.mjs';

const smoke = process.argv.includes('--smoke');
const isWritten = isToWrite(!smoke);
const SECONDS = smoke ? 1 : 20;
const ROUNDS = smoke ? 1 : 5;

const BUCKET = { bucket: { rate: '10/s', burst: 20 } };
const POISSON = { rate: '1000/s', shape: 'poisson', count: 100 };

const CASES = {
  'one bucket, 100 clients, random arrivals': { limits: { api: BUCKET }, clients: { a: POISSON } },
  'the same, steady arrivals': {
    limits: { api: BUCKET },
    clients: { a: { rate: '1000/s', count: 100 } },
  },
  'one bucket, 100,000 keys': {
    limits: { api: BUCKET },
    clients: { a: { rate: '100000/s', shape: 'poisson', keys: 100_000 } },
  },
  'a sliding window, 100 clients': {
    limits: { api: { window: { limit: 100, per: '10s' } } },
    clients: { a: POISSON },
  },
  'two limits, all or nothing': {
    limits: { own: BUCKET, total: { bucket: { rate: '500/s' }, key: 'total' } },
    clients: { a: POISSON },
  },
  'a bucket on 3 nodes, peers': {
    nodes: 3,
    limits: { api: { ...BUCKET, peers: true } },
    clients: { a: { ...POISSON, rate: '100/s' } },
  },
  'a bucket on 3 nodes, redis': {
    nodes: 3,
    limits: { api: { ...BUCKET, redis: true } },
    clients: { a: { ...POISSON, rate: '20/s' } },
  },
  'a concurrency limit, waiting calls, a server': {
    limits: { api: { concurrency: 50 } },
    clients: { a: { ...POISSON, rate: '20/s', wait: '1s' } },
    server: { workers: 100, time: '20ms' },
  },
};

/** Runs one case several times in this process and prints its best figures. */
async function measure(name) {
  const { readScenario } = await import('../dist/simulator/scenario/read.js');
  const { runScenario } = await import('../dist/simulator/scenario/run.js');
  const scenario = readScenario({ duration: `${SECONDS}s`, ...CASES[name] }, name);
  let best = { perSecond: 0 };
  for (let round = 0; round < ROUNDS; round++) {
    const start = performance.now();
    const { decisions } = await runScenario(scenario);
    const perSecond = (1000 * decisions.length) / (performance.now() - start);
    if (perSecond > best.perSecond) best = { perSecond, decisions: decisions.length };
  }
  console.log(JSON.stringify(best));
}

const [, , flag, given] = process.argv;
if (flag === '--one') {
  await measure(given);
  process.exit(0);
}

const words = smoke ? ['--smoke'] : [];
const results = Object.keys(CASES).map((name) => {
  const self = fileURLToPath(import.meta.url);
  const out = execFileSync(process.execPath, [self, '--one', name, ...words], { encoding: 'utf8' });
  return { name, ...JSON.parse(out) };
});
const columns = {
  scenario: ({ name }) => name,
  'decisions a run': ({ decisions }) => whole(decisions),
  'decisions a second': ({ perSecond }) => millions(perSecond),
  'simulated seconds a second': ({ perSecond, decisions }) =>
    whole((SECONDS * perSecond) / decisions),
};
const text = table(columns, results, ['---', '---:', '---:', '---:']);
console.log(text);
if (isWritten)
  writeSection(
    'Simulator',
    `Scenarios of ${SECONDS} simulated seconds, with the log of every decision. The best of ${ROUNDS} rounds each, one process for each scenario, in one run of
\`npm run bench:simulator -- --write\`; ${machineLine()}, ${loadLine()}.

${text}`,
  );
