/**
 * Runs every attack of bench/soak/attacks/ for a time, or for a number of rounds, on daemons with 512 MiB of memory. The
 * same seed gives the same inputs.
 *
 *     npm run soak:attack                                        each attack for a minute
 *     npm run soak:attack -- --seconds 600 --seed 7
 *     npm run soak:attack -- --rounds 20 --only config,protocols
 *     npm run soak:attack -- --write                             a minute, and the counts into docs/explanation/guarantees.md
 *
 * A file there exports `attack({ rounds, seed })`, which resolves with counts and rejects if an invariant is broken. It is
 * called with the seed, the seed plus 1 and so on. Counts are added; those that end in `Ms` or `MB` keep the largest value.
 */

import { readdirSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { limitMemory } from '../daemon/process.mjs';
import { isToWrite, madeBy, table, whole, writeFigures } from '../report.mjs';

const SECONDS = 60;

/** A call that takes less time than this is followed by one with twice as many rounds. */
const SHORT_CALL_MS = 3000;
const MAX_ROUNDS = 100;

const { values: options } = parseArgs({
  options: {
    rounds: { type: 'string' },
    seconds: { type: 'string', default: `${SECONDS}` },
    seed: { type: 'string', default: '1' },
    only: { type: 'string' },
    json: { type: 'boolean', default: false },
    write: { type: 'boolean', default: false },
  },
});
const { rounds, only } = options;
const seconds = Number(options.seconds);
const writes = isToWrite(seconds >= SECONDS && rounds === undefined && only === undefined);

const names = readdirSync(new URL('attacks/', import.meta.url))
  .filter((file) => file.endsWith('.mjs'))
  .map((file) => file.slice(0, -'.mjs'.length));
const unknown = only?.split(',').find((name) => !names.includes(name));
if (unknown !== undefined) {
  console.error(`expected an attack of ${names.join(', ')}, got "${unknown}"`);
  process.exit(2);
}

const isLargest = (name) => /(?:Ms|MB)$/.test(name);

function add(counts, more) {
  for (const [name, value] of Object.entries(more)) {
    if (typeof value !== 'number') continue;
    const old = counts[name] ?? 0;
    counts[name] = isLargest(name) ? Math.max(old, value) : old + value;
  }
}

async function run(name) {
  const { attack } = await import(`./attacks/${name}.mjs`);
  const startedAt = performance.now();
  const result = { name, rounds: 0, seconds: 0, counts: {} };
  let many = Number(rounds ?? 1);
  try {
    for (let seed = Number(options.seed); ; seed++) {
      const { counts } = result;
      // A failed call can be repeated with these.
      console.error(`${name}: --seed ${seed} --rounds ${many}, so far ${JSON.stringify(counts)}`);
      const calledAt = performance.now();
      add(counts, await attack({ rounds: many, seed }));
      const endedAt = performance.now();
      result.rounds += many;
      result.seconds = (endedAt - startedAt) / 1000;
      if (rounds !== undefined || result.seconds >= seconds) return result;
      if (endedAt - calledAt < SHORT_CALL_MS) many = Math.min(2 * many, MAX_ROUNDS);
    }
  } catch (error) {
    console.error(error);
    return { ...result, failure: String(error) };
  }
}

limitMemory(512 * 2 ** 20);
const results = [];
for (const name of names)
  if (!only || only.split(',').includes(name)) results.push(await run(name));

const COLUMNS = {
  attack: ({ name }) => name,
  rounds: (result) => whole(result.rounds),
  'counts (the largest where Ms or MB)': ({ counts }) =>
    Object.entries(counts)
      .map(([name, value]) => `${name} ${whole(value)}`)
      .join(', '),
  'broken invariants': ({ failure }) => failure ?? 0,
};
if (options.json) console.log(JSON.stringify(results));
else console.log(table(COLUMNS, results));
const isBroken = results.some(({ failure }) => failure !== undefined);
if (writes && !isBroken) {
  const about = madeBy('npm run soak:attack', `seed ${options.seed}, ${seconds} s each`);
  writeFigures(
    'docs/explanation/guarantees.md',
    'attacks',
    `${table(COLUMNS, results)}\n\n${about}`,
  );
}
process.exitCode = isBroken ? 1 : 0;
