/** Starts Redis, NATS or etcd on loopback, as a process that can be killed, paused and restarted. */

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../ports.mjs';

const START_TIMEOUT_MS = 15_000;

/** The version that `command --version` prints. */
export const versionOf = (command) =>
  /\d+\.\d+\.\d+/.exec(execFileSync(command, ['--version'], { encoding: 'utf8' }))?.[0] ?? '?';

const REDIS_FLAGS = [
  ...['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--protected-mode', 'no'],
];

export async function startRedis(...args) {
  const port = await freePort();
  const argsIn = (folder) => ['--port', `${port}`, '--dir', folder, ...REDIS_FLAGS, ...args];
  // While it loads its file, Redis replies LOADING.
  const isReady = async () => (await firstReply(port, 'PING\r\n')).startsWith('+PONG');
  return {
    ...(await start('redis-server', argsIn, port, isReady)),
    cli: (...command) =>
      execFileSync('redis-cli', ['-p', `${port}`, ...command], { encoding: 'utf8' }),
  };
}

/** A NATS server with JetStream in its own folder. */
export async function startJetStream() {
  const port = await freePort();
  const flags = ['--addr', '127.0.0.1', '--port', `${port}`, '--jetstream', '--store_dir'];
  const isReady = async () => (await firstReply(port, '')).startsWith('INFO');
  return start('nats-server', (folder) => [...flags, folder], port, isReady);
}

/** An etcd cluster of one member. */
export async function startEtcd() {
  const port = await freePort();
  const clients = `http://127.0.0.1:${port}`;
  const peers = `http://127.0.0.1:${await freePort()}`;
  const flags = [
    ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
    ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
    ...['--name', 'own', '--initial-cluster', `own=${peers}`],
  ];
  // It listens before it is the leader.
  const isReady = async () => (await fetch(`${clients}/health`).catch(() => {}))?.ok === true;
  return start('etcd', (folder) => ['--data-dir', join(folder, 'data'), ...flags], port, isReady);
}

/** Starts a server and waits until it is ready. */
async function start(command, argsIn, port, isReady) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-'));
  let child;
  const launch = async () => {
    child = spawn(command, argsIn(folder), { stdio: 'ignore' });
    const failed = once(child, 'error').then(([error]) => Promise.reject(error));
    await Promise.race([failed, untilReady(command, isReady)]);
  };
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  };
  await launch();
  return {
    port,
    kill,
    restart: launch,
    /** Restarts with an empty folder. */
    async restartEmpty() {
      rmSync(folder, { recursive: true, force: true });
      mkdirSync(folder);
      await launch();
    },
    pause: () => child.kill('SIGSTOP'),
    resume: () => child.kill('SIGCONT'),
    async stop() {
      await kill();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** A proxy to a local port that delays every packet by `delayMs` in both directions. */
export async function delayingProxy(target, delayMs) {
  const sockets = new Set();
  const server = createServer((near) => {
    const far = connect(target, '127.0.0.1');
    for (const [from, to] of [
      [near, far],
      [far, near],
    ]) {
      sockets.add(from);
      from.setNoDelay(true).on('data', (bytes) => setTimeout(() => to.write(bytes), delayMs));
      from.on('close', () => to.destroy()).on('error', () => to.destroy());
    }
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const end = () => {
    server.close();
    for (const socket of sockets) socket.destroy();
  };
  return { port: server.address().port, end };
}

async function untilReady(command, isReady) {
  const deadline = Date.now() + START_TIMEOUT_MS;
  while (Date.now() < deadline) {
    if (await isReady()) return;
    await sleep(2);
  }
  throw new Error(`${command} is not ready after ${START_TIMEOUT_MS} ms`);
}

/** The first bytes a server sends after `request`; empty if it is not reachable. */
const firstReply = (port, request) =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(request));
    socket.setTimeout(500, () => socket.destroy());
    socket.once('data', (bytes) => {
      resolve(String(bytes));
      socket.destroy();
    });
    socket.once('error', () => resolve('')).once('close', () => resolve(''));
  });
