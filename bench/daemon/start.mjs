/**
 * How long a daemon takes to start, by form of the build: from the start of the process until it prints `ready`.
 *
 *     npm run bench:daemon-start              prints the table
 *     npm run bench:daemon-start -- --write   writes it to docs/how-to/deploy.md; -- --smoke: one start of each
 *
 * Processor time is that of all threads until then, so it depends less on other load of the machine.
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { isToWrite, loadLine, madeBy, median, table, whole, writeFigures } from '../report.mjs';
import { cpuOf } from './process.mjs';

const smoke = process.argv.includes('--smoke');
const writes = isToWrite(!smoke);
const ROUNDS = smoke ? 1 : 21;

const FORMS = [
  { name: 'single executable', file: 'dist/standalone/sluice', command: [] },
  { name: 'one file', file: 'dist/standalone/sluice.cjs', command: [process.execPath] },
  { name: 'npm package', file: 'dist/bin/sluice.js', command: [process.execPath] },
];

/** The lower bound: Node with a script that only prints `ready`. */
FORMS.push({ name: 'Node alone', command: [process.execPath] });

const ADDRESSES = ['--line', '127.0.0.1:0', '--resp', '127.0.0.1:0', '--http', '127.0.0.1:0'];

async function startOnce({ command, file }) {
  const [program, ...args] = file
    ? [...command, file, 'serve', ...ADDRESSES]
    : [...command, '-e', 'console.log("ready"); setInterval(() => {}, 1000)'];
  const startedAt = performance.now();
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'exit');
  let out = '';
  for await (const chunk of child.stdout) {
    out += chunk;
    if (out.includes('ready\n')) break;
  }
  const result = { ms: performance.now() - startedAt, cpuMs: cpuOf(child.pid) * 1000 };
  child.kill('SIGKILL');
  await ended;
  return result;
}

const rounds = FORMS.map(() => []);
for (let round = 0; round < ROUNDS; round++)
  for (const [n, form] of FORMS.entries()) rounds[n].push(await startOnce(form));

const results = FORMS.map((form, n) => ({
  ...form,
  ms: median(rounds[n].map(({ ms }) => ms)),
  fastestMs: Math.min(...rounds[n].map(({ ms }) => ms)),
  cpuMs: median(rounds[n].map(({ cpuMs }) => cpuMs)),
  bytes: form.file?.includes('standalone') ? statSync(form.file).size : undefined,
}));

const columns = {
  form: ({ name }) => name,
  'time to ready': ({ ms }) => `${whole(ms)} ms`,
  fastest: ({ fastestMs }) => `${whole(fastestMs)} ms`,
  'processor time': ({ cpuMs }) => `${whole(cpuMs)} ms`,
  size: ({ bytes }) => (bytes === undefined ? '' : `${(bytes / 2 ** 20).toFixed(1)} MiB`),
};
const text = `${table(columns, results, ['---', ...Array(4).fill('---:')])}

${madeBy('npm run bench:daemon-start -- --write', `medians of ${ROUNDS} starts`, loadLine())}`;
console.log(text);
if (writes) writeFigures('docs/how-to/deploy.md', 'start', text);
