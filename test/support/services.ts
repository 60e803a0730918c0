/**
 * Real servers for the tests: started on a free port in a temporary folder, and stopped by their process id.
 *
 * A suite whose server is not installed is skipped with a line that says how to get it; with CI=true it fails.
 */

import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { freePort, freePorts } from '../../bench/ports.mjs';
import {
  ANNOUNCES,
  type Service,
  startServer,
  startServerAt,
  startTogether,
  withFreePorts,
} from '../../bench/server-process.mjs';
import { commandOf, howToInstall } from '../setup/tools.mjs';

export { freePort, freePorts, freeUdpPorts } from '../../bench/ports.mjs';
export type { Service } from '../../bench/server-process.mjs';

const START_TIMEOUT_MS = 15_000;

/** Says that suites are skipped, or fails in CI. */
export function skipOrFail(message: string): undefined {
  if (process.env.CI === 'true') throw new Error(message);
  console.warn(`SKIPPED: ${message}`);
  return undefined;
}

/** Looks for a command once, at its first use; undefined if there is none. */
function lazyCommand(tool: string): () => string | undefined {
  let command: string | undefined | false = false;
  return () => {
    if (command === false) command = commandOf(tool) ?? skipOrFail(howToInstall(tool));
    return command;
  };
}

export const redisServer = lazyCommand('redis');

/** A Redis without persistence, unless `args` enable it. */
export const startRedis = (...args: string[]): Promise<Service> => startRedisWith(args);

/** The same, started by a command such as `env`, whose arguments are followed by those of Redis. */
export const startRedisBy = (launcher: readonly string[]): Promise<Service> =>
  startRedisWith([], freePorts, launcher);

async function startRedisWith(
  args: string[],
  choosePorts = freePorts,
  launcher: readonly string[] = [],
): Promise<Service> {
  const server = redisServer();
  if (server === undefined) throw new Error('there is no Redis to start');
  const [command, ...before] = [...launcher, server];
  const flags = [
    '--bind',
    '127.0.0.1',
    '--save',
    '',
    '--appendonly',
    'no',
    '--protected-mode',
    'no',
  ];
  return startServer({
    command,
    choosePorts,
    argsIn: (folder, [port]) => [
      ...before,
      ...['--port', `${port}`, '--dir', folder, ...flags, ...args],
    ],
    announces: ANNOUNCES.redis,
  });
}

export const natsServer = lazyCommand('nats');

/** A NATS server without JetStream. */
export const startNats = (): Promise<Service> => startNatsWith(() => []);

/** A NATS server with JetStream, which stores streams and buckets in its folder. */
export const startJetStream = (): Promise<Service> =>
  startNatsWith((folder) => ['--jetstream', '--store_dir', folder]);

async function startNatsWith(argsIn: (folder: string) => string[]): Promise<Service> {
  const command = natsServer();
  if (command === undefined) throw new Error('there is no NATS to start');
  return startServer({
    command,
    argsIn: (folder, [port]) => ['--addr', '127.0.0.1', '--port', `${port}`, ...argsIn(folder)],
    announces: ANNOUNCES.nats,
  });
}

export const etcdServer = lazyCommand('etcd');

/** An etcd cluster of one. */
export async function startEtcd(): Promise<Service> {
  const [member] = await startEtcdCluster(1);
  return member;
}

/** An etcd cluster: available as long as more than half of its members are. */
export async function startEtcdCluster(size = 3): Promise<Service[]> {
  const command = etcdServer();
  if (command === undefined) throw new Error('there is no etcd to start');
  return withFreePorts(2 * size, (ports) => {
    const urls = ports.map((port) => `http://127.0.0.1:${port}`);
    const peersOf = (n: number): string => urls[size + n];
    const cluster = urls.slice(0, size).map((_, n) => `m${n}=${peersOf(n)}`);
    return startTogether(
      cluster.map((_, n) => {
        const [clients, peers] = [urls[n], peersOf(n)];
        const flags = [
          ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
          ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
          ...['--name', `m${n}`, '--initial-cluster', cluster.join()],
        ];
        const argsIn = (folder: string): string[] => ['--data-dir', join(folder, 'data'), ...flags];
        return startServerAt([ports[n]], { command, argsIn, announces: ANNOUNCES.etcd });
      }),
    );
  });
}

let namespacesAllowed: boolean | undefined;

/** Whether network namespaces can be created: `ip netns`, and the right to use it. */
export function hasNamespaces(): boolean {
  namespacesAllowed ??= tryNamespaces();
  return namespacesAllowed;
}

function tryNamespaces(): boolean {
  const name = `sluice-try-${process.pid}`;
  const isAllowed = spawnSync('ip', ['netns', 'add', name]).status === 0;
  if (isAllowed) spawnSync('ip', ['netns', 'delete', name]);
  else console.warn('SKIPPED: `ip netns add` fails: it needs root and the package iproute2');
  return isAllowed;
}

/** A network namespace: commands run in it see one interface besides loopback. */
export interface Namespace {
  /** The command and arguments that run `command` in there. */
  run(command: string, ...args: string[]): [string, string[]];
  stop(): void;
}

/** @param address that its interface has there, such as `10.77.0.1/24`. */
export function startNamespace(address: string): Namespace {
  const name = `sluice-${process.pid}-${namespaces++}`;
  const ip = (...args: string[]): unknown => execFileSync('ip', args, { stdio: 'ignore' });
  ip('netns', 'add', name);
  const inside = (...args: string[]): unknown => ip('-n', name, ...args);
  const stop = (): unknown => ip('netns', 'delete', name);
  try {
    inside('link', 'set', 'lo', 'up', 'multicast', 'on');
    inside('link', 'add', 'one', 'type', 'veth', 'peer', 'name', 'other');
    inside('address', 'add', address, 'dev', 'one');
    inside('link', 'set', 'one', 'up');
    inside('link', 'set', 'other', 'up');
    inside('route', 'add', 'default', 'dev', 'one');
  } catch (error) {
    stop();
    throw error;
  }
  return { run: (...command) => ['ip', ['netns', 'exec', name, ...command]], stop };
}

let namespaces = 0;

const netcat = lazyCommand('netcat');
const socat = lazyCommand('socat');

/** Whether the shell has socket tools: OpenBSD's nc, and socat. */
export const hasShellTools = (): boolean => netcat() !== undefined && socat() !== undefined;

export const systemdNotify = lazyCommand('systemdNotify');

/** The Python that has redis-py. */
export const pythonWithRedis = lazyCommand('redisPy');

export const cCompiler = lazyCommand('compiler');

export const shellcheck = lazyCommand('shellcheck');

export const dpkg = lazyCommand('dpkg');

export const promtool = lazyCommand('promtool');

export const chromiumBrowser = lazyCommand('chromium');

export const nginxServer = lazyCommand('nginx');

/** An nginx with all its files in its folder; `http` is the content of its http block. */
export async function startNginx(
  portCount: number,
  http: (ports: number[]) => string,
): Promise<Service> {
  const command = nginxServer();
  if (command === undefined) throw new Error('there is no nginx to start');
  return startServer({
    command,
    portCount,
    argsIn(folder, ports) {
      const file = join(folder, 'nginx.conf');
      writeFileSync(file, nginxConfig(folder, http(ports)));
      return ['-p', folder, '-c', file, '-e', join(folder, 'error.log')];
    },
    // written after its ports are open
    isReady: (folder) => existsSync(join(folder, 'nginx.pid')),
  });
}

/** One process in the foreground, so that ending it ends all of it. */
function nginxConfig(folder: string, http: string): string {
  const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
  const temporary = kinds.map((kind) => `${kind}_temp_path ${join(folder, kind)};`);
  return `daemon off; master_process off; pid ${join(folder, 'nginx.pid')};
events {}
http { access_log off; ${temporary.join(' ')}
${http}
}
`;
}

export const haproxyServer = lazyCommand('haproxy');

/** A HAProxy with this configuration. */
export const startHaproxy = (config: (port: number) => string): Promise<Service> => {
  let port = 0;
  return startServer({
    command: haproxyServer() ?? 'haproxy',
    argsIn(folder, ports) {
      [port] = ports;
      const file = join(folder, 'haproxy.cfg');
      writeFileSync(file, config(port));
      return ['-db', '-f', file];
    },
    isReady: () => isListening(port),
  });
};

export const caddyServer = lazyCommand('caddy');

/** A Caddy with these sites, without certificates and without its admin interface. */
export const startCaddy = (sites: (port: number) => string): Promise<Service> =>
  startServer({
    command: 'env',
    argsIn(folder, [port]) {
      const file = join(folder, 'Caddyfile');
      writeFileSync(file, `{\n\tadmin off\n\tauto_https off\n}\n${sites(port)}`);
      const command = [caddyServer() ?? 'caddy', 'run', '--config', file, '--adapter', 'caddyfile'];
      return [`HOME=${folder}`, ...command]; // it writes there
    },
    announces: 'serving initial configuration',
  });

const isListening = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true));
    socket.once('error', () => resolve(false)).once('connect', () => socket.destroy());
  });

/** A Redis cluster of three masters with a replica each. */
export interface RedisCluster {
  readonly nodes: readonly Service[];
  /** The current masters. */
  masters(): readonly Service[];
  stop(): Promise<void>;
}

const CLUSTER_NODES = 6;

/** A replica takes over from a master that is silent for this long. */
export const FAILOVER_AFTER_MS = 2000;

export async function startRedisCluster(): Promise<RedisCluster> {
  const nodes: Service[] = [];
  const stop = async (): Promise<void> => {
    await Promise.all(nodes.map((node) => node.stop()));
  };
  try {
    for (let n = 0; n < CLUSTER_NODES; n++) nodes.push(await startClusterNode());
    const addresses = nodes.map(({ port }) => `127.0.0.1:${port}`);
    const create = [
      '--cluster',
      'create',
      ...addresses,
      '--cluster-replicas',
      '1',
      '--cluster-yes',
    ];
    execFileSync('redis-cli', create, { stdio: 'ignore', timeout: 60_000 });
    await waitUntil('the cluster is whole', () => nodes.every(isClusterReady));
  } catch (error) {
    await stop();
    throw error;
  }
  return { nodes, masters: () => nodes.filter(isMaster), stop };
}

const startClusterNode = (): Promise<Service> =>
  startRedisWith(
    [
      ...['--cluster-enabled', 'yes', '--cluster-node-timeout', `${FAILOVER_AFTER_MS}`],
      ...['--repl-diskless-sync-delay', '0'],
    ],
    chooseClusterPort,
  );

/** Cluster nodes connect at their port + 10,000, so that one must be free as well. */
async function chooseClusterPort(): Promise<number[]> {
  for (let tries = 0; tries < 100; tries++) {
    const port = await freePort();
    if (port + 10_000 <= 65_535 && (await isPortFree(port + 10_000))) return [port];
  }
  throw new Error('no two free ports ten thousand apart');
}

/** All slots are assigned and the replicas are in sync: only then can they take over. */
const isClusterReady = ({ port }: Service): boolean => {
  const isAgreed = /cluster_state:ok/.test(redisCli(port, 'CLUSTER', 'INFO'));
  const standing = redisCli(port, 'INFO', 'replication');
  return isAgreed && /master_link_status:up|slave0:.*state=online/.test(standing);
};

const isMaster = ({ port }: Service): boolean => {
  try {
    return /^role:master/m.test(redisCli(port, 'INFO', 'replication'));
  } catch {
    return false; // it was killed
  }
};

/** Polls until the condition holds. */
async function waitUntil(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  const deadline = Date.now() + START_TIMEOUT_MS;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`waited ${START_TIMEOUT_MS} ms until ${what}`);
    await new Promise((later) => setTimeout(later, 50));
  }
}

const isPortFree = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const server = createServer().once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });

/** Runs redis-cli and returns its output. */
export const redisCli = (port: number, ...args: string[]): string =>
  execFileSync('redis-cli', ['-p', `${port}`, ...args], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
    timeout: 20_000, // a Redis that a test has paused replies never
  }).trim();
