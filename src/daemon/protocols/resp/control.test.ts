import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { createClient as createClient4 } from 'redis4';
import { createClient as createClient5 } from 'redis5';
import { afterEach, describe, expect, test } from 'vitest';
import { listen, ProtocolClient, respCommand } from '../../../../test/support/small-daemon.ts';
import { virtualDaemons } from '../../../../test/support/virtual-daemon.ts';
import { GcraTable } from '../../../backends/local/gcra-table.ts';
import { createHasher } from '../../../core/hash.ts';
import { respProtocol } from './handler.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const LIMITS = `limits:
  api: { bucket: { rate: 1/h, burst: 20 } }
  jobs: { concurrency: 5, match: 'job:*' }`;

/** A connection, as yet without AUTH. */
async function connectTo(password?: string) {
  const { daemon, controls, clock } = await start(LIMITS, undefined, '');
  const { router } = daemon;
  const gcraTable = new GcraTable({
    hasher: createHasher([1, 2], 'latin1'),
    clock,
    maxKeys: 1000,
  });
  const secrets = { adminToken: () => 'secret', password: () => password };
  const protocol = respProtocol({
    ...{ router, controls, gcraTable, version: '0.0.0', clock },
    ...secrets,
  });
  const client = new ProtocolClient(protocol);
  const run = async (...args: string[]): Promise<string> => {
    client.send(respCommand(...args));
    for (let turns = 0; turns < 20; turns++) {
      await new Promise(setImmediate);
      const text = client.takeReceived();
      if (text !== '') return text.trimEnd();
    }
    throw new Error(`no reply to ${args}`);
  };
  return { run, controls, protocol };
}

/** A connection of an operator. */
async function setUp() {
  const connection = await connectTo();
  expect(await connection.run('AUTH', 'admin', 'secret')).toBe('+OK');
  return connection;
}

const NO_OPERATOR = /^-NOPERM/;
const BANNED = /^\+OK/;

describe('rights of operators', () => {
  // As clients log in with a user name and a password, by their default options.
  test.each([
    ['redis-py 8, Lettuce 7', ['HELLO', '3', 'AUTH', 'admin', 'secret']],
    ['redis-py with RESP2, Jedis', ['HELLO', '2', 'AUTH', 'admin', 'secret']],
    ['with a name', ['HELLO', '3', 'AUTH', 'admin', 'secret', 'SETNAME', 'x']],
    ['name first', ['hello', '3', 'setname', 'x', 'auth', 'admin', 'secret']],
    ['AUTH', ['AUTH', 'admin', 'secret']],
  ])('%s: %j with the admin token gives them, with and without a password', async (_, login) => {
    for (const password of [undefined, 'port']) {
      const { run } = await connectTo(password);
      expect(await run(...login)).toMatch(/^[+%*]/);
      expect(await run('CLIENT', 'SETINFO', 'LIB-NAME', 'redis-py')).toBe('+OK');
      expect(await run('CLIENT', 'SETINFO', 'LIB-VER', '8.0.0')).toBe('+OK');
      expect(await run('SLUICE.BAN', 'eve', '60')).toMatch(BANNED);
    }
  });

  test.each([
    ['RESET', ['RESET']],
    ['AUTH as another user', ['AUTH', 'default', 'port']],
    ['AUTH without a user', ['AUTH', 'port']],
    ['AUTH as admin with the password of the port', ['AUTH', 'admin', 'port']],
    ['HELLO with AUTH as another user', ['HELLO', '2', 'AUTH', 'default', 'port']],
    ['HELLO, admin with the password of the port', ['HELLO', '3', 'AUTH', 'admin', 'port']],
  ])('%s: ends them', async (_, command) => {
    const { run } = await connectTo('port');
    await run('AUTH', 'admin', 'secret');
    expect(await run('SLUICE.BAN', 'eve', '60')).toMatch(BANNED);
    expect(await run(...command)).toMatch(/^[+%*]/);
    if (command[0] === 'RESET') expect(await run('AUTH', 'port')).toBe('+OK');
    expect(await run('SLUICE.BAN', 'zoe', '60')).toMatch(NO_OPERATOR);
  });

  test.each([
    ['AUTH', 'default', 'wrong'],
    ['AUTH', 'admin', 'wrong'],
    ['HELLO', '3', 'AUTH', 'admin', 'wrong'],
    ['HELLO', '3', 'AUTH', 'default', 'port', 'FOO'],
    ['HELLO', '3'],
  ])('%s %s %s: a login that fails, and HELLO without AUTH, leave them', async (...command) => {
    const { run } = await connectTo('port');
    await run('AUTH', 'admin', 'secret');
    await run(...command);
    expect(await run('SLUICE.UNBAN', 'eve')).toBe(':0');
  });

  test('token as another user, or as no user: gives none', async () => {
    for (const login of [
      ['HELLO', '2', 'AUTH', 'default'],
      ['AUTH', 'default'],
    ]) {
      const { run } = await connectTo();
      await run(...login, 'secret');
      expect(await run('SLUICE.BAN', 'eve', '60')).toMatch(NO_OPERATOR);
      const { run: guarded } = await connectTo('port');
      expect(await guarded(...login, 'secret')).toMatch(/^-WRONGPASS/);
      expect(await guarded('AUTH', 'secret')).toMatch(/^-WRONGPASS/);
    }
  });

  test('MULTI: queued commands have the rights of the last AUTH before them', async () => {
    const { run } = await connectTo();
    for (const command of [['MULTI'], ['AUTH', 'admin', 'secret'], ['SLUICE.UNBAN', 'eve']])
      await run(...command);
    await run('AUTH', 'default', 'any');
    await run('SLUICE.UNBAN', 'eve');
    expect(await run('EXEC')).toMatch(/^\*4\r\n\+OK\r\n:0\r\n\+OK\r\n-NOPERM/s);
  });

  const login = (port: number) => ({
    url: `redis://admin:secret@127.0.0.1:${port}`,
    socket: { reconnectStrategy: false },
  });
  test.each([
    ['node-redis 6', createClient],
    ['node-redis 6 with RESP2', (options: object) => createClient({ ...options, RESP: 2 })],
    ['node-redis 5', createClient5],
    ['node-redis 5 with RESP3', (options: object) => createClient5({ ...options, RESP: 3 })],
    ['node-redis 4', createClient4],
  ] as [string, (options: object) => ReturnType<typeof createClient>][])(
    '%s, user admin: has them',
    async (_, create) => {
      const { protocol } = await connectTo('port');
      const server = await listen(protocol);
      const client = create(login(server.port));
      client.on('error', () => {}); // a refused login rejects `connect`
      try {
        await client.connect();
        expect(await client.sendCommand(['SLUICE.BAN', 'eve', '60'])).toBe('OK');
      } finally {
        client.destroy?.();
        await server.close();
      }
    },
  );

  test('ioredis, user admin: has them', async () => {
    const { protocol } = await connectTo('port');
    const server = await listen(protocol);
    const client = new Redis({ port: server.port, username: 'admin', password: 'secret' });
    try {
      expect(await client.call('SLUICE.BAN', 'eve', '60')).toBe('OK');
    } finally {
      client.disconnect();
      await server.close();
    }
  });
});

describe('SLUICE.OVERRIDE', () => {
  test.each([
    [['100/s', '60'], { limit: 'api', rule: { bucket: { rate: '100/s' } } }],
    [['100/s', '60', 'api'], { limit: 'api', rule: { bucket: { rate: '100/s' } } }],
    [['100/s', '60', 'BURST', '500'], { rule: { bucket: { rate: '100/s', burst: 500 } } }],
    [
      ['100/s', '60', 'api', 'burst', '2.5', 'NOTE', 'why not'],
      { rule: { bucket: { rate: '100/s', burst: 2.5 } }, note: 'why not' },
    ],
    [['100/s', '60', 'NOTE', 'x', 'LIMIT', 'api'], { limit: 'api', note: 'x' }],
    [
      ['{"window": {"limit": 5, "per": "1m"}}', '60'],
      { rule: { window: { limit: 5, per: '1m' } } },
    ],
  ])('%j: the override of HTTP and the command line', async (args, expected) => {
    const { run, controls } = await setUp();
    expect(await run('SLUICE.OVERRIDE', 'zoe', ...args)).toBe('+OK');
    expect(controls.list()).toMatchObject([{ kind: 'override', key: 'zoe', ...expected }]);
  });

  test('EXACT: a key that reads like a pattern, for override, its removal and reset', async () => {
    const { run, controls } = await setUp();
    const override = ['SLUICE.OVERRIDE', 'a*b', '100/s', '60'];
    expect(await run(...override)).toContain('add EXACT for a key that contains * or ?');
    expect(await run(...override, 'BURST', '7', 'EXACT')).toBe('+OK');
    expect(controls.list()).toHaveLength(1);
    expect(await run('SLUICE.RESET', 'a*b', 'api')).toContain('add EXACT');
    expect(await run('SLUICE.RESET', 'a*b', 'api', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.RESET', 'a*b', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.REMOVEOVERRIDE', 'a*b', 'EXACT')).toBe(':1');
    expect(await run('SLUICE.REMOVEOVERRIDE', 'a*b', 'LIMIT', 'api', 'EXACT')).toBe(':0');
  });

  test.each([
    [['100/s', '60', 'api', 'BURST'], 'ERR syntax error'],
    [['100/s', '60', 'api', 'more'], 'ERR syntax error'],
    [['100/s', '60', 'BURST', '1', 'BURST', '2'], 'ERR syntax error'],
    [['100/s', '60', 'BURST', 'x'], 'expected `burst` to be'],
    [['{"window":', '60'], 'expected `rule` to be JSON'],
    [['{"window": {"limit": 5, "per": "1m"}}', '60', 'BURST', '9'], '`rule` to be left out'],
    [['fast', '60'], '`rate`'],
  ])('%j: an error that names what is wrong', async (args, message) => {
    const { run, controls } = await setUp();
    expect(await run('SLUICE.OVERRIDE', 'zoe', ...args)).toContain(message);
    expect(controls.list()).toEqual([]);
  });
});
