/**
 * Checks the bounds of peers, groups and pools on random scenarios, over many seeds, on virtual time.
 *
 *     npm run figures:seeds                    1,000 fleets, 1,000 sets of regions, 200,000 pools: five minutes
 *     npm run figures:seeds -- --part 0.01     1 % of them
 *     npm run figures:seeds -- --write         all of them; writes docs/explanation/accuracy-of-peers.md and docs/reference/pool.md
 *
 * Exit code 1 if a bound was exceeded. Tests run the first of the same seeds.
 */

import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { figuresOf } from '../dist/simulator/groups/figures.js';
import { randomRegions } from '../dist/simulator/groups/random-regions.js';
import { simulateRegions } from '../dist/simulator/groups/run.js';
import { simulatePeers } from '../dist/simulator/peers/fleet.js';
import { randomFleet } from '../dist/simulator/peers/random-fleet.js';
import { fuzzPool } from '../dist/simulator/pool/fuzz.js';
import { isToWrite, madeBy, whole, writeFigures } from './report.mjs';
import { runAll } from './run-parallel.mjs';

const SCRIPT = fileURLToPath(import.meta.url);
const STEPS = 400;

const pool = (isStrict) => (seed) => {
  const { overshoots, isFullyUsed } = fuzzPool({ seed, steps: STEPS, isStrict });
  return { seed, isHeld: overshoots.length === 0 && isFullyUsed };
};

/** Number of seeds, how to run one, and how many a process runs. */
const KINDS = {
  peers: {
    seeds: 1000,
    atATime: 25,
    run(seed) {
      const fleet = randomFleet(seed);
      const { overshootCalls, bound } = simulatePeers(fleet);
      const hasLoss = fleet.network.loss > 0;
      return { seed, isHeld: overshootCalls <= bound, hasLoss, part: overshootCalls / bound };
    },
  },
  groups: {
    seeds: 1000,
    atATime: 100,
    async run(seed) {
      const regions = randomRegions(seed);
      const { overshootCalls, bound } = figuresOf(
        await simulateRegions('groups', regions),
        regions,
      );
      return { seed, isHeld: overshootCalls <= bound, part: overshootCalls / bound };
    },
  },
  'pool, strict': { seeds: 100_000, atATime: 5000, run: pool(true) },
  'pool, stale': { seeds: 100_000, atATime: 5000, run: pool(false) },
};

const { values: flags } = parseArgs({
  options: {
    part: { type: 'string', default: '1' },
    write: { type: 'boolean', default: false },
    // For child processes:
    kind: { type: 'string' },
    from: { type: 'string' },
    to: { type: 'string' },
  },
});

if (flags.kind === undefined) await runEverything(Number(flags.part));
else {
  const results = [];
  for (let seed = Number(flags.from); seed <= Number(flags.to); seed++)
    results.push(await KINDS[flags.kind].run(seed));
  console.log(JSON.stringify(results));
}

async function runEverything(part) {
  const writes = isToWrite(part >= 1);
  const results = {};
  for (const [kind, { seeds, atATime }] of Object.entries(KINDS)) {
    const last = Math.ceil(seeds * part);
    const jobs = Array.from({ length: Math.ceil(last / atATime) }, (_, n) => {
      const to = Math.min(last, (n + 1) * atATime);
      return [SCRIPT, '--kind', kind, '--from', `${n * atATime + 1}`, '--to', `${to}`];
    });
    const onProgress = (text) => console.error(text.replace(SCRIPT, ''));
    results[kind] = (await runAll(jobs, onProgress)).flat();
  }
  const violations = Object.entries(results).flatMap(([kind, runs]) =>
    runs.filter(({ isHeld }) => !isHeld).map(({ seed }) => `${kind}, seed ${seed}`),
  );
  if (violations.length > 0) {
    console.log(`bound exceeded: ${violations.join('; ')}`);
    process.exitCode = 1;
    return;
  }
  const texts = summariesOf(results);
  console.log(Object.values(texts).join('\n\n'));
  if (!writes) return;
  const made = (text) => `${text}\n\n${madeBy('npm run figures:seeds')}`;
  writeFigures('docs/explanation/accuracy-of-peers.md', 'peers-seeds', made(texts.peers));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'groups-seeds', made(texts.groups));
  writeFigures('docs/reference/pool.md', 'pool-seeds', made(texts.pool));
}

function summariesOf({ peers, groups, ...pools }) {
  const parts = (runs) => runs.map(({ part }) => part).toSorted((a, b) => a - b);
  const all = parts(peers);
  const lossy = parts(peers.filter(({ hasLoss }) => hasLoss));
  const clean = parts(peers.filter(({ hasLoss }) => !hasLoss));
  const quantile = (values, q) => values[Math.floor(values.length * q)].toFixed(2);
  const highest = parts(groups).at(-1);
  const worst =
    highest > 0 ? `the highest overshoot was ${highest.toFixed(2)} of it` : 'none had an overshoot';
  const [strict, stale] = Object.values(pools).map((runs) => whole(runs.length));
  return {
    peers: `All ${whole(all.length)} keep their bound. The highest overshoot was ${all.at(-1).toFixed(2)} of it. Of the ${clean.length} without loss, half stay below ${quantile(clean, 0.5)} and 90 %
below ${quantile(clean, 0.9)}; none of the ${lossy.length} with loss is above ${lossy.at(-1).toFixed(2)}.`,
    groups: `None of ${whole(groups.length)} exceeded its bound; ${worst}.`,
    pool: `Of ${strict} runs with \`staleFor\` no longer than \`memberTimeout\`, and ${stale} with \`staleFor\` longer, none exceeded the limit, and all used it fully again in time.`,
  };
}
