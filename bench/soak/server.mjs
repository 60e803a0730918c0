/** A Redis, a NATS server or an etcd of one's own on loopback, that can be treated badly: killed, stopped, started again. */

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../ports.mjs';

const STARTS_WITHIN_MS = 15_000;

/** Which Redis, NATS server or etcd this is, in its own words: the first number with two dots. */
export const versionOf = (command) =>
  /\d+\.\d+\.\d+/.exec(execFileSync(command, ['--version'], { encoding: 'utf8' }))?.[0] ?? '?';

const REDIS_FLAGS = [
  ...['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--protected-mode', 'no'],
];

export async function startRedis(...args) {
  const port = await freePort();
  const argsIn = (folder) => ['--port', `${port}`, '--dir', folder, ...REDIS_FLAGS, ...args];
  // One that still reads its file says LOADING.
  const isReady = async () => (await firstWords(port, 'PING\r\n')).startsWith('+PONG');
  return {
    ...(await start('redis-server', argsIn, port, isReady)),
    cli: (...words) => execFileSync('redis-cli', ['-p', `${port}`, ...words], { encoding: 'utf8' }),
  };
}

/** A NATS server that keeps streams and buckets in its folder. */
export async function startJetStream() {
  const port = await freePort();
  const flags = ['--addr', '127.0.0.1', '--port', `${port}`, '--jetstream', '--store_dir'];
  const isReady = async () => (await firstWords(port, '')).startsWith('INFO');
  return start('nats-server', (folder) => [...flags, folder], port, isReady);
}

/** A cluster of one. */
export async function startEtcd() {
  const port = await freePort();
  const clients = `http://127.0.0.1:${port}`;
  const peers = `http://127.0.0.1:${await freePort()}`;
  const flags = [
    ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
    ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
    ...['--name', 'own', '--initial-cluster', `own=${peers}`],
  ];
  // It listens before it has elected itself.
  const isReady = async () => (await fetch(`${clients}/health`).catch(() => {}))?.ok === true;
  return start('etcd', (folder) => ['--data-dir', join(folder, 'data'), ...flags], port, isReady);
}

/** Starts a server and waits until it says that it is ready. */
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
    /** The same without anything it has kept in its folder. */
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

/** Another port for the same Redis, and everything takes `farMs` longer, there and back. */
export async function longWay(target, farMs) {
  const sockets = new Set();
  const server = createServer((near) => {
    const far = connect(target, '127.0.0.1');
    for (const [from, to] of [
      [near, far],
      [far, near],
    ]) {
      sockets.add(from);
      from.setNoDelay(true).on('data', (bytes) => setTimeout(() => to.write(bytes), farMs));
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
  const deadline = Date.now() + STARTS_WITHIN_MS;
  while (Date.now() < deadline) {
    if (await isReady()) return;
    await sleep(2);
  }
  throw new Error(`${command} is not ready after ${STARTS_WITHIN_MS} ms`);
}

/** What a server says first, to somebody who says this; nothing if it is not there. */
const firstWords = (port, said) =>
  new Promise((tell) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(said));
    socket.setTimeout(500, () => socket.destroy());
    socket.once('data', (bytes) => {
      tell(String(bytes));
      socket.destroy();
    });
    socket.once('error', () => tell('')).once('close', () => tell(''));
  });
