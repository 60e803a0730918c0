/**
 * The network of the fleet: a network namespace per daemon, joined by a bridge.
 *
 *     node 0 ── eth0 ─┬─ port0 ┐
 *     node 1 ── eth0 ─┼─ port1 ┤ bridge       a port that is down partitions its node
 *     …               └─ …     ┘
 *
 * Namespaces share the file system, so a Unix socket reaches a daemon from outside. Where namespaces are not permitted,
 * all daemons run on loopback, without partitions and loss.
 */

import { execFileSync, spawnSync } from 'node:child_process';
import { freeUdpPorts } from '../../ports.mjs';

const PORT = 7613;
const GROUP = '239.77.0.1';
const DELAY_MS = 2;

const ip = (...args) => execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'pipe'] });

export function hasNamespaces() {
  const name = `sluice-try-${process.pid}`;
  if (spawnSync('ip', ['netns', 'add', name]).status !== 0) return false;
  return spawnSync('ip', ['netns', 'delete', name]).status === 0;
}

/** Both kinds have `udp`, the option of a node's configuration, and `within`, the prefix of a command there. */
export async function createNetwork(nodes, mode, isLoopback) {
  return isLoopback ? onLoopback(nodes) : inNamespaces(nodes, mode);
}

function inNamespaces(nodes, mode) {
  const prefix = `sluice-soak-${process.pid}`;
  const bridge = `${prefix}-bridge`;
  const names = Array.from({ length: nodes }, (_, n) => `${prefix}-${n}`);
  const addresses = names.map((_, n) => `10.77.0.${n + 1}`);
  const created = [];
  const create = (name) => {
    ip('netns', 'add', name);
    created.push(name);
  };
  const remove = () => {
    for (const name of created.splice(0)) spawnSync('ip', ['netns', 'delete', name]);
  };
  process.once('exit', remove); // also after an error or a signal
  create(bridge);
  ip('-n', bridge, 'link', 'add', 'switch', 'type', 'bridge');
  ip('-n', bridge, 'link', 'set', 'switch', 'up');
  names.forEach((name, n) => {
    create(name);
    const cable = ['type', 'veth', 'peer', 'name', 'eth0', 'netns', name];
    ip('-n', bridge, 'link', 'add', `port${n}`, ...cable);
    ip('-n', bridge, 'link', 'set', `port${n}`, 'master', 'switch', 'up');
    ip('-n', name, 'link', 'set', 'lo', 'up');
    ip('-n', name, 'address', 'add', `${addresses[n]}/24`, 'dev', 'eth0');
    ip('-n', name, 'link', 'set', 'eth0', 'up');
    ip('-n', name, 'route', 'add', 'default', 'dev', 'eth0');
  });
  const within = (n) => ['ip', 'netns', 'exec', names[n]];
  const run = (n, ...words) => {
    const [command, ...args] = [...within(n), ...words];
    return spawnSync(command, args).status === 0;
  };
  const everywhere = (...words) => names.every((_, n) => run(n, ...words));
  const netem = (...words) =>
    everywhere('tc', 'qdisc', 'replace', 'dev', 'eth0', 'root', 'netem', ...words);
  const delay = ['delay', `${DELAY_MS}ms`];
  const hasNetem = netem(...delay);
  const at = (n) => `${addresses[n]}:${PORT}`;
  return {
    name: mode === 'group' ? 'a multicast group' : 'a list of addresses',
    about: `in namespaces, ${hasNetem ? `${DELAY_MS} ms by netem` : 'no delay: this kernel has no netem'}`,
    delayMs: hasNetem ? DELAY_MS : 0,
    canCut: true,
    addressOf: (n) => addresses[n],
    udp: (n) => (mode === 'group' ? `${GROUP}:${PORT}` : listOf(nodes, n, at)),
    within,
    cut: (n) => ip('-n', bridge, 'link', 'set', `port${n}`, 'down'),
    heal: (n) => ip('-n', bridge, 'link', 'set', `port${n}`, 'up'),
    /** Drops a percentage of incoming datagrams; returns the tool in use, or false if there is none. */
    lose(percent) {
      if (hasNetem) return netem(...delay, 'loss', `${percent}%`) && 'netem';
      const rule = `meta l4proto udp numgen random mod 100 < ${percent} drop`;
      const chain = '{ type filter hook input priority 0 ; }';
      const isDone =
        everywhere('nft', 'add table inet sluice') &&
        everywhere('nft', `add chain inet sluice lossy ${chain}`) &&
        everywhere('nft', `add rule inet sluice lossy ${rule}`);
      return isDone && 'nft';
    },
    stopLoss: () => (hasNetem ? netem(...delay) : everywhere('nft', 'delete table inet sluice')),
    remove() {
      process.off('exit', remove);
      remove();
    },
  };
}

/** The node's own address first. */
const listOf = (nodes, self, at) => {
  const peers = Array.from({ length: nodes }, (_, n) => n).filter((n) => n !== self);
  return `[${[self, ...peers].map(at)}]`;
};

async function onLoopback(nodes) {
  const ports = await freeUdpPorts(nodes);
  return {
    name: 'a list of addresses',
    about: 'on loopback, no delay',
    delayMs: 0,
    canCut: false,
    addressOf: () => '127.0.0.1',
    udp: (n) => listOf(nodes, n, (other) => `127.0.0.1:${ports[other]}`),
    within: () => [],
    remove() {},
  };
}
