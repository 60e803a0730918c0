/**
 * The overhead of `throttle(fn)`: calls of an empty function under a limit that is never reached, compared with an
 * explicit check and with other libraries.
 *
 *     npm run bench:throttle              medians of five rounds, written to bench/RESULTS.md
 *     npm run bench:throttle -- --smoke   a short run, writes nothing
 *
 * Other libraries return promises, which are awaited. `throttle` keeps a synchronous function synchronous.
 */

import { limiter, throttle } from 'sluice';
import { measureCalls } from './call-rate.mjs';
import { machineLine, median, millions, row, times, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const ROUNDS = smoke ? 1 : 5;
const SPAN_MS = smoke ? 5 : 400;
const limit = { bucket: { rate: 1e9, burst: 1e12 } };

let count = 0;
const work = () => ++count;

const competitors = {
  'explicit check': () => {
    const api = limiter({ limit });
    return {
      sync() {
        if (api.check('').verdict !== 'allow') throw new Error('denied');
        return work();
      },
    };
  },
  'sluice throttle': () => ({ sync: throttle(work, { limit }) }),
  'sluice throttle, awaited': () => ({ async: throttle(async () => work(), { limit }) }),
  'sluice throttle, wait': () => ({ async: throttle(async () => work(), { limit, wait: true }) }),
  'p-throttle': async () => {
    const { default: pThrottle } = await import('p-throttle');
    return { async: pThrottle({ limit: 1e9, interval: 1000 })(async () => work()) };
  },
  'p-limit': async () => {
    const { default: pLimit } = await import('p-limit');
    const run = pLimit(1000);
    return { async: () => run(async () => work()) };
  },
  'p-queue': async () => {
    const { default: PQueue } = await import('p-queue');
    const queue = new PQueue({ concurrency: 1000 });
    return { async: () => queue.add(async () => work()) };
  },
};

const rate = async (calls) => (await measureCalls(calls, SPAN_MS)).perSecond;

const made = {};
for (const [name, make] of Object.entries(competitors)) {
  made[name] = await make();
  await rate(made[name]); // warm up
}
const rates = Object.fromEntries(Object.keys(made).map((name) => [name, []]));
for (let round = 0; round < ROUNDS; round++) {
  for (const name of Object.keys(made)) rates[name].push(await rate(made[name]));
}

const hand = median(rates['explicit check']);
const table = [
  row(['', 'calls per second', 'relative to an explicit check']),
  row(['---', '---:', '---:']),
  ...Object.entries(rates).map(([name, own]) =>
    row([name, millions(median(own)), times(median(own) / hand)]),
  ),
].join('\n');
console.log(table);
if (!smoke) {
  writeSection(
    'A wrapped function',
    `Calls of an empty function. Medians of ${ROUNDS} rounds in one run of
\`npm run bench:throttle\`; ${machineLine()}.

${table}`,
  );
}
process.exit(0);
