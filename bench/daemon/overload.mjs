/**
 * A daemon at 130 % and 200 % of its capacity, with and without load shedding by age (`overload`). An open-loop load
 * generator in its own process sends over 16 connections for five seconds.
 *
 *     npm run figures:overload                  every protocol
 *     npm run figures:overload -- --short       line protocol only, two seconds
 *     npm run figures:overload -- --write       writes the table into docs/explanation/guarantees.md
 *
 * Says in how many rows p99 of decided checks exceeds `maxAge`, which does not count the wait in the client.
 */

import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { isToWrite, loadLine, madeBy, percent, table, whole, writeFigures } from '../report.mjs';
import { startDaemon } from './process.mjs';

const isShort = process.argv.includes('--short');
const writes = isToWrite(!isShort);
const MS = isShort ? 2000 : 5000;
const PROTOCOLS = isShort ? ['line'] : ['line', 'resp', 'http'];
const NAMES = { line: 'line protocol', resp: 'RESP', http: 'HTTP' };
const AGES = [undefined, 250, 100];
const folder = mkdtempSync(join(tmpdir(), 'sluice-overload-'));
const run = promisify(execFile);

async function generate(options) {
  const words = ['bench/daemon/open-loop.mjs', JSON.stringify(options)];
  const { stdout } = await run(process.execPath, ['--max-old-space-size=8000', ...words]);
  return JSON.parse(stdout);
}

async function startWith(maxAgeMs) {
  const file = join(folder, 'sluice.yaml');
  const overload = maxAgeMs === undefined ? 'off' : `{ maxAge: ${maxAgeMs}ms }`;
  const limits = '{ all: { bucket: { rate: 1/h, burst: 1 } } }';
  writeFileSync(file, `overload: ${overload}\nlog: { denials: off }\nlimits: ${limits}\n`);
  const any = '127.0.0.1:0';
  return startDaemon(['--config', file, '--line', any, '--resp', any, '--http', any]);
}

const results = [];
for (const protocol of PROTOCOLS) {
  const first = await startWith(undefined);
  const warm = { port: first.port(protocol), kind: protocol, ms: MS / 2 };
  await generate(warm);
  const { perSecond: capacity } = await generate(warm);
  await first.stop('SIGKILL');
  console.error(`${protocol}: ${whole(capacity)} a second`);
  for (const load of [1.3, 2]) {
    for (const maxAgeMs of AGES) {
      const daemon = await startWith(maxAgeMs);
      const port = daemon.port(protocol);
      await generate({ port, kind: protocol, ms: 1000 }); // uses up all keys, and warms up
      const result = await generate({ port, kind: protocol, rate: capacity * load, ms: MS });
      await daemon.stop('SIGKILL');
      results.push({ protocol, load, maxAgeMs, rate: capacity * load, ...result });
      console.error(JSON.stringify(results.at(-1)));
    }
  }
}
rmSync(folder, { recursive: true });

const ms = (value) => (value === undefined ? '–' : `${whole(value)} ms`);
const columns = {
  protocol: ({ protocol }) => NAMES[protocol],
  offered: ({ load, rate }) => `${percent(load, 0)}: ${whole(rate / 1000)} k/s`,
  maxAge: ({ maxAgeMs }) => (maxAgeMs === undefined ? 'off' : `${maxAgeMs} ms`),
  'decided, p50': ({ decided }) => ms(decided.p50),
  p99: ({ decided }) => ms(decided.p99),
  max: ({ decided }) => ms(decided.max),
  shed: ({ decided, shed }) => percent(shed.count / (shed.count + decided.count), 0),
  'shed, p99': ({ shed }) => ms(shed.p99),
  'generator late, p99': ({ lag }) => ms(lag.p99),
};
const text = `${table(columns, results)}

${madeBy('npm run figures:overload', loadLine())}`;
console.log(text);
const late = results.filter(({ maxAgeMs = Infinity, decided }) => decided.p99 > maxAgeMs);
if (late.length > 0) {
  console.error(`${late.length} rows with p99 of decided checks above maxAge`);
}
if (writes) writeFigures('docs/explanation/guarantees.md', 'overload', text);
