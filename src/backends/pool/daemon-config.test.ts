import { describe, expect, test } from 'vitest';
import { readPoolConfig } from './daemon-config.ts';

const storeOf = (value: object) => readPoolConfig(value, 'pool').store;

const createStore = (value: object) => {
  const store = storeOf(value);
  return store.kind === 'standalone' ? store.create() : undefined;
};

describe('pool configuration', () => {
  test.each([
    [{ redis: 'redis://x' }, { kind: 'redis', url: 'redis://x', options: {} }],
    [
      { redis: { url: 'redis://x', prefix: 'p' } },
      { kind: 'redis', url: 'redis://x', options: { prefix: 'p' } },
    ],
    [
      { redis: { url: 'redis://x', deadline: '1s' } },
      { kind: 'redis', url: 'redis://x', options: { deadline: '1s' } },
    ],
    [{ nats: 'nats://x' }, { kind: 'nats', servers: ['nats://x'], options: {} }],
    [
      { nats: { servers: ['a', 'b'], bucket: 'p' } },
      { kind: 'nats', servers: ['a', 'b'], options: { bucket: 'p' } },
    ],
    [
      { nats: { servers: 'x', deadline: '1s' } },
      { kind: 'nats', servers: ['x'], options: { deadline: '1s' } },
    ],
  ])('pool configuration: reads the store %j', (value, store) => {
    expect(storeOf(value)).toEqual(store);
  });

  test.each([
    [{ etcd: 'http://x:2379' }, 'etcd'],
    [{ etcd: { endpoints: ['http://x:2379', 'http://y:2379'], prefix: '/p/' } }, 'etcd'],
    [{ size: 3 }, 'fixed'],
    [{ dns: 'pods.internal' }, 'dns pods.internal'],
    [
      { dns: { host: 'pods.internal', every: '1s', deadline: '1s', family: 6 } },
      'dns pods.internal',
    ],
  ])('pool configuration: %j needs no shared connection', (value, name) => {
    expect(createStore(value)?.name).toBe(name);
  });

  test('pool configuration: variables and files are read at start, not at validation', () => {
    const environment = { environment: { size: 'NOT_SET', rank: 'NOR_THIS' } };
    expect(() => createStore(environment)).toThrow(
      '`pool.environment.NOT_SET` to be a whole number from 1 on, got undefined',
    );
    const etcd = { etcd: { endpoints: 'https://x', tls: { ca: '/not/there' } } };
    expect(() => createStore(etcd)).toThrow(
      /`pool.etcd.tls.ca` to be a file that can be read \(.*ENOENT.*got "\/not\/there"/,
    );
  });

  test('pool configuration: has the options of the library', () => {
    const options = {
      ...{ name: 'p', id: 'me', sync: '50ms', memberTimeout: '1s' },
      ...{ staleFor: '5s', onUnavailable: 'keep' },
    };
    expect(readPoolConfig({ size: 3, ...options }, 'pool').options).toEqual({
      name: 'p',
      id: 'me',
      syncMs: 50,
      memberTimeoutMs: 1000,
      staleForMs: 5000,
      onUnavailable: 'keep',
    });
  });
});
