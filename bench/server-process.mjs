/**
 * Server processes on free ports of loopback.
 *
 * A chosen port may be taken before the server listens. A server that exits before it is ready is noticed at once,
 * and the start is tried again with new ports.
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePorts } from './ports.mjs';

/** A start is tried this often, each time with new ports. */
const MAX_TRIES = 5;
const READY_TIMEOUT_MS = 20_000;
const POLL_MS = 10;
const RESTART_EVERY_MS = 200;

/** The end of a server's output, for the error message. */
const MAX_OUTPUT_CHARS = 4000;
const LAST_LINES = 5;
const LAST_OUTPUT_MS = 500;

/** A server has exited before it was ready. */
export class ExitedError extends Error {}

/** Calls `start` with free ports, and again with others if a server exits before it is ready. */
export async function withFreePorts(count, start, choosePorts = freePorts) {
  for (let tries = 1; ; tries++) {
    try {
      return await start(await choosePorts(count));
    } catch (error) {
      if (!(error instanceof ExitedError) || tries === MAX_TRIES) throw error;
    }
  }
}

/**
 * Starts a server again on the ports it had. While it was down, an outgoing connection may have got one of them: the start
 * is tried until the port is free.
 */
export async function startAgain(start) {
  const deadline = performance.now() + READY_TIMEOUT_MS;
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (!(error instanceof ExitedError) || performance.now() > deadline) throw error;
      await sleep(RESTART_EVERY_MS);
    }
  }
}

/** What a server prints once it serves. A reply on its port may come from another server, which took the port. */
export const ANNOUNCES = {
  redis: 'Ready to accept connections',
  nats: 'Server is ready',
  etcd: 'ready to serve client requests',
};

/**
 * Spawns a server. `ready` resolves once it has printed `announces` and `isReady` holds, and throws if the server exits or takes
 * too long.
 */
export function spawnServer(command, args, { announces = '', isReady = () => true }) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  let hasAnnounced = announces === '';
  const keep = (chunk) => {
    output += chunk;
    hasAnnounced ||= output.includes(announces);
    output = output.slice(-MAX_OUTPUT_CHARS);
  };
  child.stdout.on('data', keep);
  child.stderr.on('data', keep);
  const closed = once(child, 'close').catch(() => {}); // after the last output
  let exit;
  child.once('exit', (code, signal) => {
    exit = `exited with ${signal ?? code}`;
  });
  child.once('error', ({ message }) => {
    exit ??= message;
  });
  const lastLines = () => output.trimEnd().split('\n').slice(-LAST_LINES).join('\n');
  const isRunning = () => exit === undefined;
  return {
    pid: child.pid,
    async ready() {
      const deadline = performance.now() + READY_TIMEOUT_MS;
      while (!hasAnnounced || !(await isReady()) || !isRunning()) {
        if (!isRunning()) {
          await Promise.race([closed, sleep(LAST_OUTPUT_MS)]);
          throw new ExitedError(`${command} ${exit} before it was ready:\n${lastLines()}`);
        }
        if (performance.now() > deadline)
          throw new Error(`${command} is not ready after ${READY_TIMEOUT_MS} ms:\n${lastLines()}`);
        await sleep(POLL_MS);
      }
    },
    /** Kills it, as a crash would. */
    async kill() {
      if (!isRunning()) return;
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
    },
    killNow: () => child.kill('SIGKILL'),
    pause: () => pause(child.pid),
    resume: () => child.kill('SIGCONT'),
  };
}

/** Starts a server on free ports, in its own folder, and waits until it is ready. */
export const startServer = ({ portCount = 1, choosePorts, ...setup }) =>
  withFreePorts(portCount, (ports) => startServerAt(ports, setup), choosePorts);

/** The same on given ports. `argsIn(folder, ports)` are its arguments, `isReady(folder)` is checked until it holds. */
export async function startServerAt(ports, { command, argsIn, announces, isReady }) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-server-'));
  let server;
  const launch = async () => {
    server = spawnServer(command, argsIn(folder, ports), {
      announces,
      isReady: () => isReady?.(folder) ?? true,
    });
    await server.ready();
  };
  const stop = async () => {
    await server.kill();
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    await launch();
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    port: ports[0],
    get pid() {
      return server.pid;
    },
    kill: () => server.kill(),
    restart: () => startAgain(launch),
    wipe() {
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
    },
    pause: () => server.pause(),
    resume: () => server.resume(),
    stop,
  };
}

/** Servers that need each other: starts all, or none. */
export async function startTogether(starting) {
  const results = await Promise.allSettled(starting);
  const failed = results.find(({ status }) => status === 'rejected');
  if (failed === undefined) return results.map(({ value }) => value);
  await Promise.all(results.map(({ value }) => value?.stop()));
  throw failed.reason;
}

/** Suspends a process. SIGSTOP takes a moment: until every thread is stopped, a server may still reply. */
export function pause(pid) {
  process.kill(pid, 'SIGSTOP');
  const deadline = performance.now() + 5000;
  while (!isStopped(pid)) {
    if (performance.now() > deadline) throw new Error(`process ${pid} is not stopped within 5 s`);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
  }
}

function isStopped(pid) {
  const threads = `/proc/${pid}/task`;
  if (!existsSync(threads)) return true; // no /proc: assume so
  const stateOf = (thread) =>
    /\) (\w)/.exec(readFileSync(join(threads, thread, 'stat'), 'utf8'))?.[1];
  return readdirSync(threads).every((thread) => stateOf(thread) === 'T');
}
