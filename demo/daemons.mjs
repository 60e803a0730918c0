/**
 * Daemons as child processes that share one limit by gossip over UDP on loopback, authenticated with a random key.
 * They can be killed, frozen and restarted, and end with this process.
 */

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { connect } from 'sluice/client';

const COMMAND = fileURLToPath(
  new URL('dist/bin/sluice.js', import.meta.resolve('sluice/package.json')),
);
const ANY_PORT = '127.0.0.1:0';
const STARTS_WITHIN_MS = 15_000;
const ENDS_WITHIN_MS = 3_000;
const MAX_LOG_CHARS = 2_000;

/** Short deadline and back-off: a client leaves a frozen daemon at once and returns soon. */
const CLIENT = {
  deadline: '200ms',
  onUnavailable: 'deny',
  backoff: { initialDelay: 50, maxDelay: 200 },
};

/** The environment without settings for other daemons. */
const CLEAN_ENV = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith('SLUICE_')),
);

class Daemon {
  /** up, killed, frozen, or down: not started, or ended unexpectedly. */
  state = 'down';
  #args;
  #env;
  #process;
  #client;
  #log = '';

  constructor(name, args, env) {
    this.name = name;
    this.#args = args;
    this.#env = env;
  }

  get pid() {
    return this.#process.pid;
  }

  /** Resolves when the daemon is ready. It has joined its peers before that. */
  async start() {
    const child = spawn(process.execPath, [COMMAND, 'serve', ...this.#args], {
      env: { ...CLEAN_ENV, ...this.#env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#process = child;
    let output = '';
    child.stdout.on('data', (chunk) => {
      output += chunk;
    });
    child.stderr.on('data', (chunk) => {
      this.#log = (this.#log + chunk).slice(-MAX_LOG_CHARS);
    });
    child.once('exit', () => {
      if (this.state === 'up') this.state = 'down';
    });
    await until(() => output.includes('ready\n') || !this.isRunning, `${this.name} to start`);
    if (!this.isRunning) throw new Error(`${this.name} did not start: ${this.#log}${output}`);
    [, this.http] = /http +(\S+)/.exec(output);
    this.#client = connect({ at: /resp +(\S+)/.exec(output)[1], ...CLIENT });
    this.state = 'up';
  }

  get isRunning() {
    return this.#process?.exitCode === null && this.#process.signalCode === null;
  }

  /** Whether a call is allowed; undefined if the daemon is unavailable. */
  async allows(key) {
    const decision = await this.#client?.check(key);
    return decision && !decision.unavailable ? decision.verdict === 'allow' : undefined;
  }

  /** Remaining calls of a key, negative if it has debt; undefined if the daemon is unavailable. */
  async remaining(key) {
    const inspected = await this.#client?.inspect(key);
    return inspected?.limits[0].remaining;
  }

  /** Number of peers. */
  async peers() {
    return (await (await fetch(`http://${this.http}/peers`)).json()).peers.length;
  }

  /** `kill -9`: without a last report to its peers. */
  async kill() {
    this.state = 'killed';
    this.#process.kill('SIGKILL');
    await this.#ended();
  }

  freeze() {
    this.state = 'frozen';
    this.#process.kill('SIGSTOP');
  }

  thaw() {
    this.#process.kill('SIGCONT');
    this.state = 'up';
  }

  async end() {
    if (!this.isRunning) return;
    if (this.state === 'frozen') this.thaw();
    this.#process.kill('SIGTERM');
    await Promise.race([this.#ended(), sleep(ENDS_WITHIN_MS, undefined, { ref: false })]);
    this.endNow();
  }

  endNow() {
    if (this.isRunning) this.#process.kill('SIGKILL');
  }

  async #ended() {
    if (this.isRunning) await once(this.#process, 'exit');
    const client = this.#client;
    this.#client = undefined; // a closed client denies
    await client?.close();
  }
}

/** Daemons of one fleet, not started. */
export async function fleetOf(names, { rate, burst }) {
  const addresses = await Promise.all(names.map(freeAddress));
  const key = randomBytes(24).toString('base64');
  const limit = ['--rate', `${rate}/s`, '--burst', String(burst)];
  const listeners = ['--line', 'off', '--resp', ANY_PORT, '--http', ANY_PORT];
  const daemons = names.map((name, n) => {
    const ownFirst = [addresses[n], ...addresses.filter((_, other) => other !== n)];
    const args = [...limit, ...listeners, '--peers', ownFirst.join(',')];
    return new Daemon(name, args, { SLUICE_PEERS_KEY: key });
  });
  process.once('exit', () => {
    for (const daemon of daemons) daemon.endNow();
  });
  return daemons;
}

/** Waits until every daemon has all other daemons as peers. */
export const haveJoined = (daemons) =>
  until(async () => {
    const counts = await Promise.all(daemons.map((daemon) => daemon.peers()));
    return counts.every((count) => count === daemons.length - 1);
  }, 'the daemons to join');

/** A free UDP address on loopback. */
async function freeAddress() {
  const socket = createSocket('udp4').bind(0, '127.0.0.1');
  await once(socket, 'listening');
  const { port } = socket.address();
  await new Promise((closed) => socket.close(closed));
  return `127.0.0.1:${port}`;
}

/** Polls a condition; throws if it does not hold in time. */
export async function until(holds, what) {
  const end = performance.now() + STARTS_WITHIN_MS;
  while (!(await holds())) {
    if (performance.now() > end)
      throw new Error(`expected ${what} within ${STARTS_WITHIN_MS / 1000} s`);
    await sleep(10);
  }
}
