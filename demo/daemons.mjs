/**
 * Daemons as processes of their own, that keep one limit together over UDP on loopback, sealed with a key
 * made for them. They can be killed, frozen and brought back, and none outlives this process.
 */

import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { connect } from 'sluice/client';

const COMMAND = fileURLToPath(
  new URL('dist/cli/main.js', import.meta.resolve('sluice/package.json')),
);
const ANY_PORT = '127.0.0.1:0';
const STARTS_WITHIN_MS = 15_000;
const ENDS_WITHIN_MS = 3_000;
const MAX_LOG_CHARS = 2_000;

/** Quick to leave a daemon that does not answer, and quick to come back to it. */
const CLIENT = { deadline: '200ms', onUnavailable: 'deny', backoff: { first: 50, max: 200 } };

/** What somebody has in the environment for a daemon of theirs is not for these. */
const OWN_ENV = Object.fromEntries(
  Object.entries(process.env).filter(([name]) => !name.startsWith('SLUICE_')),
);

class Daemon {
  /** up, killed, frozen, or down: not started, or ended by itself. */
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

  /** Resolves once it answers. It takes its place among its peers before that. */
  async start() {
    const own = spawn(process.execPath, [COMMAND, 'serve', ...this.#args], {
      env: { ...OWN_ENV, ...this.#env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#process = own;
    let said = '';
    own.stdout.on('data', (chunk) => {
      said += chunk;
    });
    own.stderr.on('data', (chunk) => {
      this.#log = (this.#log + chunk).slice(-MAX_LOG_CHARS);
    });
    own.once('exit', () => {
      if (this.state === 'up') this.state = 'down';
    });
    await until(() => said.includes('ready\n') || !this.isRunning, `${this.name} to start`);
    if (!this.isRunning) throw new Error(`${this.name} did not start: ${this.#log}${said}`);
    [, this.http] = /http +(\S+)/.exec(said);
    this.#client = connect({ at: /resp +(\S+)/.exec(said)[1], ...CLIENT });
    this.state = 'up';
  }

  get isRunning() {
    return this.#process?.exitCode === null && this.#process.signalCode === null;
  }

  /** True or false; undefined if it does not answer. */
  async allows(key) {
    const { verdict, unavailable } = await this.#client.check(key);
    return unavailable ? undefined : verdict === 'allow';
  }

  /** What the key has left here, below zero what it owes; undefined if it does not answer. */
  async left(key) {
    const inspected = await this.#client.inspect(key);
    return inspected?.limits[0].remaining;
  }

  /** How many other daemons it hears. */
  async peers() {
    return (await (await fetch(`http://${this.http}/peers`)).json()).peers.length;
  }

  /** `kill -9`: it has no time to tell anybody anything. */
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
    await this.#client?.close();
  }
}

/** Daemons that know of each other, not started yet. */
export async function fleetOf(names, { rate, burst }) {
  const addresses = await Promise.all(names.map(freeAddress));
  const key = randomBytes(24).toString('base64');
  const limit = ['--rate', `${rate}/s`, '--burst', String(burst)];
  const surfaces = ['--line', 'off', '--resp', ANY_PORT, '--http', ANY_PORT];
  const daemons = names.map((name, n) => {
    const ownFirst = [addresses[n], ...addresses.filter((_, other) => other !== n)];
    const args = [...limit, ...surfaces, '--peers', ownFirst.join(',')];
    return new Daemon(name, args, { SLUICE_PEERS_KEY: key });
  });
  process.once('exit', () => {
    for (const daemon of daemons) daemon.endNow();
  });
  return daemons;
}

/** Waits until each of them hears all the others. */
export const haveMet = (daemons) =>
  until(async () => {
    const heard = await Promise.all(daemons.map((daemon) => daemon.peers()));
    return heard.every((count) => count === daemons.length - 1);
  }, 'the daemons to meet');

/** An address on loopback that nobody has for UDP. */
async function freeAddress() {
  const socket = createSocket('udp4').bind(0, '127.0.0.1');
  await once(socket, 'listening');
  const { port } = socket.address();
  await new Promise((closed) => socket.close(closed));
  return `127.0.0.1:${port}`;
}

/** Looks again and again until something holds; throws if that takes too long. */
export async function until(holds, what) {
  const end = performance.now() + STARTS_WITHIN_MS;
  while (!(await holds())) {
    if (performance.now() > end) throw new Error(`waited in vain for ${what}`);
    await sleep(10);
  }
}
