/** The transport contract for multicast. Runs in a network namespace only, so that no datagram leaves the machine. */

import { networkInterfaces } from 'node:os';
import { describe, expect, test } from 'vitest';
import { udp } from '../../../src/backends/peers/udp-transport.ts';
import { hasReceived, openNode, transportContract, waitUntil } from '../transport-contract.ts';

const ADDRESS = '10.77.0.1';

const isInside = Object.values(networkInterfaces())
  .flat()
  .every((found) => found?.internal || found?.address === ADDRESS || found?.family === 'IPv6');
if (!isInside) throw new Error('expected a network namespace with the single address 10.77.0.1');

const GROUP = '239.77.0.1:7613';
const stop = (): void => {};
const ADDRESSED = { isAddressed: true, isLoopback: false };

transportContract('UDP to a group', ADDRESSED, () => ({ node: () => udp({ group: GROUP }), stop }));

transportContract('UDP to a group by an interface', ADDRESSED, () => ({
  node: () => udp({ group: GROUP, interface: ADDRESS, ttl: 3 }),
  stop,
}));

transportContract('UDP to a group on loopback', { isAddressed: true, isLoopback: true }, () => ({
  node: () => udp({ group: GROUP, interface: '127.0.0.1' }),
  stop,
}));

// `one` is the name of the interface in the namespace.
transportContract('UDP to a group of one link', ADDRESSED, () => ({
  node: (n) =>
    n === 0
      ? udp({ group: '[ff02::7613%one]:7613' })
      : udp({ group: '[ff02::7613]:7613', interface: '::%one' }),
  stop,
}));

transportContract('UDP to a group by IPv6', ADDRESSED, () => ({
  node: () => udp({ group: '[ff05::7613]:7613' }),
  stop,
}));

describe('UDP multicast', () => {
  test('groups, ports and interfaces are separate', async () => {
    const sender = await openNode(udp({ group: GROUP, interface: ADDRESS }));
    const same = await openNode(udp({ group: GROUP, interface: ADDRESS }));
    const apart = await Promise.all([
      openNode(udp({ group: '239.77.0.2:7613', interface: ADDRESS })),
      openNode(udp({ group: '239.77.0.1:7614', interface: ADDRESS })),
      openNode(udp({ group: GROUP, interface: '127.0.0.1' })),
    ]);
    const bytes = Buffer.from('ours');
    await waitUntil(
      'the datagram arrives',
      () => hasReceived(same, bytes),
      () => sender.transport.broadcast(bytes),
    );
    expect(apart.map((node) => hasReceived(node, bytes))).toEqual([false, false, false]);
    for (const { transport } of [sender, same, ...apart]) await transport.close();
  });

  test('sending to an address without a route does not throw', async () => {
    const { transport } = await openNode(udp({ group: '239.77.0.1:7613', interface: ADDRESS }));
    for (const to of ['192.0.2.1:9', '240.0.0.1:9', '0.0.0.0:9'])
      transport.send(to, Buffer.from('no route'));
    await waitUntil('all three are counted', () => {
      const { sent, failed } = transport.counts;
      return sent + failed === 3;
    });
    await transport.close();
  });
});
