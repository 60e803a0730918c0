/** Run by hot-path.ts: writes the functions that a local check and tryAcquire enter to the file of its argument. */

import { writeFileSync } from 'node:fs';
import { Session } from 'node:inspector';
import { limiter } from '../../../src/index.ts';
import type { EnteredFunction } from './hot-path.ts';

interface Coverage {
  readonly result: readonly {
    readonly url: string;
    readonly functions: readonly {
      readonly functionName: string;
      readonly ranges: readonly {
        readonly startOffset: number;
        readonly endOffset: number;
        readonly count: number;
      }[];
    }[];
  }[];
}

/** By then the hash of a busy key is cached. */
const CALLS_BEFORE = 100;

const session = new Session();
session.connect();

/** A session on its own thread replies before `post` returns. */
function post(method: string, params: object = {}): unknown {
  let reply: unknown;
  session.post(method, params, (error, result) => {
    if (error) throw error;
    reply = result;
  });
  return reply;
}

const api = limiter({ name: 'api', limit: { bucket: { rate: '1000/s', burst: 1000 } } });
const calls = { check: () => api.check('alice'), tryAcquire: () => api.tryAcquire('alice') };

post('Profiler.enable');
post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });

const nextTurn = () => new Promise((resume) => setImmediate(resume));

/**
 * The functions that a call enters, after calls that do what happens only once. Each has its own turn of the event
 * loop, because many calls in one turn share a read of the clock.
 */
async function enteredBy(call: () => unknown): Promise<EnteredFunction[]> {
  for (let n = 0; n < CALLS_BEFORE; n++) {
    call();
    await nextTurn();
  }
  post('Profiler.takePreciseCoverage'); // discards their counts
  call();
  const { result } = post('Profiler.takePreciseCoverage') as Coverage;
  return result
    .filter(({ url }) => url === import.meta.url)
    .flatMap(({ functions }) => functions)
    .filter(({ ranges: [{ count }] }) => count > 0)
    .map(({ functionName: name, ranges: [{ startOffset: start, endOffset: end }] }) => ({
      ...{ name, start, end },
    }));
}

const entered: Record<string, EnteredFunction[]> = {};
for (const [name, call] of Object.entries(calls)) entered[name] = await enteredBy(call);
writeFileSync(process.argv[2], JSON.stringify(entered));
