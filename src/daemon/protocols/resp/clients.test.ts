import { execFile } from 'node:child_process';
import { connect } from 'node:net';
import { promisify } from 'node:util';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { redisServer, type Service, startRedis } from '../../../../test/support/services.ts';
import {
  createTestDaemon,
  type ListeningServer,
  listen,
} from '../../../../test/support/small-daemon.ts';

const run = promisify(execFile);

let server: ListeningServer;
beforeAll(async () => {
  const daemon = createTestDaemon(undefined, { clients: () => server.connections.counts.open });
  server = await listen(daemon.resp);
});
afterAll(() => server.close());

test.each([2, 3] as const)(
  'node-redis with RESP%i: checks, inspects and gets errors',
  async (RESP) => {
    const client = createClient({ url: `redis://127.0.0.1:${server.port}`, RESP, name: 'me' });
    await client.connect();
    const reply = await client.sendCommand(['CL.THROTTLE', `node-redis ${RESP}`, '4', '1', '1']);
    expect(reply).toEqual([0, 5, 4, -1, 1]);
    expect(await client.ping()).toBe('PONG');
    expect(await client.clientGetName()).toBe('me');
    const many = await Promise.all(
      [1, 2, 3].map((n) => client.sendCommand(['SLUICE.CHECK', '*', `node ${RESP}`, `${n}`])),
    );
    expect(many).toEqual([
      [1, 4, 0, '', '', ''],
      [1, 2, 0, '', '', ''],
      [0, 2, expect.any(Number), 'all-users', '', ''],
    ]);
    const inspection = await client.sendCommand(['SLUICE.INSPECT', `node ${RESP}`]);
    expect(JSON.stringify(inspection)).toContain('all-users');
    await expect(client.sendCommand(['NONSENSE'])).rejects.toThrow(/unknown command 'NONSENSE'/);
    await client.close();
  },
);

test('node-redis multi(): runs the commands together and replies to each', async () => {
  const client = createClient({ url: `redis://127.0.0.1:${server.port}` });
  await client.connect();
  const check = (cost: string) => ['SLUICE.CHECK', '*', 'node multi', cost];
  const replies = await client.multi().addCommand(check('2')).ping().addCommand(check('4')).exec();
  expect(replies).toEqual([
    [1, 3, 0, '', '', ''],
    'PONG',
    [0, 3, expect.any(Number), 'all-users', '', ''],
  ]);
  const failing = client.multi().addCommand(check('3')).addCommand(['NONSENSE']).exec();
  await expect(failing).rejects.toThrow(/unknown command|EXECABORT/);
  expect(await client.sendCommand(check('3'))).toEqual([1, 0, 0, '', '', '']); // nothing was counted
  await expect(client.watch('key')).rejects.toThrow(/WATCH is not supported/);
  await client.close();
});

test('ioredis multi(): runs the commands together and replies to each', async () => {
  const client = new Redis({ port: server.port });
  const replies = await client.multi().call('SLUICE.CHECK', '*', 'io multi').ping().exec();
  expect(replies).toEqual([
    [null, [1, 4, 0, '', '', '']],
    [null, 'PONG'],
  ]);
  await client.quit();
});

test('node-redis with default options: checks', async () => {
  const client = createClient({ url: `redis://127.0.0.1:${server.port}` });
  await client.connect();
  expect(await client.sendCommand(['CL.THROTTLE', 'default options', '0', '1', '9'])).toEqual([
    0, 1, 0, -1, 9,
  ]);
  await client.quit();
});

test('ioredis with default options: checks, INFO and QUIT', async () => {
  const client = new Redis({ port: server.port });
  const throttle = () => client.call('CL.THROTTLE', 'ioredis', '1', '1', '60');
  expect(await throttle()).toEqual([0, 2, 1, -1, 60]);
  expect(await Promise.all([throttle(), throttle()])).toEqual([
    [0, 2, 0, -1, 120],
    [1, 2, 0, 60, 120],
  ]);
  expect(await client.info()).toContain('sluice_version:1.2.3');
  expect(await client.quit()).toBe('OK');
  await expect.poll(() => server.connections.counts.protocolErrors).toBe(0); // QUIT is no protocol error
});

describe.skipIf(redisServer() === undefined)('Redis tools', () => {
  const cli = async (...args: string[]): Promise<string> => {
    const { stdout } = await run('redis-cli', ['-p', `${server.port}`, ...args], {
      timeout: 10_000,
    });
    return stdout.trim();
  };

  test('redis-cli: prints replies', async () => {
    expect(await cli('CL.THROTTLE', 'cli', '15', '30', '60')).toBe('0\n16\n15\n-1\n2');
    expect(await cli('-3', 'SLUICE.CHECK', '*', 'cli')).toBe('1\n4\n0');
    expect(await cli('PING')).toBe('PONG');
    expect(await cli('-3', '--json', 'SLUICE.INSPECT', 'cli')).toMatch(
      /^\{"key":"cli","limits":\[\{/,
    );
  });

  test('redis-benchmark: runs without errors', async () => {
    const flags = [
      '-p',
      `${server.port}`,
      '-n',
      '20000',
      '-c',
      '8',
      '-P',
      '16',
      '-q',
      '-r',
      '1000',
    ];
    const throttle = ['CL.THROTTLE', 'bench:__rand_int__', '4', '1', '1'];
    const { stdout, stderr } = await run('redis-benchmark', [...flags, ...throttle], {
      timeout: 20_000,
    });
    expect(stdout).toMatch(/requests per second/);
    expect(stdout + stderr).not.toMatch(/error|warning/i);
  });

  /** Everything received up to the reply to `PING last`. */
  const exchange = (port: number, sent: string): Promise<string> =>
    new Promise((resolve) => {
      let received = '';
      const socket = connect(port, '127.0.0.1', () => socket.write(sent));
      socket.on('data', (bytes) => {
        received += bytes.toString('latin1');
        if (received.endsWith('+last\r\n') || received.endsWith('$4\r\nlast\r\n')) socket.destroy();
      });
      socket.on('close', () => resolve(received));
      socket.on('error', () => {});
    });

  describe('same reply as Redis', () => {
    let redis: Service;
    beforeAll(async () => {
      redis = await startRedis();
    });
    afterAll(() => redis.stop());

    test.each([
      ...['PING', 'PING a', 'PING a b', 'ECHO', 'ECHO a', 'FOO', 'FOO a b', 'SELECT 0', 'SELECT x'],
      ...['HELLO 4', 'HELLO x', 'HELLO 3 FOO', 'HELLO 3 AUTH a', 'AUTH x', 'AUTH a b', 'RESET'],
      ...['CLIENT', 'CLIENT FOO', 'CLIENT SETNAME', 'CLIENT SETNAME "a b"', 'CLIENT SETNAME a'],
      ...['CLIENT GETNAME', 'CLIENT GETNAME x', 'COMMAND FOO', 'COMMAND DOCS foo', 'CONFIG FOO'],
      ...['CONFIG GET', 'CONFIG GET save', 'CONFIG GET appendonly', 'QUIT', 'QUIT x', 'ping "a'],
      ...[
        'ping "a"b',
        'ping "\\x41\\n\\q"',
        "ping 'a\\'b\\n'",
        'ping a"b c"',
        '*1',
        '*x',
        '*01',
        '* 1',
      ],
      ...[
        '*1\r\n+PING',
        '*1\r\n$-1',
        '*1\r\n$x',
        '*1\r\n$04',
        '*1\r\n$600000000',
        '*0',
        '*-1',
        '*-7',
      ],
      ...[
        '*1\r\n$0\r\n',
        '*1\r\n$4\r\nPINGxxPING',
        `FOO ${'x'.repeat(200)} y`,
        'FOO a\x01b',
        '   ',
      ],
      ...[
        'POST / HTTP/1.1',
        'Host: x',
        'AUTH a b c',
        'COMMAND INFO nonsense',
        'HELLO 3 SETNAME "a b"',
      ],
      ...['MULTI x', 'EXEC', 'DISCARD', 'MULTI\r\nEXEC', 'MULTI\r\nPING\r\nECHO a\r\nEXEC'],
      ...['MULTI\r\nFOO\r\nPING\r\nEXEC', 'MULTI\r\nECHO\r\nPING\r\nEXEC', 'MULTI\r\nDISCARD'],
      ...['MULTI\r\nMULTI\r\nPING\r\nEXEC', 'MULTI\r\nWATCH a\r\nPING\r\nEXEC', 'MULTI\r\nQUIT'],
      ...['MULTI\r\nFOO\r\nDISCARD\r\nEXEC', 'MULTI\r\nSELECT x\r\nPING\r\nEXEC', 'MULTI\r\nRESET'],
      ...['MULTI\r\nAUTH x\r\nHELLO 9\r\nping "a b"\r\nEXEC'],
    ])('%j', async (command) => {
      const sent = `${command}\r\nPING last\r\n`;
      expect(await exchange(server.port, sent)).toBe(await exchange(redis.port, sent));
    });
  });
});
