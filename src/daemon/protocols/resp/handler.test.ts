import { describe, expect, test } from 'vitest';
import {
  createTestDaemon,
  ProtocolClient,
  respCommand,
} from '../../../../test/support/small-daemon.ts';
import { VirtualClock } from '../../../testing/index.ts';
import { ResponseQueue } from '../../server/response-queue.ts';
import { RESP_BOUNDS } from './parser.ts';

const BOUNDS = { maxArguments: 8, maxArgumentBytes: 100, maxCommandBytes: 200, maxKeyBytes: 50 };
const bounds = () => BOUNDS;

function setUp(extra: Parameters<typeof createTestDaemon>[1] = {}) {
  const clock = new VirtualClock(1_700_000_000_000);
  const daemon = createTestDaemon(clock, extra);
  const client = new ProtocolClient(daemon.resp);
  /** Sends one command; returns its whole reply in one line. */
  const run = (...args: string[]): string =>
    inOneLine(client.send(respCommand(...args)).takeReceived());
  return { clock, daemon, client, run };
}

const inOneLine = (received: string): string => received.trimEnd().replaceAll('\r\n', ' ');

/** One turn of the event loop, enough for pending replies. */
const nextTurn = () => new Promise((turn) => setImmediate(turn));

describe('CL.THROTTLE', () => {
  test('replies: the same as redis-cell', () => {
    const { clock, run } = setUp();
    const at = (seconds: number, quantity: string): string => {
      clock.advance(1_700_000_000_000 + seconds * 1000 - clock.now());
      return run('CL.THROTTLE', 'user', '4', '1', '1', quantity);
    };
    const replies = [
      at(0, '6'),
      ...[1, 2, 3, 4, 5, 6].map(() => at(0, '1')),
      ...[at(3, '1'), at(3.1, '1'), at(4, '1'), at(8, '1'), at(9.5, '1')],
      ...[at(9.5, '0'), at(9.5, '2'), at(9.5, '5')],
    ];
    expect(replies).toEqual([
      '*5 :1 :5 :5 :-1 :0',
      '*5 :0 :5 :4 :-1 :1',
      '*5 :0 :5 :3 :-1 :2',
      '*5 :0 :5 :2 :-1 :3',
      '*5 :0 :5 :1 :-1 :4',
      '*5 :0 :5 :0 :-1 :5',
      '*5 :1 :5 :0 :1 :5',
      '*5 :0 :5 :2 :-1 :3',
      '*5 :0 :5 :1 :-1 :4', // 3.9, rounded up
      '*5 :0 :5 :1 :-1 :4',
      '*5 :0 :5 :4 :-1 :1',
      '*5 :0 :5 :4 :-1 :1',
      '*5 :0 :5 :4 :-1 :1',
      '*5 :0 :5 :2 :-1 :3',
      '*5 :1 :5 :2 :3 :3',
    ]);
  });

  test('without quantity, in any case: takes one', () => {
    const { run, daemon } = setUp();
    expect(run('cl.Throttle', 'user', '15', '30', '60')).toBe('*5 :0 :16 :15 :-1 :2');
    expect([daemon.gcraTable.allowed, daemon.gcraTable.denied]).toEqual([1, 0]);
  });

  test('keys: any bytes', () => {
    const { client } = setUp();
    const run = (key: number[]): string =>
      inOneLine(
        client
          .send(
            Buffer.concat([
              Buffer.from(`*5\r\n$11\r\nCL.THROTTLE\r\n$${key.length}\r\n`),
              Buffer.from(key),
              Buffer.from('\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n9\r\n'),
            ]),
          )
          .takeReceived(),
      );
    expect(run([0xff, 0, 13, 10])).toBe('*5 :0 :1 :0 :-1 :9');
    expect(run([0xfe, 0, 13, 10])).toBe('*5 :0 :1 :0 :-1 :9');
    expect(run([0xff, 0, 13, 10])).toBe('*5 :1 :1 :0 :9 :9');
  });

  test('invalid arguments: an error, and the connection goes on', () => {
    const { run, daemon } = setUp();
    const wrong = "-ERR wrong number of arguments for 'cl.throttle' command";
    const invalid = '-ERR value is not an integer or out of range';
    expect(run('CL.THROTTLE')).toBe(wrong);
    expect(run('CL.THROTTLE', 'k', '1', '1')).toBe(wrong);
    expect(run('CL.THROTTLE', 'k', '1', '1', '1', '1', '1')).toBe(wrong);
    for (const terms of [
      ['x', '1', '1', '1'],
      ['1', '', '1', '1'],
      ['1', '1', '1.5', '1'],
      ['1', '1', '1', '-'],
      ['-1', '1', '1', '1'],
      ['1', '0', '1', '1'],
      ['1', '1', '0', '1'],
      ['1', '1', '1', '-1'],
      ['99999999999999999999', '1', '1', '1'],
      ['9007199254740991', '1', '9007199254740991', '1'],
    ]) {
      expect(run('CL.THROTTLE', 'k', ...terms)).toBe(invalid);
    }
    const tooLong =
      '-ERR (max_burst + 1) * period / count is over 172800 seconds, the bounds.throttleTolerance';
    expect(run('CL.THROTTLE', 'k', '1000000', '1', '1000000')).toBe(tooLong);
    expect(run('CL.THROTTLE', 'k', '2', '1', '86400')).toBe(tooLong);
    expect(daemon.gcraTable.keys).toBe(0);
    expect(run('CL.THROTTLE', 'k', '1', '1', '86400')).toMatch(/^\*5 :0/);
    expect(run('PING')).toBe('+PONG');
  });
});

describe('SLUICE.CHECK', () => {
  test('limit by pattern or by name: replies verdict, remaining and retry time', () => {
    const { run } = setUp();
    expect(run('SLUICE.CHECK', '*', 'alice')).toBe('*6 :1 :4 :0 $0  $0  $0');
    expect(run('SLUICE.CHECK', 'all-users', 'alice', '4')).toBe('*6 :1 :0 :0 $0  $0  $0');
    expect(run('SLUICE.CHECK', '*', 'alice', '2')).toBe('*6 :0 :0 :2000 $9 all-users $0  $0');
    expect(run('SLUICE.CHECK', 'all-users', 'alice', '6')).toBe('*6 :0 :0 :-1 $9 all-users $0  $0');
    expect(run('sluice.check', 'slow', 'alice')).toBe('*6 :1 :0 :0 $0  $0  $0');
  });

  test.each(['ASK', 'TAKE', 'GIVE'])('SLUICE.%s: is an unknown command', (name) => {
    expect(setUp().run(`SLUICE.${name}`, '*', 'alice')).toMatch(/^-ERR unknown command/);
  });

  test('key: shares its count with the line protocol', () => {
    const { run, daemon } = setUp();
    const line = new ProtocolClient(daemon.line);
    expect(line.send('é\né\né\né\né\né\n').takeReceived()).toBe('OK\nOK\nOK\nOK\nOK\nNO\n');
    expect(
      inOneLine(new ProtocolClient(daemon.resp).send('SLUICE.CHECK * é\r\n').takeReceived()),
    ).toMatch(/^\*6 :0/);
    expect(run('SLUICE.CHECK', '*', 'e')).toMatch(/^\*6 :1/);
  });

  test('HOLD: the call is in flight until SLUICE.SETTLE', () => {
    const { run } = setUp();
    const permits = [1, 2].map(() =>
      run('SLUICE.CHECK', '*', 'flight:1', 'HOLD').split(' ').at(-2),
    );
    expect(permits).toEqual(['1-0', '2-0']);
    expect(run('SLUICE.CHECK', '*', 'flight:1', '1', 'hold')).toBe('*6 :0 :0 :0 $7 flights $0  $0');
    expect(run('SLUICE.SETTLE', '1-0', 'OK', 'RTT', '20', 'USED', '1')).toBe(':1');
    expect(run('SLUICE.SETTLE', '1-0', 'ok')).toBe(':0');
    expect(run('SLUICE.SETTLE', 'nonsense')).toBe(':0');
    expect(run('SLUICE.CHECK', '*', 'flight:1', '1', 'HOLD')).toMatch(/^\*6 :1 .* 3-0 \$0$/);
  });

  test('HOLD: replies with what remains, as without', () => {
    const { run } = setUp();
    expect(run('SLUICE.CHECK', '*', 'alice', 'HOLD')).toBe('*6 :1 :4 :0 $0  $3 1-0 $0');
    expect(run('SLUICE.CHECK', '*', 'alice', '2', 'HOLD')).toBe('*6 :1 :2 :0 $0  $3 2-0 $0');
    expect(run('SLUICE.CHECK', '*', 'flight:1', 'HOLD')).toBe('*6 :1 :1 :0 $0  $3 3-0 $0');
  });

  test('invalid arguments: an error', () => {
    const { run } = setUp();
    expect(run('SLUICE.CHECK', 'unknown', 'k')).toBe("-ERR no limit is named 'unknown'");
    expect(run('SLUICE.CHECK', '*', 'k', 'x')).toBe(
      "-ERR cost must be a number from 0 to 1e15, got 'x'",
    );
    expect(run('SLUICE.CHECK', '*', 'k', '-1')).toBe(
      "-ERR cost must be a number from 0 to 1e15, got '-1'",
    );
    expect(run('SLUICE.CHECK', '*', 'k', 'PLAN', 'nope')).toBe("-ERR no plan is named 'nope'");
    expect(run('SLUICE.CHECK', 'unknown[nope]', 'k')).toBe("-ERR no plan is named 'nope'");
    expect(run('SLUICE.TAKEUPTO', '*[nope]', 'k', '1')).toBe("-ERR no plan is named 'nope'");
    expect(run('SLUICE.CHECK', '*', 'k', '1', 'x')).toBe('-ERR syntax error');
    expect(run('SLUICE.CHECK', '*', '')).toBe('-ERR key is empty');
    expect(run('SLUICE.CHECKALL', '*', 'k', '1', '*', '', '1')).toBe('-ERR key is empty');
    expect(run('SLUICE.TAKEUPTO', '*', '', '1')).toBe('-ERR key is empty');
    expect(run('CL.THROTTLE', '', '4', '1', '1')).toBe('*5 :0 :5 :4 :-1 :1'); // as redis-cell
    expect(run('SLUICE.SETTLE', '1-0', 'fine')).toBe(
      '-ERR outcome must be ok, busy, timeout, failed, ignored',
    );
    expect(run('SLUICE.SETTLE', '1-0', 'ok', 'RTT')).toBe('-ERR syntax error');
    expect(run('SLUICE.SETTLE', '1-0', 'ok', 'RTT', 'x')).toBe(
      "-ERR RTT must be a number from 0 to 1e15, got 'x'",
    );
    expect(run('SLUICE.SETTLE', '1-0', 'ok', '__proto__', '1')).toBe('-ERR syntax error');
  });
});

describe('SLUICE.TAKEUPTO and SLUICE.GIVEBACK', () => {
  test('takes what is left, up to the maximum; HOLD: what was not used comes back, once', () => {
    const { run } = setUp();
    expect(run('SLUICE.TAKEUPTO', '*', 'alice', '2')).toBe('*2 :2 $0');
    expect(run('SLUICE.TAKEUPTO', 'all-users', 'alice', '100', 'HOLD')).toBe('*2 :3 $3 1-0');
    expect(run('SLUICE.TAKEUPTO', '*', 'alice', '100', 'hold')).toBe('*2 :0 $0');
    expect(run('SLUICE.GIVEBACK', '1-0', '2')).toBe(':1');
    expect(run('SLUICE.GIVEBACK', '1-0', '2')).toBe(':0');
    expect(run('SLUICE.TAKEUPTO', '*', 'alice', '100', 'HOLD')).toBe('*2 :2 $3 2-0');
    expect(run('SLUICE.GIVEBACK', '2-0', '99')).toBe(':1'); // no more than was taken
    expect(run('SLUICE.TAKEUPTO', '*', 'alice', '100', 'HOLD')).toBe('*2 :2 $3 3-0');
    expect(run('SLUICE.SETTLE', '3-0', 'ok', 'USED', '1')).toBe(':1');
    expect(run('SLUICE.TAKEUPTO', '*', 'alice', '100')).toBe('*2 :1 $0');
  });

  test.each(['3', '4'])(
    'giving back %s of 4 after a refill that others have used adds nothing to it',
    (unused) => {
      const { clock, run } = setUp();
      expect(run('SLUICE.TAKEUPTO', 'all-users', 'alice', '4', 'HOLD')).toBe('*2 :4 $3 1-0');
      clock.advance(4000);
      expect(run('SLUICE.TAKEUPTO', 'all-users', 'alice', '9')).toBe('*2 :5 $0');
      expect(run('SLUICE.GIVEBACK', '1-0', unused)).toBe(':1');
      expect(run('SLUICE.TAKEUPTO', 'all-users', 'alice', '9')).toBe('*2 :0 $0');
    },
  );

  test('invalid arguments, and limits that count calls in flight: an error', () => {
    const { run } = setUp();
    for (const max of ['x', '-1', '1.5', '1e3'])
      expect(run('SLUICE.TAKEUPTO', '*', 'k', max)).toBe(
        '-ERR value is not an integer or out of range',
      );
    expect(run('SLUICE.TAKEUPTO', '*', 'k', '1', 'x')).toBe('-ERR syntax error');
    expect(run('SLUICE.TAKEUPTO', 'unknown', 'k', '1')).toBe("-ERR no limit is named 'unknown'");
    expect(run('SLUICE.TAKEUPTO', '*', 'flight:1', '2')).toBe(
      '-ERR expected `limit` to be one that does not count calls in flight: use check, got "flights"',
    );
    expect(run('SLUICE.GIVEBACK', '1-0', 'x')).toBe('-ERR value is not an integer or out of range');
    expect(run('SLUICE.GIVEBACK', 'unknown', '1')).toBe(':0');
  });
});

describe('SLUICE.INSPECT', () => {
  test('status of a key: replied in order with other commands', async () => {
    const { client } = setUp();
    client.send(respCommand('HELLO', '3')).takeReceived();
    client.send(
      respCommand('PING', 'a') + respCommand('SLUICE.INSPECT', 'alice') + respCommand('PING', 'b'),
    );
    await nextTurn();
    const received = inOneLine(client.takeReceived());
    expect(received).toMatch(
      /^\$1 a %2 \$3 key \$5 alice \$6 limits \*1 %4 \$4 name \$9 all-users \$9 remaining :5 \$9 opensInMs :0 /,
    );
    expect(received).toMatch(/ \$9 remaining :5 .* \$1 b$/);
  });

  test('unknown limit: an error', async () => {
    const { client } = setUp();
    client.send(respCommand('SLUICE.INSPECT', 'alice', 'unknown'));
    await nextTurn();
    expect(client.takeReceived()).toBe("-ERR no limit is named 'unknown'\r\n");
  });
});

describe('Redis commands', () => {
  test('HELLO 3: switches to RESP3 until RESET', () => {
    const { run } = setUp();
    expect(run('HELLO', '3')).toBe(
      '%7 $6 server $6 sluice $7 version $5 1.2.3 $5 proto :3 $2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0',
    );
    expect(run('CLIENT', 'GETNAME')).toBe('_');
    expect(run('CONFIG', 'GET', 'save', 'appendonly')).toBe('%2 $4 save $0  $10 appendonly $2 no');
    expect(run('RESET')).toBe('+RESET');
    expect(run('CLIENT', 'GETNAME')).toBe('$-1');
    expect(run('CONFIG', 'GET', 'save')).toBe('*2 $4 save $0');
  });

  test('CLIENT HELP: lists the subcommands', () => {
    const { run } = setUp();
    expect(run('CLIENT', 'HELP')).toBe('*4 $2 ID $7 GETNAME $7 SETNAME $7 SETINFO');
  });

  test('password: removed while a connection is open, none is asked for', () => {
    let password: string | undefined = 'secret';
    const { run } = setUp({ password: () => password });
    expect(run('SLUICE.CHECK', '*', 'alice')).toMatch(/^-NOAUTH/);
    password = undefined;
    expect(run('SLUICE.CHECK', '*', 'alice')).toMatch(/^\*6 :1/);
    expect(run('CL.THROTTLE', 'user', '15', '30', '60')).toMatch(/^\*5 :0/);
    expect(run('HELLO', '3')).toMatch(/^%/);
    password = 'another';
    expect(run('SLUICE.CHECK', '*', 'alice')).toMatch(/^-NOAUTH/);
  });

  test('with a password: AUTH is required first', () => {
    const { run } = setUp({ password: () => 'secret' });
    const required = '-NOAUTH Authentication required.';
    expect(run('CL.THROTTLE', 'k', '1', '1', '1')).toBe(required);
    expect(run('SLUICE.CHECK', '*', 'k')).toBe(required);
    expect(run('PING')).toBe(required);
    expect(run('HELLO', '3')).toMatch(/^-NOAUTH HELLO must be called/);
    for (const wrong of ['', 'secre', 'secret!', 'Secret']) {
      expect(run('AUTH', wrong)).toMatch(/^-WRONGPASS/);
    }
    expect(run('HELLO', '3', 'AUTH', 'default', 'wrong')).toMatch(/^-WRONGPASS/);
    expect(run('AUTH', 'secret')).toBe('+OK');
    expect(run('PING')).toBe('+PONG');
    expect(run('RESET')).toBe('+RESET');
    expect(run('PING')).toBe(required);
    expect(run('HELLO', '3', 'AUTH', 'default', 'secret', 'SETNAME', 'me')).toMatch(/^%7/);
    expect(run('CLIENT', 'GETNAME')).toBe('$2 me');
  });

  test('INFO: sections and counters', () => {
    const { run, clock, client } = setUp({ clients: () => 3 });
    run('CL.THROTTLE', 'k', '0', '1', '1');
    run('CL.THROTTLE', 'k', '0', '1', '1');
    run('SLUICE.CHECK', '*', 'k');
    const info = client.send('INFO\r\n').takeReceived();
    for (const line of [
      'sluice_version:1.2.3',
      'connected_clients:3',
      'loading:0',
      'decisions:3',
    ]) {
      expect(info.split('\r\n')).toContain(line);
    }
    clock.advance(5000);
    expect(client.send('INFO server\r\n').takeReceived()).toMatch(/uptime_in_seconds:5\r\n/);
    expect(client.send('info sluice\r\n').takeReceived()).not.toMatch(/uptime_in_seconds/);
  });

  test('COMMAND: lists commands in the types that redis-cli expects', () => {
    const { run } = setUp();
    expect(run('COMMAND', 'INFO', 'CL.THROTTLE', 'nonsense')).toBe(
      '*2 *10 $11 cl.throttle :-5 *1 +fast :1 :1 :1 *1 +@fast *0 *0 *0 $-1',
    );
    expect(run('COMMAND', 'DOCS', 'echo')).toBe(
      '*2 $4 echo *8 $7 summary $19 Replies the message $5 since $5 0.1.0 $5 group $10 connection $9 arguments *1 *4 $4 name $7 message $4 type $6 string',
    );
    expect(run('COMMAND', 'DOCS', 'ping')).toMatch(/\$5 flags \*1 \+optional$/);
    const all = Number(run('COMMAND', 'COUNT').slice(1));
    expect(run('COMMAND').startsWith(`*${all} *10 `)).toBe(true);
    expect(run('COMMAND', 'DOCS').startsWith(`*${all * 2} `)).toBe(true);
    expect(run('COMMAND', 'LIST').startsWith(`*${all} $11 cl.throttle`)).toBe(true);
  });

  test('QUIT: ends the connection after earlier replies', () => {
    const { client } = setUp();
    expect(client.send(`${respCommand('PING')}QUIT\r\n${respCommand('PING')}`).takeReceived()).toBe(
      '+PONG\r\n+OK\r\n',
    );
    expect(client.isClosed).toBe(true);
  });
});

describe('RESP parsing', () => {
  const lines: readonly [sent: string, expected: string][] = [
    ['ping\n', '+PONG\r\n'],
    ['\r\n\n   \r\nPING\r\n', '+PONG\r\n'],
    ['*0\r\n*-1\r\nPING\r\n', '+PONG\r\n'],
    ['echo "a \\x41\\n\\"b"\r\n', '$6\r\na A\n"b\r\n'],
    ["echo 'it\\'s \\n'\r\n", "$7\r\nit's \\n\r\n"],
    ['  ping   hello \t \r\n', '$5\r\nhello\r\n'],
    ['ping ""\r\n', '$0\r\n\r\n'],
    [`${respCommand('echo', 'a\r\nb')}`, '$4\r\na\r\nb\r\n'],
    [respCommand(''), "-ERR unknown command '', with args beginning with: \r\n"],
    [
      respCommand('GET\nX', 'a\r\nb'),
      "-ERR unknown command 'GET X', with args beginning with: 'a  b' \r\n",
    ],
  ];

  test.each(lines)('%j: is parsed', (sent, expected) => {
    const { client } = setUp();
    expect(client.send(sent).takeReceived()).toBe(expected);
    expect(client.isClosed).toBe(false);
  });

  const ends: readonly [sent: string, error: string][] = [
    ['*x\r\n', 'invalid multibulk length'],
    ['*\r\n', 'invalid multibulk length'],
    ['*01\r\n', 'invalid multibulk length'],
    ['*9\r\n', 'invalid multibulk length'],
    ['*5000000000\r\n', 'invalid multibulk length'],
    [`*${'1'.repeat(40)}`, 'too big mbulk count string'],
    ['*1\r\n+PING\r\n', "expected '$', got '+'"],
    ['*1\r\n$-1\r\n', 'invalid bulk length'],
    ['*1\r\n$x\r\n', 'invalid bulk length'],
    ['*1\r\n$101\r\n', 'invalid bulk length'],
    [`*1\r\n$${'1'.repeat(40)}`, 'too big bulk count string'],
    [`*3\r\n${`$80\r\n${'x'.repeat(80)}\r\n`.repeat(2)}$80\r\n`, 'too big request'],
    ['x'.repeat(201), 'too big inline request'],
    [`ping ${'x'.repeat(101)}\r\n`, 'too big inline request'],
    ['a b c d e f g h i\r\n', 'too many arguments'],
    ['ping "a\r\n', 'unbalanced quotes in request'],
    ['ping "a"b\r\n', 'unbalanced quotes in request'],
  ];

  test.each(ends)('%j: is a protocol error and ends the connection', (sent, error) => {
    const expected = `+PONG\r\n-ERR Protocol error: ${error}\r\n`;
    const whole = setUp({ bounds }).client.send(`PING\r\n${sent}${respCommand('PING')}`);
    expect([whole.takeReceived(), whole.isClosed]).toEqual([expected, true]);
    const { client } = setUp({ bounds });
    for (const byte of `PING\r\n${sent}`) client.send(byte);
    expect([client.takeReceived(), client.isClosed]).toEqual([expected, true]);
  });

  test('header without end: is refused at the same byte for any chunk size', () => {
    for (let size = 1; size <= 32; size++) {
      const { client } = setUp();
      const sent = `*${'1'.repeat(31)}`;
      for (let at = 0; at < sent.length; at += size) client.send(sent.slice(at, at + size));
      expect(client.takeReceived()).toBe('-ERR Protocol error: too big mbulk count string\r\n');
    }
  });

  test('key beyond the bound: an error, and the connection goes on', () => {
    const { run } = setUp({ bounds });
    const [fits, long] = [50, 51].map((size) => 'x'.repeat(size));
    for (const [before, after] of [
      [['CL.THROTTLE'], ['1', '1', '1']],
      [['SLUICE.CHECK', '*'], []],
    ]) {
      expect(run(...before, fits, ...after)).toMatch(/^\*[56] :/);
      expect(run(...before, long, ...after)).toBe('-ERR key is longer than 50 bytes');
    }
    expect(run('SLUICE.INSPECT', long)).toBe('-ERR key is longer than 50 bytes');
    expect(run('PING')).toBe('+PONG');
  });

  test('HTTP request: is closed without a reply', () => {
    const { client } = setUp();
    client.send('POST / HTTP/1.1\r\nHost: 127.0.0.1:7611\r\n\r\nCL.THROTTLE a 1 1 1\r\n');
    expect([client.takeReceived(), client.isClosed]).toEqual(['', true]);
  });

  test('any chunk size: the same replies', () => {
    const sent = [
      respCommand('PING', 'hello'),
      'echo "a b"\r\n',
      respCommand('CL.THROTTLE', 'k', '4', '1', '1'),
      respCommand('ECHO', 'x'.repeat(5000)),
      respCommand('SLUICE.CHECK', '*', 'k', '2'),
      respCommand('nonsense', 'a', 'b'),
    ].join('');
    const expected = setUp().client.send(sent).takeReceived();
    for (let size = 1; size < 200; size += size < 20 ? 1 : 13) {
      const { client } = setUp();
      for (let at = 0; at < sent.length; at += size) client.send(sent.slice(at, at + size));
      expect(client.takeReceived()).toBe(expected);
    }
  });

  test('long command byte by byte: is run at its end', () => {
    const { client } = setUp();
    const long = 'x'.repeat(RESP_BOUNDS.maxArgumentBytes);
    for (const byte of respCommand('ECHO', long)) client.send(byte);
    expect(client.takeReceived()).toBe(`$${long.length}\r\n${long}\r\n`);
  });
});

describe('RESP back-pressure', () => {
  test('client that does not read: commands wait, and all are answered once it reads', () => {
    let received = '';
    const responses: ResponseQueue = new ResponseQueue(
      (bytes) => {
        received += bytes.toString('latin1');
        responses.isBlocked = true;
      },
      () => {},
    );
    const handler = createTestDaemon().resp(responses);
    const times = 5000;
    expect(handler.onData(Buffer.from(`${'COMMAND LIST\r\n'.repeat(times)}PI`))).toBe(true);
    expect(handler.hasBacklog).toBe(true);
    expect(received.length).toBeLessThan(70_000);
    while (handler.hasBacklog) {
      responses.isBlocked = false;
      expect(handler.onData(Buffer.alloc(0))).toBe(true);
    }
    responses.isBlocked = false;
    handler.onData(Buffer.from('NG\r\n'));
    expect(received.split('cl.throttle')).toHaveLength(times + 1);
    expect(received.endsWith('\r\n+PONG\r\n')).toBe(true);
  });
});
