import { afterEach, describe, expect, test } from 'vitest';
import { freeUdpPorts } from '../../../test/support/services.ts';
import {
  hasReceived,
  openNode,
  transportContract,
  waitUntil,
} from '../../../test/support/transport-contract.ts';
import { systemClock } from '../../core/clock.ts';
import { VirtualClock } from '../../testing/index.ts';
import type { Transport } from './transport.ts';
import { type UdpDependencies, type UdpOptions, udp } from './udp-transport.ts';

const UNICAST = { isAddressed: true, isLoopback: true };

transportContract('UDP unicast list', UNICAST, async () => {
  const peers = (await freeUdpPorts(3)).map((port) => `127.0.0.1:${port}`);
  return { node: (n) => udp({ peers, bind: peers[n] }), stop: () => {} };
});

transportContract('UDP name', { isAddressed: true, isLoopback: false }, async () => {
  const [port] = await freeUdpPorts(1);
  // As in a cluster: one name, one port, an address per node.
  const resolve = async () => ['127.0.0.1', '127.0.0.2', '127.0.0.3'];
  return {
    node: (n) =>
      udp({ peers: `fleet.test:${port}`, bind: `127.0.0.${n + 1}:${port}` }, { resolve }),
    stop: () => {},
  };
});

describe('UDP name', () => {
  const open: Transport[] = [];
  const create = (options: UdpOptions, dependencies?: UdpDependencies): Transport => {
    const transport = udp(options, dependencies);
    open.push(transport);
    return transport;
  };
  afterEach(async () => {
    for (const transport of open.splice(0)) await transport.close();
  });

  test('sends to new addresses, not to removed ones, and keeps all while lookups fail', async () => {
    const [port] = await freeUdpPorts(1);
    const clock = new VirtualClock();
    let hosts: string[] | undefined = ['127.0.0.2'];
    let lookups = 0;
    const resolve = async (name: string, family: number): Promise<readonly string[]> => {
      lookups++;
      expect([name, family]).toEqual(['fleet.test', 4]);
      if (!hosts) throw new Error('SERVFAIL');
      return hosts;
    };
    const peers = `fleet.test:${port}`;
    const bind = `127.0.0.1:${port}`;
    const sender = create({ peers, bind, resolveEvery: '10s' }, { clock, resolve });
    const [two, three] = await Promise.all(
      [2, 3].map((n) => openNode(create({ peers, bind: `127.0.0.${n}:${port}` }, { resolve }))),
    );
    await sender.open(() => {});
    lookups = 0;
    const first = Buffer.from('first');
    await waitUntil(
      'node two receives it',
      () => hasReceived(two, first),
      () => sender.broadcast(first),
    );
    expect(hasReceived(three, first)).toBe(false);

    hosts = ['127.0.0.3'];
    clock.advance(10_000);
    const second = Buffer.from('second');
    await waitUntil(
      'node three receives it',
      () => hasReceived(three, second),
      () => sender.broadcast(second),
    );
    expect(lookups).toBe(1);

    hosts = undefined; // the lookup fails: known addresses stay
    clock.advance(10_000);
    await waitUntil('the name is looked up', () => lookups === 2);
    await waitUntil('the result is handled', () => true);
    const third = Buffer.from('third');
    await waitUntil(
      'node three receives it',
      () => hasReceived(three, third),
      () => sender.broadcast(third),
    );
    hosts = ['127.0.0.2'];
    clock.advance(1000); // a failed lookup is retried after 1 s
    const fourth = Buffer.from('fourth');
    await waitUntil(
      'node two receives it',
      () => hasReceived(two, fourth),
      () => sender.broadcast(fourth),
    );
    const fifth = Buffer.from('fifth');
    await waitUntil(
      'node two receives it',
      () => hasReceived(two, fifth),
      () => sender.broadcast(fifth),
    );
    expect(hasReceived(three, fifth)).toBe(false);
  });

  test('that never resolves causes one warning, and is looked up again', async () => {
    const warnings: string[] = [];
    const collect = (warning: Error): unknown => warnings.push(warning.message);
    process.on('warning', collect);
    const [port] = await freeUdpPorts(1);
    const clock = new VirtualClock();
    let lookups = 0;
    const resolve = async (): Promise<readonly string[]> => {
      lookups++;
      if (lookups % 2) throw new Error('ENOTFOUND');
      return [];
    };
    const transport = create(
      { peers: 'misspelt.test:1', bind: `127.0.0.1:${port}` },
      { clock, resolve },
    );
    await transport.open(() => {});
    await waitUntil(
      'the name is looked up again',
      () => lookups === 3,
      () => clock.advance(1000),
    );
    process.off('warning', collect);
    expect(warnings).toEqual(['peer name does not resolve: misspelt.test: ENOTFOUND']);
  });

  test('is resolved by the system by default', async () => {
    const [port, other] = await freeUdpPorts(2);
    const peers = [`localhost:${port}`, `localhost:${other}`];
    const one = await openNode(
      create({ peers, bind: `127.0.0.1:${port}` }, { clock: systemClock }),
    );
    const two = await openNode(create({ peers, bind: `127.0.0.1:${other}` }));
    const bytes = Buffer.from('hello');
    await waitUntil(
      'the datagram arrives',
      () => hasReceived(two, bytes),
      () => one.transport.broadcast(bytes),
    );
    expect(one.transport.isLoopback).toBe(true);
  });
});

describe('UDP transport', () => {
  test('counts datagrams that could not be sent, and does not throw', async () => {
    const [port, unused] = await freeUdpPorts(2);
    const peers = [`127.0.0.1:${unused}`];
    const transport = udp({ peers, bind: `127.0.0.1:${port}` });
    await transport.open(() => {});
    transport.broadcast(Buffer.alloc(70_000)); // EMSGSIZE
    await waitUntil('it is counted', () => transport.counts.failed === 1);
    transport.broadcast(Buffer.alloc(10)); // refused, but an unconnected socket does not report it
    transport.broadcast(Buffer.alloc(10));
    await waitUntil('both are sent', () => transport.counts.sent === 2);
    await transport.close();
  });

  test('accounts for every datagram while the send queue is full', async () => {
    const [port, other] = await freeUdpPorts(2);
    const transport = udp({ peers: [`127.0.0.1:${other}`], bind: `127.0.0.1:${port}` });
    await transport.open(() => {});
    const bytes = Buffer.alloc(60_000);
    for (let n = 0; n < 1000; n++) transport.broadcast(bytes);
    await waitUntil('every datagram is counted', () => {
      const { sent, failed, dropped } = transport.counts;
      return sent + failed + dropped === 1000;
    });
    await transport.close();
  });

  test('refuses a port in use, and leaves no socket open', async () => {
    const [port] = await freeUdpPorts(1);
    const peers = [`127.0.0.1:${port}`];
    const first = udp({ peers });
    await first.open(() => {});
    await expect(udp({ peers }).open(() => {})).rejects.toThrow(/EADDRINUSE/);
    await first.close();
    const second = udp({ peers });
    await second.open(() => {});
    await second.close();
  });

  test('works with IPv6', async () => {
    const [port, other] = await freeUdpPorts(2);
    const peers = [`[::1]:${port}`, `[::1]:${other}`];
    const one = await openNode(udp({ peers, bind: peers[0] }));
    const two = await openNode(udp({ peers, bind: peers[1] }));
    const bytes = Buffer.from('six');
    await waitUntil(
      'the datagram arrives',
      () => hasReceived(two, bytes),
      () => one.transport.broadcast(bytes),
    );
    expect(two.received[0].from).toBe(peers[0]);
    expect(one.transport.isLoopback).toBe(true);
    for (const { transport } of [one, two]) await transport.close();
  });

  test.each<[UdpOptions, boolean]>([
    [{ peers: ['127.0.0.1:1', '127.9.9.9:2'] }, true],
    [{ peers: 'localhost:1' }, true],
    [{ peers: '[::1]:1' }, true],
    [{ peers: ['127.0.0.1:1', '10.0.0.1:2'] }, false],
    [{ peers: 'fleet.test:1' }, false],
    [{ peers: '127.0.0.1.evil.test:1' }, false],
    [{ peers: '127.0.0.1:1', bind: '0.0.0.0:1' }, false],
    [{ peers: '[::1]:1', bind: '[::]:1' }, false],
    [{ group: '239.0.0.1:1' }, false],
    [{ group: '239.0.0.1:1', interface: '10.0.0.1' }, false],
    [{ group: '239.0.0.1:1', interface: '127.0.0.1' }, true],
    [{ group: '[ff01::1]:1', interface: '::1%lo' }, true],
  ])('of %j: isLoopback is %j', (options, isLoopback) => {
    expect(udp(options).isLoopback).toBe(isLoopback);
  });

  test.each<[object, RegExp]>([
    [{}, /`udp` to be an object with either `group` or `peers`/],
    [{ group: '239.0.0.1:1', peers: 'a:1' }, /either `group` or `peers`/],
    [{ peers: [] }, /`udp.peers` to be 1 to 4096 addresses/],
    [{ peers: ['a:1', 'b'] }, /`udp.peers\[1\]` to be a host and a port, .*, got "b"/],
    [{ peers: 'a:0' }, /`udp.peers` to be a host and a port/],
    [{ peers: '1.2.3.400:1' }, /`udp.peers` to be a host and a port/],
    [{ peers: '1.2.3.4:70000' }, /`udp.peers` to be a host and a port/],
    [{ peers: ['1.2.3.4:1', '[::1]:1'] }, /addresses of the same IP family as 0\.0\.0\.0/],
    [{ peers: 'a:1', bind: 'b:1' }, /`udp.bind` to be an IP address of this machine/],
    [{ group: '10.0.0.1:1' }, /`udp.group` to be a multicast address and a port/],
    [{ group: '239.0.0.1:1', interface: 'eth0' }, /`udp.interface` to be the address of/],
    [{ group: '[ff02::1]:1' }, /`udp.group` to be a group with its interface, such as/],
    [{ group: '[ff02::1]:1', interface: 'fe80::1' }, /`udp.group` to be a group with its/],
    [{ group: '239.0.0.1:1', ttl: 256 }, /`udp.ttl` to be/],
    [{ group: '239.0.0.1:1', tll: 2 }, /`udp.tll` to be one of/],
    [{ peers: ['239.0.0.1:1', '10.0.0.1:1'] }, /`udp.peers` to be unicast addresses/],
    [{ peers: 'a:1', resolveEvery: 'often' }, /`udp.resolveEvery` to be a duration/],
  ])('of %j is refused', (options, message) => {
    expect(() => udp(options as UdpOptions)).toThrow(message);
  });
});
