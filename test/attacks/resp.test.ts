import { describe, expect, test } from 'vitest';
import { encodeReply } from '../../src/daemon/protocols/resp/reply.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { SeededGenerator } from '../support/seeded-generator.ts';
import { createTestDaemon, ProtocolClient, respCommand } from '../support/small-daemon.ts';

const MAX_SAFE = Number.MAX_SAFE_INTEGER;

/** Numbers around every bound of integers and doubles. */
const HUGE = [
  ...['0', '1', '-1', '4294967296', '999999999999999', '1000000000000000', '1000000000000001'],
  ...[MAX_SAFE - 1, MAX_SAFE, '9007199254740992', '9007199254740993', '9223372036854775807'],
  ...['18446744073709551616', '9'.repeat(30), '9'.repeat(400), `-${'9'.repeat(30)}`],
].map(String);

const INTEGER = /^:-?(?:0|[1-9]\d{0,15})$/;

describe('RESP, numbers beyond exact integers', () => {
  test('CL.THROTTLE: replies five exact integers or an error, and the next command is answered', () => {
    const { resp } = createTestDaemon(new VirtualClock(1e12));
    const random = new SeededGenerator(7);
    const client = new ProtocolClient(resp);
    for (let n = 0; n < 3000; n++) {
      const most = [String(MAX_SAFE), String(MAX_SAFE), '1', '1'];
      const terms = n === 0 ? most : Array.from({ length: 4 }, () => random.oneOf(HUGE));
      client.send(respCommand('CL.THROTTLE', `key${n % 50}`, ...terms));
      const lines = client.takeReceived().split('\r\n').slice(0, -1);
      if (lines[0].startsWith('-ERR')) expect(lines).toHaveLength(1);
      else {
        expect(lines[0], terms.join(' ')).toBe('*5');
        expect(lines).toHaveLength(6);
        for (const line of lines.slice(1)) {
          expect(line, terms.join(' ')).toMatch(INTEGER);
          expect(Math.abs(Number(line.slice(1))), terms.join(' ')).toBeLessThanOrEqual(MAX_SAFE);
        }
      }
      expect(client.send(respCommand('PING')).takeReceived()).toBe('+PONG\r\n');
    }
  });

  test.each(['SLUICE.CHECK', 'SLUICE.TAKEUPTO'])('%s: an unsafe number is an error', (command) => {
    const { resp } = createTestDaemon(new VirtualClock());
    const client = new ProtocolClient(resp);
    for (const number of HUGE.slice(7)) {
      client.send(respCommand(command, 'all-users', 'alice', number));
      expect(client.takeReceived()).toMatch(/^-ERR [^\r]*\r\n$/);
    }
    client.send(respCommand('SLUICE.CHECK', 'all-users', 'alice'));
    expect(client.takeReceived()).toMatch(/^\*6\r\n:1\r\n:4\r\n/); // nothing was taken
  });

  test('SLUICE.CHECK: a wait beyond exact integers is the largest exact one', () => {
    const limits = { yearly: { bucket: { rate: '1/d', burst: 1e15 } } };
    const { resp } = createTestDaemon(new VirtualClock(), { limits });
    const client = new ProtocolClient(resp);
    const take = respCommand('SLUICE.CHECK', 'yearly', 'alice', '999999999999999');
    expect(client.send(take).takeReceived()).toMatch(/^\*6\r\n:1\r\n/);
    const refused = `*6\r\n:0\r\n:1\r\n:${MAX_SAFE}\r\n$6\r\nyearly\r\n$0\r\n\r\n$0\r\n\r\n`;
    expect(client.send(take).takeReceived()).toBe(refused);
  });

  test('reply: an integer is clamped to the exact ones', () => {
    const written = [2 ** 53, 1e16, 1e20, 1e300, Infinity, -Infinity, -1e20, Number.NaN, 1.5].map(
      (number) => String(encodeReply(2, (reply) => reply.integer(number))),
    );
    const [max, min] = [`:${MAX_SAFE}\r\n`, `:-${MAX_SAFE}\r\n`];
    expect(written).toEqual([max, max, max, max, max, min, min, ':0\r\n', ':1\r\n']);
    const doubles = [Infinity, -Infinity, Number.NaN, 1e300, 0.5];
    expect(doubles.map((each) => String(encodeReply(3, (reply) => reply.value(each))))).toEqual([
      ...[',inf\r\n', ',-inf\r\n', ',nan\r\n', ',1e+300\r\n', ',0.5\r\n'],
    ]);
  });
});
