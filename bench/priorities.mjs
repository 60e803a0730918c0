/**
 * Priorities under a spike of prefetch calls, on a real server: which calls are answered?
 *
 *     npm run figures:priorities                    two minutes: with and without priorities
 *     npm run figures:priorities -- --short         8 s with priorities, slower calls, from a limit of 30
 *     npm run figures:priorities -- --rule NAME     the learning rule of `adaptive`
 *     npm run figures:priorities -- --write         writes docs/reference/limits.md and docs/pictures/priorities.svg
 *     npm run figures:priorities -- --json          prints the result as JSON
 *     npm run figures:priorities -- --note TEXT     how the processes were run, for the last line of the figures
 *
 *     this process ── Poisson ──▶ rateLimit ──▶ queue ──▶ 20 workers, 50 ms a call: 400 calls/s
 *       user      200/s throughout
 *       prefetch  100/s, 1,200/s in the spike
 *
 * Exit code 1 if fewer than 99.4 % of the user calls are answered in the spike (98 % in a short run).
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { Agent, get } from 'node:http';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { drawSvg } from '../dist/cli/chart/svg.js';
import { seededRandom } from '../dist/core/random.js';
import { isToWrite, loadLine, madeBy, percent, table, whole, writeFigures } from './report.mjs';

const isShort = process.argv.includes('--short');
const isJson = process.argv.includes('--json');
const writes = isToWrite(!isShort);
const flagValue = (flag) => process.argv.slice(process.argv.indexOf(flag) + 1 || Infinity)[0];
const rule = flagValue('--rule') ? { rule: flagValue('--rule') } : {};
const note = flagValue('--note') ?? 'without real-time priority';

const LEVELS = ['user', 'prefetch'];
/** A short run is a test on a machine that runs others: slower calls need less processor time. */
const CALL_MS = isShort ? 200 : 50;
const WORKERS = 20;
const CAPACITY = (1000 / CALL_MS) * WORKERS;
const NORMAL = [0.5 * CAPACITY, 0.25 * CAPACITY];
const SPIKE = [0.5 * CAPACITY, 12 * 0.25 * CAPACITY];
const PHASES = isShort
  ? [
      { name: 'before', seconds: 2, rates: NORMAL },
      { name: 'first second of the spike', seconds: 1, rates: SPIKE },
      { name: 'spike', seconds: 5, rates: SPIKE },
    ]
  : [
      { name: 'the limit is learnt', seconds: 20, rates: NORMAL },
      { name: 'before', seconds: 10, rates: NORMAL },
      { name: 'spike', seconds: 20, rates: SPIKE },
      { name: 'after', seconds: 10, rates: NORMAL },
    ];
const START = isShort ? { initial: 30 } : {};
const RUNS = [
  { name: 'with priorities', limit: { adaptive: { ...rule, ...START, priorities: LEVELS } } },
  { name: 'without', limit: { adaptive: { ...rule, ...START } } },
].slice(0, isShort ? 1 : 2);

/** A call that is not answered by then counts as not answered. */
const TIMEOUT_MS = 5000;

async function startServer(limit) {
  const script = fileURLToPath(new URL('priorities-server.mjs', import.meta.url));
  const stdio = ['pipe', 'pipe', 'inherit'];
  const child = spawn(process.execPath, [script, `${CALL_MS}`, JSON.stringify(limit)], { stdio });
  const line = async () => Number((await once(child.stdout.setEncoding('utf8'), 'data'))[0]);
  const stop = () => {
    child.stdin.end();
    return line();
  };
  return { port: await line(), stop };
}

const nextOf = (dueAt) => dueAt.indexOf(Math.min(...dueAt));

/** One entry per call: when it was sent, and how long its answer took; NaN: refused or failed. */
async function sendCalls(port) {
  const random = seededRandom(1);
  const exponential = (perSecond) => (-Math.log(1 - random()) * 1000) / perSecond;
  const agent = new Agent({ keepAlive: true });
  const calls = LEVELS.map(() => []);
  const pending = new Set();
  const startedAt = performance.now();
  const now = () => performance.now() - startedAt;

  const call = (n) => {
    const one = { at: now(), ms: Number.NaN };
    calls[n].push(one);
    const headers = { 'x-level': LEVELS[n] };
    const options = { port, host: '127.0.0.1', agent, headers, timeout: TIMEOUT_MS };
    const done = new Promise((ended) => {
      const request = get(options, (response) => {
        if (response.statusCode === 200) one.ms = now() - one.at;
        response.resume().on('close', ended);
      });
      request.on('timeout', () => request.destroy()).on('error', ended);
    }).finally(() => pending.delete(done));
    pending.add(done);
  };

  let until = 0;
  for (const { seconds, rates } of PHASES) {
    until += seconds * 1000;
    const dueAt = rates.map((rate) => now() + exponential(rate));
    while (now() < until) {
      const time = Math.min(now(), until); // read once: sending may be slower than the calls come
      for (let n = nextOf(dueAt); dueAt[n] <= time; n = nextOf(dueAt)) {
        call(n);
        dueAt[n] += exponential(rates[n]);
      }
      await sleep(1);
    }
  }
  await Promise.race([Promise.all(pending), sleep(TIMEOUT_MS, undefined, { ref: false })]);
  agent.destroy();
  return calls;
}

const answeredIn = (calls, from, to) => {
  const sent = calls.filter(({ at }) => at >= from && at < to);
  const times = sent.filter(({ ms }) => ms >= 0).map(({ ms }) => ms);
  const p99Ms = times.toSorted((a, b) => a - b)[Math.floor(0.99 * times.length)];
  return { sent: sent.length, share: times.length / sent.length, p99Ms };
};

async function measure({ name, limit }) {
  const server = await startServer(limit);
  const delay = monitorEventLoopDelay();
  delay.enable();
  const calls = await sendCalls(server.port);
  delay.disable();
  const blockedMs = Math.max(await server.stop(), Math.round(delay.max / 1e6));
  let from = 0;
  const phases = PHASES.map((phase) => {
    const to = from + phase.seconds * 1000;
    const [user, prefetch] = calls.map((one) => answeredIn(one, from, to));
    from = to;
    return { run: name, name: phase.name, user, prefetch };
  });
  const shares = calls.map((one) =>
    Array.from({ length: from / 1000 }, (_, s) => [
      s,
      100 * answeredIn(one, 1000 * s, 1000 * (s + 1)).share,
    ]),
  );
  return { name, phases, shares, blockedMs };
}

function picture(runs) {
  const seconds = PHASES.reduce((sum, phase) => sum + phase.seconds, 0);
  let from = 0;
  const bands = PHASES.map(({ name, seconds: length }) => {
    from += length;
    return { name, from: from - length, to: from };
  }).filter(({ name }) => name === 'spike');
  const charts = runs.map(({ name, shares }) => ({
    title: name,
    x: { label: 'time (s)', from: 0, to: seconds },
    y: { label: 'calls answered (%)', from: 0, to: 100 },
    series: LEVELS.map((level, n) => ({ name: level, style: 'curve', points: shares[n] })),
    phases: bands.map((band) => ({ ...band, name: '12 times as many prefetch calls' })),
  }));
  return drawSvg({ title: 'A server at 75 % of its capacity, then 350 %', charts });
}

const runs = [];
for (const run of RUNS) runs.push(await measure(run));
const rows = runs
  .flatMap(({ phases }) => phases)
  .filter(({ name }) => name !== 'the limit is learnt');
const ms = (value) => (value === undefined ? '–' : `${whole(value)} ms`);
const text = table(
  {
    '`adaptive`': ({ run }) => run,
    '': ({ name }) => name,
    'user answered': ({ user }) => percent(user.share, 2),
    'user p99': ({ user }) => ms(user.p99Ms),
    'prefetch answered': ({ prefetch }) => percent(prefetch.share),
    'prefetch p99': ({ prefetch }) => ms(prefetch.p99Ms),
  },
  rows,
  ['---', '---', '---:', '---:', '---:', '---:'],
);
const blockedMs = Math.max(...runs.map((run) => run.blockedMs));
console.log(isJson ? JSON.stringify({ rows, blockedMs }) : text);
const { user } = rows.find(({ name }) => name === 'spike');
const least = isShort ? 0.98 : 0.994;
const blocked = `a process was blocked for up to ${whole(blockedMs)} ms`;
if (user.share < least) {
  const got = `got ${percent(user.share, 2)}; ${blocked}`;
  console.error(`expected ${percent(least)} of the user calls, ${got}`);
  process.exitCode = 1;
} else if (writes) {
  const made = madeBy('npm run figures:priorities', loadLine(), note, blocked);
  writeFigures('docs/reference/limits.md', 'priorities', `${text}\n\n${made}`);
  writeFileSync(new URL('../docs/pictures/priorities.svg', import.meta.url), picture(runs));
}
