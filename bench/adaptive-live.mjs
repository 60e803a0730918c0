/**
 * Adaptive concurrency on real HTTP servers, beside p-limit with the perfect number and no limit; `--help` explains.
 *
 *     1, 2, 4 or 8 client processes ──▶ HTTP on loopback ──▶ one server process     eight at once: 2 servers × 4 limits
 *
 *     warm-up │ steady │ half of the slots │ all slots │ no replies │ replies
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { availableParallelism, loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { now } from './adaptive-live/clock.mjs';
import { figuresOf, mediansOf, secondsOf } from './adaptive-live/figures.mjs';
import { drawLive } from './adaptive-live/picture.mjs';
import { isToWrite, machineLine, madeBy, table, whole, writeFigures } from './report.mjs';

const PAGE = 'docs/explanation/adaptive.md';
const PICTURE = 'docs/pictures/adaptive-live-clients.svg';

const HELP = `usage: npm run figures:adaptive-live -- [options]

Measures adaptive limits on real HTTP servers, beside p-limit with the perfect number and no limit. 1, 2, 4 or 8 client
processes call one server process over loopback. Each run has a course: the server loses half of its slots, gets them back,
hangs, and replies again.

options:
  --short      4 clients, a shorter course, one round: half a minute
  --rounds N   medians of N rounds; default 5, which take 22 minutes
  --json       prints JSON
  --write      writes the tables to ${PAGE} and the picture ${PICTURE};
               not with --short or fewer than 5 rounds. It waits for a load of at most 1 for each core, and gives up
               after 3 minutes
  --help       prints this text

All limits at both servers are measured at the same time, each with its own server and clients, so that they meet the same
machine. The calls are timers: each server and its clients take 0.1 to 0.2 of a core.

exit codes: 0 measured, 1 a process failed, 2 nothing was started`;

const MIN_ROUNDS = 5;
const options = readOptions();
const isShort = options.short;
const rounds = isShort ? 1 : Number(options.rounds);
const writes = isToWrite(!isShort && rounds >= MIN_ROUNDS);

/** All clients together. */
const CALLERS = 200;
const SLOTS = 8;

const SERVERS = {
  queue: '8 slots of 25 ms behind a queue',
  knee: '25 ms; (n / 8)² times as long with n > 8 calls at once',
};

/** As many calls as slots are the perfect number: with fewer a slot is idle, with more calls wait. */
const RULES = {
  'no limit': () => ({}),
  [`p-limit(${SLOTS})`]: (clients) => ({ fixed: SLOTS / clients }),
  'adaptive (aimd)': () => ({ limit: { adaptive: { rule: 'aimd' } } }),
  'adaptive (delay)': () => ({ limit: { adaptive: {} } }),
};
const NAMES = Object.keys(RULES);

/** Seconds of each phase, and what the server is told at its beginning. */
const COURSE = [
  { phase: 'warmUp', seconds: isShort ? 8 : 20 },
  { phase: 'steady', seconds: isShort ? 7 : 20 }, // two tests of `delay`
  { phase: 'halved', seconds: isShort ? 4 : 6, message: { slots: SLOTS / 2 } },
  { phase: 'restored', seconds: isShort ? 2 : 4, message: { slots: SLOTS } },
  { phase: 'hung', seconds: isShort ? 4 : 5, message: { isHung: true } },
  { phase: 'back', seconds: isShort ? 4 : 6, message: { isHung: false } },
];
const BACK_S = COURSE.at(-1).seconds;
/** Of one stage: the time to start all processes. */
const START_S = 4;

/** Shown over time in the picture. */
const PICTURED = { server: 'queue', clients: 4 };

const rowsOf = (server, clients) => NAMES.map((name) => ({ server, clients, name }));
/** The rows of a stage are measured at the same time. */
const STAGES = isShort
  ? [rowsOf(PICTURED.server, PICTURED.clients)]
  : [1, 2, 4, 8].map((clients) =>
      Object.keys(SERVERS).flatMap((server) => rowsOf(server, clients)),
    );

/** The page has the tables of these; the picture and the terminal have all. */
const TABLED = new Set([1, 8]);

/** A process that takes longer to start or to report has failed. */
const GRACE_MS = 60_000;
const MAX_LOAD = 1;
const MAX_WAIT_S = 180;

function readOptions() {
  const flag = { type: 'boolean', default: false };
  const rounds = { type: 'string', default: `${MIN_ROUNDS}` };
  const usage = (message) => {
    console.error(`${message}; --help explains all options`);
    process.exit(2);
  };
  try {
    const { values } = parseArgs({
      options: { short: flag, json: flag, write: flag, help: flag, rounds },
    });
    if (values.help) {
      console.log(HELP);
      process.exit(0);
    }
    if (!/^[1-9]\d*$/.test(values.rounds))
      usage(`expected --rounds with a whole number from 1 on, got "${values.rounds}"`);
    return values;
  } catch (error) {
    return usage(error.message);
  }
}

/** Written figures belong to a quiet machine. */
async function waitForQuiet() {
  const most = MAX_LOAD * availableParallelism();
  const load = () => loadavg()[0];
  for (let waited = 0; writes && load() > most; waited += 10) {
    const state = `load ${load().toFixed(1)}, expected at most ${most} with --write`;
    if (waited >= MAX_WAIT_S) {
      console.error(`${state}; nothing was started`);
      process.exit(2);
    }
    console.error(`${state}: waiting`);
    await sleep(10_000);
  }
  return load();
}

const children = new Set();
process.once('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

/** Starts a script of bench/adaptive-live/. `next()` is its next message. If it ends by itself, the run has failed. */
function start(what, script, argument) {
  const path = fileURLToPath(new URL(`./adaptive-live/${script}`, import.meta.url));
  const child = fork(path, [argument]);
  const fail = (reason) => {
    console.error(`${what} ${reason}; the run has failed`);
    process.exit(1);
  };
  children.add(child);
  child.once('exit', (code, signal) => {
    if (children.has(child)) fail(`ended with ${signal ?? `exit code ${code}`}`);
  });
  return {
    async next() {
      const signal = AbortSignal.timeout(GRACE_MS);
      const received = once(child, 'message', { signal });
      const [message] = await received.catch(() => fail(`sent nothing for ${GRACE_MS / 1000} s`));
      return message;
    },
    send: (message) => child.send(message),
    stop() {
      children.delete(child);
      child.kill('SIGKILL');
    },
  };
}

/** A new server with its clients, which wait for `start`. */
async function open({ server: kind, clients: count, name }) {
  const server = start(`the server of ${name}`, 'server.mjs', kind);
  const { port } = await server.next();
  const argument = JSON.stringify({ port, rule: RULES[name](count), callers: CALLERS / count });
  const clients = Array.from({ length: count }, (_, n) =>
    start(`client ${n + 1} of ${name}`, 'client.mjs', argument),
  );
  await Promise.all(clients.map((client) => client.next()));
  return { server, clients };
}

async function report(child) {
  child.send('report');
  return child.next();
}

/** One run of each row at the same time. */
async function runStage(rows) {
  const lanes = await Promise.all(rows.map(open));
  for (const { clients } of lanes) for (const client of clients) client.send('start');
  const phases = {};
  for (const { phase, seconds, message } of COURSE) {
    const from = now();
    if (message) for (const { server } of lanes) server.send(message);
    await sleep(seconds * 1000);
    phases[phase] = { from, to: now() };
  }
  const measured = { from: phases.steady.from, to: phases.back.to };
  const results = [];
  for (const { server, clients } of lanes) {
    const run = { samples: await report(server), clients: await Promise.all(clients.map(report)) };
    results.push({ figures: figuresOf(run, phases), seconds: secondsOf(run, measured) });
    for (const child of [server, ...clients]) child.stop();
  }
  return results;
}

/** Medians of all rounds, for each row. */
async function measure() {
  const rows = STAGES.flat();
  const usualS = COURSE.reduce((sum, { seconds }) => sum + seconds, START_S);
  let left = rounds * STAGES.length * usualS;
  const all = [];
  for (let round = 1; round <= rounds; round++) {
    const results = [];
    for (const stage of STAGES) {
      const time = `${Math.floor(left / 60)} min ${left % 60} s left`;
      console.error(`round ${round} of ${rounds}, clients: ${stage[0].clients}; ${time}`);
      results.push(...(await runStage(stage)));
      left -= usualS;
    }
    all.push(results);
  }
  return rows.map((row, n) => ({ ...row, ...mediansOf(all.map((results) => results[n])) }));
}

const both = (...values) => values.join(' / ');
const ms = (value) => (value === undefined ? '–' : whole(value));

const COLUMNS = {
  clients: ({ clients, name }) => (name === NAMES[0] ? clients : ''),
  limit: ({ name }) => name,
  'goodput, calls/s': ({ figures: { steady, halved, restored } }) =>
    both(whole(steady.goodput), whole(halved.goodput), whole(restored.goodput)),
  'p99, ms': ({ figures: { steady, halved } }) => both(ms(steady.p99), ms(halved.p99)),
  'in flight': ({ figures: { steady, halved } }) =>
    both(steady.inFlight.toFixed(1), halved.inFlight.toFixed(1)),
  "Jain's index": ({ figures: { steady } }) => steady.jain.toFixed(2),
  'most in the hang': ({ figures: { hang } }) => `${hang.most} (${hang.growth.toFixed(1)} ×)`,
  'recovery, s': ({ figures: { back } }) =>
    back.recoveryS > BACK_S ? `> ${BACK_S - 1}` : back.recoveryS.toFixed(1),
};
const ALIGNED = ['---:', '---', '---:', '---:', '---:', '---:', '---:', '---:'];

const tablesOf = (results) =>
  Object.entries(SERVERS)
    .map(([server, about]) => [server, about, results.filter((one) => one.server === server)])
    .filter(([, , rows]) => rows.length > 0)
    .map(([server, about, rows]) => `\`${server}\`: ${about}\n\n${table(COLUMNS, rows, ALIGNED)}`)
    .join('\n\n');

const ALT =
  'Four limits on real servers: goodput and calls in flight while slots are lost and while the server hangs; p99, fairness and goodput by number of clients';

function write(results, load) {
  const conditions = [`medians of ${rounds} runs`, `load ${load.toFixed(1)} at the start`];
  const about = [
    `${conditions.join(', ')}; HTTP on loopback`,
    machineLine(),
    ...Object.entries(SERVERS).map(([server, about]) => `${server}: ${about}`),
  ];
  const svg = drawLive(results, { course: COURSE.slice(1), pictured: PICTURED, about });
  writeFileSync(new URL(`../${PICTURE}`, import.meta.url), svg);
  const made = madeBy('npm run figures:adaptive-live -- --write', ...conditions);
  const below = (folder) => `![${ALT}](${folder}pictures/adaptive-live-clients.svg)\n\n${made}`;
  const tabled = tablesOf(results.filter(({ clients }) => TABLED.has(clients)));
  const tables = `${tabled}\n\n${below('../')}`;
  writeFigures('docs/explanation/adaptive.md', 'adaptive-live', tables);
  writeFigures('README.md', 'adaptive-live', below('docs/'));
}

const load = await waitForQuiet();
const results = await measure();
const text = tablesOf(results);
console.log(options.json ? JSON.stringify({ results }) : text);
if (writes) write(results, load);
