/** An etcd cluster of three members that can be killed, paused and partitioned; each in a network namespace if available. */

import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../../ports.mjs';

export const MEMBERS = 3;
const READY_TIMEOUT_MS = 20_000;

export async function startCluster(network) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-soak-etcd-'));
  const members = [];
  for (let n = 0; n < MEMBERS; n++) {
    const [clients, peers] = [await freePort(), await freePort()];
    const at = (port) => `http://${network.addressOf(n)}:${port}`;
    members.push({ n, name: `m${n}`, clients: at(clients), peers: at(peers), child: undefined });
  }
  const initial = members.map(({ name, peers }) => `${name}=${peers}`).join();

  const start = ({ n, name, clients, peers }) => {
    const flags = [
      ...['--name', name, '--data-dir', join(folder, name), '--initial-cluster', initial],
      ...['--listen-client-urls', clients, '--advertise-client-urls', clients],
      ...['--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers],
    ];
    const [command, ...args] = [...network.within(n), 'etcd', ...flags];
    members[n].child = spawn(command, args, { stdio: 'ignore' });
  };
  const kill = async (n) => {
    const { child } = members[n];
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill('SIGKILL');
    await ended;
  };
  const run = (n, ...argv) => {
    const [command, ...args] = [...network.within(n), ...argv];
    return spawnSync(command, args);
  };
  /** Runs in the member's network, which may be partitioned. */
  const fetchFrom = (n, path, ...options) =>
    String(run(n, 'curl', '-s', '-m', '1', ...options, members[n].clients + path).stdout);
  const isReady = (n) => /"health" *: *"?true/.test(fetchFrom(n, '/health'));
  const ready = async (n) => {
    const deadline = performance.now() + READY_TIMEOUT_MS;
    while (!isReady(n)) {
      if (performance.now() > deadline)
        throw new Error(`etcd ${n} is not ready after ${READY_TIMEOUT_MS} ms`);
      await sleep(20);
    }
  };
  const stopNow = () => {
    for (const { child } of members) child?.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  process.once('exit', stopNow); // also after a crash

  for (const member of members) start(member);
  for (const { n } of members) await ready(n);
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
    kill,
    restart: (n) => start(members[n]),
    pause: (n) => members[n].child.kill('SIGSTOP'),
    resume: (n) => members[n].child.kill('SIGCONT'),
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
    async stop() {
      for (const { n } of members) await kill(n);
      process.off('exit', stopNow);
      stopNow();
    },
  };
}
