/**
 * Writes the tables and charts of docs/explanation/accuracy-of-peers.md and a table of docs/reference/groups.md, from `sluice simulate peers` and
 * `sluice simulate groups`. The same flags give the same figures on any machine.
 *
 *     npm run figures:accuracy                 runs and prints everything: half an hour
 *     npm run figures:accuracy -- --quick      without fleets of 1,000 nodes, one of which takes ten minutes
 *     npm run figures:accuracy -- --write      writes everything into the pages
 *
 * Exit code 1 if an overshoot is above its bound.
 */

import { fileURLToPath } from 'node:url';
import { isToWrite, madeBy, percent, table, writeFigures } from './report.mjs';
import { runAll } from './run-parallel.mjs';

const isQuick = process.argv.includes('--quick');
const writes = isToWrite(!isQuick);

const CLI = fileURLToPath(new URL('../dist/bin/sluice.js', import.meta.url));
const PICTURES = fileURLToPath(new URL('../docs/pictures/', import.meta.url));
const NODES_QUICK = 256;
const SEEDS = Array.from({ length: 20 }, (_, n) => n + 1);

/* ---- runs -------------------------------------------------------------------------------------- */

const peers = (flags, seed = 1) => `peers ${flags} --seed ${seed}`.replace(/ +/g, ' ');

/** Tests check the first seed of these. */
const CHECKED = ['', '--nodes 32', '--loss 0.1', '--nodes 32 --loss 0.1'];

const FAILURES = [
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
  counts.map((nodes) => ({ exchange, nodes, flags: `--nodes ${nodes} ${flags}` }));
const FEW = [2, 8, 32, 64, 256];
const SIZES = [
  ...sizes('eager', '', [...FEW, 1000]),
  ...sizes('periodic 100 ms', '--exchange periodic --interval 100ms', FEW),
  {
    exchange: 'periodic 100 ms',
    nodes: 1000,
    note: ', for 15 s',
    flags: '--nodes 1000 --exchange periodic --interval 100ms --span 15s',
  },
  ...sizes('periodic 1 s', '--exchange periodic --interval 1s', FEW),
  ...sizes('periodic 5 s', '--exchange periodic --interval 5s', FEW),
].filter(({ nodes }) => !isQuick || nodes <= NODES_QUICK);

const COSTS = [
  { keys: 10, rate: 1000, burst: 1000, seconds: 10 },
  { keys: 1000, rate: 10, burst: 10, seconds: 10 },
  { keys: 100_000, rate: 0.1, burst: 1, seconds: 10 },
  { keys: 100_000, rate: 2, burst: 2, seconds: 3 },
].flatMap((load) =>
  [10, 100].map((maxReports) => {
    const { keys, rate, burst, seconds } = load;
    const flags = `--clients ${keys} --rate ${rate} --burst ${burst} --load 1 --span ${seconds}s --max-reports ${maxReports}`;
    return { ...load, maxReports, flags };
  }),
);

const NAMES = ['eu', 'us', 'ap'];
const groups = (loads, flags = '') =>
  `groups ${NAMES.map((name, n) => `--region ${name}:${loads[n]}`).join(' ')} ${flags}`.trim();
const BUSY = [400, 10, 10];
const LOADS = [[300, 30, 30], BUSY, [100, 100, 100], [300, 300, 300], [150, 150, 10]];
const DESIGNS = { groups: 'groups', even: 'even division', central: 'one bucket' };
const BURSTS = [300, 100, 60, 30];
const RTTS = [80, 160, 300];
const burstRun = (burst, rtt) => groups(LOADS[0], `--burst ${burst} --rtt ${rtt}ms`);

const CHARTS = [
  'peers --span 30s --svg peers-eager.svg',
  'peers --span 30s --exchange periodic --interval 1s --svg peers-periodic.svg',
  'peers --span 30s --load 0.5 --load-step 10@10 --svg peers-load.svg',
  'peers --split 20-30:4 --crash 2@45-50 --svg peers-split.svg',
  'groups --cut eu@20-35 --svg groups-split.svg',
];

const commands = [
  ...new Set([
    ...SIZES.map(({ flags }) => peers(flags)).toReversed(), // the longest first
    ...[...CHECKED, ...FAILURES].flatMap((flags) => SEEDS.map((seed) => peers(flags, seed))),
    ...COSTS.map(({ flags }) => peers(flags)),
    ...LOADS.map((loads) => groups(loads)),
    ...BURSTS.flatMap((burst) => RTTS.map((rtt) => burstRun(burst, rtt))),
    ...(writes ? CHARTS : []),
  ]),
];
const jobOf = (command) => {
  const words = command.split(' ').map((word) => (word.endsWith('.svg') ? PICTURES + word : word));
  return [CLI, 'simulate', ...words, '--json'];
};
const results = await runAll(commands.map(jobOf), (text) =>
  console.error(text.replace(CLI, 'sluice')),
);
const figures = new Map(commands.map((command, n) => [command, results[n]]));
const of = (command) => figures.get(command);

/* ---- tables ------------------------------------------------------------------------------------ */

const range = (digits, read, picks) => (runs) => {
  const values = runs.map(read);
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const all = { min: Math.min(...values), mean, max: Math.max(...values) };
  return picks.map((pick) => all[pick].toFixed(digits)).join(' · ');
};
const ENDS = ['min', 'max'];
const ALL = ['min', 'mean', 'max'];
const short = (fraction) => `${Number((100 * fraction).toFixed(2))} %`;
const code = (flags) => (flags === '' ? '' : `\`${flags}\``);
const seeded = (flags) => SEEDS.map((seed) => of(peers(flags, seed)));

/** Convergence time after the last event. JSON has null instead of Infinity. */
function converged(runs) {
  const values = runs.map(({ convergence }) => convergence.at(-1).afterMs ?? Infinity);
  const [min, max] = [Math.min(...values), Math.max(...values)];
  if (max === 0) return 'at once';
  if (min === Infinity) return 'not at all';
  if (max === Infinity) return `${min} ms, or not at all`;
  return min === max ? `${max} ms` : `${min} to ${max} ms`;
}

function checkedTable() {
  const columns = {
    '`sluice simulate peers …`': ({ flags, name }) => name ?? code(flags),
    'worst 1 s': ({ bound, runs }) => bound?.[0] ?? range(3, (run) => run.worst[1000], ENDS)(runs),
    'worst 60 s': ({ bound, runs }) =>
      bound?.[1] ?? range(4, (run) => run.worst[60_000], ENDS)(runs),
    utilisation: ({ bound, runs }) => bound?.[2] ?? range(4, (run) => run.utilisation, ENDS)(runs),
    'mean rate': ({ bound, runs }) => bound?.[3] ?? range(4, (run) => run.mean, ENDS)(runs),
  };
  const [eight, many, eightLossy, manyLossy] = CHECKED.map((flags) => ({
    flags,
    runs: seeded(flags),
  }));
  return table(columns, [
    { name: 'bound', bound: ['≤ 1.05', '≤ 1.005', '≥ 0.98', '0.995 to 1.005'] },
    { ...eight, name: '(8 nodes)' },
    many,
    { name: 'bound with 10 % loss', bound: ['≤ 1.10', '≤ 1.01', '', ''] },
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
  'overshoot / bound, calls': ({ overshootCalls, bound }) =>
    `${overshootCalls.toFixed(0)} / ${bound.toFixed(0)}`,
  utilisation: ({ utilisation }) => short(utilisation),
  'wrong allows / denies': ({ falseAllows, falseDenials }) =>
    `${short(falseAllows)} / ${short(falseDenials)}`,
  fairness: ({ fairNodes }) => fairNodes.toFixed(2),
  'view age': ({ age }) => `${age.meanMs.toFixed(0)} ms`,
  'datagrams/s': ({ datagramsPerSecond }) => datagramsPerSecond.toFixed(1),
  'bytes/s': ({ bytesPerSecond }) => bytesPerSecond.toFixed(0),
};

const FAILURE_COLUMNS = {
  '`sluice simulate peers …`': ({ flags }) => code(flags),
  'worst 1 s': ({ runs }) => range(3, (run) => run.worst[1000], ALL)(runs),
  'worst 60 s': ({ runs }) => range(3, (run) => run.worst[60_000], ALL)(runs),
  utilisation: ({ runs }) => range(3, (run) => run.utilisation, ALL)(runs),
  fairness: ({ runs }) => range(2, (run) => run.fairNodes, ALL)(runs),
  'convergence after the last event': ({ runs }) => converged(runs),
};

const NODES = 8; // the default of the command
const COST_COLUMNS = {
  keys: ({ keys }) => keys.toLocaleString('en'),
  'rate of each key': ({ rate }) => rate,
  R: ({ maxReports }) => maxReports,
  'datagrams/s': ({ datagramsPerSecond }) => datagramsPerSecond.toFixed(1),
  'bytes/s': ({ bytesPerSecond }) => bytesPerSecond.toFixed(0),
  'bytes per call': ({ bytesPerSecond, calls, seconds }) =>
    ((bytesPerSecond * NODES * seconds) / calls).toFixed(1),
  'view age': ({ age }) => `${age.meanMs.toFixed(0)} ms`,
  'wrong allows / denies': ({ falseAllows, falseDenials }) =>
    `${percent(falseAllows, 2)} / ${percent(falseDenials, 2)}`,
  'overshoot / bound, calls': ({ overshootCalls, bound }) =>
    `${overshootCalls.toFixed(1)} / ${bound.toFixed(0)}`,
};

function utilisationTable() {
  const columns = {
    [`demand in ${NAMES.join(', ')}`]: ({ loads, n }) => (n === 0 ? loads.join(', ') : ''),
    '': ({ design }) => DESIGNS[design],
    utilisation: ({ utilisation }) => percent(utilisation),
    overshoot: ({ overshootCalls }) => overshootCalls.toFixed(1),
    latency: ({ meanLatencyMs }) => `${meanLatencyMs.toFixed(0)} ms`,
  };
  const rows = LOADS.flatMap((loads) =>
    Object.keys(DESIGNS).map((design, n) => ({ loads, n, design, ...of(groups(loads))[design] })),
  );
  return table(columns, rows, ['---', '---', '---:', '---:', '---:']);
}

const burstTable = () => {
  const used = (burst, rtt) => percent(of(burstRun(burst, rtt)).groups.utilisation);
  const each = RTTS.map((rtt) => [`${rtt} ms`, (burst) => used(burst, rtt)]);
  const columns = { burst: (burst) => burst, ...Object.fromEntries(each) };
  return table(columns, BURSTS, ['---', ...RTTS.map(() => '---:')]);
};

function busyTable() {
  const latencies = { groups: 'none', even: 'none', central: '80 ms in other regions' };
  const columns = {
    '': ({ design }) => (design === 'central' ? 'one bucket in the first region' : DESIGNS[design]),
    utilisation: ({ utilisation }) => percent(utilisation),
    'added latency': ({ design }) => latencies[design],
  };
  const rows = Object.entries(of(groups(BUSY))).map(([design, run]) => ({ design, ...run }));
  return table(columns, rows, ['---', '---:', '---:']);
}

const sized = SIZES.map((size) => ({ ...size, ...of(peers(size.flags)) }));
const failures = FAILURES.map((flags) => ({ flags, runs: seeded(flags) }));
const costs = COSTS.map((load) => ({ ...load, ...of(peers(load.flags)) }));
const tables = {
  held: checkedTable(),
  size: table(SIZE_COLUMNS, sized),
  broken: table(FAILURE_COLUMNS, failures),
  cost: table(COST_COLUMNS, costs),
  used: utilisationTable(),
  burst: burstTable(),
  busy: busyTable(),
};
console.log(Object.values(tables).join('\n\n'));

if (writes) {
  const made = (text) => `${text}\n\n${madeBy('npm run figures:accuracy')}`;
  writeFigures('docs/explanation/accuracy-of-peers.md', 'peers-held', made(tables.held));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'peers-size', made(tables.size));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'peers-broken', made(tables.broken));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'peers-cost', made(tables.cost));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'groups-used', made(tables.used));
  writeFigures('docs/explanation/accuracy-of-peers.md', 'groups-burst', made(tables.burst));
  writeFigures('docs/reference/groups.md', 'groups-busy', made(tables.busy));
}
