/**
 * The road of one ask: every function of ours that it enters, in order, by each way in and with each one who decides.
 *
 *     npm run trace:calls                  all of them, in short: how many functions, in which rooms, how often
 *     npm run trace:calls -- 'HTTP'        those whose name has that in it, step by step
 *     npm run trace:calls -- --json        for a machine
 *
 * Redis and etcd have to be installed for the roads through them; they are started for it.
 */

import { ROADS } from './roads.mjs';
import { Walker } from './walk.mjs';

const words = process.argv.slice(2);
const isJson = words.includes('--json');
const wanted = words.find((word) => !word.startsWith('--'));
const exact = Object.keys(ROADS).filter((name) => name === wanted);
const near = Object.keys(ROADS).filter((name) => !wanted || name.includes(wanted));
const names = exact.length > 0 ? exact : near;
if (names.length === 0) {
  console.error(
    `no road has ${wanted} in its name; there are\n  ${Object.keys(ROADS).join('\n  ')}`,
  );
  process.exit(2);
}

const nameOf = ({ of, name }) =>
  (of && !['Object', 'Function'].includes(of) ? `${of}.` : '') + (name || 'a function');

function inFull(steps) {
  for (const step of steps) {
    console.log(`  ${'  '.repeat(step.depth)}${nameOf(step)}  ${step.file}:${step.line}`);
  }
}

/** The files in which it was, in the order of its coming there. */
function inShort(steps) {
  const files = new Map();
  for (const { file } of steps) files.set(file, (files.get(file) ?? 0) + 1);
  console.log(
    `  ${[...files].map(([file, times]) => (times > 1 ? `${file} ${times}` : file)).join(' · ')}`,
  );
}

/** Functions that were entered more than once, which may mean that a fact was computed twice. */
function again(steps) {
  const times = new Map();
  for (const step of steps) {
    const place = `${nameOf(step)} ${step.file}`;
    times.set(place, (times.get(place) ?? 0) + 1);
  }
  const more = [...times].filter(([, n]) => n > 1).map(([place, n]) => `${place} ${n} ×`);
  if (more.length > 0) console.log(`  more than once: ${more.join(', ')}`);
}

const walked = {};
for (const name of names) {
  const walker = await Walker.start();
  const road = await ROADS[name]();
  const steps = await walker.walk(road.ask);
  await walker.stop();
  await road.stop?.();
  walked[name] = steps;
  if (isJson) continue;
  console.log(`\n${name}: ${steps.length} steps`);
  (wanted ? inFull : inShort)(steps);
  if (wanted) again(steps);
}
if (isJson) console.log(JSON.stringify(walked));
process.exitCode = 0;
