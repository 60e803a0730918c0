import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { afterEach, describe, expect, test } from 'vitest';
import { freeUdpPorts, hasNamespaces, startNamespace } from '../../../test/support/services.ts';
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

transportContract('UDP to a list', UNICAST, async () => {
  const peers = (await freeUdpPorts(3)).map((port) => `127.0.0.1:${port}`);
  return { node: (n) => udp({ peers, bind: peers[n] }), stop: () => {} };
});

transportContract('UDP to a name', { isAddressed: true, isLoopback: false }, async () => {
  const [port] = await freeUdpPorts(1);
  // As nodes of a cluster have it: one name, one port, an address for each.
  const resolve = async () => ['127.0.0.1', '127.0.0.2', '127.0.0.3'];
  return {
    node: (n) =>
      udp({ peers: `fleet.test:${port}`, bind: `127.0.0.${n + 1}:${port}` }, { resolve }),
    stop: () => {},
  };
});

describe('UDP to a name', () => {
  const open: Transport[] = [];
  const made = (options: UdpOptions, world?: UdpDependencies): Transport => {
    const transport = udp(options, world);
    open.push(transport);
    return transport;
  };
  afterEach(async () => {
    for (const transport of open.splice(0)) await transport.close();
  });

  test('finds those who came later, and leaves alone those who went', async () => {
    const [port] = await freeUdpPorts(1);
    const clock = new VirtualClock();
    let hosts: string[] | undefined = ['127.0.0.2'];
    let looks = 0;
    const resolve = async (name: string, family: number): Promise<readonly string[]> => {
      looks++;
      expect([name, family]).toEqual(['fleet.test', 4]);
      if (!hosts) throw new Error('SERVFAIL');
      return hosts;
    };
    const peers = `fleet.test:${port}`;
    const own = made({ peers, bind: `127.0.0.1:${port}`, resolveEvery: '10s' }, { clock, resolve });
    const [two, three] = await Promise.all(
      [2, 3].map((n) => openNode(made({ peers, bind: `127.0.0.${n}:${port}` }, { resolve }))),
    );
    await own.open(() => {});
    looks = 0;
    const first = Buffer.from('first');
    await waitUntil(
      'two hears',
      () => hasReceived(two, first),
      () => own.broadcast(first),
    );
    expect(hasReceived(three, first)).toBe(false);

    hosts = ['127.0.0.3'];
    clock.advance(10_000);
    const second = Buffer.from('second');
    await waitUntil(
      'three hears',
      () => hasReceived(three, second),
      () => own.broadcast(second),
    );
    expect(looks).toBe(1);

    hosts = undefined; // nobody answers for the name: those who were known still are
    clock.advance(10_000);
    await waitUntil('it has looked', () => looks === 2);
    await waitUntil('it has seen', () => true);
    const third = Buffer.from('third');
    await waitUntil(
      'three hears',
      () => hasReceived(three, third),
      () => own.broadcast(third),
    );
    hosts = ['127.0.0.2'];
    clock.advance(1000); // and it looks again soon
    const fourth = Buffer.from('fourth');
    await waitUntil(
      'two hears',
      () => hasReceived(two, fourth),
      () => own.broadcast(fourth),
    );
    const fifth = Buffer.from('fifth');
    await waitUntil(
      'two hears',
      () => hasReceived(two, fifth),
      () => own.broadcast(fifth),
    );
    expect(hasReceived(three, fifth)).toBe(false);
  });

  test('that nobody knows is told of once, and looked up until somebody does', async () => {
    const heard: string[] = [];
    const listen = (warning: Error): unknown => heard.push(warning.message);
    process.on('warning', listen);
    const [port] = await freeUdpPorts(1);
    const clock = new VirtualClock();
    let looks = 0;
    const resolve = async (): Promise<readonly string[]> => {
      looks++;
      if (looks % 2) throw new Error('ENOTFOUND');
      return [];
    };
    const transport = made(
      { peers: 'misspelt.test:1', bind: `127.0.0.1:${port}` },
      { clock, resolve },
    );
    await transport.open(() => {});
    await waitUntil(
      'it looks again',
      () => looks === 3,
      () => clock.advance(1000),
    );
    process.off('warning', listen);
    expect(heard).toEqual(['peers cannot be found: misspelt.test: ENOTFOUND']);
  });

  test('that is looked up by the system', async () => {
    const [port, other] = await freeUdpPorts(2);
    const peers = [`localhost:${port}`, `localhost:${other}`];
    const one = await openNode(made({ peers, bind: `127.0.0.1:${port}` }, { clock: systemClock }));
    const two = await openNode(made({ peers, bind: `127.0.0.1:${other}` }));
    const bytes = Buffer.from('hello');
    await waitUntil(
      'it is heard',
      () => hasReceived(two, bytes),
      () => one.transport.broadcast(bytes),
    );
    expect(one.transport.isLoopback).toBe(true);
  });
});

describe('UDP', () => {
  test('counts what could not be sent, and says nothing', async () => {
    const [port, nobody] = await freeUdpPorts(2);
    const peers = [`127.0.0.1:${nobody}`];
    const transport = udp({ peers, bind: `127.0.0.1:${port}` });
    await transport.open(() => {});
    transport.broadcast(Buffer.alloc(70_000)); // EMSGSIZE
    await waitUntil('it is counted', () => transport.counts.failed === 1);
    transport.broadcast(Buffer.alloc(10)); // refused, of which a socket like this learns nothing
    transport.broadcast(Buffer.alloc(10));
    await waitUntil('they are gone', () => transport.counts.sent === 2);
    await transport.close();
  });

  test('keeps only so much that the system would not take yet', async () => {
    const [port, other] = await freeUdpPorts(2);
    const transport = udp({ peers: [`127.0.0.1:${other}`], bind: `127.0.0.1:${port}` });
    await transport.open(() => {});
    const bytes = Buffer.alloc(60_000);
    for (let n = 0; n < 1000; n++) transport.broadcast(bytes);
    await waitUntil('all went somewhere', () => {
      const { sent, failed, dropped } = transport.counts;
      return sent + failed + dropped === 1000;
    });
    await transport.close();
  });

  test('does not begin where somebody else is, and leaves nothing behind', async () => {
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

  test('works by IPv6 too', async () => {
    const [port, other] = await freeUdpPorts(2);
    const peers = [`[::1]:${port}`, `[::1]:${other}`];
    const one = await openNode(udp({ peers, bind: peers[0] }));
    const two = await openNode(udp({ peers, bind: peers[1] }));
    const bytes = Buffer.from('six');
    await waitUntil(
      'it is heard',
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
  ])('of %j knows whether it stays on this machine: %j', (options, isLoopback) => {
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
    [{ peers: ['1.2.3.4:1', '[::1]:1'] }, /all of IPv4 or all of IPv6/],
    [{ peers: 'a:1', bind: 'b:1' }, /`udp.bind` to be an address of this machine/],
    [{ group: '10.0.0.1:1' }, /`udp.group` to be a multicast address and a port/],
    [{ group: '239.0.0.1:1', interface: 'eth0' }, /`udp.interface` to be the address of/],
    [{ group: '[ff02::1]:1' }, /`udp.group` to be a group with its interface, such as/],
    [{ group: '[ff02::1]:1', interface: 'fe80::1' }, /`udp.group` to be a group with its/],
    [{ group: '239.0.0.1:1', ttl: 256 }, /`udp.ttl` to be/],
    [{ group: '239.0.0.1:1', tll: 2 }, /`udp.tll` to be one of/],
    [{ peers: ['239.0.0.1:1', '10.0.0.1:1'] }, /`udp.peers` to be no groups/],
    [{ peers: 'a:1', resolveEvery: 'often' }, /`udp.resolveEvery` to be a duration/],
  ])('of %j is refused', (options, complaint) => {
    expect(() => udp(options as UdpOptions)).toThrow(complaint);
  });
});

// A group reaches further than this machine, so it is played in a network of its own.
if (hasNamespaces()) {
  test('UDP to a group keeps the contract, in a network of its own', {
    timeout: 90_000,
  }, async () => {
    const space = startNamespace('10.77.0.1/24');
    try {
      const config = 'test/support/multicast/vitest.config.ts';
      const vitest = ['node_modules/vitest/vitest.mjs', 'run', '--config', config];
      const [command, args] = space.run(process.execPath, ...vitest, '--reporter=verbose');
      const { stdout } = await promisify(execFile)(command, args, { timeout: 80_000 });
      expect(stdout).toMatch(/UDP to a group/);
      expect(stdout).toMatch(/UDP to a group on loopback/);
      expect(stdout).toMatch(/UDP to a group of one link/);
    } catch (error) {
      const { stdout = '', stderr = '' } = error as { stdout?: string; stderr?: string };
      throw new Error(`${error}\n${stdout}\n${stderr}`);
    } finally {
      space.stop();
    }
  });
}
