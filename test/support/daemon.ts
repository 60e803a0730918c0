/**
 * The built daemon in a child process, as a user would start it.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ExitedError } from '../../bench/server-process.mjs';
import type { Service } from './services.ts';

type Protocol = 'line' | 'resp' | 'http' | 'groups';

export interface RunningDaemon {
  readonly pid: number;
  /** `127.0.0.1:40123`, or a path, by protocol, in the order of the configuration. */
  readonly addresses: Readonly<Record<Protocol, readonly string[]>>;
  /** The port of a protocol's first address. */
  port(protocol: Protocol): number;
  /** Standard output and standard error so far. */
  readonly out: () => string;
  readonly log: () => string;
  /** Resolves when the log matches. */
  waitForLog(pattern: RegExp): Promise<void>;
  signal(name: NodeJS.Signals): void;
  /** Sends a signal (default SIGTERM) and waits for the end; resolves with the exit code. */
  stop(name?: NodeJS.Signals): Promise<number | null>;
}

/** A watchdog: a loaded machine takes a few seconds. */
const START_TIMEOUT_MS = 25_000;

/** Starts a daemon, and waits until it prints its addresses. Port 0 means any free port. */
async function startDaemon(
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
  build: string | readonly string[] = 'dist',
): Promise<RunningDaemon> {
  const [program = '', ...first] =
    typeof build === 'string' ? [process.execPath, join(build, 'bin/sluice.js')] : build;
  const child = spawn(program, [...first, 'serve', ...args], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const texts = { out: '', log: '' };
  child.stdout.on('data', (chunk: Buffer) => {
    texts.out += chunk;
  });
  child.stderr.on('data', (chunk: Buffer) => {
    texts.log += chunk;
  });
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const killed = (): unknown => child.kill('SIGKILL');
  process.once('exit', killed);
  child.once('exit', () => process.off('exit', killed));
  await waitUntil(() => texts.out.includes('ready\n') || child.exitCode !== null);
  if (child.exitCode !== null) {
    throw new ExitedError(`ended with ${child.exitCode}: ${texts.log}${texts.out}`);
  }
  const at: Record<Protocol, string[]> = { line: [], resp: [], http: [], groups: [] };
  for (const [, protocol, where] of texts.out.matchAll(/^ {2}(line|resp|http|groups) +(\S+)/gm)) {
    at[protocol as Protocol].push(where);
  }
  return {
    pid: child.pid ?? 0,
    addresses: at,
    port: (protocol) => Number(at[protocol][0].split(':').at(-1)),
    out: () => texts.out,
    log: () => texts.log,
    waitForLog: (pattern) => waitUntil(() => pattern.test(texts.log)),
    signal: (name) => void child.kill(name),
    async stop(name = 'SIGTERM') {
      if (isRunning(child)) child.kill(name);
      return ended;
    },
  };
}

const isRunning = (child: ChildProcess): boolean =>
  child.exitCode === null && child.signalCode === null;

/** Polls until the condition holds; throws after the time a daemon may take to start. */
export async function waitUntil(holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = performance.now() + START_TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline)
      throw new Error(`the condition did not hold within ${START_TIMEOUT_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A temporary folder; `remove` deletes it. */
export function createTempDir(): {
  path: string;
  file(name: string, text: string): string;
  remove(): void;
} {
  const path = mkdtempSync(join(tmpdir(), 'sluice-'));
  return {
    path,
    file(name, text) {
      writeFileSync(join(path, name), text);
      return join(path, name);
    },
    remove: () => rmSync(path, { recursive: true, force: true }),
  };
}

/** A connection to `127.0.0.1:7610` or to a path. */
export const connectTo = (where: string): Socket => {
  if (where.startsWith('/')) return connect(where);
  const [host, port] = where.split(':');
  return connect(Number(port), host);
};

/** Sends the bytes, half-closes the connection, and resolves with the whole response. */
export function exchange(where: string, bytes: string | Buffer): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connectTo(where);
    let answer = '';
    socket.on('data', (chunk: Buffer) => {
      answer += chunk.toString('latin1');
    });
    socket.on('error', reject);
    socket.on('close', () => resolve(answer));
    socket.end(bytes);
  });
}

/** Any free ports; RESP has separate tests. */
export const EPHEMERAL_PORTS: readonly string[] = [
  ...['--line', '127.0.0.1:0', '--resp', 'off', '--http', '127.0.0.1:0'],
];

/** How many of `times` calls the daemon allows. */
export const countAllowed = async (
  daemon: RunningDaemon,
  tag: string,
  times: number,
): Promise<number> =>
  (await exchange(daemon.addresses.line[0], `${tag}\n`.repeat(times)))
    .split('\n')
    .filter((answer) => answer === 'OK').length;

/** Daemons, folders and servers of one test, all removed by `end`. */
export function daemonFixture() {
  const running: RunningDaemon[] = [];
  const services: Service[] = [];
  const folders: ReturnType<typeof createTempDir>[] = [];
  return {
    /** `build`: the folder of another build than `dist`, or the command that starts it. */
    async start(
      args: readonly string[],
      env?: NodeJS.ProcessEnv,
      build?: string | readonly string[],
    ): Promise<RunningDaemon> {
      const daemon = await startDaemon(args, env, build);
      running.push(daemon);
      return daemon;
    },
    /** A server that the daemons use. */
    async serve(startService: () => Promise<Service>): Promise<Service> {
      const service = await startService();
      services.push(service);
      return service;
    },
    place(): ReturnType<typeof createTempDir> {
      const dir = createTempDir();
      folders.push(dir);
      return dir;
    },
    async end(): Promise<void> {
      await Promise.all(running.splice(0).map((daemon) => daemon.stop('SIGKILL')));
      await Promise.all(services.splice(0).map((service) => service.stop()));
      for (const dir of folders.splice(0)) dir.remove();
    },
  };
}
