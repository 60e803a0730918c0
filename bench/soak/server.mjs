/** Starts Redis, NATS or etcd on loopback, as a process that can be killed, paused and restarted. */

import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { ANNOUNCES, startServer } from '../server-process.mjs';

/** The version that `command --version` prints. */
export const versionOf = (command) =>
  /\d+\.\d+\.\d+/.exec(execFileSync(command, ['--version'], { encoding: 'utf8' }))?.[0] ?? '?';

const REDIS_FLAGS = [
  ...['--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', '--protected-mode', 'no'],
];

export async function startRedis(...args) {
  const server = await startServer({
    command: 'redis-server',
    argsIn: (folder, [port]) => ['--port', `${port}`, '--dir', folder, ...REDIS_FLAGS, ...args],
    announces: ANNOUNCES.redis,
  });
  const cli = (...command) =>
    execFileSync('redis-cli', ['-p', `${server.port}`, ...command], { encoding: 'utf8' });
  return Object.assign(server, { cli });
}

/** A NATS server with JetStream in its own folder. */
export const startJetStream = () =>
  startServer({
    command: 'nats-server',
    argsIn: (folder, [port]) => [
      ...['--addr', '127.0.0.1', '--port', `${port}`, '--jetstream', '--store_dir', folder],
    ],
    announces: ANNOUNCES.nats,
  });

/** An etcd cluster of one member. */
export const startEtcd = () =>
  startServer({
    command: 'etcd',
    portCount: 2,
    argsIn(folder, ports) {
      const [clients, peers] = ports.map((port) => `http://127.0.0.1:${port}`);
      return [
        ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
        ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
        ...['--name', 'own', '--initial-cluster', `own=${peers}`],
        ...['--data-dir', join(folder, 'data')],
      ];
    },
    announces: ANNOUNCES.etcd,
  });

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
