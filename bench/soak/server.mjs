/** A Redis of one's own on loopback, that can be treated badly: killed, stopped, started again. */

import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const STARTS_WITHIN_MS = 15_000;

const FLAGS = ['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--protected-mode', 'no'];

export async function startRedis(...args) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-'));
  const port = await freePort();
  let child;
  const launch = async () => {
    const own = ['--port', `${port}`, '--dir', folder];
    child = spawn('redis-server', [...own, ...FLAGS, ...args], { stdio: 'ignore' });
    await answers(port);
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
    pause: () => child.kill('SIGSTOP'),
    resume: () => child.kill('SIGCONT'),
    cli: (...words) => execFileSync('redis-cli', ['-p', `${port}`, ...words], { encoding: 'utf8' }),
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

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/** Resolves once a PING is answered: one that still reads its file says LOADING. */
async function answers(port) {
  const deadline = Date.now() + STARTS_WITHIN_MS;
  while (Date.now() < deadline) {
    const said = await new Promise((tell) => {
      const socket = connect(port, '127.0.0.1', () => socket.write('PING\r\n'));
      socket.setTimeout(500, () => socket.destroy());
      socket.once('data', (bytes) => tell(String(bytes)));
      socket.once('error', () => tell('')).once('close', () => tell(''));
    });
    if (said.startsWith('+PONG')) return;
    await sleep(2);
  }
  throw new Error(`no Redis answers on port ${port} after ${STARTS_WITHIN_MS} ms`);
}
