import { describe, expect, test } from 'vitest';
import {
  createTestDaemon,
  ProtocolClient,
  respCommand,
} from '../../../../test/support/small-daemon.ts';
import { VirtualClock } from '../../../testing/index.ts';

function setUp(extra: Parameters<typeof createTestDaemon>[1] = {}) {
  const clock = new VirtualClock(1_700_000_000_000);
  const client = new ProtocolClient(createTestDaemon(clock, extra).resp);
  const run = (...args: string[]): string =>
    client
      .send(respCommand(...args))
      .takeReceived()
      .trimEnd()
      .replaceAll('\r\n', ' ');
  return { client, run };
}

describe('MULTI and EXEC', () => {
  test('CL.THROTTLE and SLUICE.CHECK: run in order, at EXEC', () => {
    const { run } = setUp();
    expect(run('MULTI')).toBe('+OK');
    expect(run('CL.THROTTLE', 'a', '1', '1', '9')).toBe('+QUEUED');
    expect(run('SLUICE.CHECK', '*', 'alice', '3')).toBe('+QUEUED');
    expect(run('sluice.check', '*', 'alice', '3')).toBe('+QUEUED');
    expect(run('EXEC')).toBe(
      '*3 *5 :0 :2 :1 :-1 :9 *6 :1 :2 :0 $0  $0  $0  *6 :0 :2 :1000 $9 all-users $0  $0',
    );
    expect(run('EXEC')).toBe('-ERR EXEC without MULTI');
  });

  test('a transaction cut into single bytes, with inline commands: the same replies', () => {
    const { client } = setUp();
    const sent = 'MULTI\r\nPING "a b"\r\n*1\r\n$4\r\nPING\r\nSLUICE.CHECK * alice\r\nEXEC\r\n';
    for (const byte of sent) client.send(byte);
    expect(client.takeReceived()).toBe(
      '+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n$3\r\na b\r\n+PONG\r\n*6\r\n:1\r\n:4\r\n:0\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n',
    );
  });

  test.each([
    ['an unknown command', ['NONSENSE']],
    ['a wrong number of arguments', ['SLUICE.CHECK', '*']],
    ['a key that is too long', ['SLUICE.CHECK', '*', 'x'.repeat(5000)]],
    [
      'a second key that is too long',
      ['SLUICE.CHECKALL', '*', 'a', '1', '*', 'x'.repeat(5000), '1'],
    ],
  ])('%s: EXEC fails, and nothing was counted', (_, wrong) => {
    const { run } = setUp();
    run('MULTI');
    expect(run('SLUICE.CHECK', '*', 'alice', '5')).toBe('+QUEUED');
    expect(run('CL.THROTTLE', 'a', '0', '1', '9')).toBe('+QUEUED');
    expect(run(...wrong)).toMatch(/^-ERR /);
    expect(run('EXEC')).toBe('-EXECABORT Transaction discarded because of previous errors.');
    expect(run('SLUICE.CHECK', '*', 'alice', '5')).toMatch(/^\*6 :1/);
    expect(run('CL.THROTTLE', 'a', '0', '1', '9')).toMatch(/^\*5 :0/);
  });

  test('an error at EXEC: stands in the list, and the other commands run', () => {
    const { run } = setUp();
    run('MULTI');
    run('SLUICE.CHECK', 'unknown', 'alice');
    run('SLUICE.CHECK', '*', 'alice');
    expect(run('EXEC')).toBe("*2 -ERR no limit is named 'unknown' *6 :1 :4 :0 $0  $0  $0");
  });

  test.each(['DISCARD', 'RESET'])('%s: drops the queue, and nothing was counted', (word) => {
    const { run } = setUp();
    run('MULTI');
    run('SLUICE.CHECK', '*', 'alice', '5');
    expect(run(word)).toMatch(/^\+(OK|RESET)$/);
    expect(run('SLUICE.CHECK', '*', 'alice', '5')).toMatch(/^\*6 :1/);
  });

  test('queue: at most 1,000 commands and 128 KiB; more makes EXEC fail', () => {
    const { run } = setUp();
    run('MULTI');
    for (let n = 0; n < 1000; n++) expect(run('PING')).toBe('+QUEUED');
    expect(run('EXEC')).toMatch(/^\*1000 \+PONG/);
    run('MULTI');
    for (let n = 0; n < 1000; n++) run('SLUICE.CHECK', '*', 'alice', '0');
    expect(run('PING')).toMatch(/^-ERR a transaction has at most 1000 commands and 131072 bytes/);
    expect(run('EXEC')).toMatch(/^-EXECABORT/);
    run('MULTI');
    for (let n = 0; n < 2; n++) expect(run('ECHO', 'x'.repeat(64_000))).toBe('+QUEUED');
    expect(run('ECHO', 'x'.repeat(64_000))).toMatch(/^-ERR a transaction has at most/);
    expect(run('EXEC')).toMatch(/^-EXECABORT/);
    expect(run('PING')).toBe('+PONG');
  });

  test('before AUTH: MULTI is refused', () => {
    const { run } = setUp({ password: () => 'secret' });
    expect(run('MULTI')).toBe('-NOAUTH Authentication required.');
    run('AUTH', 'secret');
    expect(run('MULTI')).toBe('+OK');
  });

  test('WATCH: is refused with the reason', () => {
    const { run } = setUp();
    expect(run('WATCH', 'key')).toMatch(/^-ERR WATCH is not supported: .* Use MULTI and EXEC/);
  });
});
