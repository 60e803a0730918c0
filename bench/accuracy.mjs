/**
 * The tables and pictures of docs/accuracy.md, and the one of docs/groups.md: what `sluice simulate peers` and `sluice simulate
 * groups` say, on virtual time. The same words give the same figures on any machine.
 *
 *     npm run figures:accuracy                 plays and prints all of it: half an hour
 *     npm run figures:accuracy -- --quick      without fleets of 1,000, of which one takes ten minutes
 *     npm run figures:accuracy -- --write      all of it, into the pages
 *
 * Exit code 1 if anything was above its bound.
 */

import { fileURLToPath } from 'node:url';
import { playAll } from './at-once.mjs';
import { isToWrite, madeBy, percent, table, writeFigures } from './report.mjs';

const isQuick = process.argv.includes('--quick');
const writes = isToWrite(!isQuick);

const CLI = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
const PICTURES = fileURLToPath(new URL('../docs/pictures/', import.meta.url));
const NODES_QUICK = 256;
const SEEDS = Array.from({ length: 20 }, (_, n) => n + 1);

/* ---- what is played ---------------------------------------------------------------------------- */

const peers = (words, seed = 1) => `peers ${words} --seed ${seed}`.replace(/ +/g, ' ');

/** Held to what must be by tests, for the first seed. */
const HELD = ['', '--nodes 32', '--loss 0.1', '--nodes 32 --loss 0.1'];

const BROKEN = [
  '',
  '--nodes 32',
  '--crash 2@20-25',
  '--nodes 32 --crash 2@20-25',
  '--loss 0.1 --crash 2@20-25',
  '--loss 0.1',
  '--nodes 32 --loss 0.1',
  '--loss 0.3',
  '--delay 50ms',
  '--nodes 32 --delay 50ms',
  '--load 0.5 --load-step 10@20',
  '--load-step 2@20',
];

const sizes = (exchange, flags, counts) =>
  counts.map((nodes) => ({ exchange, nodes, words: `--nodes ${nodes} ${flags}` }));
const FEW = [2, 8, 32, 64, 256];
const SIZES = [
  ...sizes('eager', '', [...FEW, 1000]),
  ...sizes('periodic 100 ms', '--exchange periodic --interval 100ms', FEW),
  {
    exchange: 'periodic 100 ms',
    nodes: 1000,
    note: ', for 15 s',
    words: '--nodes 1000 --exchange periodic --interval 100ms --span 15s',
  },
  ...sizes('periodic 1 s', '--exchange periodic --interval 1s', FEW),
  ...sizes('periodic 5 s', '--exchange periodic --interval 5s', FEW),
].filter(({ nodes }) => !isQuick || nodes <= NODES_QUICK);

const COSTS = [
  { keys: 10, rate: 1000, burst: 1000, seconds: 10 },
  { keys: 1000, rate: 10, burst: 10, seconds: 10 },
  { keys: 100_000, rate: 0.1, burst: 1, seconds: 10 },
  { keys: 100_000, rate: 2, burst: 2, seconds: 3 },
].flatMap((one) =>
  [10, 100].map((maxReports) => {
    const { keys, rate, burst, seconds } = one;
    const words = `--clients ${keys} --rate ${rate} --burst ${burst} --load 1 --span ${seconds}s --max-reports ${maxReports}`;
    return { ...one, maxReports, words };
  }),
);

const NAMES = ['eu', 'us', 'ap'];
const groups = (loads, flags = '') =>
  `groups ${NAMES.map((name, n) => `--region ${name}:${loads[n]}`).join(' ')} ${flags}`.trim();
const BUSY = [400, 10, 10];
const LOADS = [[300, 30, 30], BUSY, [100, 100, 100], [300, 300, 300], [150, 150, 10]];
const DESIGNS = { groups: 'groups', even: 'even division', redis: 'one bucket' };
const BURSTS = [300, 100, 60, 30];
const RTTS = [80, 160, 300];
const burstWords = (burst, rtt) => groups(LOADS[0], `--burst ${burst} --rtt ${rtt}ms`);

const PICTURED = [
  'peers --span 30s --svg peers-prompt.svg',
  'peers --span 30s --exchange periodic --interval 1s --svg peers-interval.svg',
  'peers --span 30s --load 0.5 --load-step 10@10 --svg peers-load.svg',
  'peers --split 20-30:4 --crash 2@45-50 --svg peers-split.svg',
  'groups --cut eu@20-35 --svg groups-split.svg',
];

const stories = [
  ...new Set([
    ...SIZES.map(({ words }) => peers(words)).toReversed(), // the longest first
    ...[...HELD, ...BROKEN].flatMap((words) => SEEDS.map((seed) => peers(words, seed))),
    ...COSTS.map(({ words }) => peers(words)),
    ...LOADS.map((loads) => groups(loads)),
    ...BURSTS.flatMap((burst) => RTTS.map((rtt) => burstWords(burst, rtt))),
    ...(writes ? PICTURED : []),
  ]),
];
const jobOf = (story) => {
  const words = story.split(' ').map((word) => (word.endsWith('.svg') ? PICTURES + word : word));
  return [CLI, 'simulate', ...words, '--json'];
};
const tell = (text) => console.error(text.replace(CLI, 'sluice'));
const played = await playAll(stories.map(jobOf), tell);
const outcomes = new Map(stories.map((story, n) => [story, played[n]]));
const of = (story) => outcomes.get(story);

/* ---- how it is told ---------------------------------------------------------------------------- */

const range = (digits, read, picks) => (runs) => {
  const values = runs.map(read);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const all = { least: Math.min(...values), mean, most: Math.max(...values) };
  return picks.map((pick) => all[pick].toFixed(digits)).join(' · ');
};
const ENDS = ['least', 'most'];
const ALL = ['least', 'mean', 'most'];
const short = (part) => `${Number((100 * part).toFixed(2))} %`;
const code = (words) => (words === '' ? '' : `\`${words}\``);
const seeded = (words) => SEEDS.map((seed) => of(peers(words, seed)));

/** The time until the rate was kept after the last turn; JSON knows no infinity. */
function settled(runs) {
  const values = runs.map(({ convergence }) => convergence.at(-1).afterMs ?? Infinity);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (most === 0) return 'at once';
  if (least === Infinity) return 'not at all';
  if (most === Infinity) return `${least} ms, or not at all`;
  return least === most ? `${most} ms` : `${least} to ${most} ms`;
}

function heldTable() {
  const columns = {
    '`sluice simulate peers …`': ({ words, name }) => name ?? code(words),
    'worst 1 s': ({ must, runs }) => must?.[0] ?? range(3, (own) => own.worst[1000], ENDS)(runs),
    'worst 60 s': ({ must, runs }) => must?.[1] ?? range(4, (own) => own.worst[60_000], ENDS)(runs),
    utilisation: ({ must, runs }) => must?.[2] ?? range(4, (own) => own.utilisation, ENDS)(runs),
    mean: ({ must, runs }) => must?.[3] ?? range(4, (own) => own.mean, ENDS)(runs),
  };
  const [eight, many, eightLossy, manyLossy] = HELD.map((words) => ({
    words,
    runs: seeded(words),
  }));
  return table(columns, [
    { name: 'must be', must: ['≤ 1.05', '≤ 1.005', '≥ 0.98', '0.995 to 1.005'] },
    { ...eight, name: '(8 nodes)' },
    many,
    { name: 'must be, one in ten datagrams lost', must: ['≤ 1.10', '≤ 1.01', '', ''] },
    { ...eightLossy, name: '`--loss 0.1` (8 nodes)' },
    manyLossy,
  ]);
}

const SIZE_COLUMNS = {
  exchange: ({ exchange }) => exchange,
  N: ({ nodes, note = '' }) => `${nodes}${note}`,
  'worst 1 s': ({ worst }) => worst[1000].toFixed(3),
  '10 s': ({ worst }) => worst[10_000].toFixed(3),
  '60 s': ({ worst }) => worst[60_000]?.toFixed(3) ?? '–',
  'overshoot 1 s': ({ overshootRatio }) => percent(overshootRatio[1000], 0),
  'excess of bound': ({ overshootCalls, bound }) =>
    `${overshootCalls.toFixed(0)} of ${bound.toFixed(0)}`,
  utilisation: ({ utilisation }) => short(utilisation),
  'wrong, many / few': ({ falseAllows, falseDenials }) =>
    `${short(falseAllows)} / ${short(falseDenials)}`,
  'fair nodes': ({ fairNodes }) => fairNodes.toFixed(2),
  age: ({ age }) => `${age.meanMs.toFixed(0)} ms`,
  'datagrams/s': ({ datagramsPerSecond }) => datagramsPerSecond.toFixed(1),
  'bytes/s': ({ bytesPerSecond }) => bytesPerSecond.toFixed(0),
};

const BROKEN_COLUMNS = {
  '`sluice simulate peers …`': ({ words }) => code(words),
  'worst 1 s': ({ runs }) => range(3, (own) => own.worst[1000], ALL)(runs),
  'worst 60 s': ({ runs }) => range(3, (own) => own.worst[60_000], ALL)(runs),
  utilisation: ({ runs }) => range(3, (own) => own.utilisation, ALL)(runs),
  'fair nodes': ({ runs }) => range(2, (own) => own.fairNodes, ALL)(runs),
  'settled after the last turn': ({ runs }) => settled(runs),
};

const NODES = 8; // the default of the command
const COST_COLUMNS = {
  keys: ({ keys }) => keys.toLocaleString('en'),
  'rate of each': ({ rate }) => rate,
  R: ({ maxReports }) => maxReports,
  'datagrams/s': ({ datagramsPerSecond }) => datagramsPerSecond.toFixed(1),
  'bytes/s': ({ bytesPerSecond }) => bytesPerSecond.toFixed(0),
  'bytes a call asked for': ({ bytesPerSecond, calls, seconds }) =>
    ((bytesPerSecond * NODES * seconds) / calls).toFixed(1),
  age: ({ age }) => `${age.meanMs.toFixed(0)} ms`,
  'wrong, many / few': ({ falseAllows, falseDenials }) =>
    `${percent(falseAllows, 2)} / ${percent(falseDenials, 2)}`,
  'excess of bound': ({ overshootCalls, bound }) =>
    `${overshootCalls.toFixed(1)} of ${bound.toFixed(0)}`,
};

function usedTable() {
  const columns = {
    [`asked for in ${NAMES.join(', ')}`]: ({ loads, n }) => (n === 0 ? loads.join(', ') : ''),
    '': ({ design }) => DESIGNS[design],
    used: ({ utilisation }) => percent(utilisation),
    excess: ({ overshootCalls }) => overshootCalls.toFixed(1),
    'a call waits': ({ answerMs }) => `${answerMs.toFixed(0)} ms`,
  };
  const rows = LOADS.flatMap((loads) =>
    Object.keys(DESIGNS).map((design, n) => ({ loads, n, design, ...of(groups(loads))[design] })),
  );
  return table(columns, rows, ['---', '---', '---:', '---:', '---:']);
}

const burstTable = () => {
  const used = (burst, rtt) => percent(of(burstWords(burst, rtt)).groups.utilisation);
  const each = RTTS.map((rtt) => [`${rtt} ms`, (burst) => used(burst, rtt)]);
  const columns = { burst: (burst) => burst, ...Object.fromEntries(each) };
  return table(columns, BURSTS, ['---', ...RTTS.map(() => '---:')]);
};

function busyTable() {
  const waits = { groups: 'not at all', even: 'not at all', redis: '80 ms in the others' };
  const columns = {
    '': ({ design }) => (design === 'redis' ? 'one bucket in the first region' : DESIGNS[design]),
    'of the limit used': ({ utilisation }) => percent(utilisation),
    'a call waits': ({ design }) => waits[design],
  };
  const rows = Object.entries(of(groups(BUSY))).map(([design, own]) => ({ design, ...own }));
  return table(columns, rows, ['---', '---:', '---:']);
}

const sized = SIZES.map((one) => ({ ...one, ...of(peers(one.words)) }));
const broken = BROKEN.map((words) => ({ words, runs: seeded(words) }));
const costs = COSTS.map((one) => ({ ...one, ...of(peers(one.words)) }));
const tables = {
  held: heldTable(),
  size: table(SIZE_COLUMNS, sized),
  broken: table(BROKEN_COLUMNS, broken),
  cost: table(COST_COLUMNS, costs),
  used: usedTable(),
  burst: burstTable(),
  busy: busyTable(),
};
console.log(Object.values(tables).join('\n\n'));

if (writes) {
  const made = (text) => `${text}\n\n${madeBy('npm run figures:accuracy')}`;
  writeFigures('docs/accuracy.md', 'peers-held', made(tables.held));
  writeFigures('docs/accuracy.md', 'peers-size', made(tables.size));
  writeFigures('docs/accuracy.md', 'peers-broken', made(tables.broken));
  writeFigures('docs/accuracy.md', 'peers-cost', made(tables.cost));
  writeFigures('docs/accuracy.md', 'groups-used', made(tables.used));
  writeFigures('docs/accuracy.md', 'groups-burst', made(tables.burst));
  writeFigures('docs/groups.md', 'groups-busy', made(tables.busy));
}
