/**
 * Soak test of the groups backend: three regions, a process each, share one limit over HTTP. Connections have a delay of
 * 40 ms per direction and can be cut.
 *
 *     npm run soak:groups               a minute per phase, a partition of 15 s
 *     npm run soak:groups -- --short    a few seconds per phase, as in the tests
 *     npm run soak:groups -- --json     JSON output
 *     npm run soak:groups -- --write    write the results into docs/explanation/guarantees.md
 *
 * Everything runs on loopback. A phase lasts until it has its time without a stall of the machine, and only that time is
 * measured. Exit code 1 if more calls are admitted than burst + rate × (span + deadline) in any span, or
 * if the utilisation is too low.
 */

import { fork } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { overshootOf } from '../../dist/simulator/overshoot.js';
import {
  isToWrite,
  loadLine,
  machineLine,
  madeBy,
  percent,
  table,
  writeFigures,
} from '../report.mjs';
import { ExitedError, withFreePorts } from '../server-process.mjs';
import { DelayProxy } from './groups/delay-proxy.mjs';
import { calmParts, lengthOf, onStall } from './stalls.mjs';

const args = process.argv.slice(2);
const isShort = args.includes('--short');
const writes = isToWrite(!isShort);
const PHASE_MS = isShort ? 4000 : 60_000;
const CUT_MS = isShort ? 3000 : 15_000;

const RATE = 300;
const BURST = 300;
const DEADLINE_MS = 500;
const ONE_WAY_MS = 40;
const LOADS = { eu: 400, us: 10, ap: 10 };
const NAMES = Object.keys(LOADS);

/** Start of a phase that is not measured: the burst is used up, and a partition is detected. */
const SETTLED_MS = 2500;

const REGION = fileURLToPath(new URL('./groups/region.mjs', import.meta.url));
const now = () => performance.timeOrigin + performance.now();

const admitted = new Map(NAMES.map((name) => [name, []]));

/** Of the regions, and of this process, which delays their messages. */
const stalls = [];
onStall((stall) => stalls.push(stall));

/** Starts the regions; all are ready, or none is left. */
async function startRegions(chosen) {
  const ports = Object.fromEntries(NAMES.map((name, n) => [name, chosen[n]]));
  /** A proxy per direction: `eu>us` is how eu reaches us. */
  const proxies = new Map();
  for (const from of NAMES) {
    for (const to of NAMES) {
      if (from === to) continue;
      proxies.set(`${from}>${to}`, await new DelayProxy(ports[to], ONE_WAY_MS).open());
    }
  }
  const children = NAMES.map((self) => {
    const groups = Object.fromEntries(
      NAMES.map((name) => [
        name,
        name === self ? {} : { at: `http://127.0.0.1:${proxies.get(`${self}>${name}`).port}` },
      ]),
    );
    const limit = { bucket: { rate: RATE, burst: BURST } };
    const options = { self, groups, port: ports[self], limit, deadline: DEADLINE_MS };
    const child = fork(REGION, [JSON.stringify({ ...options, load: LOADS[self] })]);
    child.on('message', (message) => {
      if (message.type === 'admitted') admitted.get(self).push(...message.times);
      if (message.type === 'stall') stalls.push(message.stall);
    });
    return child;
  });
  const stop = () => {
    for (const child of children) child.kill('SIGKILL');
    for (const proxy of proxies.values()) proxy.close();
  };
  try {
    await Promise.all(children.map(whenReady));
  } catch (error) {
    stop();
    for (const times of admitted.values()) times.length = 0;
    throw error;
  }
  return { proxies, children, stop };
}

/** The first message of a region. What it prints is on standard error. */
const whenReady = (child, n) =>
  new Promise((ready, failed) => {
    child.once('message', ready);
    child.once('exit', (code) => failed(new ExitedError(`${NAMES[n]} exited with ${code}`)));
  });

const { proxies, children, stop } = await withFreePorts(NAMES.length, startRegions);
const partition = (name, isCut) => {
  for (const [pair, proxy] of proxies) if (pair.split('>').includes(name)) proxy.isCut = isCut;
};

/** Admitted calls of these regions in a span, relative to the limit. */
const utilisationIn = (from, to, names = NAMES) => {
  const parts = calmParts(stalls, from, to);
  const isMeasured = (at) => parts.some((part) => at >= part.from && at < part.to);
  const calls = names.flatMap((name) => admitted.get(name).filter(isMeasured));
  return calls.length / ((lengthOf(parts) / 1000) * RATE);
};

/** Longest extension of a phase: a machine that stalls more than that cannot be measured. */
const MAX_EXTENSION_MS = 10_000;

const phases = {};
async function phase(name, ms) {
  const from = now() + SETTLED_MS;
  const to = from + ms - SETTLED_MS;
  await sleep(ms);
  const isShortOf = () => lengthOf(calmParts(stalls, from, now())) < to - from;
  while (isShortOf() && now() < to + MAX_EXTENSION_MS) await sleep(50);
  phases[name] = { from, to: now() };
}

await sleep(1500); // the burst is spent
await phase('all connected', PHASE_MS);
partition('eu', true);
await phase('busy region partitioned', Math.max(CUT_MS, SETTLED_MS + 1000));
partition('eu', false);
await phase('connected again', PHASE_MS);
const views = await Promise.all(
  children.map(
    (child) =>
      new Promise((done, failed) => {
        child.on('message', (message) => message.type === 'view' && done(message.view));
        child.once('exit', (code) => failed(new Error(`a region exited with ${code}`)));
        child.send('view');
      }),
  ),
);
stop();

const rows = Object.entries(phases).map(([name, { from, to }]) => ({
  name,
  utilisation: utilisationIn(from, to),
  ...Object.fromEntries(NAMES.map((region) => [region, utilisationIn(from, to, [region]) * RATE])),
}));
const times = [...admitted.values()].flat().sort((a, b) => a - b);
const result = {
  rows,
  overshoot: overshootOf(times, RATE, BURST),
  bound: (RATE * DEADLINE_MS) / 1000,
  views,
};
const [connected, , again] = rows.map(({ utilisation }) => utilisation);
const partOfCut = rows[1].eu / RATE; // its own third
const isHeld =
  result.overshoot <= result.bound &&
  connected > 0.9 &&
  again > 0.9 &&
  Math.abs(partOfCut - 1 / 3) < 0.05;

const columns = {
  phase: ({ name }) => name,
  utilisation: ({ utilisation }) => percent(utilisation),
  ...Object.fromEntries(
    NAMES.map((region) => [
      `${region} (demand ${LOADS[region]}/s)`,
      (row) => `${row[region].toFixed(1)}/s`,
    ]),
  ),
};
const marks = ['---', ...['utilisation', ...NAMES].map(() => '---:')];
const text = `${table(columns, rows, marks)}

Overshoot was ${result.overshoot.toFixed(1)} calls; the bound is ${result.bound}.`;

if (args.includes('--json')) console.log(JSON.stringify({ ...result, isHeld }));
else {
  const setup = `${RATE} calls/s, burst ${BURST}, round-trip time ${2 * ONE_WAY_MS} ms`;
  console.log(`${setup}; ${machineLine()}\n\n${text}`);
  if (!isHeld) console.log('FAILED: overshoot or utilisation is out of range');
}
if (writes && isHeld) {
  const made = madeBy('npm run soak:groups', loadLine());
  writeFigures('docs/explanation/guarantees.md', 'groups', `${text}\n\n${made}`);
}
process.exitCode = isHeld ? 0 : 1;
