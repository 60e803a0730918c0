/**
 * Attacks the gossip between two daemons over UDP: noise, and datagrams of the fleet that the attacker has recorded,
 * replayed to both daemons as they are or mutated. The attacker does not know the key.
 *
 * Invariants: both daemons live and know exactly each other, their memory is bounded, a client of either one gets exactly what
 * its limit allows, and a hit on one daemon still counts on the other.
 */

import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { freeUdpPorts } from '../../ports.mjs';
import { ask, choices, daemonToAttack } from '../attacks-support.mjs';

const BURST = 5;
const CHECKS = 8;
const DATAGRAMS_PER_ROUND = 400;
const MAX_RECORDED = 2000;

/** How long a report may take on a busy machine. */
const MAX_GOSSIP_MS = 5000;

const configOf = (own, other, attacker) => `
peers: { udp: ['127.0.0.1:${own}', '127.0.0.1:${other}', '127.0.0.1:${attacker}'], key: a secret of the attacked fleet }
limits: { all: { bucket: { rate: 1/h, burst: ${BURST} } } }
`;

const PORTS = ['--line', '127.0.0.1:0', '--resp', 'off', '--http', '127.0.0.1:0'];

export async function attack({ rounds, seed }) {
  const { oneOf, below, noise, mutated } = choices(seed);
  const [first, second, own] = await freeUdpPorts(3);
  const attacker = createSocket('udp4').bind(own, '127.0.0.1');
  await once(attacker, 'listening');
  attacker.on('error', () => {}); // a daemon that is not up yet
  const recorded = [];
  attacker.on('message', (bytes) => {
    if (recorded.length < MAX_RECORDED) recorded.push(bytes);
    else recorded[below(MAX_RECORDED)] = bytes;
  });
  const daemons = await Promise.all([
    daemonToAttack(configOf(first, second, own), PORTS),
    daemonToAttack(configOf(second, first, own), PORTS),
  ]);
  const counts = { datagrams: 0, recorded: 0, checks: 0, allowed: 0, memoryMB: 0 };

  const inject = async () => {
    for (let n = 0; n < DATAGRAMS_PER_ROUND; n++) {
      const bytes = below(4) && recorded.length > 0 ? oneOf(recorded) : noise(1500);
      attacker.send(
        below(2) ? bytes : mutated(bytes).subarray(0, 9000),
        oneOf([first, second]),
        '127.0.0.1',
      );
      counts.datagrams++;
      if (n % 50 === 0) await sleep(1); // the socket buffer of the daemon is finite
    }
  };

  const peersOf = async (daemon) => {
    const reply = await fetch(`http://${daemon.at.http[0]}/peers`);
    return (await reply.json()).peers.length;
  };

  /** Checks on one daemon; exactly the burst is allowed. The other daemon must hear of it. */
  const checkLimit = async (key) => {
    const [daemon, other] = below(2) ? daemons : daemons.toReversed();
    const reply = await ask(daemon.port('line'), `${key}\n`.repeat(CHECKS));
    const allowed = reply.split('OK\n').length - 1;
    counts.checks += CHECKS;
    counts.allowed += allowed;
    if (allowed !== BURST)
      throw new Error(`${key}: ${allowed} of ${CHECKS} allowed, the limit is ${BURST}`);
    const remaining = async () => {
      const inspected = await fetch(`http://${other.at.http[0]}/inspect?key=${key}`);
      return (await inspected.json()).limits[0].remaining;
    };
    const deadline = performance.now() + MAX_GOSSIP_MS;
    while ((await remaining()) > 0) {
      if (performance.now() > deadline)
        throw new Error(`${key}: no report within ${MAX_GOSSIP_MS} ms`);
      await sleep(5);
    }
  };

  try {
    const deadline = performance.now() + MAX_GOSSIP_MS;
    while ((await peersOf(daemons[0])) !== 1 || (await peersOf(daemons[1])) !== 1) {
      if (performance.now() > deadline) throw new Error('the daemons do not know each other');
      await sleep(20);
    }
    for (let n = 0; n < rounds; n++) {
      await Promise.all([inject(), checkLimit(`other-${seed}-${n}`)]);
      for (const daemon of daemons) {
        const known = await peersOf(daemon);
        if (known !== 1) throw new Error(`expected 1 peer, got ${known}`);
        counts.memoryMB = Math.max(counts.memoryMB, daemon.check());
      }
    }
    return { ...counts, recorded: recorded.length };
  } finally {
    attacker.close();
    await Promise.all(daemons.map((daemon) => daemon.stop()));
  }
}
