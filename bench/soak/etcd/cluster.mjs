/** An etcd cluster of three members that can be killed, paused and partitioned; each in a network namespace if available. */

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ANNOUNCES, spawnServer, startAgain, withFreePorts } from '../../server-process.mjs';

export const MEMBERS = 3;

/** `choosePorts` is for tests. */
export const startCluster = (network, choosePorts) =>
  withFreePorts(2 * MEMBERS, (ports) => startMembers(network, ports), choosePorts);

async function startMembers(network, ports) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-etcd-'));
  const members = Array.from({ length: MEMBERS }, (_, n) => {
    const at = (port) => `http://${network.addressOf(n)}:${port}`;
    return { n, name: `m${n}`, clients: at(ports[2 * n]), peers: at(ports[2 * n + 1]) };
  });
  const initial = members.map(({ name, peers }) => `${name}=${peers}`).join();

  const start = (n) => {
    const { name, clients, peers } = members[n];
    const flags = [
      ...['--name', name, '--data-dir', join(folder, name), '--initial-cluster', initial],
      ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
      ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
    ];
    const [command, ...args] = [...network.within(n), 'etcd', ...flags];
    members[n].server = spawnServer(command, args, {
      announces: ANNOUNCES.etcd,
      isReady: () => isReady(n),
    });
  };
  const run = (n, ...argv) => {
    const [command, ...args] = [...network.within(n), ...argv];
    return spawnSync(command, args);
  };
  /** Runs in the member's network, which may be partitioned. */
  const fetchFrom = (n, path, ...options) =>
    String(run(n, 'curl', '-s', '-m', '1', ...options, members[n].clients + path).stdout);
  const isReady = (n) => /"health" *: *"?true/.test(fetchFrom(n, '/health'));
  const ready = (n) => members[n].server.ready();
  const stopNow = () => {
    for (const { server } of members) server.killNow();
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  const stop = async () => {
    await Promise.all(members.map(({ server }) => server.kill()));
    process.off('exit', stopNow);
    stopNow();
  };
  for (const { n } of members) start(n);
  process.once('exit', stopNow); // also after a crash
  try {
    await Promise.all(members.map(({ n }) => ready(n)));
  } catch (error) {
    await stop();
    throw error;
  }
  const others = (n) => members.filter((member) => member.n !== n).map((member) => member.n);
  /** Drops or restores packets from a member to its peers; clients still reach it. */
  const route = (n, action) => {
    for (const other of others(n)) {
      const { status } = run(
        n,
        'ip',
        'route',
        action,
        'blackhole',
        `${network.addressOf(other)}/32`,
      );
      if (status !== 0) throw new Error(`ip route ${action} from member ${n} to ${other} failed`);
    }
  };
  return {
    endpoints: members.map(({ clients }) => clients),
    kill: (n) => members[n].server.kill(),
    restart: (n) =>
      startAgain(() => {
        start(n);
        return ready(n);
      }),
    pause: (n) => members[n].server.pause(),
    resume: (n) => members[n].server.resume(),
    cutFromOthers: (n) => route(n, 'add'),
    healFromOthers: (n) => route(n, 'delete'),
    ready,
    others,
    leader() {
      for (const { n } of members) {
        const body = fetchFrom(n, '/v3/maintenance/status', '-d', '{}');
        const { leader, header } = body ? JSON.parse(body) : {};
        if (leader && leader === header?.member_id) return n;
      }
      throw new Error('no member is the leader');
    },
    stop,
  };
}
