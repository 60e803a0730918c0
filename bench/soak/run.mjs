/**
 * A limit shared through Redis by many processes, for longer than a test would: what it promises, counted.
 *
 *     npm run soak:redis               strictness and use: eight workers, clocks ten seconds apart
 *     npm run soak:redis -- chaos      Redis killed, stopped, emptied; workers killed
 *     npm run soak:redis -- fair       two hundred in one line: their order, and what a permit costs
 *     npm run soak:redis -- flights    a cap on calls in flight, and workers killed in the middle of theirs
 *     npm run soak:redis -- leases     permits taken ahead, and workers killed that hold some
 *     npm run soak:redis -- --short    a few seconds, as in the tests
 *     npm run soak:redis -- --json     for a machine
 *     npm run soak:redis -- --write    and write what came out into docs/reliability.md: as it is, or with a word above
 *
 * Everything happens on loopback with processes of its own. Exit code 1 if a promise did not hold.
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
import { fair } from './fair.mjs';
import { flights, LEASE_MS } from './flights.mjs';
import { leases } from './leases.mjs';
import { versionOf } from './server.mjs';
import { strict } from './strict.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const writes = isToWrite(!isShort);
const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

const PLAYS = {
  strict: {
    play: strict,
    write: (text) => writeFigures('docs/reliability.md', 'redis-strict', text),
    /** The line that says whether it held, in a run that is long enough to say so. */
    holds: ({ tooClose, lost, utilisation }) =>
      tooClose === 0 && lost === 0 && (isShort || utilisation >= 0.98),
    columns: {
      every: ({ every }) => `${every} ms`,
      reserve: ({ reserve }) => reserve,
      'way to Redis and back': ({ farMs }) => (farMs ? `${2 * farMs} ms` : 'loopback'),
      permits: ({ grants }) => grants,
      'too close': ({ tooClose }) => tooClose,
      'least gap': ({ leastGapMs }) => `${leastGapMs.toFixed(3)} ms`,
      use: ({ utilisation }) => percent(utilisation),
      'calls lost': ({ lost }) => lost,
      'late p50': ({ lateMs }) => ms(lateMs.p50),
      'late p99': ({ lateMs }) => ms(lateMs.p99),
      'fair (Jain)': ({ fairness }) => fairness.toFixed(2),
      'trips a permit': ({ calls, grants }) => (calls / grants).toFixed(1),
    },
  },
  fair: {
    play: fair,
    write: (text) => writeFigures('docs/reliability.md', 'redis-fair', text),
    holds: ({ outOfOrder, tooClose, callsAPermit }) =>
      outOfOrder === 0 && tooClose === 0 && callsAPermit < 3,
    columns: {
      waiters: ({ waiters }) => waiters,
      limiters: ({ limiters }) => limiters,
      every: ({ every }) => `${every} ms`,
      'out of order': ({ outOfOrder }) => outOfOrder,
      'too close': ({ tooClose }) => tooClose,
      use: ({ utilisation }) => percent(utilisation),
      'calls a permit': ({ callsAPermit }) => callsAPermit.toFixed(2),
    },
  },
  flights: {
    play: flights,
    write: (text) => writeFigures('docs/reliability.md', 'redis-flights', text),
    holds: ({ peak, cap, lost, backAfterMs }) =>
      peak <= cap && lost === 0 && backAfterMs < LEASE_MS + 2000,
    columns: {
      'at most': ({ cap }) => cap,
      line: ({ isFair }) => (isFair ? 'one for all' : 'one a process'),
      workers: ({ workers }) => workers,
      killed: ({ kills }) => kills,
      calls: ({ calls }) => calls,
      'broken off': ({ broken }) => broken,
      'most at once, with those kept for the dead': ({ peak }) => peak,
      'all places in use again after': ({ backAfterMs }) => ms(backAfterMs),
      'calls lost': ({ lost }) => lost,
    },
  },
  leases: {
    play: leases,
    write: (text) => writeFigures('docs/reliability.md', 'redis-leases', text),
    holds: ({ extra, mayExtra, lost, utilisation }) =>
      extra <= mayExtra && lost === 0 && (isShort || utilisation >= 0.9),
    columns: {
      rate: ({ perSecond }) => `${perSecond}/s`,
      burst: ({ burst }) => burst,
      prefetch: ({ prefetch }) => prefetch,
      workers: ({ workers }) => workers,
      killed: ({ kills }) => kills,
      calls: ({ grants }) => grants,
      'too many': ({ extra }) => extra,
      'at most': ({ mayExtra }) => mayExtra,
      use: ({ utilisation }) => percent(utilisation),
      'calls lost': ({ lost }) => lost,
    },
  },
  chaos: {
    play: chaos,
    write: (text) => writeFigures('docs/reliability.md', 'redis-chaos', text),
    holds: ({ extra, mayExtra, lost, strictAfterMs }) =>
      extra <= mayExtra && lost === 0 && strictAfterMs < 1000,
    columns: {
      'what happens': ({ name }) => name,
      times: ({ times }) => times,
      every: ({ every }) => `${every} ms`,
      reserve: ({ reserve }) => reserve,
      permits: ({ grants }) => grants,
      'too many': ({ extra }) => extra,
      'at most': ({ mayExtra }) => mayExtra,
      'calls lost': ({ lost }) => lost,
      'longest without a permit': ({ longestGapMs }) => ms(longestGapMs),
      'next permit after': ({ nextGrantMs }) => ms(nextGrantMs),
      'all strict after': ({ strictAfterMs }) => ms(strictAfterMs),
    },
  },
};

const chosen = words.find((word) => word in PLAYS) ?? 'strict';
const { play, holds, columns, write } = PLAYS[chosen];
const results = (await play({ isShort })).map((result) => ({ ...result, holds: holds(result) }));
const isHeld = results.every((result) => result.holds);

if (words.includes('--json')) {
  console.log(JSON.stringify(results));
} else {
  console.log(`${machineLine()}\n\n${table(columns, results)}`);
}
if (writes && isHeld) {
  const command = `npm run soak:redis${chosen === 'strict' ? '' : ` -- ${chosen}`}`;
  const about = madeBy(command, `Redis ${versionOf('redis-server')}`, loadLine());
  write(`${table(columns, results)}\n\n${about}`);
}
process.exitCode = isHeld ? 0 : 1;
