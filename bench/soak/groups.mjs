/**
 * Three regions, each a process, that keep one limit over HTTP, on ways that take 40 ms each and can be cut.
 *
 *     npm run soak:groups               a minute each, one of them cut off for 15 s
 *     npm run soak:groups -- --short    a few seconds each, as in the tests
 *     npm run soak:groups -- --json     for a machine
 *     npm run soak:groups -- --write    and write what came out into docs/reliability.md
 *
 * Everything happens on loopback. Exit code 1 if they let through more than burst + rate × (span + deadline) in any
 * span, or used less of the limit than they should.
 */

import { fork } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { overshootOf } from '../../dist/simulator/overshoot.js';
import { freePort } from '../ports.mjs';
import {
  isToWrite,
  loadLine,
  machineLine,
  madeBy,
  percent,
  table,
  writeFigures,
} from '../report.mjs';
import { Far } from './groups/far.mjs';

const words = process.argv.slice(2);
const isShort = words.includes('--short');
const writes = isToWrite(!isShort);
const PHASE_MS = isShort ? 4000 : 60_000;
const CUT_MS = isShort ? 3000 : 15_000;

const RATE = 300;
const BURST = 300;
const DEADLINE_MS = 500;
const ONE_WAY_MS = 40;
const LOADS = { eu: 400, us: 10, ap: 10 };
const NAMES = Object.keys(LOADS);

/** After so long what happened before is not felt any more: the burst is used, and who was cut off is known. */
const SETTLED_MS = 2500;

const REGION = fileURLToPath(new URL('./groups/region.mjs', import.meta.url));
const now = () => performance.timeOrigin + performance.now();

const ports = Object.fromEntries(
  await Promise.all(NAMES.map(async (name) => [name, await freePort()])),
);
/** One way for each two: `eu>us` is how eu reaches us. */
const ways = new Map();
for (const from of NAMES) {
  for (const to of NAMES) {
    if (from !== to) ways.set(`${from}>${to}`, await new Far(ports[to], ONE_WAY_MS).open());
  }
}
const cut = (name, isCut) => {
  for (const [way, far] of ways) if (way.split('>').includes(name)) far.isCut = isCut;
};

const began = new Map(NAMES.map((name) => [name, []]));
const children = NAMES.map((own) => {
  const groups = Object.fromEntries(
    NAMES.map((name) => [
      name,
      name === own ? {} : { at: `http://127.0.0.1:${ways.get(`${own}>${name}`).port}` },
    ]),
  );
  const limit = { bucket: { rate: RATE, burst: BURST } };
  const setting = {
    self: own,
    groups,
    port: ports[own],
    limit,
    deadline: DEADLINE_MS,
    load: LOADS[own],
  };
  const child = fork(REGION, [JSON.stringify(setting)]);
  child.on('message', (news) => {
    if (news.type === 'asked') began.get(own).push(...news.began);
  });
  return child;
});

/** Calls let through in a span, of one region or all, as a part of the limit. */
const usedIn = (from, to, names = NAMES) =>
  names.reduce(
    (sum, name) => sum + began.get(name).filter((at) => at >= from && at < to).length,
    0,
  ) /
  (((to - from) / 1000) * RATE);

const phases = {};
async function phase(name, ms) {
  const from = now();
  await sleep(ms);
  phases[name] = { from: from + SETTLED_MS, to: now() };
}

await sleep(1500); // they start, and the burst is spent
await phase('all reach each other', PHASE_MS);
cut('eu', true);
await phase('the busy one is cut off', Math.max(CUT_MS, SETTLED_MS + 1000));
cut('eu', false);
await phase('it is back', PHASE_MS);
const views = await Promise.all(
  children.map(
    (child) =>
      new Promise((done) => {
        child.on('message', (news) => news.type === 'view' && done(news.view));
        child.send('view');
      }),
  ),
);
for (const child of children) child.send('stop');
for (const far of ways.values()) far.close();

const rows = Object.entries(phases).map(([name, { from, to }]) => ({
  name,
  used: usedIn(from, to),
  ...Object.fromEntries(NAMES.map((own) => [own, usedIn(from, to, [own]) * RATE])),
}));
const inOrder = [...began.values()].flat().sort((a, b) => a - b);
const told = {
  rows,
  excess: overshootOf(inOrder, RATE, BURST),
  bound: (RATE * DEADLINE_MS) / 1000,
  views,
};
const [whole, apart, again] = rows.map(({ used }) => used);
const isHeld =
  told.excess <= told.bound && whole > 0.9 && again > 0.9 && apart < 0.45 && apart > 0.35;

const columns = {
  '': ({ name }) => name,
  used: ({ used }) => percent(used),
  ...Object.fromEntries(
    NAMES.map((own) => [`${own} (asked ${LOADS[own]}/s)`, (phase) => `${phase[own].toFixed(1)}/s`]),
  ),
};
const marks = ['---', ...['used', ...NAMES].map(() => '---:')];
const text = `${table(columns, rows, marks)}

Excess was ${told.excess.toFixed(1)} of the ${told.bound} calls that are allowed.`;

if (words.includes('--json')) console.log(JSON.stringify({ ...told, isHeld }));
else {
  const setting = `${RATE} calls/s, burst ${BURST}, ${2 * ONE_WAY_MS} ms apart`;
  console.log(`${setting}; ${machineLine()}\n\n${text}`);
  if (!isHeld) console.log('not as it should be');
}
if (writes && isHeld) {
  const made = madeBy('npm run soak:groups', loadLine());
  writeFigures('docs/reliability.md', 'groups', `${text}\n\n${made}`);
}
process.exitCode = isHeld ? 0 : 1;
