/**
 * Soak test of limits shared through Redis by real processes: counts violations of what the docs promise.
 *
 *     npm run soak:redis                  strictness and utilisation: eight workers, clocks ten seconds apart
 *     npm run soak:redis -- chaos         Redis killed, paused and emptied; workers killed
 *     npm run soak:redis -- fair          waiters in the fair queue: their order, use of the rate, and calls per permit
 *     npm run soak:redis -- concurrency   a concurrency limit, and workers killed during their calls
 *     npm run soak:redis -- prefetch      prefetched tokens, and workers killed that hold some
 *     npm run soak:redis -- --short       a few seconds, as in the tests
 *     npm run soak:redis -- --json        machine-readable output
 *     npm run soak:redis -- --write       also writes the table into docs/explanation/guarantees.md; not with --short
 *
 * Everything runs on loopback with servers and workers of this process. Exit code 1 if a promise did not hold.
 */

import {
  isToWrite,
  loadLine,
  machineLine,
  madeBy,
  percent,
  table,
  writeFigures,
} from '../report.mjs';
import { chaos } from './chaos.mjs';
import { concurrency, LEASE_MS } from './concurrency.mjs';
import { fair } from './fair.mjs';
import { prefetch } from './prefetch.mjs';
import { versionOf } from './server.mjs';
import { strict } from './strict.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const writes = isToWrite(!isShort);
const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

const SCENARIOS = {
  strict: {
    run: strict,
    write: (text) => writeFigures('docs/explanation/guarantees.md', 'redis-strict', text),
    /** Whether the promise held; utilisation only counts in a full run. */
    holds: ({ tooClose, lost, utilisation }) =>
      tooClose === 0 && lost === 0 && (isShort || utilisation >= 0.98),
    columns: {
      every: ({ every }) => `${every} ms`,
      reserve: ({ reserve }) => reserve,
      'round trip to Redis': ({ farMs }) => (farMs ? `${2 * farMs} ms` : 'loopback'),
      permits: ({ grants }) => grants,
      violations: ({ tooClose }) => tooClose,
      'smallest gap': ({ leastGapMs }) => `${leastGapMs.toFixed(3)} ms`,
      utilisation: ({ utilisation }) => percent(utilisation),
      'unanswered calls': ({ lost }) => lost,
      'lateness p50': ({ lateMs }) => ms(lateMs.p50),
      'lateness p99': ({ lateMs }) => ms(lateMs.p99),
      'fairness (Jain)': ({ fairness }) => fairness.toFixed(2),
      'calls per permit': ({ calls, grants }) => (calls / grants).toFixed(1),
    },
  },
  fair: {
    run: fair,
    write: (text) => writeFigures('docs/explanation/guarantees.md', 'redis-fair', text),
    holds: ({ outOfOrder, tooClose, callsPerPermit, utilisation }) =>
      outOfOrder === 0 && tooClose === 0 && callsPerPermit < 3 && (isShort || utilisation >= 0.95),
    columns: {
      waiters: ({ waiters }) => waiters,
      limiters: ({ limiters }) => limiters,
      every: ({ every }) => `${every} ms`,
      'round trip to Redis': ({ farMs }) => (farMs ? `${2 * farMs} ms` : 'loopback'),
      'out of order': ({ outOfOrder }) => outOfOrder,
      violations: ({ tooClose }) => tooClose,
      utilisation: ({ utilisation }) => percent(utilisation),
      'calls per permit': ({ callsPerPermit }) => callsPerPermit.toFixed(2),
    },
  },
  concurrency: {
    run: concurrency,
    write: (text) => writeFigures('docs/explanation/guarantees.md', 'redis-concurrency', text),
    holds: ({ peak, cap, lost, backAfterMs }) =>
      peak <= cap && lost === 0 && backAfterMs < LEASE_MS + 2000,
    columns: {
      limit: ({ cap }) => cap,
      queue: ({ isFair }) => (isFair ? 'fair' : 'per process'),
      workers: ({ workers }) => workers,
      killed: ({ kills }) => kills,
      calls: ({ calls }) => calls,
      'aborted calls': ({ aborted }) => aborted,
      'peak in flight, with leases of killed workers': ({ peak }) => peak,
      'full utilisation again after': ({ backAfterMs }) => ms(backAfterMs),
      'unanswered calls': ({ lost }) => lost,
    },
  },
  prefetch: {
    run: prefetch,
    write: (text) => writeFigures('docs/explanation/guarantees.md', 'redis-prefetch', text),
    holds: ({ extra, maxExtra, lost, utilisation }) =>
      extra <= maxExtra && lost === 0 && (isShort || utilisation >= 0.9),
    columns: {
      rate: ({ perSecond }) => `${perSecond}/s`,
      burst: ({ burst }) => burst,
      prefetch: ({ prefetch }) => prefetch,
      workers: ({ workers }) => workers,
      killed: ({ kills }) => kills,
      calls: ({ grants }) => grants,
      overshoot: ({ extra }) => extra,
      'overshoot bound': ({ maxExtra }) => maxExtra,
      utilisation: ({ utilisation }) => percent(utilisation),
      'unanswered calls': ({ lost }) => lost,
    },
  },
  chaos: {
    run: chaos,
    write: (text) => writeFigures('docs/explanation/guarantees.md', 'redis-chaos', text),
    holds: ({ extra, maxExtra, lost, strictAfterMs }) =>
      extra <= maxExtra && lost === 0 && strictAfterMs < 1000,
    columns: {
      fault: ({ name }) => name,
      times: ({ times }) => times,
      every: ({ every }) => `${every} ms`,
      reserve: ({ reserve }) => reserve,
      permits: ({ grants }) => grants,
      overshoot: ({ extra }) => extra,
      'overshoot bound': ({ maxExtra }) => maxExtra,
      'unanswered calls': ({ lost }) => lost,
      'longest gap': ({ longestGapMs }) => ms(longestGapMs),
      'next permit after': ({ nextGrantMs }) => ms(nextGrantMs),
      'all available after': ({ strictAfterMs }) => ms(strictAfterMs),
    },
  },
};

const chosen = words.find((word) => word in SCENARIOS) ?? 'strict';
const { run, holds, columns, write } = SCENARIOS[chosen];
const results = (await run({ isShort })).map((result) => ({ ...result, holds: holds(result) }));
const isHeld = results.every((result) => result.holds);

if (words.includes('--json')) {
  console.log(JSON.stringify(results));
} else {
  console.log(`${machineLine()}\n\n${table(columns, results)}`);
}
if (writes && isHeld) {
  const command = `npm run soak:redis${chosen === 'strict' ? '' : ` -- ${chosen}`}`;
  const source = madeBy(command, `Redis ${versionOf('redis-server')}`, loadLine());
  write(`${table(columns, results)}\n\n${source}`);
}
process.exitCode = isHeld ? 0 : 1;
