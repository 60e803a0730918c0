/**
 * Runs the steps of one page in order, in a network and a process namespace of their own, so that every default port is free and
 * all processes end with this one. Prints the results as JSON.
 *
 *     steps: { line, kind: 'file' | 'js' | 'ts' | 'sh' | 'yaml' | 'nginx', name, text, port, exitCode, prints }
 */

import { execFileSync, spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { ANNOUNCES, spawnServer } from '../../../bench/server-process.mjs';

const STEP_TIMEOUT_MS = 200_000;
const PRINT_TIMEOUT_MS = 10_000;
const POLL_MS = 10;
const MAX_PROBLEM_CHARS = 2000;

const { servers, steps, tools } = JSON.parse(readFileSync(process.argv[2], 'utf8'));

const START = {
  redis: () =>
    start('redis-server', ['--save', '', '--bind', '127.0.0.1', '::1'], {
      announces: ANNOUNCES.redis,
    }),
  nats: () =>
    start('nats-server', ['--jetstream', '--store_dir', '.nats'], { announces: ANNOUNCES.nats }),
  etcd: () => start('etcd', ['--data-dir', '.etcd'], { announces: ANNOUNCES.etcd }),
  daemon: () => start(process.execPath, [tools.cli, 'serve'], { announces: 'ready\n' }),
  api: () => new Promise((ready) => apiServer().listen(3000, '127.0.0.1', ready)),
};

const start = (command, args, options) => spawnServer(command, args, options).ready();

/** An API that the examples call: it says what it was asked. */
const apiServer = () =>
  createServer((request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ method: request.method, url: request.url }));
  });

/** Processes that stay running, by port. */
const running = new Map();
let lastOutput = () => '';
/** Results of the programs that end by themselves: one process loads those that follow each other. */
const loaded = new Map();
let current = 0;

/** From the current step on, up to a command. */
function nextPrograms() {
  const rest = steps.slice(current);
  const end = rest.findIndex(
    ({ kind, port }) => kind === 'sh' || kind === 'file' || port !== undefined,
  );
  return rest.slice(0, end < 0 ? rest.length : end).filter(({ kind }) => kind === 'js');
}

const RUN = {
  file: async ({ name, text }) => writeFileSync(name, text),
  async js({ name, text, port }) {
    writeFileSync(name, text);
    if (port !== undefined) return stay(port, process.execPath, [name]);
    if (!loaded.has(name))
      for (const [own, result] of await load(nextPrograms())) loaded.set(own, result);
    const { stdout, problem } = loaded.get(name);
    lastOutput = () => stdout;
    return problem;
  },
  async ts({ name, text }) {
    writeFileSync(name, text);
    const { code, stdout } = await run(process.execPath, [tools.tsc, ...TSC, name]);
    if (code !== 0) return `types: ${stdout}`;
    const [result] = (await load([{ name: name.replace(/mts$/, 'mjs') }])).values();
    lastOutput = () => result.stdout;
    return result.problem;
  },
  async sh({ text, port, exitCode }) {
    if (port !== undefined) return stay(port, 'sh', ['-e', '-c', text]);
    const { code, stdout, stderr } = await run('sh', ['-e', '-c', text]);
    lastOutput = () => stdout;
    if (code !== exitCode) return `ended with ${code}, expected ${exitCode}: ${stderr}${stdout}`;
  },
  /** The test validates it when all files of the page are there. */
  yaml: async ({ name, text }) => writeFileSync(name, text),
  async nginx({ name, text }) {
    writeFileSync(name, text);
    const whole = /^events/m.test(text) ? text : `events {}\nhttp {\n${text}\n}\n`;
    writeFileSync(`${name}.checked`, whole);
    const { code, stderr } = await run('nginx', [
      '-t',
      '-p',
      process.cwd(),
      '-c',
      `${name}.checked`,
      '-e',
      'error.log',
    ]);
    if (code !== 0) return `nginx -t: ${stderr}`;
  },
  /** What stays running may print later. */
  async prints({ text }) {
    const pattern = patternOf(text.trimEnd());
    const deadline = performance.now() + PRINT_TIMEOUT_MS;
    while (!pattern.test(printed())) {
      if (performance.now() > deadline) return `printed: ${printed()}`;
      await sleep(POLL_MS);
    }
  },
};

/** Without the carriage returns of HTTP headers. */
const printed = () => lastOutput().replaceAll('\r', '').trimEnd();

const TSC = ['--strict', '--skipLibCheck', '--target', 'es2022', '--module', 'nodenext'];

/** `…` stands for any characters of a line; a line with nothing else, for any lines. */
const patternOf = (text) =>
  new RegExp(
    `^${text
      .split('\n')
      .map((line) => (line === '…' ? '[^]*?' : line.split('…').map(escaped).join('.*')))
      .join('\n')}$`,
  );
const escaped = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');

function run(command, args) {
  const child = spawn(command, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: STEP_TIMEOUT_MS,
  });
  const texts = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'])
    child[name].on('data', (chunk) => (texts[name] += chunk));
  return new Promise((ended) => {
    child.once('error', (error) => ended({ ...texts, code: -1, stderr: `${error}` }));
    child.once('close', (code, signal) => ended({ ...texts, code: code ?? signal }));
  });
}

/** Starts what stays running; what had the port before is ended first, as by a reader who starts the next version. */
async function stay(port, command, args) {
  const before = running.get(port);
  if (before !== undefined) process.kill(-before.pid); // with its children
  while (await accepts(port)) await sleep(POLL_MS);
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  running.set(port, child);
  let [output, errors] = ['', ''];
  child.stdout.on('data', (chunk) => (output += chunk));
  child.stderr.on('data', (chunk) => (errors += chunk));
  lastOutput = () => output;
  const deadline = performance.now() + STEP_TIMEOUT_MS;
  while (!(await accepts(port))) {
    if (child.exitCode !== null) return `ended with ${child.exitCode}: ${errors}${output}`;
    if (performance.now() > deadline) return `nothing listens on ${port}: ${errors}${output}`;
    await sleep(POLL_MS);
  }
  await sleep(POLL_MS); // its last line of output
}

const accepts = (port) =>
  new Promise((known) => {
    const socket = connect(port, '127.0.0.1', () => known(true));
    socket.once('error', () => known(false)).once('connect', () => socket.destroy());
  });

/** A client gives a daemon 20 ms, a limiter Redis 100 ms. On a loaded machine a reply may be later, which is a warning and no mistake of a page. */
const LATE_DAEMON =
  /^.*\[SLUICE_(?:FAIL_OPEN|REDIS)\].*(?:no reply within|not connected yet|calls reach it after).*\n(?:\(Use `node --trace-warnings.*\n)?/gm;

/** Loads programs one after the other, and the rest again after one that failed: output and problem by name. */
async function load(programs) {
  const results = new Map();
  for (const { name, text } of programs) if (text !== undefined) writeFileSync(name, text);
  let names = programs.map(({ name }) => name);
  const redisPort = servers.includes('redis') ? '6379' : '0';
  while (names.length > 0) {
    const { code, stdout, stderr } = await run(process.execPath, [tools.load, redisPort, ...names]);
    const [outputs, errors] = [stdout, stderr].map(partsOf);
    const last = [...outputs.keys()].at(-1);
    for (const [name, text] of outputs) {
      const printed = errors.get(name).replace(LATE_DAEMON, '');
      const failed =
        code !== 0 && name === last ? `ended with ${code}: ${printed}${text}` : undefined;
      const problem = failed ?? (printed === '' ? undefined : `warned: ${printed}`);
      results.set(name, { stdout: text, problem });
    }
    if (outputs.size === 0) throw new Error(`no program was loaded: ${stderr}`);
    names = names.slice(outputs.size);
  }
  return results;
}

/** What each program printed, by name. */
const partsOf = (output) =>
  new Map(
    output
      .split('\u001e')
      .slice(1)
      .map((part) => {
        const end = part.indexOf('\n');
        return [part.slice(0, end), part.slice(end + 1)];
      }),
  );

for (const args of [
  ['link', 'set', 'lo', 'up', 'multicast', 'on'],
  ['route', 'add', '224.0.0.0/4', 'dev', 'lo'],
])
  execFileSync('ip', args);
await Promise.all(servers.map((name) => START[name]()));
const problems = [];
for (const [n, step] of steps.entries()) {
  current = n;
  const problem = await RUN[step.kind](step);
  if (problem !== undefined)
    problems.push({ line: step.line, problem: problem.slice(0, MAX_PROBLEM_CHARS) });
}
console.log(JSON.stringify(problems));
process.exit();
