/**
 * Load generators: redis-benchmark for RESP, wrk for HTTP, load.c for the line protocol and where one of these is absent.
 * Without a compiler bench/daemon/load.mjs is used; it needs as much CPU as the server, so its rows are marked.
 *
 * A target is { pid, port, kind, newlines }: the server, the kind of its requests (bench/daemon/requests.mjs) and the
 * number of newlines in a reply. A measurement has calls per second and CPU time of the server per call.
 */

import { execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, renameSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { measureLoad } from '../daemon/measure.mjs';
import { cpuOf } from '../daemon/process.mjs';
import { batchesOf } from '../daemon/requests.mjs';
import { cacheFolder } from './base.mjs';
import { onGeneratorCore } from './processes.mjs';
import { hasTool } from './tools.mjs';

const PROBE_TIMEOUT_MS = 1000;
const PROBE_QUIET_MS = 50;
const FIRST_REQUESTS = 50_000;
const fileOf = (name) => fileURLToPath(new URL(name, import.meta.url));

/** The number of newlines in the reply to one request, undefined if the server has no such request. */
export function probe(port, kind) {
  return new Promise((resolve) => {
    let reply = '';
    let quiet;
    const finish = () => {
      socket.destroy();
      const isRefused = reply === '' || /^(HTTP\/1.1 [^2]|-)/.test(reply);
      resolve(isRefused ? undefined : reply.split('\n').length - 1);
    };
    const timeout = setTimeout(finish, PROBE_TIMEOUT_MS);
    const socket = connect({ host: '127.0.0.1', port }, () => socket.write(batchesOf(kind, 1)[0]));
    socket.on('error', finish).on('data', (chunk) => {
      reply += chunk;
      clearTimeout(timeout);
      clearTimeout(quiet);
      quiet = setTimeout(finish, PROBE_QUIET_MS);
    });
  });
}

/** Runs a generator on its core; its output. */
function runGenerator(words, input = '') {
  const [command, ...rest] = [...onGeneratorCore(), ...words];
  const child = spawn(command, rest, { stdio: ['pipe', 'pipe', 'pipe'] });
  const kill = () => child.kill('SIGKILL');
  process.once('exit', kill);
  let output = '';
  let errors = '';
  child.stdout.on('data', (chunk) => {
    output += chunk;
  });
  child.stderr.on('data', (chunk) => {
    errors += chunk;
  });
  child.stdin.on('error', () => {}).end(input);
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => {
      process.off('exit', kill);
      if (code === 0) resolve(output);
      else reject(new Error(`${words[0]} ended with ${signal ?? code}: ${errors}`));
    });
  });
}

/** CPU time of the server while `generate` runs, by its replies. */
async function measureServer({ pid }, generate) {
  const before = cpuOf(pid);
  const { replies, perSecond } = await generate();
  return { perSecond, cpuUs: ((cpuOf(pid) - before) * 1e6) / replies };
}

/** Calls per second by load: redis-benchmark takes a number of requests, not a duration. */
const lastPerSecond = new Map();

const redisBenchmark = {
  name: 'redis-benchmark',
  async measure(target, { connections, depth, ms }) {
    const load = `-c ${connections} -P ${depth}`;
    const send = async (requests) => {
      const replies = Math.ceil(requests / depth) * depth;
      const server = `-h 127.0.0.1 -p ${target.port} ${load} -n ${replies} -r 1000 --csv`;
      const command = 'CL.THROTTLE user:__rand_int__ 1000000000 1000000 1';
      const output = await runGenerator(`redis-benchmark ${server} ${command}`.split(' '));
      const [, perSecond] = /"(\d+\.\d+)"/.exec(output.trim().split('\n').at(-1));
      lastPerSecond.set(load, Number(perSecond));
      return { replies, perSecond: Number(perSecond) };
    };
    if (!lastPerSecond.has(load)) await send(FIRST_REQUESTS);
    return measureServer(target, () => send((lastPerSecond.get(load) * ms) / 1000));
  },
};

const wrk = {
  name: 'wrk',
  measure: (target, { connections, depth, ms }) =>
    measureServer(target, async () => {
      const load = ['-t', '1', '-c', `${connections}`, '-d', `${Math.ceil(ms / 1000)}s`];
      const script = ['-s', fileOf('wrk.lua'), `http://127.0.0.1:${target.port}/`, '--'];
      const requests = [`${depth}`, target.kind === 'http' ? 'check' : 'root'];
      const output = await runGenerator(['wrk', ...load, ...script, ...requests]);
      const failed = /Non-2xx.*|Socket errors.*/.exec(output);
      if (failed) throw new Error(`wrk: ${failed[0]}`);
      const [, replies] = /(\d+) requests in/.exec(output);
      const [, perSecond] = /Requests\/sec:\s*([\d.]+)/.exec(output);
      return { replies: Number(replies), perSecond: Number(perSecond) };
    }),
};

const compiled = {
  name: 'load.c',
  measure: (target, { connections, depth, ms }) =>
    measureServer(target, async () => {
      const input = batchesOf(target.kind, depth).flatMap((batch) => {
        const length = Buffer.alloc(4);
        length.writeUInt32LE(batch.length);
        return [length, batch];
      });
      const numbers = [target.port, connections, depth, target.newlines, ms].map(String);
      const output = await runGenerator([programOfLoad(), ...numbers], Buffer.concat(input));
      const [replies, nanos] = output.split(' ').map(Number);
      return { replies, perSecond: (replies / nanos) * 1e9 };
    }),
};

const slow = {
  name: 'load.mjs',
  isSlow: true,
  async measure(target, load) {
    const { perSecond, busy } = await measureLoad(target, load);
    return { perSecond, cpuUs: (busy / perSecond) * 1e6 };
  },
};

/** Compiled once for each version of its source. */
function programOfLoad() {
  const source = fileOf('load.c');
  const hash = createHash('sha256').update(readFileSync(source)).digest('hex').slice(0, 16);
  const program = join(cacheFolder(), `load-${hash}`);
  if (!existsSync(program)) {
    execFileSync('cc', ['-O3', '-Wall', '-Wextra', '-o', `${program}.${process.pid}`, source]);
    renameSync(`${program}.${process.pid}`, program);
  }
  return program;
}

const BY_KIND = {
  cell: ['redis-benchmark', redisBenchmark],
  http: ['wrk', wrk],
  root: ['wrk', wrk],
};

export function generatorOf(kind) {
  const [tool, preferred] = BY_KIND[kind] ?? [];
  if (tool !== undefined && hasTool(tool)) return preferred;
  return hasTool('cc') ? compiled : slow;
}

/** The first replies of a server are slower: the code is not compiled yet. */
const WARM_UP = { connections: 8, depth: 16, ms: 500 };

export const warmUp = (target) =>
  (hasTool('cc') ? compiled : generatorOf(target.kind)).measure(target, WARM_UP);
