/**
 * Load shedding in front of a handler: a real server in its own process, at three times and at a quarter of its capacity.
 *
 *     npm run figures:guard                  every handler, load and guard
 *     npm run figures:guard -- --quick       Sluice, and no guard for one handler, in shorter runs
 *     npm run figures:guard -- --write       all; writes docs/reference/http-middleware.md
 *
 * Exit code 1 if the guarded server replied less often in time than the unguarded one, or refused more than 5 % of the
 * requests at a quarter of its capacity.
 */

import { CAPACITY, measure, USEFUL_MS } from './guard/load.mjs';
import { isToWrite, loadLine, madeBy, percent, table, whole, writeFigures } from './report.mjs';

const words = process.argv.slice(2);
const isQuick = words.includes('--quick');
const isJson = words.includes('--json');
const writes = isToWrite(!isQuick);

const ALL_GUARDS = ['none', 'toobusy', 'under-pressure', 'sluice'];
const GUARDS = isQuick
  ? { cpu: ['none', 'sluice'], io: ['sluice'] }
  : { cpu: ALL_GUARDS, io: ALL_GUARDS };
const LENGTH = isQuick
  ? { warmupS: 1, seconds: 1.2, patienceMs: 1000 }
  : { warmupS: 3, seconds: 5, patienceMs: 2000 };
const REPEATS = isQuick ? 1 : 3;

const NAMES = {
  cpu: 'computes for 5 ms',
  io: '20 slots of 100 ms',
  none: 'none',
  toobusy: 'toobusy-js',
  'under-pressure': '@fastify/under-pressure',
  sluice: 'Sluice',
};

const cases = [
  ...['cpu', 'io'].flatMap((handler) =>
    GUARDS[handler].map((guard) => ({ handler, guard, load: 3 })),
  ),
  ...['cpu', 'io'].map((handler) => ({ handler, guard: 'sluice', load: 0.25 })),
];

const results = [];
for (const { handler, guard, load } of cases) {
  const rate = CAPACITY[handler] * load;
  // A computing handler depends on the CPU time it gets, so its runs differ: the median is shown, with the range.
  const runs = [];
  for (let n = 0; n < (handler === 'cpu' && load > 1 ? REPEATS : 1); n++)
    runs.push(await measure({ handler, guard, rate, ...LENGTH }));
  runs.sort((a, b) => a.goodput - b.goodput);
  const range = runs.map(({ goodput }) => whole(goodput));
  results.push({ handler, guard, load, ...runs[Math.floor(runs.length / 2)], range });
  if (!isJson) console.error(JSON.stringify(results.at(-1)));
}

const ms = (value) => (value === undefined ? '–' : `${whole(value)} ms`);
const columns = {
  handler: ({ handler }) => NAMES[handler],
  load: ({ load, handler }) => `${load} × ${CAPACITY[handler]}/s`,
  guard: ({ guard }) => NAMES[guard],
  [`replies/s within ${USEFUL_MS} ms`]: ({ goodput, range }) =>
    range.length > 1 ? `${whole(goodput)} (${range[0]} to ${range.at(-1)})` : whole(goodput),
  'median, served': ({ medianMs }) => ms(medianMs),
  'p99, served': ({ p99Ms }) => ms(p99Ms),
  refused: ({ refused }) => percent(refused, 0),
  'no reply': ({ timedOut }) => percent(timedOut, 0),
};
const text = table(columns, results);

const goodputOf = (handler, guard) =>
  results.find((each) => each.handler === handler && each.guard === guard && each.load === 3)
    ?.goodput ?? 0;
const isWorse = ['cpu', 'io'].some((name) => goodputOf(name, 'sluice') < goodputOf(name, 'none'));
const isRefusing = results.some(({ load, refused }) => load < 1 && refused > 0.05);
if (isWorse || isRefusing) process.exitCode = 1;

if (isJson) console.log(JSON.stringify(results));
else console.log(text);
if (writes && process.exitCode !== 1)
  writeFigures(
    'docs/reference/http-middleware.md',
    'guard',
    `${text}\n\n${madeBy('npm run figures:guard', loadLine())}`,
  );
