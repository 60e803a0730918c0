import { execFile } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { promisify } from 'node:util';
import { describe, expect, test, vi } from 'vitest';
import { startProxy } from '../../../test/support/redis-proxy.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';
import { listenForErrors } from './client-errors.ts';

const run = promisify(execFile);

async function runProgram(program: string) {
  const args = ['--input-type=module', '-e', program];
  return await run(process.execPath, args, { timeout: 20_000 });
}

const LIMITER = `
  import { limiter } from 'sluice';
  import { redis } from 'sluice/redis';
  const limitBy = (client, options) => limiter({ name: 'api', limit: { bucket: { rate: '10/s' } }, backend: redis(client, options) });`;

const CLIENTS = {
  'node-redis': (port: number) =>
    `const client = await (await import('redis')).createClient({ socket: { port: ${port} } }).connect();
     const end = () => client.destroy();`,
  ioredis: (port: number) =>
    `const client = new (await import('ioredis')).Redis(${port});
     const end = () => client.disconnect();`,
};

describe.skipIf(redisServer() === undefined)('Redis client', () => {
  test.each(Object.entries(CLIENTS))(
    '%s without an error listener: the process survives when Redis is killed, and warns once',
    async (_name, connect) => {
      const server = await startRedis();
      const { stdout, stderr } = await runProgram(`${LIMITER}
        ${connect(server.port)}
        const api = limitBy(client, { deadline: '1s' }); // a loaded machine is no outage
        await api.check('key');
        process.kill(${server.pid}, 'SIGKILL');
        // Two attempts to reconnect have failed, each with an event.
        for (let n = 0; n < 2; n++) await new Promise((resolve) => client.once('reconnecting', resolve));
        console.log((await api.check('key')).verdict, client.listenerCount('error'));
        await api.close();
        console.log(client.listenerCount('error'));
        end();`);
      await server.kill();
      expect(stdout.trim().split('\n')).toEqual(['allow 1', '0']);
      expect(stderr.match(/SLUICE_REDIS/g)).toHaveLength(1);
      expect(stderr).toContain('without a listener of "error" failed');
    },
    30_000,
  );

  test.each(Object.entries(CLIENTS))(
    '%s of a pool store and of a channel of peers: the process survives when Redis is killed',
    async (_name, connect) => {
      const server = await startRedis();
      const { stdout, stderr } = await runProgram(`
        import { limiter } from 'sluice';
        import { peers, redisChannel } from 'sluice/peers';
        import { pool, redisStore } from 'sluice/pool';
        async function start() { ${connect(server.port)} return { client, end }; }
        const [ofPool, ofPeers] = [await start(), await start()];
        const store = redisStore(ofPool.client);
        const pods = pool(store);
        const fleet = peers({ transport: redisChannel(ofPeers.client), key: 'a-secret-of-20-chars' });
        const api = limiter({ name: 'api', limit: { bucket: { rate: '10/s' } }, backend: fleet });
        await Promise.all([pods.opened, fleet.opened]);
        const reconnecting = ({ client }) => new Promise((resolve) => client.once('reconnecting', resolve));
        process.kill(${server.pid}, 'SIGKILL');
        for (let n = 0; n < 2; n++) await Promise.all([ofPool, ofPeers].map(reconnecting));
        const counts = () => [ofPool, ofPeers].map(({ client }) => client.listenerCount('error'));
        console.log(api.check('key').verdict, ...counts());
        await Promise.all([pods.close(), fleet.close(), store.close()]);
        console.log(...counts());
        for (const { end } of [ofPool, ofPeers]) end();
        process.exit(); // a subscriber may still be connecting`);
      await server.kill();
      expect(stdout.trim().split('\n')).toEqual(['allow 1 1', '0 0']);
      expect(stderr.match(/SLUICE_REDIS/g)).toHaveLength(1);
      expect(stderr).toMatch(/Meanwhile (the pool keeps its last size|peers do not hear)/);
    },
    30_000,
  );

  test('node-redis that was never connected: the first decision warns once', async () => {
    const { stdout, stderr } = await runProgram(`${LIMITER}
      const api = limitBy((await import('redis')).createClient());
      for (let n = 0; n < 3; n++) console.log((await api.check('key')).verdict);
      await api.close();`);
    expect(stdout.trim().split('\n')).toEqual(['allow', 'allow', 'allow']);
    expect(stderr.match(/SLUICE_REDIS/g)).toHaveLength(1);
    expect(stderr).toContain('Call client.connect() before the first decision');
  }, 30_000);
});

/** Clients with a silent error listener, in a program that starts while Redis is down. */
const SILENT_CLIENTS = {
  'node-redis': `const client = (await import('redis')).createClient({ socket: { port: 1 }, disableOfflineQueue: true });
     client.on('error', () => {});
     client.connect().catch(() => {});`,
  ioredis: `const client = new (await import('ioredis')).Redis({ port: 1, enableOfflineQueue: false });
     client.on('error', () => {});`,
};

describe.each(Object.entries(SILENT_CLIENTS))('%s without a connection', (_name, connect) => {
  const runCalls = async (observe: string) =>
    await runProgram(`${LIMITER}
      ${connect}
      const api = limitBy(client);
      ${observe}
      for (let n = 0; n < 3; n++) console.log((await api.check('key')).verdict);
      await api.close();
      setImmediate(() => process.exit()); // Node prints a warning on the next tick`);

  test('calls are decided by onUnavailable, and the process warns once', async () => {
    const { stdout, stderr } = await runCalls('');
    expect(stdout.trim().split('\n')).toEqual(['allow', 'allow', 'allow']);
    expect(stderr.match(/SLUICE_REDIS/g)).toHaveLength(1);
    expect(stderr).toContain(
      "a Redis client has no connection. Until it has one, `onUnavailable: 'local'`",
    );
  }, 30_000);

  test('a listener of the limiter hears of it, and the process does not warn', async () => {
    const observe = `api.on(({ type, isAvailable }) => type === 'availability' && console.log(type, isAvailable));`;
    const { stdout, stderr } = await runCalls(observe);
    expect(stdout.trim().split('\n')).toEqual(['availability false', 'allow', 'allow', 'allow']);
    expect(stderr).toBe('');
  }, 30_000);
});

describe.skipIf(redisServer() === undefined)('Redis that requires a password', () => {
  const clientsOf = (port: number) => ({
    'node-redis': `const client = (await import('redis')).createClient({ socket: { port: ${port} }, password, disableOfflineQueue: true });
       const refused = new Promise((resolve) => client.on('error', resolve));
       client.connect().catch(() => {});
       const end = () => client.destroy();`,
    ioredis: `const client = new (await import('ioredis')).Redis({ port: ${port}, password, enableOfflineQueue: false });
       const refused = new Promise((resolve) => client.on('error', resolve));
       const end = () => client.disconnect();`,
  });

  test.each([
    ['node-redis', 'undefined', 'NOAUTH'],
    ['node-redis', '"wrong"', 'WRONGPASS'],
    ['ioredis', '"wrong"', 'WRONGPASS'],
  ] as const)(
    '%s with the password %s: the process warns of %s, and the outage names it',
    async (name, password, code) => {
      const server = await startRedis('--requirepass', 'secret');
      const { stdout, stderr } = await runProgram(`${LIMITER}
        const password = ${password};
        ${clientsOf(server.port)[name]}
        const api = limitBy(client);
        api.on(({ type, reason }) => type === 'availability' && console.log(reason.message));
        await refused;
        await api.check('key');
        await api.close();
        end();
        setImmediate(() => process.exit());`);
      await server.kill();
      expect(stdout).toMatch(new RegExp(`^.+: ${code} `));
      expect(stderr.match(/SLUICE_REDIS/g)).toHaveLength(1);
      expect(stderr).toContain(`Redis refuses the connection: ${code}`);
    },
    30_000,
  );
});

describe.skipIf(redisServer() === undefined)('Redis that replies after the deadline', () => {
  const runCalls = async (rttMs: number, observe: string) => {
    const server = await startRedis();
    const proxy = await startProxy(server.port, rttMs / 2);
    try {
      return await runProgram(`${LIMITER}
        const { createClient } = await import('redis');
        const client = await createClient({ socket: { port: ${proxy.port} } }).on('error', () => {}).connect();
        const api = limitBy(client);
        process.on('warning', ({ code, message }) => {
          console.log(code, message);
          if (message.includes('round trip')) end();
        });
        const end = async () => {
          await api.close();
          client.destroy();
        };
        ${observe}
        console.log((await api.check('key')).verdict);`);
    } finally {
      proxy.stop();
      await server.kill();
    }
  };

  test('the process warns what decides, and that the round trip is longer than the deadline', async () => {
    const { stdout } = await runCalls(400, '');
    const [verdict, outage, late, ...others] = stdout.trim().split('\n');
    expect([verdict, others]).toEqual(['allow', []]);
    expect(outage).toMatch(
      /^SLUICE_REDIS Redis is unavailable: no reply within 100 ms\. .*`onUnavailable: 'local'` decides/,
    );
    expect(late).toMatch(
      /^SLUICE_REDIS Redis replies, but not within `deadline` \(100 ms\): the round trip is about (?:[4-9]\d\d|\d{4,}) ms\./,
    );
    expect(late).toContain('Raise `deadline`');
  }, 30_000);

  test('a listener of the limiter hears of it, and the process does not warn', async () => {
    const observe = `api.on(({ type, reason }) => {
      if (type !== 'availability') return;
      console.log(reason.message);
      setImmediate(end); // Node emits a warning on the next tick
    });`;
    const { stdout } = await runCalls(400, observe);
    expect(stdout.trim().split('\n')).toEqual(['no reply within 100 ms', 'allow']);
  }, 30_000);
});

describe('listenForErrors', () => {
  test('limits with one client share a listener, and the last one that closes removes it', () => {
    const client = new EventEmitter();
    const [first, second] = [listenForErrors(client), listenForErrors(client)];
    expect(client.listenerCount('error')).toBe(1);
    first();
    first();
    expect(client.listenerCount('error')).toBe(1);
    second();
    expect(client.listenerCount('error')).toBe(0);
  });

  test('a client with a listener of its own gets one that does not warn', () => {
    const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const client = new EventEmitter().on('error', () => {});
    const stop = listenForErrors(client);
    expect(client.listenerCount('error')).toBe(2);
    client.emit('error', new Error('connection lost'));
    expect(emit).not.toHaveBeenCalled();
    stop();
    expect(client.listenerCount('error')).toBe(1);
    emit.mockRestore();
  });
});
