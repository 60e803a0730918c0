import { describe, expect, test } from 'vitest';
import {
  createTestDaemon,
  ProtocolClient,
  respCommand,
} from '../../../../test/support/small-daemon.ts';
import { VirtualClock } from '../../../testing/index.ts';

const LIMITS = {
  user: { bucket: { rate: '5/m', burst: 5 }, match: 'user:*' },
  ip: { bucket: { rate: '20/m', burst: 20 }, match: 'ip:*' },
  db: { concurrency: 2, match: 'db:*' },
};

/** Sends one command; returns its whole reply in one line. */
function setUp(limits: unknown = LIMITS) {
  const daemon = createTestDaemon(new VirtualClock(1_700_000_000_000), { limits });
  const client = new ProtocolClient(daemon.resp);
  return (...args: string[]): string =>
    client
      .send(respCommand(...args))
      .takeReceived()
      .trimEnd()
      .replaceAll('\r\n', ' ');
}

describe('SLUICE.ACQUIREALL', () => {
  const LOGIN = ['SLUICE.ACQUIREALL', 'user', 'user:a', '5', 'ip', 'ip:1', '1'];

  test('waits until all limits allow it, with the reply of SLUICE.CHECKALL', async () => {
    const clock = new VirtualClock(1_700_000_000_000);
    const client = new ProtocolClient(createTestDaemon(clock, { limits: LIMITS }).resp);
    const received = async (afterMs: number): Promise<string> => {
      await clock.advanceAsync(afterMs);
      await new Promise(setImmediate);
      return client.takeReceived().replaceAll('\r\n', ' ');
    };
    client.send(respCommand('SLUICE.CHECKALL', ...LOGIN.slice(1)));
    expect(await received(0)).toMatch(/^\*6 :1 /);
    client.send(respCommand(...LOGIN, 'WAIT', '60000', 'HOLD'));
    expect(await received(59_000)).toBe('');
    expect(await received(1000)).toBe('*6 :1 :0 :0 $0  $3 1-0 $0  ');
    client.send(respCommand(...LOGIN, 'WAIT', '59000'));
    expect(await received(0)).toBe('*6 :0 :0 :60000 $4 user $0  $0  ');
  });

  test.each([
    [[], 'ERR syntax error'],
    [['WAIT'], 'ERR syntax error'],
    [['HOLD'], 'ERR syntax error'],
    [['WAIT', '1', 'ip'], 'ERR syntax error'],
    [['WAIT', '-1'], 'ERR value is not an integer'],
    [['WAIT', '60001'], 'ERR WAIT must be at most 60000 ms (bounds.wait)'],
    [['WAIT', '1', 'ID', 'x'], 'ERR ID is for one check'],
    [['nope', 'k', '1', 'WAIT', '1'], "no limit is named 'nope'"],
    [['ip', 'k', 'x', 'WAIT', '1'], "cost must be a number from 0 to 1e15, got 'x'"],
  ])('arguments %j: an error that names what is wrong', (args, message) => {
    expect(setUp()(...LOGIN, ...args)).toContain(message);
  });

  test('inside MULTI: refused', () => {
    const run = setUp();
    run('MULTI');
    expect(run(...LOGIN, 'WAIT', '1')).toContain('inside MULTI');
  });
});

describe('SLUICE.CHECKALL', () => {
  test('all limits allow: one reply, as of SLUICE.CHECK, with the least that remains', () => {
    const run = setUp();
    const login = ['SLUICE.CHECKALL', 'user', 'user:a', '1', 'ip', 'ip:1', '2'];
    expect(run(...login)).toBe('*6 :1 :4 :0 $0  $0  $0');
    expect(run('SLUICE.CHECK', 'ip', 'ip:1', '0')).toBe('*6 :1 :18 :0 $0  $0  $0');
  });

  test('one limit refuses: nothing is charged, and the reply has what is left', () => {
    const run = setUp();
    const login = ['SLUICE.CHECKALL', 'ip', 'ip:1', '1', 'user', 'user:a', '3'];
    expect(run(...login)).toMatch(/^\*6 :1 :2 /);
    expect(run(...login)).toBe('*6 :0 :2 :12000 $4 user $0  $0');
    expect(run('SLUICE.CHECK', 'ip', 'ip:1', '0')).toMatch(/^\*6 :1 :19 /);
  });

  test('a limit twice with one key: 5 left and two checks of 3 are refused', () => {
    const run = setUp();
    expect(run('SLUICE.CHECKALL', 'user', 'user:a', '3', 'user', 'user:a', '3')).toBe(
      '*6 :0 :5 :-1 $4 user $0  $0',
    );
    expect(run('SLUICE.CHECK', 'user', 'user:a', '5')).toMatch(/^\*6 :1 :0 /);
  });

  test('HOLD: one permit for all, which settles all', () => {
    const run = setUp();
    const held = ['SLUICE.CHECKALL', 'db', 'db:1', '1', 'user', 'user:a', '1', 'HOLD'];
    expect(run(...held)).toBe('*6 :1 :1 :0 $0  $3 1-0 $0');
    expect(run(...held)).toBe('*6 :1 :0 :0 $0  $3 2-0 $0');
    expect(run(...held)).toBe('*6 :0 :0 :0 $2 db $0  $0');
    expect(run('SLUICE.SETTLE', '1-0', 'ignored')).toBe(':1');
    expect(run('SLUICE.CHECK', 'user', 'user:a', '0')).toMatch(/^\*6 :1 :4 /);
    expect(run(...held)).toMatch(/^\*6 :1 :0 .* 3-0 /);
  });

  test('permit of different costs: USED is an error, and the permit can still be settled', () => {
    const run = setUp();
    run('SLUICE.CHECKALL', 'ip', 'ip:1', '5', 'user', 'user:a', '1', 'HOLD');
    expect(run('SLUICE.SETTLE', '1-0', 'ok', 'USED', '1')).toMatch(
      /^-ERR expected `used` to be left out/,
    );
    expect(run('SLUICE.SETTLE', '1-0')).toBe(':1');
  });

  test('limit *: all limits that match each key', () => {
    const run = setUp();
    expect(run('SLUICE.CHECKALL', '*', 'user:a', '1', '*', 'ip:1', '20')).toMatch(/^\*6 :1 :0 /);
    expect(run('SLUICE.CHECK', 'user', 'user:a', '0')).toMatch(/^\*6 :1 :4 /);
  });

  test('invalid arguments: an error, and nothing is charged', () => {
    const run = setUp();
    const first = ['SLUICE.CHECKALL', 'user', 'user:a', '1'];
    expect(run('SLUICE.CHECKALL', 'user', 'user:a')).toMatch(/^-ERR wrong number of arguments/);
    expect(run(...first, 'ip', 'ip:1')).toBe('-ERR syntax error');
    expect(run(...first, 'HOLD', 'HOLD')).toBe('-ERR syntax error');
    for (const cost of ['x', '-1'])
      expect(run(...first, 'ip', 'ip:1', cost)).toBe(
        `-ERR cost must be a number from 0 to 1e15, got '${cost}'`,
      );
    expect(run(...first, 'other', 'ip:1', '1')).toBe("-ERR no limit is named 'other'");
    expect(run(...first, 'ip', 'x'.repeat(5000), '1')).toBe('-ERR key is longer than 4096 bytes');
    const many = Array.from({ length: 33 }, (_, n) => ['ip', `ip:${n}`, '1']).flat();
    expect(run('SLUICE.CHECKALL', ...many)).toBe('-ERR expected at most 32 checks');
    expect(run('SLUICE.CHECKALL', ...many.slice(3))).toMatch(/^\*6 :1 :19 /);
    expect(run('SLUICE.CHECK', 'user', 'user:a', '0')).toMatch(/^\*6 :1 :5 /);
  });
});

describe('remaining: what is left, in every reply', () => {
  test.each([
    ['bucket', { bucket: { rate: '1/h', burst: 5 } }, '3', '5', ':2'],
    ['window', { window: { limit: 5, per: '1h' } }, '3', '5', ':2'],
    ['spacing', { spacing: { every: '1h' } }, '1', '1', ':0'],
    ['ramp', { ramp: { min: 5, max: 5, over: '1s' } }, '3', '5', ':2'],
    ['concurrency', { concurrency: 5 }, '3', '5', ':2'],
    ['adaptive', { adaptive: { initial: 5 } }, '3', '5', ':2'],
    ['all', { all: [{ bucket: { rate: '1/h', burst: 5 } }, { concurrency: 9 }] }, '3', '5', ':2'],
  ])('%s: with HOLD, and after a refusal', (_, limit, first, refused, left) => {
    const run = setUp({ mine: limit });
    expect(run('SLUICE.CHECK', 'mine', 'k', first, 'HOLD').split(' ').slice(0, 3)).toEqual([
      ...['*6', ':1', left],
    ]);
    for (const hold of [['HOLD'], []])
      expect(
        run('SLUICE.CHECK', 'mine', 'k', refused, ...hold)
          .split(' ')
          .slice(0, 3),
      ).toEqual([...['*6', ':0', left]]);
  });

  test('concurrency limit without HOLD: nothing is taken, so all of it is left', () => {
    const run = setUp();
    expect(run('SLUICE.CHECK', 'db', 'db:1')).toMatch(/^\*6 :1 :2 /);
    run('SLUICE.CHECK', 'db', 'db:1', 'HOLD');
    expect(run('SLUICE.CHECK', 'db', 'db:1')).toMatch(/^\*6 :1 :1 /);
  });

  test('several limits: the least of all, whichever refused', () => {
    const run = setUp({
      each: { bucket: { rate: '1/h', burst: 9 } },
      all: { bucket: { rate: '1/h', burst: 4 }, per: 'limit', always: true },
      trial: { bucket: { rate: '1/h', burst: 1 }, shadow: true, always: true },
    });
    expect(run('SLUICE.CHECK', '*', 'k', '10')).toMatch(/^\*6 :0 :4 :-1 \$4 each /);
  });

  test('key in cool-down, or on a deny list: nothing', () => {
    const run = setUp();
    const [permit] = run('SLUICE.CHECK', 'ip', 'ip:1', 'HOLD').match(/1-0/) ?? [''];
    run('SLUICE.SETTLE', permit, 'busy', 'RETRYAFTER', '1000');
    expect(run('SLUICE.CHECK', 'ip', 'ip:1')).toMatch(/^\*6 :0 :0 :1000 /);
    expect(run('SLUICE.CHECK', 'ip', 'ip:1', '2')).toMatch(/^\*6 :0 :0 :1000 /);
  });
});

test('SLUICE.TAKEUPTO and SLUICE.GIVEBACK: take what is left, and give back what was not used', () => {
  const run = setUp();
  expect(run('SLUICE.TAKEUPTO', 'user', 'user:a', '100', 'HOLD')).toBe('*2 :5 $3 1-0');
  expect(run('SLUICE.GIVEBACK', '1-0', '2')).toBe(':1');
  expect(run('SLUICE.TAKEUPTO', 'user', 'user:a', '100', 'HOLD')).toBe('*2 :2 $3 2-0');
  expect(run('SLUICE.GIVEBACK', '2-0', '1')).toBe(':1');
  expect(run('SLUICE.TAKEUPTO', 'user', 'user:a', '100')).toBe('*2 :1 $0');
});
