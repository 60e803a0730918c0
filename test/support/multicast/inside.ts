/** The contract for groups. It must run inside a network namespace: elsewhere it would be heard elsewhere. */

import { networkInterfaces } from 'node:os';
import { describe, expect, test } from 'vitest';
import { udp } from '../../../src/backends/peers/udp-transport.ts';
import { hasReceived, openNode, transportContract, waitUntil } from '../transport-contract.ts';

const OWN = '10.77.0.1';

const isInside = Object.values(networkInterfaces())
  .flat()
  .every((own) => own?.internal || own?.address === OWN || own?.family === 'IPv6');
if (!isInside) throw new Error('this is not a network of its own');

const GROUP = '239.77.0.1:7613';
const stop = (): void => {};
const ADDRESSED = { isAddressed: true, isLoopback: false };

transportContract('UDP to a group', ADDRESSED, () => ({ node: () => udp({ group: GROUP }), stop }));

transportContract('UDP to a group by an interface', ADDRESSED, () => ({
  node: () => udp({ group: GROUP, interface: OWN, ttl: 3 }),
  stop,
}));

transportContract('UDP to a group on loopback', { isAddressed: true, isLoopback: true }, () => ({
  node: () => udp({ group: GROUP, interface: '127.0.0.1' }),
  stop,
}));

// The interface of a namespace is called so.
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

describe('groups', () => {
  test('are kept apart, and so are interfaces', async () => {
    const own = await openNode(udp({ group: GROUP, interface: OWN }));
    const same = await openNode(udp({ group: GROUP, interface: OWN }));
    const apart = await Promise.all([
      openNode(udp({ group: '239.77.0.2:7613', interface: OWN })),
      openNode(udp({ group: '239.77.0.1:7614', interface: OWN })),
      openNode(udp({ group: GROUP, interface: '127.0.0.1' })),
    ]);
    const bytes = Buffer.from('ours');
    await waitUntil(
      'it is heard',
      () => hasReceived(same, bytes),
      () => own.transport.broadcast(bytes),
    );
    expect(apart.map((node) => hasReceived(node, bytes))).toEqual([false, false, false]);
    for (const { transport } of [own, same, ...apart]) await transport.close();
  });

  test('that no route leads to are no reason to complain', async () => {
    const own = await openNode(udp({ group: '239.77.0.1:7613', interface: OWN }));
    own.transport.send('192.0.2.1:9', Buffer.from('nobody'));
    own.transport.send('240.0.0.1:9', Buffer.from('nowhere'));
    own.transport.send('0.0.0.0:9', Buffer.from('nothing'));
    await waitUntil('they are counted', () => {
      const { sent, failed } = own.transport.counts;
      return sent + failed === 3;
    });
    await own.transport.close();
  });
});
