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
  const talk = new ProtocolClient(daemon.resp);
  /** One command and its whole answer, on one line. */
  const ask = (...args: string[]): string => told(talk.send(respCommand(...args)).takeReceived());
  return { clock, daemon, talk, ask };
}

const told = (heard: string): string => heard.trimEnd().replaceAll('\r\n', ' ');

/** Promises of ours are kept within a few turns. */
const later = () => new Promise((turn) => setImmediate(turn));

describe('CL.THROTTLE', () => {
  test('answers as redis-cell does', () => {
    const { clock, ask } = setUp();
    const at = (seconds: number, quantity: string): string => {
      clock.advance(1_700_000_000_000 + seconds * 1000 - clock.now());
      return ask('CL.THROTTLE', 'user', '4', '1', '1', quantity);
    };
    const answers = [
      at(0, '6'),
      ...[1, 2, 3, 4, 5, 6].map(() => at(0, '1')),
      ...[at(3, '1'), at(3.1, '1'), at(4, '1'), at(8, '1'), at(9.5, '1')],
      ...[at(9.5, '0'), at(9.5, '2'), at(9.5, '5')],
    ];
    expect(answers).toEqual([
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

  test('takes one if it is not told how many, and is the same command in any case', () => {
    const { ask, daemon } = setUp();
    expect(ask('cl.Throttle', 'user', '15', '30', '60')).toBe('*5 :0 :16 :15 :-1 :2');
    expect([daemon.cells.allowed, daemon.cells.denied]).toEqual([1, 0]);
  });

  test('keys are bytes', () => {
    const { talk } = setUp();
    const ask = (key: number[]): string =>
      told(
        talk
          .send(
            Buffer.concat([
              Buffer.from(`*5\r\n$11\r\nCL.THROTTLE\r\n$${key.length}\r\n`),
              Buffer.from(key),
              Buffer.from('\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n9\r\n'),
            ]),
          )
          .takeReceived(),
      );
    expect(ask([0xff, 0, 13, 10])).toBe('*5 :0 :1 :0 :-1 :9');
    expect(ask([0xfe, 0, 13, 10])).toBe('*5 :0 :1 :0 :-1 :9');
    expect(ask([0xff, 0, 13, 10])).toBe('*5 :1 :1 :0 :9 :9');
  });

  test('says what is wrong with a question, and goes on', () => {
    const { ask, daemon } = setUp();
    const wrong = "-ERR wrong number of arguments for 'cl.throttle' command";
    const senseless = '-ERR value is not an integer or out of range';
    expect(ask('CL.THROTTLE')).toBe(wrong);
    expect(ask('CL.THROTTLE', 'k', '1', '1')).toBe(wrong);
    expect(ask('CL.THROTTLE', 'k', '1', '1', '1', '1', '1')).toBe(wrong);
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
      expect(ask('CL.THROTTLE', 'k', ...terms)).toBe(senseless);
    }
    expect(daemon.cells.keys).toBe(0);
    expect(ask('PING')).toBe('+PONG');
  });
});

describe('SLUICE.CHECK', () => {
  test('asks whichever limits are for the key, or one by name', () => {
    const { ask } = setUp();
    expect(ask('SLUICE.CHECK', '*', 'alice')).toBe('*6 :1 :4 :0 $0  $0  $0');
    expect(ask('SLUICE.CHECK', 'everybody', 'alice', '4')).toBe('*6 :1 :0 :0 $0  $0  $0');
    expect(ask('SLUICE.CHECK', '*', 'alice', '2')).toBe('*6 :0 :0 :2000 $9 everybody $0  $0');
    expect(ask('SLUICE.CHECK', 'everybody', 'alice', '6')).toBe('*6 :0 :0 :-1 $9 everybody $0  $0');
    expect(ask('sluice.check', 'slow', 'alice')).toBe('*6 :1 :0 :0 $0  $0  $0');
  });

  test('is still known by its former name', () => {
    const { ask } = setUp();
    expect(ask('sluice.ask', '*', 'alice')).toBe('*6 :1 :4 :0 $0  $0  $0');
    expect(ask('SLUICE.CHECK', '*', 'alice')).toBe('*6 :1 :3 :0 $0  $0  $0');
  });

  test('means the same key as the line protocol', () => {
    const { ask, daemon } = setUp();
    const line = new ProtocolClient(daemon.line);
    expect(line.send('é\né\né\né\né\né\n').takeReceived()).toBe('OK\nOK\nOK\nOK\nOK\nNO\n');
    expect(
      told(new ProtocolClient(daemon.resp).send('SLUICE.CHECK * é\r\n').takeReceived()),
    ).toMatch(/^\*6 :0/);
    expect(ask('SLUICE.CHECK', '*', 'e')).toMatch(/^\*6 :1/);
  });

  test('a call in flight is held until it is settled', () => {
    const { ask } = setUp();
    const permits = [1, 2].map(() =>
      ask('SLUICE.CHECK', '*', 'flight:1', 'HOLD').split(' ').at(-2),
    );
    expect(permits).toEqual(['1-0', '2-0']);
    expect(ask('SLUICE.CHECK', '*', 'flight:1', '1', 'hold')).toBe('*6 :0 :0 :0 $7 flights $0  $0');
    expect(ask('SLUICE.SETTLE', '1-0', 'OK', 'RTT', '20', 'USED', '1')).toBe(':1');
    expect(ask('SLUICE.SETTLE', '1-0', 'ok')).toBe(':0');
    expect(ask('SLUICE.SETTLE', 'nonsense')).toBe(':0');
    expect(ask('SLUICE.CHECK', '*', 'flight:1', '1', 'HOLD')).toMatch(/^\*6 :1 .* 3-0 \$0$/);
  });

  test('says what is wrong with a question', () => {
    const { ask } = setUp();
    expect(ask('SLUICE.CHECK', 'nobody', 'k')).toBe("-ERR no limit is named 'nobody'");
    expect(ask('SLUICE.CHECK', '*', 'k', 'x')).toBe('-ERR value is not a valid float');
    expect(ask('SLUICE.CHECK', '*', 'k', '-1')).toBe('-ERR value is not a valid float');
    expect(ask('SLUICE.CHECK', '*', 'k', '1', 'x')).toBe('-ERR syntax error');
    expect(ask('SLUICE.SETTLE', '1-0', 'fine')).toBe(
      '-ERR outcome must be ok, busy, timeout, failed, ignored',
    );
    expect(ask('SLUICE.SETTLE', '1-0', 'ok', 'RTT')).toBe('-ERR syntax error');
    expect(ask('SLUICE.SETTLE', '1-0', 'ok', 'RTT', 'x')).toBe('-ERR value is not a valid float');
    expect(ask('SLUICE.SETTLE', '1-0', 'ok', '__proto__', '1')).toBe('-ERR syntax error');
  });
});

describe('SLUICE.INSPECT', () => {
  test('tells how a key stands, in order with what was asked around it', async () => {
    const { talk } = setUp();
    talk.send(respCommand('HELLO', '3')).takeReceived();
    talk.send(
      respCommand('PING', 'a') + respCommand('SLUICE.INSPECT', 'alice') + respCommand('PING', 'b'),
    );
    await later();
    const heard = told(talk.takeReceived());
    expect(heard).toMatch(
      /^\$1 a %2 \$3 key \$5 alice \$6 limits \*1 %4 \$4 name \$9 everybody \$9 remaining :5 \$9 opensInMs :0 /,
    );
    expect(heard).toMatch(/ \$9 remaining :5 .* \$1 b$/);
  });

  test('tells of a limit that nobody has', async () => {
    const { talk } = setUp();
    talk.send(respCommand('SLUICE.INSPECT', 'alice', 'nobody'));
    await later();
    expect(talk.takeReceived()).toBe("-ERR no limit is named 'nobody'\r\n");
  });
});

describe('introducing oneself', () => {
  test('speaks RESP3 to who wants it', () => {
    const { ask } = setUp();
    expect(ask('HELLO', '3')).toBe(
      '%7 $6 server $6 sluice $7 version $5 1.2.3 $5 proto :3 $2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0',
    );
    expect(ask('CLIENT', 'GETNAME')).toBe('_');
    expect(ask('CONFIG', 'GET', 'save', 'appendonly')).toBe('%2 $4 save $0  $10 appendonly $2 no');
    expect(ask('RESET')).toBe('+RESET');
    expect(ask('CLIENT', 'GETNAME')).toBe('$-1');
    expect(ask('CONFIG', 'GET', 'save')).toBe('*2 $4 save $0');
  });

  test('wants the token first, where there is one', () => {
    const { ask } = setUp({ token: () => 'secret' });
    const required = '-NOAUTH Authentication required.';
    expect(ask('CL.THROTTLE', 'k', '1', '1', '1')).toBe(required);
    expect(ask('SLUICE.CHECK', '*', 'k')).toBe(required);
    expect(ask('PING')).toBe(required);
    expect(ask('HELLO', '3')).toMatch(/^-NOAUTH HELLO must be called/);
    for (const wrong of ['', 'secre', 'secret!', 'Secret']) {
      expect(ask('AUTH', wrong)).toMatch(/^-WRONGPASS/);
    }
    expect(ask('HELLO', '3', 'AUTH', 'default', 'wrong')).toMatch(/^-WRONGPASS/);
    expect(ask('AUTH', 'secret')).toBe('+OK');
    expect(ask('PING')).toBe('+PONG');
    expect(ask('RESET')).toBe('+RESET');
    expect(ask('PING')).toBe(required);
    expect(ask('HELLO', '3', 'AUTH', 'default', 'secret', 'SETNAME', 'me')).toMatch(/^%7/);
    expect(ask('CLIENT', 'GETNAME')).toBe('$2 me');
  });

  test('figures', () => {
    const { ask, clock, talk } = setUp({ clients: () => 3 });
    ask('CL.THROTTLE', 'k', '0', '1', '1');
    ask('CL.THROTTLE', 'k', '0', '1', '1');
    ask('SLUICE.CHECK', '*', 'k');
    const info = talk.send('INFO\r\n').takeReceived();
    for (const line of [
      'sluice_version:1.2.3',
      'connected_clients:3',
      'loading:0',
      'decisions:3',
    ]) {
      expect(info.split('\r\n')).toContain(line);
    }
    clock.advance(5000);
    expect(talk.send('INFO server\r\n').takeReceived()).toMatch(/uptime_in_seconds:5\r\n/);
    expect(talk.send('info sluice\r\n').takeReceived()).not.toMatch(/uptime_in_seconds/);
  });

  test('which commands there are, in the types that redis-cli insists on', () => {
    const { ask } = setUp();
    expect(ask('COMMAND', 'INFO', 'CL.THROTTLE', 'nonsense')).toBe(
      '*2 *10 $11 cl.throttle :-5 *1 +fast :1 :1 :1 *1 +@fast *0 *0 *0 $-1',
    );
    expect(ask('COMMAND', 'DOCS', 'echo')).toBe(
      '*2 $4 echo *8 $7 summary $21 Answers what was said $5 since $5 0.1.0 $5 group $10 connection $9 arguments *1 *4 $4 name $7 message $4 type $6 string',
    );
    expect(ask('COMMAND', 'DOCS', 'ping')).toMatch(/\$5 flags \*1 \+optional$/);
    const all = Number(ask('COMMAND', 'COUNT').slice(1));
    expect(ask('COMMAND').startsWith(`*${all} *10 `)).toBe(true);
    expect(ask('COMMAND', 'DOCS').startsWith(`*${all * 2} `)).toBe(true);
    expect(ask('COMMAND', 'LIST').startsWith(`*${all} $11 cl.throttle`)).toBe(true);
  });

  test('goodbye', () => {
    const { talk } = setUp();
    expect(talk.send(`${respCommand('PING')}QUIT\r\n${respCommand('PING')}`).takeReceived()).toBe(
      '+PONG\r\n+OK\r\n',
    );
    expect(talk.isClosed).toBe(true);
  });
});

describe('bytes', () => {
  const lines: readonly [said: string, heard: string][] = [
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

  test.each(lines)('%j', (said, heard) => {
    const { talk } = setUp();
    expect(talk.send(said).takeReceived()).toBe(heard);
    expect(talk.isClosed).toBe(false);
  });

  const ends: readonly [said: string, complaint: string][] = [
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

  test.each(ends)('%j ends it', (said, complaint) => {
    const expected = `+PONG\r\n-ERR Protocol error: ${complaint}\r\n`;
    const whole = setUp({ bounds }).talk.send(`PING\r\n${said}${respCommand('PING')}`);
    expect([whole.takeReceived(), whole.isClosed]).toEqual([expected, true]);
    const { talk } = setUp({ bounds });
    for (const byte of `PING\r\n${said}`) talk.send(byte);
    expect([talk.takeReceived(), talk.isClosed]).toEqual([expected, true]);
  });

  test('a header that goes on too long ends it at the same byte, however it came', () => {
    for (let size = 1; size <= 32; size++) {
      const { talk } = setUp();
      const said = `*${'1'.repeat(31)}`;
      for (let at = 0; at < said.length; at += size) talk.send(said.slice(at, at + size));
      expect(talk.takeReceived()).toBe('-ERR Protocol error: too big mbulk count string\r\n');
    }
  });

  test('a key that is too long is refused, and the talk goes on', () => {
    const { ask } = setUp({ bounds });
    const [fits, long] = [50, 51].map((size) => 'x'.repeat(size));
    for (const [before, after] of [
      [['CL.THROTTLE'], ['1', '1', '1']],
      [['SLUICE.CHECK', '*'], []],
    ]) {
      expect(ask(...before, fits, ...after)).toMatch(/^\*[56] :/);
      expect(ask(...before, long, ...after)).toBe('-ERR key is longer than 50 bytes');
    }
    expect(ask('SLUICE.INSPECT', long)).toBe('-ERR key is longer than 50 bytes');
    expect(ask('PING')).toBe('+PONG');
  });

  test('a browser that was tricked into coming gets no answer', () => {
    const { talk } = setUp();
    talk.send('POST / HTTP/1.1\r\nHost: 127.0.0.1:7611\r\n\r\nCL.THROTTLE a 1 1 1\r\n');
    expect([talk.takeReceived(), talk.isClosed]).toEqual(['', true]);
  });

  test('cut anywhere', () => {
    const said = [
      respCommand('PING', 'hello'),
      'echo "a b"\r\n',
      respCommand('CL.THROTTLE', 'k', '4', '1', '1'),
      respCommand('ECHO', 'x'.repeat(5000)),
      respCommand('SLUICE.CHECK', '*', 'k', '2'),
      respCommand('nonsense', 'a', 'b'),
    ].join('');
    const expected = setUp().talk.send(said).takeReceived();
    for (let size = 1; size < 200; size += size < 20 ? 1 : 13) {
      const { talk } = setUp();
      for (let at = 0; at < said.length; at += size) talk.send(said.slice(at, at + size));
      expect(talk.takeReceived()).toBe(expected);
    }
  });

  test('a long command that comes byte by byte is heard at the end', () => {
    const { talk } = setUp();
    const long = 'x'.repeat(RESP_BOUNDS.maxArgumentBytes);
    for (const byte of respCommand('ECHO', long)) talk.send(byte);
    expect(talk.takeReceived()).toBe(`$${long.length}\r\n${long}\r\n`);
  });
});

describe('a client that does not take its answers', () => {
  test('gets no more made, however short the questions, and all of them once it does', () => {
    let told = '';
    const responses: ResponseQueue = new ResponseQueue(
      (bytes) => {
        told += bytes.toString('latin1');
        responses.isBlocked = true;
      },
      () => {},
    );
    const conversation = createTestDaemon().resp(responses);
    const times = 5000;
    expect(conversation.onData(Buffer.from(`${'COMMAND LIST\r\n'.repeat(times)}PI`))).toBe(true);
    expect(conversation.hasBacklog).toBe(true);
    expect(told.length).toBeLessThan(70_000);
    while (conversation.hasBacklog) {
      responses.isBlocked = false;
      expect(conversation.onData(Buffer.alloc(0))).toBe(true);
    }
    responses.isBlocked = false;
    conversation.onData(Buffer.from('NG\r\n'));
    expect(told.split('cl.throttle')).toHaveLength(times + 1);
    expect(told.endsWith('\r\n+PONG\r\n')).toBe(true);
  });
});
