/**
 * Fuzzes the stream protocols of the daemon with random bytes, valid requests, and valid requests with
 * some bytes changed. The same seed gives the same inputs.
 *
 *     npm run soak:fuzz                                     a million inputs for each protocol
 *     npm run soak:fuzz -- --inputs 20000 --seed 7
 *     npm run soak:fuzz -- --write                          a million, and the result into docs/explanation/guarantees.md
 *
 * Every input goes to two handlers: to one in a single chunk, to the other cut anywhere. Checked:
 *
 *   - no exception
 *   - both responses are equal to the byte, and both connections end or go on
 *   - responses are well-formed and in the order of their requests, although some decisions are made
 *     late and in any order
 *   - memory does not grow with the number of inputs, or with an input that never ends
 */

import { parseArgs } from 'node:util';
import { GcraTable } from '../../dist/backends/local/gcra-table.js';
import { createHasher } from '../../dist/core/hash.js';
import { seededRandom } from '../../dist/core/random.js';
import { readLimits } from '../../dist/daemon/config/limits.js';
import { NO_PATTERNS } from '../../dist/daemon/keys/pattern-table.js';
import { lineProtocol } from '../../dist/daemon/protocols/line/handler.js';
import { respProtocol } from '../../dist/daemon/protocols/resp/handler.js';
import { LimiterRegistry } from '../../dist/daemon/router/limiter-registry.js';
import { Router } from '../../dist/daemon/router/router.js';
import { ResponseQueue } from '../../dist/daemon/server/response-queue.js';
import { VirtualClock } from '../../dist/testing/index.js';
import { isToWrite, madeBy, table, whole, writeFigures } from '../report.mjs';

const INPUTS = 1_000_000;

const { values: options } = parseArgs({
  options: {
    inputs: { type: 'string', default: `${INPUTS}` },
    seed: { type: 'string', default: '1' },
    write: { type: 'boolean', default: false },
  },
});
const inputs = Number(options.inputs);
const writes = isToWrite(inputs >= INPUTS);
const random = seededRandom(Number(options.seed));

const below = (n) => Math.floor(random() * n);
const oneOf = (list) => list[below(list.length)];
const upTo = (most, make) => Array.from({ length: below(most + 1) }, make);

/** Growth beyond this, once everything has warmed up, would be a leak. */
const MAX_GROWTH_BYTES = 24 * 1024 * 1024;

const BOUNDS = { maxArguments: 12, maxArgumentBytes: 200, maxCommandBytes: 500, maxKeyBytes: 160 };
const MAX_LINE = 40;

/* ---- handlers --------------------------------------------------------------------------------- */

const LIMITS = readLimits(
  {
    total: { bucket: { rate: '10/s', burst: 5 }, maxKeys: 500 },
    adaptive: { adaptive: { initial: 2 }, match: 'flight:*', maxKeys: 500 },
    spaced: { spacing: { every: '50ms' }, match: 'spaced:*', always: true, maxKeys: 500 },
  },
  'limits',
);

/** Makes some decisions later: those on keys of certain lengths. */
class LateRouter extends Router {
  late = [];

  checkRouted(request) {
    return this.#later(super.checkRouted(request), request.key.length);
  }

  isAllowed(bytes, from, to) {
    return this.#later(super.isAllowed(bytes, from, to), to - from);
  }

  #later(result, size) {
    if (size % 7 !== 6) return result;
    return new Promise((resolve) => this.late.push(() => resolve(result)));
  }
}

/** A daemon without sockets, in which some decisions are made later. */
function createDaemon(clock) {
  const hasher = createHasher([3, 5], 'latin1');
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  registry.apply(LIMITS);
  const router = new LateRouter(
    { allow: NO_PATTERNS, deny: NO_PATTERNS, unmatched: 'allow', limits: LIMITS },
    registry,
    hasher,
    () => 0,
  );
  const gcraTable = new GcraTable({ hasher, clock, maxKeys: 500 });
  return {
    late: router.late,
    resp: respProtocol({ router, gcraTable, version: '0', clock, bounds: () => BOUNDS }),
    line: lineProtocol(
      (bytes, from, to) => router.isAllowed(bytes, from, to),
      () => MAX_LINE,
    ),
  };
}

/** A client of one handler. */
class Client {
  isClosed = false;
  #received = [];
  #responses = new ResponseQueue(
    (bytes) => this.#received.push(bytes),
    () => this.#resume(),
  );

  constructor(protocol) {
    this.handler = protocol(this.#responses);
  }

  send(bytes) {
    if (!this.isClosed) this.isClosed = !this.handler.onData(bytes);
  }

  /** As a connection does: commands behind one that waits are processed once it is answered. */
  #resume() {
    if (this.handler.hasBacklog && this.#responses.canResume) this.send(Buffer.alloc(0));
  }

  /** Responses since the last call, after all late decisions were made in any order. */
  async takeReceived(late) {
    while (this.#responses.pendingCount > 0) {
      while (late.length > 0) late.splice(below(late.length), 1)[0]();
      await new Promise((turn) => setImmediate(turn)); // pending responses are written at the end of a tick
    }
    const received = this.#received;
    this.#received = [];
    return received.length === 1 ? received[0] : Buffer.concat(received);
  }
}

function cut(bytes) {
  const chunks = [];
  const typical = oneOf([1, 3, 10, 40]);
  for (let at = 0; at < bytes.length; ) {
    const size = 1 + below(2 * typical);
    chunks.push(bytes.subarray(at, at + size));
    at += size;
  }
  return chunks;
}

/* ---- inputs ----------------------------------------------------------------------------------- */

const KEYS = ['a', 'alice', 'flight:1', 'spaced:1', 'later!', 'é', '', 'x'.repeat(150), '*'];
const NUMBERS = [
  '0',
  '1',
  '2',
  '15',
  '60',
  '-1',
  '1.5',
  '9007199254740991',
  '99999999999999999999',
  'x',
];
const key = () => (random() < 0.3 ? `k${below(2000)}` : oneOf(KEYS));
const number = () => oneOf(NUMBERS);

const COMMANDS = [
  () => ['CL.THROTTLE', key(), number(), number(), number(), number()],
  () => ['cl.throttle', key(), '4', '1', '1'],
  () => ['SLUICE.CHECK', oneOf(['*', 'total', 'adaptive', 'unknown']), key(), ...upTo(1, number)],
  () => ['SLUICE.CHECK', '*', key(), 'HOLD'],
  () => ['SLUICE.ACQUIRE', '*', key(), ...upTo(1, number), 'WAIT', oneOf(['0', 'x'])],
  () => [
    'SLUICE.SETTLE',
    `${below(50)}-0`,
    oneOf(['ok', 'busy', 'ignored', 'fine']),
    ...upTo(2, number),
  ],
  () => ['SLUICE.SETTLE', `${below(50)}-0`, 'ok', oneOf(['USED', 'RTT', 'RETRYAFTER']), number()],
  () => ['SLUICE.TAKEUPTO', oneOf(['*', 'total', 'adaptive', 'unknown']), key(), number(), 'HOLD'],
  () => ['SLUICE.GIVEBACK', `${below(50)}-0`, number()],
  () => ['SLUICE.ACQUIREALL', 'total', key(), '1', '*', key(), number(), 'WAIT', oneOf(['0', 'x'])],
  () => ['SLUICE.CHECKALL', 'total', key(), '1', '*', key(), number(), ...upTo(2, () => 'HOLD')],
  () => ['SLUICE.INSPECT', key(), ...upTo(1, () => oneOf(['*', 'total', 'unknown']))],
  () => ['PING', ...upTo(2, key)],
  () => ['HELLO', ...upTo(1, () => oneOf(['2', '3', '4', 'x']))],
  () => ['HELLO', '3', ...upTo(4, () => oneOf(['AUTH', 'SETNAME', 'default', 'a b', 'me']))],
  () => ['AUTH', ...upTo(3, key)],
  () => ['COMMAND', ...upTo(2, () => oneOf(['COUNT', 'DOCS', 'INFO', 'LIST', 'ping', 'x']))],
  () => ['CLIENT', ...upTo(3, () => oneOf(['ID', 'GETNAME', 'SETNAME', 'SETINFO', 'me', 'a b']))],
  () => ['CONFIG', ...upTo(3, () => oneOf(['GET', 'save', '*', 'x']))],
  () => ['INFO', ...upTo(2, () => oneOf(['server', 'sluice', 'nonsense']))],
  () => [
    oneOf(['SELECT', 'RESET', 'ECHO', 'GET', 'MSET', '__proto__', 'constructor']),
    ...upTo(3, key),
  ],
  () => upTo(14, () => oneOf([...KEYS, ...NUMBERS])),
  () => [oneOf(['QUIT', 'POST', 'host:'])],
];

const asArray = (args) =>
  `*${args.length}\r\n${args.map((arg) => `$${arg.length}\r\n${arg}\r\n`).join('')}`;
const quoted = (word) => (/^[\w.:*-]+$/.test(word) ? word : `"${word}"`);
const asLine = (args) => `${args.map(quoted).join(' ')}${oneOf(['\r\n', '\n'])}`;

const command = () => (random() < 0.7 ? asArray : asLine)(oneOf(COMMANDS)());
/** Queued commands get their replies at EXEC. */
const transaction = () =>
  random() < 0.5 ? command() : asLine([oneOf(['MULTI', 'EXEC', 'EXEC', 'DISCARD', 'WATCH'])]);
const line = () =>
  `${random() < 0.9 ? key() : 'y'.repeat(below(2 * MAX_LINE))}${oneOf(['\n', '\r\n'])}`;

const noise = () => Buffer.from(upTo(80, () => below(256)));
/** Bytes that mean something to a parser. */
const grammar = () =>
  Buffer.from(
    upTo(60, () =>
      oneOf(['*', '$', '\r\n', '\r', '\n', '"', "'", '\\', '-', '0', '1', '5', ' ', 'a']),
    ).join(''),
  );

/** Often longer than the bounds. */
const longRun = () =>
  Buffer.alloc(below(10) < 8 ? 0 : below(1200), oneOf(['x', '1', ' ', '"', '*']));

const MUTATIONS = [
  (bytes, at) => bytes.fill(below(256), at, Math.min(bytes.length, at + 1)),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + below(8))]),
  (bytes, at) =>
    Buffer.concat([bytes.subarray(0, at), grammar().subarray(0, 8), bytes.subarray(at)]),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), bytes.subarray(at >> 1)]),
  (bytes, at) => bytes.subarray(0, at),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), longRun(), bytes.subarray(at)]),
];

function mutate(valid) {
  let bytes = Buffer.from(valid, 'latin1');
  for (let times = 1 + below(3); times > 0; times--)
    bytes = oneOf(MUTATIONS)(bytes, below(bytes.length + 1));
  return bytes;
}

/* ---- checks ------------------------------------------------------------------------------------ */

/** The end of the reply that begins at `at`; -1 if it is malformed. */
function endOfReply(bytes, at) {
  const lineEnd = bytes.indexOf('\r\n', at);
  if (lineEnd < 0) return -1;
  const type = String.fromCharCode(bytes[at]);
  const text = bytes.toString('latin1', at + 1, lineEnd);
  let end = lineEnd + 2;
  if ('+-_,#'.includes(type)) return end;
  if (!/^-?\d+$/.test(text)) return -1;
  if (type === ':') return end;
  if (type === '$') {
    if (text === '-1') return end;
    end += Number(text) + 2;
    return end <= bytes.length && bytes.toString('latin1', end - 2, end) === '\r\n' ? end : -1;
  }
  if (type !== '*' && type !== '%') return -1;
  for (let n = Number(text) * (type === '%' ? 2 : 1); n > 0; n--) {
    end = endOfReply(bytes, end);
    if (end < 0) return -1;
  }
  return end;
}

function repliesIn(bytes) {
  const replies = [];
  for (let at = 0; at < bytes.length; ) {
    const end = endOfReply(bytes, at);
    if (end < 0)
      throw new Error(`malformed reply: ${JSON.stringify(bytes.toString('latin1', at))}`);
    replies.push(bytes.toString('latin1', at, end));
    at = end;
  }
  return replies;
}

let marks = 0;

/** An input, and what is checked of the responses besides that both handlers agree. */
const RESP_INPUTS = [
  // Valid commands, each followed by an ECHO of a number: every reply comes before its number.
  () => {
    const from = marks;
    const commands = upTo(6, command);
    const bytes = Buffer.from(
      commands.map((text) => text + asArray(['ECHO', `mark ${marks++}`])).join(''),
      'latin1',
    );
    const check = (received, isClosed) => {
      const replies = repliesIn(received);
      const seen = replies.filter((reply) => /^\$\d+\r\nmark \d+\r\n$/.test(reply));
      const expected = seen.map((_, n) => `mark ${from + n}`);
      const isOrdered = seen.every((reply, n) => reply.includes(expected[n]));
      if (!isOrdered || (!isClosed && seen.length !== commands.length))
        throw new Error('out of order');
    };
    return { bytes, check };
  },
  () => ({ bytes: mutate(upTo(4, command).join('')), check: repliesIn }),
  () => ({ bytes: mutate(upTo(4, command).join('')), check: repliesIn }),
  () => ({ bytes: Buffer.from(upTo(12, transaction).join(''), 'latin1'), check: repliesIn }),
  () => ({ bytes: mutate(upTo(8, transaction).join('')), check: repliesIn }),
  () => ({ bytes: noise(), check: repliesIn }),
  () => ({ bytes: grammar(), check: repliesIn }),
];

const requireLineResponses = (received) => {
  if (!/^(?:OK\n|NO\n)*$/.test(received.toString('latin1')))
    throw new Error(`malformed responses: ${received}`);
};

const LINE_INPUTS = [
  () => {
    const lines = upTo(20, line);
    const check = (received, isClosed) => {
      requireLineResponses(received);
      if (!isClosed && received.length !== lines.length * 3) throw new Error('missing responses');
    };
    return { bytes: Buffer.from(lines.join(''), 'latin1'), check };
  },
  () => ({ bytes: mutate(upTo(10, line).join('')), check: requireLineResponses }),
  () => ({ bytes: noise(), check: requireLineResponses }),
];

const memory = () => {
  globalThis.gc?.();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
};

async function fuzz(protocol, kinds) {
  const clock = new VirtualClock(1_700_000_000_000);
  const daemons = [createDaemon(clock), createDaemon(clock)];
  const connect = () => daemons.map((daemon) => new Client(daemon[protocol]));
  let [whole, chunked] = connect();
  let warm = 0;
  let ended = 0;
  let bytesSent = 0;
  for (let n = 0; n < inputs; n++) {
    // Responses to valid input are counted, so it starts a connection; other input may continue one.
    const kind = below(kinds.length);
    const { bytes, check } = kinds[kind]();
    if (kind === 0 || whole.isClosed || random() < 0.3) [whole, chunked] = connect();
    try {
      whole.send(bytes);
      for (const chunk of cut(bytes)) chunked.send(chunk);
      const received = await whole.takeReceived(daemons[0].late);
      const other = await chunked.takeReceived(daemons[1].late);
      if (!received.equals(other)) throw new Error(`whole: ${received}\nin chunks: ${other}`);
      if (whole.isClosed !== chunked.isClosed) throw new Error('only one connection ended');
      check(received, whole.isClosed);
    } catch (error) {
      console.error(`${protocol}, input ${n}: ${JSON.stringify(bytes.toString('latin1'))}`);
      throw error;
    }
    if (whole.isClosed) ended++;
    bytesSent += bytes.length;
    clock.advance(below(40));
    if (n === Math.floor(inputs / 10)) warm = memory();
  }
  const grown = memory() - warm;
  if (grown > MAX_GROWTH_BYTES) throw new Error(`${protocol}: memory grew by ${grown} bytes`);
  return { protocol, ended, bytesSent, grown };
}

/** Inputs without end: a handler keeps no more of them than its bounds. */
function endless(protocol, starts) {
  const chunk = Buffer.alloc(65_536, 'x');
  const clients = [];
  const before = memory();
  for (const start of starts) {
    const client = new Client(createDaemon(new VirtualClock())[protocol]);
    clients.push(client);
    client.send(Buffer.from(start));
    for (let n = 0; n < 64 && !client.isClosed; n++) client.send(chunk);
    if (!client.isClosed) throw new Error(`${protocol}: ${JSON.stringify(start)} has no bound`);
  }
  const grown = memory() - before;
  if (grown > MAX_GROWTH_BYTES) throw new Error(`${protocol}: endless input took ${grown} bytes`);
}

const mega = (bytes) => (Math.abs(bytes) / 1e6).toFixed(1);

/** An exception, a difference or a wrong order ends the run, so these counts are 0. */
const COLUMNS = {
  '': ({ protocol }) => ({ resp: 'RESP', line: 'line protocol' })[protocol],
  inputs: () => whole(inputs),
  bytes: ({ bytesSent }) => `${(bytesSent / 1e6).toFixed(0)} MB`,
  'connections ended (protocol error or QUIT)': ({ ended }) => whole(ended),
  exceptions: () => 0,
  'responses that differed': () => 0,
  'out of order': () => 0,
  'memory at the end, compared with that after a tenth': ({ grown }) =>
    `${mega(grown)} MB ${grown < 0 ? 'less' : 'more'}`,
};

const results = [await fuzz('resp', RESP_INPUTS)];
endless('resp', [
  '',
  '*',
  '*1\r\n$',
  '*2\r\n$4\r\nPING\r\n$200\r\n',
  '*12\r\n$100\r\n',
  'ping "',
  '$',
]);
results.push(await fuzz('line', LINE_INPUTS));
endless('line', ['', 'a']);
console.log(table(COLUMNS, results));
console.log('no exception, no response depended on chunk boundaries, all came in order');
if (writes) {
  const about = madeBy('npm run soak:fuzz', `${(performance.now() / 1000).toFixed(0)} s`);
  writeFigures('docs/explanation/guarantees.md', 'fuzz', `${table(COLUMNS, results)}\n\n${about}`);
}
