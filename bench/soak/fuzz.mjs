/**
 * Nonsense for every conversation of the daemon: random bytes, sensible questions, and sensible questions
 * spoilt. The same seed, the same nonsense.
 *
 *     npm run soak:fuzz                                     a million inputs for each
 *     npm run soak:fuzz -- --inputs 20000 --seed 7
 *     npm run soak:fuzz -- --write                          a million, and what came out into docs/reliability.md
 *
 * Every input goes to twins: one hears it in one piece, the other cut anywhere. What must hold:
 *
 *   - nothing is ever thrown
 *   - both twins say the same, to the byte, and end or go on alike
 *   - what is said is well-formed, and answers come in the order of their questions, although some are
 *     given late and in any order
 *   - memory does not grow with the number of inputs, or with one that never ends
 */

import { parseArgs } from 'node:util';
import { GcraTable } from '../../dist/backends/local/gcra-table.js';
import { createHasher } from '../../dist/core/hash.js';
import { seededRandom } from '../../dist/core/random.js';
import { readLimits } from '../../dist/daemon/config/limits.js';
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
const many = (most, make) => Array.from({ length: below(most + 1) }, make);

/** Growth beyond this, once everything has warmed up, would be a leak. */
const MAX_GROWTH_BYTES = 24 * 1024 * 1024;

const BOUNDS = { maxArguments: 12, maxArgumentBytes: 200, maxCommandBytes: 500, maxKeyBytes: 160 };
const MAX_LINE = 40;

/* ---- twins ------------------------------------------------------------------------------------ */

const LIMITS = readLimits(
  {
    everybody: { bucket: { rate: '10/s', burst: 5 }, maxKeys: 500 },
    flights: { adaptive: { initial: 2 }, match: 'flight:*', maxKeys: 500 },
    spaced: { spacing: { every: '50ms' }, match: 'spaced:*', always: true, maxKeys: 500 },
  },
  'limits',
);

/** A daemon without sockets, and with somebody behind it who answers late. */
function daemon(clock) {
  const own = createHasher([3, 5]);
  const registry = new LimiterRegistry({ clock, hasher: own, backendFor: () => undefined });
  registry.apply(LIMITS);
  const router = new Router(
    { allow: [], deny: [], unmatched: 'allow', limits: LIMITS },
    registry,
    own,
    () => 0,
  );
  const late = [];
  const later = (answer) => new Promise((resolve) => late.push(() => resolve(answer)));
  const isLate = (own) => own.length % 7 === 6;
  const served = {
    registry,
    permits: router.permits,
    check: (own) => (isLate(own.key) ? later(router.check(own)) : router.check(own)),
    settle: (permit, result) => router.settle(permit, result),
    route: (own, limit) => router.route(own, limit),
    inspect: (own, limit) => router.inspect(own, limit),
  };
  const isAllowed = (bytes, from, to) => {
    const answer = router.isAllowed(bytes, from, to);
    return (to - from) % 7 === 6 ? later(answer) : answer;
  };
  const gcraTable = new GcraTable({ hasher: own, clock, maxKeys: 500 });
  return {
    late,
    resp: respProtocol({ router: served, gcraTable, version: '0', clock, bounds: () => BOUNDS }),
    line: lineProtocol(isAllowed, () => MAX_LINE),
  };
}

/** One client of one twin. */
class Talk {
  isOver = false;
  #told = [];
  #answers = new ResponseQueue(
    (bytes) => this.#told.push(bytes),
    () => {},
  );

  constructor(protocol) {
    this.handler = protocol(this.#answers);
  }

  say(bytes) {
    if (!this.isOver) this.isOver = !this.handler.onData(bytes);
  }

  /** All that was told since, once those who are late have answered in any order. */
  async heard(late) {
    while (this.#answers.pendingCount > 0) {
      while (late.length > 0) late.splice(below(late.length), 1)[0]();
      await new Promise((turn) => setImmediate(turn)); // what is owed goes out at the end of a tick
    }
    const told = this.#told;
    this.#told = [];
    return told.length === 1 ? told[0] : Buffer.concat(told);
  }
}

function cut(bytes) {
  const pieces = [];
  const typical = oneOf([1, 3, 10, 40]);
  for (let at = 0; at < bytes.length; ) {
    const size = 1 + below(2 * typical);
    pieces.push(bytes.subarray(at, at + size));
    at += size;
  }
  return pieces;
}

/* ---- what is said ----------------------------------------------------------------------------- */

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

const QUESTIONS = [
  () => ['CL.THROTTLE', key(), number(), number(), number(), number()],
  () => ['cl.throttle', key(), '4', '1', '1'],
  () => ['SLUICE.CHECK', oneOf(['*', 'everybody', 'flights', 'nobody']), key(), ...many(1, number)],
  () => ['SLUICE.CHECK', '*', key(), 'HOLD'],
  () => [
    'SLUICE.SETTLE',
    `${below(50)}-0`,
    oneOf(['ok', 'busy', 'ignored', 'fine']),
    ...many(2, number),
  ],
  () => ['SLUICE.SETTLE', `${below(50)}-0`, 'ok', oneOf(['USED', 'RTT', 'RETRYAFTER']), number()],
  () => ['SLUICE.INSPECT', key(), ...many(1, () => oneOf(['*', 'everybody', 'nobody']))],
  () => ['PING', ...many(2, key)],
  () => ['HELLO', ...many(1, () => oneOf(['2', '3', '4', 'x']))],
  () => ['HELLO', '3', ...many(4, () => oneOf(['AUTH', 'SETNAME', 'default', 'a b', 'me']))],
  () => ['AUTH', ...many(3, key)],
  () => ['COMMAND', ...many(2, () => oneOf(['COUNT', 'DOCS', 'INFO', 'LIST', 'ping', 'x']))],
  () => ['CLIENT', ...many(3, () => oneOf(['ID', 'GETNAME', 'SETNAME', 'SETINFO', 'me', 'a b']))],
  () => ['CONFIG', ...many(3, () => oneOf(['GET', 'save', '*', 'x']))],
  () => ['INFO', ...many(2, () => oneOf(['server', 'sluice', 'nonsense']))],
  () => [
    oneOf(['SELECT', 'RESET', 'ECHO', 'GET', 'MSET', '__proto__', 'constructor']),
    ...many(3, key),
  ],
  () => many(14, () => oneOf([...KEYS, ...NUMBERS])),
  () => [oneOf(['QUIT', 'POST', 'host:'])],
];

const asArray = (args) =>
  `*${args.length}\r\n${args.map((own) => `$${own.length}\r\n${own}\r\n`).join('')}`;
const quoted = (word) => (/^[\w.:*-]+$/.test(word) ? word : `"${word}"`);
const asLine = (args) => `${args.map(quoted).join(' ')}${oneOf(['\r\n', '\n'])}`;

const question = () => (random() < 0.7 ? asArray : asLine)(oneOf(QUESTIONS)());
const tag = () =>
  `${random() < 0.9 ? key() : 'y'.repeat(below(2 * MAX_LINE))}${oneOf(['\n', '\r\n'])}`;

const noise = () => Buffer.from(many(80, () => below(256)));
/** Bytes that mean something to a parser come more often than chance would have it. */
const grammar = () =>
  Buffer.from(
    many(60, () =>
      oneOf(['*', '$', '\r\n', '\r', '\n', '"', "'", '\\', '-', '0', '1', '5', ' ', 'a']),
    ).join(''),
  );

/** Longer than the bounds, often enough. */
const run = () => Buffer.alloc(below(10) < 8 ? 0 : below(1200), oneOf(['x', '1', ' ', '"', '*']));

const SPOIL = [
  (bytes, at) => bytes.fill(below(256), at, Math.min(bytes.length, at + 1)),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + below(8))]),
  (bytes, at) =>
    Buffer.concat([bytes.subarray(0, at), grammar().subarray(0, 8), bytes.subarray(at)]),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), bytes.subarray(at >> 1)]),
  (bytes, at) => bytes.subarray(0, at),
  (bytes, at) => Buffer.concat([bytes.subarray(0, at), run(), bytes.subarray(at)]),
];

function spoilt(sensible) {
  let bytes = Buffer.from(sensible, 'latin1');
  for (let times = 1 + below(3); times > 0; times--)
    bytes = oneOf(SPOIL)(bytes, below(bytes.length + 1));
  return bytes;
}

/* ---- what must hold ---------------------------------------------------------------------------- */

/** Where the answer that begins at `at` ends; -1 if it is none. */
function endOfReply(bytes, at) {
  const lineEnd = bytes.indexOf('\r\n', at);
  if (lineEnd < 0) return -1;
  const mark = String.fromCharCode(bytes[at]);
  const text = bytes.toString('latin1', at + 1, lineEnd);
  let end = lineEnd + 2;
  if ('+-_,#'.includes(mark)) return end;
  if (!/^-?\d+$/.test(text)) return -1;
  if (mark === ':') return end;
  if (mark === '$') {
    if (text === '-1') return end;
    end += Number(text) + 2;
    return end <= bytes.length && bytes.toString('latin1', end - 2, end) === '\r\n' ? end : -1;
  }
  if (mark !== '*' && mark !== '%') return -1;
  for (let n = Number(text) * (mark === '%' ? 2 : 1); n > 0; n--) {
    end = endOfReply(bytes, end);
    if (end < 0) return -1;
  }
  return end;
}

function repliesIn(bytes) {
  const replies = [];
  for (let at = 0; at < bytes.length; ) {
    const end = endOfReply(bytes, at);
    if (end < 0) throw new Error(`not an answer: ${JSON.stringify(bytes.toString('latin1', at))}`);
    replies.push(bytes.toString('latin1', at, end));
    at = end;
  }
  return replies;
}

let marks = 0;

/** One input, and what may be said of the answers besides that both twins give the same. */
const RESP_INPUTS = [
  // Sensible ones, each followed by a mark: as many answers as questions, each before its mark.
  () => {
    const from = marks;
    const asked = many(6, question);
    const bytes = Buffer.from(
      asked.map((own) => own + asArray(['ECHO', `mark ${marks++}`])).join(''),
      'latin1',
    );
    const check = (told, isOver) => {
      const replies = repliesIn(told);
      const seen = replies.filter((reply) => /^\$\d+\r\nmark \d+\r\n$/.test(reply));
      const expected = seen.map((_, n) => `mark ${from + n}`);
      const isOrdered = seen.every((reply, n) => reply.includes(expected[n]));
      if (!isOrdered || (!isOver && seen.length !== asked.length)) throw new Error('out of order');
    };
    return { bytes, check };
  },
  () => ({ bytes: spoilt(many(4, question).join('')), check: repliesIn }),
  () => ({ bytes: spoilt(many(4, question).join('')), check: repliesIn }),
  () => ({ bytes: noise(), check: repliesIn }),
  () => ({ bytes: grammar(), check: repliesIn }),
];

const areLineAnswers = (told) => {
  if (!/^(?:OK\n|NO\n)*$/.test(told.toString('latin1'))) throw new Error(`not answers: ${told}`);
};

const LINE_INPUTS = [
  () => {
    const asked = many(20, tag);
    const check = (told, isOver) => {
      areLineAnswers(told);
      if (!isOver && told.length !== asked.length * 3) throw new Error('answers are missing');
    };
    return { bytes: Buffer.from(asked.join(''), 'latin1'), check };
  },
  () => ({ bytes: spoilt(many(10, tag).join('')), check: areLineAnswers }),
  () => ({ bytes: noise(), check: areLineAnswers }),
];

const memory = () => {
  globalThis.gc?.();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
};

async function fuzz(surface, kinds) {
  const clock = new VirtualClock(1_700_000_000_000);
  const twins = [daemon(clock), daemon(clock)];
  const meet = () => twins.map((twin) => new Talk(twin[surface]));
  let [one, other] = meet();
  let warm = 0;
  let ended = 0;
  let bytesSaid = 0;
  for (let n = 0; n < inputs; n++) {
    // Sensible input is counted, so it begins a talk; nonsense may go on with the last one.
    const kind = below(kinds.length);
    const { bytes, check } = kinds[kind]();
    if (kind === 0 || one.isOver || random() < 0.3) [one, other] = meet();
    try {
      one.say(bytes);
      for (const piece of cut(bytes)) other.say(piece);
      const [told, alike] = [await one.heard(twins[0].late), await other.heard(twins[1].late)];
      if (!told.equals(alike)) throw new Error(`one heard ${told}\nthe other ${alike}`);
      if (one.isOver !== other.isOver) throw new Error('only one of them ended');
      check(told, one.isOver);
    } catch (error) {
      console.error(`${surface}, input ${n}: ${JSON.stringify(bytes.toString('latin1'))}`);
      throw error;
    }
    if (one.isOver) ended++;
    bytesSaid += bytes.length;
    clock.advance(below(40));
    if (n === Math.floor(inputs / 10)) warm = memory();
  }
  const grown = memory() - warm;
  if (grown > MAX_GROWTH_BYTES) throw new Error(`${surface}: memory grew by ${grown} bytes`);
  return { surface, ended, bytesSaid, grown };
}

/** Inputs that never end: nobody keeps more of them than the bounds say. */
function endless(surface, starts) {
  const chunk = Buffer.alloc(65_536, 'x');
  const talks = [];
  const before = memory();
  for (const start of starts) {
    const talk = new Talk(daemon(new VirtualClock())[surface]);
    talks.push(talk);
    talk.say(Buffer.from(start));
    for (let n = 0; n < 64 && !talk.isOver; n++) talk.say(chunk);
    if (!talk.isOver) throw new Error(`${surface}: ${JSON.stringify(start)} goes on for ever`);
  }
  const grown = memory() - before;
  if (grown > MAX_GROWTH_BYTES) throw new Error(`${surface}: what never ends took ${grown} bytes`);
}

const mega = (bytes) => (Math.abs(bytes) / 1e6).toFixed(1);

/** Whatever is thrown, differs or is out of order has ended the run, so there is none of it here. */
const COLUMNS = {
  '': ({ surface }) => ({ resp: 'RESP', line: 'line protocol' })[surface],
  inputs: () => whole(inputs),
  bytes: ({ bytesSaid }) => `${(bytesSaid / 1e6).toFixed(0)} MB`,
  'talks ended (nonsense, or QUIT)': ({ ended }) => whole(ended),
  thrown: () => 0,
  'answers that differed': () => 0,
  'out of order': () => 0,
  'memory at the end, beside that after a tenth': ({ grown }) =>
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
console.log('nothing was thrown, no answer depended on how the bytes were cut, all came in order');
if (writes) {
  const about = madeBy('npm run soak:fuzz', `${(performance.now() / 1000).toFixed(0)} s`);
  writeFigures('docs/reliability.md', 'fuzz', `${table(COLUMNS, results)}\n\n${about}`);
}
