/**
 * What was made up by chance and never broke its promise, over many seeds, on virtual time.
 *
 *     npm run figures:seeds                    1,000 fleets, 1,000 sets of regions, 200,000 pools: five minutes
 *     npm run figures:seeds -- --part 0.01     a hundredth of them
 *     npm run figures:seeds -- --write         all of them, and what came out into docs/accuracy.md and docs/pool.md
 *
 * Exit code 1 if anything was above its bound; tests play the first of the same seeds.
 */

import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { figuresOf } from '../dist/simulator/groups/figures.js';
import { arbitraryRegions } from '../dist/simulator/groups/random-regions.js';
import { simulateRegions } from '../dist/simulator/groups/run.js';
import { simulatePeers } from '../dist/simulator/peers/fleet.js';
import { arbitraryFleet } from '../dist/simulator/peers/random-fleet.js';
import { fuzzPool } from '../dist/simulator/pool/fuzz.js';
import { playAll } from './at-once.mjs';
import { isToWrite, madeBy, whole, writeFigures } from './report.mjs';

const SCRIPT = fileURLToPath(import.meta.url);
const STEPS = 400;

const pool = (isStrict) => (seed) => {
  const { overshoots, isFullyUsed } = fuzzPool({ seed, steps: STEPS, isStrict });
  return { seed, isHeld: overshoots.length === 0 && isFullyUsed };
};

/** How many of each, and how one is played; so many go to a process at a time. */
const KINDS = {
  peers: {
    seeds: 1000,
    atATime: 25,
    play(seed) {
      const fleet = arbitraryFleet(seed);
      const { overshootCalls, bound } = simulatePeers(fleet);
      const hasLoss = fleet.network.loss > 0;
      return { seed, isHeld: overshootCalls <= bound, hasLoss, part: overshootCalls / bound };
    },
  },
  groups: {
    seeds: 1000,
    atATime: 100,
    async play(seed) {
      const regions = arbitraryRegions(seed);
      const { overshootCalls, bound } = figuresOf(
        await simulateRegions('groups', regions),
        regions,
      );
      return { seed, isHeld: overshootCalls <= bound, part: overshootCalls / bound };
    },
  },
  'pool, strict': { seeds: 100_000, atATime: 5000, play: pool(true) },
  'pool, holding on': { seeds: 100_000, atATime: 5000, play: pool(false) },
};

const { values: flags } = parseArgs({
  options: {
    part: { type: 'string', default: '1' },
    write: { type: 'boolean', default: false },
    // For the processes this one starts:
    kind: { type: 'string' },
    from: { type: 'string' },
    to: { type: 'string' },
  },
});

if (flags.kind === undefined) await playEverything(Number(flags.part));
else {
  const results = [];
  for (let seed = Number(flags.from); seed <= Number(flags.to); seed++)
    results.push(await KINDS[flags.kind].play(seed));
  console.log(JSON.stringify(results));
}

async function playEverything(part) {
  const writes = isToWrite(part >= 1);
  const results = {};
  for (const [kind, { seeds, atATime }] of Object.entries(KINDS)) {
    const last = Math.ceil(seeds * part);
    const jobs = Array.from({ length: Math.ceil(last / atATime) }, (_, n) => {
      const to = Math.min(last, (n + 1) * atATime);
      return [SCRIPT, '--kind', kind, '--from', `${n * atATime + 1}`, '--to', `${to}`];
    });
    const told = (text) => console.error(text.replace(SCRIPT, ''));
    results[kind] = (await playAll(jobs, told)).flat();
  }
  const broken = Object.entries(results).flatMap(([kind, own]) =>
    own.filter(({ isHeld }) => !isHeld).map(({ seed }) => `${kind}, seed ${seed}`),
  );
  if (broken.length > 0) {
    console.log(`did not hold: ${broken.join('; ')}`);
    process.exitCode = 1;
    return;
  }
  const told = tell(results);
  console.log(Object.values(told).join('\n\n'));
  if (!writes) return;
  const made = (text) => `${text}\n\n${madeBy('npm run figures:seeds')}`;
  writeFigures('docs/accuracy.md', 'peers-seeds', made(told.peers));
  writeFigures('docs/accuracy.md', 'groups-seeds', made(told.groups));
  writeFigures('docs/pool.md', 'pool-seeds', made(told.pool));
}

function tell({ peers, groups, ...pools }) {
  const parts = (own) => own.map(({ part }) => part).toSorted((a, b) => a - b);
  const all = parts(peers);
  const lossy = parts(peers.filter(({ hasLoss }) => hasLoss));
  const clean = parts(peers.filter(({ hasLoss }) => !hasLoss));
  const at = (own, share) => own[Math.floor(own.length * share)].toFixed(2);
  const nearest = parts(groups).at(-1);
  const near =
    nearest > 0 ? `the nearest came to ${nearest.toFixed(2)} of it` : 'none had a call too many';
  const [strict, holding] = Object.values(pools).map((own) => whole(own.length));
  return {
    peers: `All ${whole(all.length)} keep their bound. The nearest came to ${all.at(-1).toFixed(2)} of it. Of the ${clean.length} without loss half stay below ${at(clean, 0.5)} and nine in ten
below ${at(clean, 0.9)}; none of the ${lossy.length} with loss comes to more than ${lossy.at(-1).toFixed(2)}.`,
    groups: `None of ${whole(groups.length)} exceeded its bound; ${near}.`,
    pool: `Of ${strict} runs with \`staleFor\` no longer than \`memberTimeout\`, and ${holding} with \`staleFor\` longer, none was above, and all were whole again in time.`,
  };
}
