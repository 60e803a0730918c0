/**
 * Adaptive concurrency against real HTTP servers, beside p-limit with the best fixed number and no limit.
 *
 *     npm run figures:adaptive-live                 four servers; then a server that loses half its slots; five rounds
 *     npm run figures:adaptive-live -- --picture    only the server that loses half its slots
 *     npm run figures:adaptive-live -- --short      one server, one round, about 15 s
 *     npm run figures:adaptive-live -- --json       JSON
 *     npm run figures:adaptive-live -- --write      all; writes docs/explanation/adaptive.md and docs/pictures/adaptive-capacity.svg
 *
 * Server and client are processes of their own (bench/adaptive-live/). The client's backlog is always full: 200 callers.
 * The best fixed number is found by a sweep: the smallest one with 95 % of the highest goodput.
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { drawCapacity } from './adaptive-live/picture.mjs';
import { mean } from './real-servers/harness.mjs';
import {
  isToWrite,
  loadLine,
  madeBy,
  median,
  percent,
  table,
  whole,
  writeFigures,
} from './report.mjs';

const isShort = process.argv.includes('--short');
const isPictureOnly = process.argv.includes('--picture');
const isJson = process.argv.includes('--json');
const writes = isToWrite(!isShort);
const log = (line) => console.error(line);

const ROUNDS = isShort ? 1 : 5;
const MEASURED_S = isShort ? 7 : 20;
/** Goodputs of a sweep are random within 2 %, so a number with a little less than the highest is as good. */
const SWEEP = { numbers: [1, 2, 3, 4, 6, 8, 10, 12, 16], warmUpS: 1, measuredS: 8, enough: 0.95 };
/** A run that takes longer has failed. */
const GRACE_MS = 20_000;

/** `about` describes a server in the table. `best` is the number for p-limit in a short run. */
const SERVERS = {
  workers: { about: '8 slots of 25 ms behind a queue', best: 10 },
  knee: { about: '25 ms, (n / 8)² times as long with n > 8 calls at once' },
  threads: { about: 'one worker thread, 5 ms of CPU time, behind a queue' },
  503: { about: '8 slots of 25 ms, a queue of 8, then 503' },
};

/** The rules beside each other. `warmUpS` is not measured: the time a rule needs to learn. */
const ADAPTIVE = {
  aimd: { limit: { adaptive: { rule: 'aimd' } }, warmUpS: 5 },
  delay: { limit: { adaptive: { rule: 'delay' } }, warmUpS: isShort ? 6 : 10 },
};
/** As it is called in the picture. */
const labelOf = (name, best) =>
  name in ADAPTIVE ? `adaptive (${name})` : name === 'p-limit' ? `p-limit(${best})` : name;
const rulesFor = (best) => ({
  'no limit': { warmUpS: 5 },
  'p-limit': { fixed: best, warmUpS: 5 },
  ...ADAPTIVE,
});

const children = new Set();
process.once('exit', () => {
  for (const child of children) child.kill('SIGKILL');
});

/** Starts a script of bench/adaptive-live/. `next(maxMs)` is its next message. */
function start(script, argument) {
  const path = fileURLToPath(new URL(`./adaptive-live/${script}`, import.meta.url));
  const child = fork(path, [argument]);
  children.add(child);
  return {
    next(maxMs) {
      const signal = AbortSignal.timeout(maxMs);
      const ended = once(child, 'exit', { signal }).then(([code]) => {
        throw new Error(`${script} exited with ${code}`);
      });
      const received = once(child, 'message', { signal }).then(([message]) => message);
      return Promise.race([received, ended]).catch((error) => {
        throw signal.aborted ? new Error(`${script} sent nothing for ${maxMs} ms`) : error;
      });
    },
    send: (message) => child.send(message),
    stop() {
      children.delete(child);
      child.kill('SIGKILL');
    },
  };
}

/** One client at a new server. `onStart` may send messages to the server. */
async function run(kind, rule, seconds, onStart = () => {}) {
  const server = start('server.mjs', kind);
  let client;
  try {
    const { port } = await server.next(GRACE_MS);
    client = start('client.mjs', JSON.stringify({ port, rule, seconds }));
    await client.next(GRACE_MS); // it sends from now on
    void onStart(server);
    return await client.next(seconds * 1000 + GRACE_MS);
  } finally {
    client?.stop();
    server.stop();
  }
}

const within = (entries, from, to) => entries.filter(([at]) => at >= from && at < to);

/** The value at a share of all, as p50 and p99. Undefined if there is none. */
const quantile = (values, share) =>
  values.toSorted((a, b) => a - b)[Math.floor(share * values.length)];

/** Latency is that of calls which the server accepted; one that timed out counts with its time-out. */
function figuresOf({ calls, samples }, from, to) {
  const measured = within(calls, from, to);
  const good = measured.filter(([, , status]) => status === 200).length;
  const accepted = measured.filter(([, , status]) => status !== 503).map(([, ms]) => ms);
  return {
    goodput: good / (to - from),
    p50: quantile(accepted, 0.5),
    p99: quantile(accepted, 0.99),
    inFlight: mean(within(samples, from, to).map(([, inFlight]) => inFlight)),
    refused: (measured.length - good) / Math.max(1, measured.length),
  };
}

async function measure(kind, rule) {
  const seconds = rule.warmUpS + MEASURED_S;
  return figuresOf(await run(kind, rule, seconds), rule.warmUpS, seconds);
}

async function findBest(kind) {
  const { numbers, warmUpS, measuredS, enough } = SWEEP;
  const goodputs = [];
  for (const fixed of numbers) {
    const result = await run(kind, { fixed }, warmUpS + measuredS);
    goodputs.push(figuresOf(result, warmUpS, warmUpS + measuredS).goodput);
  }
  const best = numbers[goodputs.findIndex((goodput) => goodput >= enough * Math.max(...goodputs))];
  log(`${kind}: best fixed number ${best}`);
  return best;
}

/** All rules at one server: the medians of all rounds, which start with another rule each. */
async function compare(kind) {
  const best = SERVERS[kind].best && isShort ? SERVERS[kind].best : await findBest(kind);
  const rules = Object.entries(rulesFor(best));
  const rounds = new Map(rules.map(([name]) => [name, []]));
  for (let round = 0; round < ROUNDS; round++) {
    const order = [...rules.slice(round), ...rules.slice(0, round)];
    const measureOne = async ([name, rule]) => {
      const figures = await measure(kind, rule);
      rounds.get(name).push(figures);
      log(`${kind}, ${name}: ${JSON.stringify(figures)}`);
    };
    if (isShort) await Promise.all(order.map(measureOne));
    else for (const entry of order) await measureOne(entry);
  }
  return rules.map(([name]) => {
    const all = rounds.get(name);
    const names = Object.keys(all[0]);
    const medians = names.map((one) => [one, median(all.map((figures) => figures[one]))]);
    return { kind, name, best, ...Object.fromEntries(medians) };
  });
}

const COLUMNS = {
  server: ({ kind, name }) => (name === 'no limit' ? `\`${kind}\`: ${SERVERS[kind].about}` : ''),
  limit: ({ name, best }) => labelOf(name, best),
  'goodput, calls/s': ({ goodput }) => whole(goodput),
  p50: ({ p50 }) => `${whole(p50)} ms`,
  p99: ({ p99 }) => `${whole(p99)} ms`,
  'in flight': ({ inFlight }) => inFlight.toFixed(1),
  'refused or timed out': ({ refused }) => percent(refused),
};
const RULES_OF_COLUMNS = ['---', '---', '---:', '---:', '---:', '---:', '---:'];

/** `workers` loses half its slots and gets them back. Seconds from the start of the picture. */
const CHANGE = { warmUpS: 12, halvedAt: 15, restoredAt: 30, endS: 45, stepS: 1, slots: 8 };

async function change(rule) {
  const { warmUpS, halvedAt, restoredAt, endS, stepS, slots } = CHANGE;
  const onStart = async (server) => {
    await sleep((warmUpS + halvedAt) * 1000);
    server.send({ slots: slots / 2 });
    await sleep((restoredAt - halvedAt) * 1000);
    server.send({ slots });
  };
  const result = await run('workers', rule, warmUpS + endS, onStart);
  const steps = Array.from({ length: endS / stepS }, (_, n) => n * stepS);
  return steps.map((at) => {
    const from = warmUpS + at;
    return { at, ...figuresOf(result, from, from + stepS) };
  });
}

/** The medians of all rounds, second by second. */
async function changes(best) {
  const rules = Object.entries(rulesFor(best));
  const rounds = new Map(rules.map(([name]) => [name, []]));
  for (let round = 0; round < ROUNDS; round++)
    for (let n = 0; n < rules.length; n += 2) {
      const runOne = async ([name, rule]) => rounds.get(name).push(await change(rule));
      await Promise.all(rules.slice(n, n + 2).map(runOne));
      log(`picture, round ${round + 1} of ${ROUNDS}: ${n + 2} of ${rules.length} limits`);
    }
  return Object.fromEntries(
    rules.map(([name]) => [labelOf(name, best), medians(rounds.get(name))]),
  );
}

const medians = ([first, ...others]) =>
  first.map((step, n) => {
    const same = [step, ...others.map((steps) => steps[n])];
    const medianOf = (name) =>
      median(same.map((one) => one[name]).filter((value) => value !== undefined));
    return Object.fromEntries(Object.keys(step).map((name) => [name, medianOf(name)]));
  });

/** Servers that only wait need little CPU time: two run at once. */
const STAGES = isShort ? [['workers']] : [['workers', 'knee'], ['threads'], ['503']];

async function compareAll() {
  const results = [];
  for (const kinds of STAGES) results.push(...(await Promise.all(kinds.map(compare))).flat());
  const text = table(COLUMNS, results, RULES_OF_COLUMNS);
  if (isJson) console.log(JSON.stringify({ results }));
  else console.log(text);
  const made = madeBy('npm run figures:adaptive-live', `medians of ${ROUNDS} runs`, loadLine());
  if (writes) writeFigures('docs/explanation/adaptive.md', 'adaptive-live', `${text}\n\n${made}`);
  return results.find(({ kind }) => kind === 'workers').best;
}

const best = isPictureOnly ? SERVERS.workers.best : await compareAll();
if (!isShort) {
  const runs = await changes(best);
  const picture = new URL('../docs/pictures/adaptive-capacity.svg', import.meta.url);
  const made = `Medians of ${ROUNDS} runs, ${loadLine()}.`;
  if (writes) writeFileSync(picture, drawCapacity(runs, CHANGE, made));
  else console.log(JSON.stringify(runs));
}
